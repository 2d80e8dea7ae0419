"""Bars of several ranks in one stream without a label: whose step a value is of is not known, so none is told with it."""

from __future__ import annotations

from itertools import pairwise

from formats.told import records

TRAINER = "{:3d}%|{}| {}/400 [00:0{}<03:10,  2.00it/s]"


def trainers_bar(step: int) -> str:
    return TRAINER.format(step * 100 // 400, "█         ", step, step % 10)


def dictionary(loss: str, step: int) -> str:
    return f"{{'loss': '{loss}', 'grad_norm': '0.5', 'learning_rate': '1e-05', 'epoch': '{step / 400:.4g}'}}"


def test_a_line_of_the_trainers_has_no_step_once_its_bar_has_gone_back() -> None:
    first = [trainers_bar(20), dictionary("1.5", 20), trainers_bar(20)]
    second = [trainers_bar(18), trainers_bar(20), dictionary("1.25", 20), trainers_bar(22), dictionary("nan", 20), trainers_bar(20)]

    told = records(*first, *second)

    shown = [(record.fields.get("step"), str(record.fields["loss"])) for record in told if "loss" in record.fields]
    assert shown == [(20, "1.5"), (None, "1.25"), (None, "nan")]


def test_an_epoch_that_goes_back_is_another_ranks_too() -> None:
    """Out of a buffer come lines without bars between them."""
    burst = [dictionary(f"1.{step}", step) for step in (20, 40, 60)]

    told = records(trainers_bar(61), *burst, trainers_bar(64), *burst, trainers_bar(66))

    steps = [record.fields.get("step") for record in told if "loss" in record.fields]
    assert [step is None for step in steps] == [False, False, False, True, True, True]


def test_a_training_that_begins_anew_in_the_same_file_has_its_steps_again() -> None:
    first = [trainers_bar(40), dictionary("1.5", 40), trainers_bar(40), trainers_bar(20), dictionary("1.75", 20), trainers_bar(20)]
    second = [trainers_bar(0), trainers_bar(19), dictionary("1.25", 20), trainers_bar(20)]

    told = records(*first, *second)

    assert [record.fields.get("step") for record in told if "loss" in record.fields] == [40, None, 20]


def test_no_line_of_the_trainers_is_of_step_zero() -> None:
    told = records(trainers_bar(20), dictionary("1.5", 20), trainers_bar(20), dictionary("1.25", 40), trainers_bar(0), trainers_bar(1))

    assert [record.fields.get("step") for record in told if "loss" in record.fields] == [20, 40]


def test_one_rank_alone_has_its_steps_again_after_a_while() -> None:
    lines = [trainers_bar(10), dictionary("1.5", 10), trainers_bar(10), trainers_bar(5)]
    for step in range(11, 70):
        lines += [trainers_bar(step), dictionary("1.5", step), trainers_bar(step)]

    told = records(*lines)

    steps = [record.fields.get("step") for record in told if "loss" in record.fields]
    assert steps[:2] == [10, None]
    assert steps[-3:] == [67, 68, 69]


LIGHTNING = "Epoch 0: {:3d}%|█████     | {}/50 [00:00<00:00, 26.77it/s, v_num=0, train_loss={}]"


def lightnings_bars(step: int, before: str, now: str) -> list[str]:
    """The two redraws of a count: the first one has the values of the count before."""
    return [LIGHTNING.format(step * 2, step, before), LIGHTNING.format(step * 2, step, now)]


def test_values_behind_bars_of_two_ranks_are_told_without_a_step_and_the_highest_step_without_values() -> None:
    first = [*lightnings_bars(10, "0.900", "0.800"), *lightnings_bars(12, "0.800", "0.700")]
    second = lightnings_bars(10, "0.950", "0.850")
    mixed = [
        *(LIGHTNING.format(28, 14, "0.700"), LIGHTNING.format(24, 12, "0.850"), LIGHTNING.format(28, 14, "nan.0")),
        *(LIGHTNING.format(24, 12, "0.750"), LIGHTNING.format(32, 16, "nan.0")),
    ]

    told = records(*first, *second, *mixed)

    shown = [(record.fields.get("step"), str(record.fields["loss"])) for record in told if "loss" in record.fields]
    assert shown == [(10, "0.8"), (None, "0.7"), (None, "0.85"), (None, "nan"), (None, "0.75")]
    assert [record.fields["step"] for record in told if "step" in record.fields] == [10, 12, 14]


def test_a_trainer_that_goes_on_from_its_checkpoint_tells_steps_and_values_together_after_a_while() -> None:
    values = [f"0.{digits}" for digits in range(100, 140)]
    lines = [*lightnings_bars(40, "0.900", "0.800"), *lightnings_bars(41, "0.800", "0.700")]
    for step, (before, now) in enumerate(pairwise(values), 10):
        lines += lightnings_bars(step, before, now)

    told = records(*lines)

    steps = [record.fields.get("step") for record in told if "loss" in record.fields]
    assert steps[:3] == [40, None, None]
    assert steps[-3:] == [46, 47, 48]


def test_a_trainer_that_says_that_it_goes_on_tells_steps_and_values_together_at_once() -> None:
    lines = [*lightnings_bars(40, "0.900", "0.800"), "Restored all states from the checkpoint at /out/last.ckpt"]

    told = records(
        *lines, *lightnings_bars(20, "0.850", "0.950"), *lightnings_bars(21, "0.950", "0.840"), *lightnings_bars(22, "0.840", "0.820")
    )

    assert [record.fields["step"] for record in told if "loss" in record.fields] == [40, 20, 21, 22]


OPENRLHF = "Train step of epoch 0: {:3d}%|█████     | {}/50 [00:13<00:13,  1.10s/it, gpt_loss={}, loss_mean=1.57, lr=6e-6]"


def openrlhfs_bar(count: int, loss: str) -> str:
    return OPENRLHF.format(count * 2, count, loss)


def test_values_that_another_ranks_bar_repeats_are_told_once() -> None:
    lines = [openrlhfs_bar(10, "2.5"), openrlhfs_bar(10, "2.25"), openrlhfs_bar(11, "2.5"), openrlhfs_bar(11, "2.25")]

    told = records(*lines)

    assert [(record.fields["step"], record.fields.get("loss")) for record in told] == [(10, 2.5), (10, 2.25), (11, None)]


def test_values_behind_bars_of_two_ranks_that_drift_apart_have_no_step() -> None:
    lines = [openrlhfs_bar(10, "2.5"), openrlhfs_bar(12, "2.5"), openrlhfs_bar(12, "2.25"), openrlhfs_bar(11, "2.125")]

    told = records(*lines, openrlhfs_bar(13, "nan"))

    assert [(record.fields.get("step"), str(record.fields.get("loss"))) for record in told] == [
        *((10, "2.5"), (12, "None"), (12, "2.25")),
        *((None, "2.125"), (13, "None"), (None, "nan")),
    ]


def keras_line(loss: str) -> str:
    return f"600/600 - 14s - 23ms/step - loss: {loss} - val_loss: 2.5000"


def test_an_epoch_of_which_two_workers_print_their_line_is_no_longer_known() -> None:
    lines = ["Epoch 1/9", "Epoch 1/9", keras_line("1.5000"), keras_line("1.6000"), "Epoch 2/9", keras_line("1.4000"), "Epoch 2/9"]

    told = records(*lines, keras_line("1.7000"))

    shown = [(record.fields.get("step"), record.fields["loss"]) for record in told if "loss" in record.fields]
    assert shown == [(600, 1.5), (None, 1.6), (None, 1.4), (None, 1.7)]


def test_the_step_of_several_workers_is_that_of_the_first_of_them() -> None:
    bars = [(1, 1), (1, 3), (1, 2), (1, 4), (1, 599), (2, 1), (1, 600), (2, 2), (2, 1), (2, 4), (2, 3)]
    lines, begun = ["Epoch 1/9"], 1
    for epoch, count in bars:
        if epoch > begun:
            lines.append("Epoch 2/9")
            begun = epoch
        lines.append(f"{count:3d}/600 [=====>..........] - ETA: 20s - loss: 1.{epoch}{count:03d}")

    told = records(*lines)

    assert [record.fields["step"] for record in told if "step" in record.fields] == [1, 3, 4, 600, 601, 602, 604]


def test_the_first_worker_is_found_again_when_its_bar_has_been_torn_for_a_while() -> None:
    counts = [1, 3, 2, *(count for step in range(200, 230) for count in (step, step - 1))]

    told = records("Epoch 1/9", *(f"{count:3d}/600 [=====>..........] - ETA: 20s - loss: 1.2345" for count in counts))

    steps = [record.fields["step"] for record in told if "step" in record.fields]
    assert steps[:2] == [1, 3]
    assert steps[-1] == 229
    assert steps == sorted(steps)


def test_a_keras_run_that_goes_on_within_an_epoch_has_its_steps_again_after_a_few_bars() -> None:
    bar = "{:3d}/600 [=====>..........] - ETA: 20s - loss: 1.2345"
    first = ["Epoch 1/9", *map(bar.format, range(1, 30))]

    told = records(*first, "Epoch 1/9", *map(bar.format, range(20, 40)))

    steps = [record.fields.get("step") for record in told if "loss" in record.fields]
    assert steps[29:34] == [None] * 5
    assert steps[34:] == list(range(25, 40))


def test_a_keras_run_that_starts_over_once_keeps_its_steps() -> None:
    lines = ["Epoch 1/9", keras_line("1.5000"), "Epoch 2/9", "Traceback (most recent call last):", "Epoch 2/9", keras_line("1.4000")]

    told = records(*lines, "Epoch 3/9", keras_line("1.3000"))

    assert [record.fields["step"] for record in told if "loss" in record.fields] == [600, 1200, 1800]


def test_a_bar_that_goes_back_within_an_epoch_is_another_workers() -> None:
    bars = [f"{count:3d}/600 [=====>..........] - ETA: 20s - loss: 1.{count:04d}" for count in (1, 40, 20, 60)]

    told = records("Epoch 1/9", *bars)

    assert [record.fields.get("step") for record in told if "loss" in record.fields] == [1, 40, None, None]


def test_the_step_of_a_stream_of_several_bars_is_the_highest_one() -> None:
    bars = [trainers_bar(0), trainers_bar(20), dictionary("1.5", 20), *map(trainers_bar, (20, 18, 22, 19, 23, 21))]

    told = records(*bars)

    assert [record.fields["step"] for record in told if "step" in record.fields] == [20, 22, 23]


ACCELERATE = "Steps: {:3d}%|█████     | {}/50 [00:02<00:05,  7.97it/s, loss={}]"


def test_several_bars_of_a_script_begin_no_new_count_with_each_other() -> None:
    redraws = [(10, "0.9"), (10, "0.8"), (12, "0.8"), (12, "0.7"), (10, "0.95"), (10, "0.85"), (14, "0.7"), (14, "0.6"), (16, "0.6")]

    told = records(*(ACCELERATE.format(2 * count, count, loss) for count, loss in redraws))

    assert [record.fields["step"] for record in told if "step" in record.fields] == [10, 12, 14]
    assert [(record.fields.get("step"), record.fields["loss"]) for record in told if "loss" in record.fields] == [
        *((10, 0.8), (None, 0.7), (None, 0.85), (None, 0.6))
    ]


def test_the_closing_word_of_one_rank_does_not_make_the_others_evaluation_a_training() -> None:
    closing = (
        "{'train_runtime': '8.2', 'train_samples_per_second': '57.1', 'train_steps_per_second': '7.2', 'train_loss': '3.5', 'epoch': '1'}"
    )
    lines = [trainers_bar(300), dictionary("1.5", 300), trainers_bar(300), trainers_bar(292), trainers_bar(400), closing]
    evaluated = "100%|██████████| 10/10 [00:00<00:00, 189.71it/s]"
    others = [dictionary("1.25", step) for step in range(300, 400, 4)]

    told = records(*lines, evaluated, *others, evaluated)

    assert {record.fields.get("target_steps", 400) for record in told} == {400}
