"""Lines that two processes have written, as far as one can tell them from those of one process: by what no program prints, and by what
the lines before them had. What comes of them may lose a field; it must not say a value that nobody printed.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import pytest

from formats.told import records

FIXTURES = Path(__file__).parent / "fixtures"
BAR = "Steps:  28%|██▊       | {} [00:02<00:05,  7.97it/s, {}]"
REFUSED = {
    "two counts in a bar": BAR.format("1717/60", "loss=0.724, lr=0.00147"),
    "two totals in a bar": BAR.format("17/6060", "loss=0.724, lr=0.00147"),
    "a bar in a bar": BAR.format("17/60", "loss=0.0:00,  7.15it/s, loss=1.79"),
    "zeros before a number": BAR.format("17/60", "loss=00147"),
    "the end of another number": "step: 20, loss: 0.5123.483",
    "a warning behind a loss": "step 20 | loss: 10.8031*******75",
    "a number behind a loss": "Step [100/300], Loss: 1.40082 4711 torch",
    "a whole number for a loss": "step: 20, loss: 96",
    "a key twice": "step: 20, loss: 0.5, lr: 1e-4 step: 20, loss: 0.7",
    "a step with a unit": "step 1w model from scratch000: train loss 3.2796, val loss 3.96",
    "nanoGPT's decimals": "step 750: train loss 3.702827, val loss 3.7113",
    "llm.c's decimals": "s:1 trl:10.800000 norm:1.12",
    "llm.c's columns": "step  502/1200 | loss 3.996411 (+1.52z)| norm 0.5173 (+0.46z)| lr 4.27e-0 (-0.01z)| 142.79 ms | 3684328 tok/s",
    "nanochat's padding": "step 864432/00100 (4.00%) | loss: 10.258497 | lrm: 0.49 | dt: 432.01ms | tok/sec: 1,213,604 | epoch: 1",
    "modded-nanogpt's total": "step:1750/175 val_loss:3.1000 train_time:10233ms step_avg:81.87ms",
    "MaxText's decimals": "completed step: 22, seconds: 5.426, TFLOP/s/device: 140.988, loss: 9.39010, lm_loss: 9.390",
    "Keras's decimals": "13/50 - 4s - 9ms/step - loss: 1.71481552 - accuracy: 0.3908",
    "a key twice in JSON": '{"step": 10, "loss": 2.25, "step": 20, "loss": 1.5}',
    "a whole number for verl's loss": "step:2 - train/loss:5396891288259 - train/lr:2.0000000000000003e-06 - train/mfu:0.31946818795207316",
    "a whole number for mmengine's loss": '{"lr": 0.005, "data_time": 0.0125, "loss":49, "time": 0.25, "epoch": 1, "step": 10}',
    "a whole number for a result of mmengine": '{"accuracy": 96.898, "data_time": 0.00071, "loss":49, "time": 0.000754, "step": 3}',
    "a whole number for a loss in a dictionary": "{'loss': 556, 'grad_norm': 1.8771879511, 'learning_rate': 0.034736, 'epoch': 0.37}",
    "a whole number for a rate in a dictionary": "{'loss': 2.1, 'grad_norm': 1.7748, 'learning_rate': 275, 'epoch': 1.2}",
    "a rate of hundreds": "{'loss': '0.9133', 'grad_norm': '0.7892', 'learning_rate': '979', 'epoch': '1.629'}",
    "zeros where version 5 prints an exponent": "{'loss': '4.204', 'grad_norm': '1.881', 'learning_rate': '0.000009944', 'epoch': '0.35'}",
    "half an inf": "{'loss': in05, 'learning_rate': 2e-05, 'epoch': 1.3}",
    "ms-swift's decimals": "{'loss': 1.888751333e-05, 'epoch': 1.25, 'global_step/max_steps': '25/60', 'elapsed_time': '1m 30s'}",
    "a whole number for ms-swift's rate": '{"loss": 4.24308252, "learning_rate": 2313, "global_step/max_steps": "28/40"}',
    "a loss with the unit of a rate": "step  401/1200 | 145.71 ms | 55.4% bf16 MFU | 3598264 loss 3.289 tok/s",
    "a loss with the unit of a time": "12:01:00 SUCCESS Step 1 |  14.79s | Loss 0.20 seconds",
    "a loss with the unit of a size": "09:11:36 SUCCESS Step 9 |   2.21s | Loss 179.8 GiB (77.6%)",
    "a loss with the unit of another": "step 1200/1200 | loss 3.5216 MFU | 3520852 tok/s",
    "millions for a loss": "iter 1000: loss 9M",
    "a path behind a loss": "step 250: train loss 5.11/distributed/run.py:770, val loss 5.1432",
    "torchtitan's, without its head": "1:10,757 - root - INFO - step: 10  loss: -1.00000  grad_norm:  2.9548  memory: 38.61GiB(48.29%)",
    "a zero before a bar's count": BAR.format("017/60", "loss=0.00491"),
    "another line of ImageNet's": "Epoch: [0][  1/30]\tTime  0.201 ( 0.301)\tLoss 6.9Epoch: [0][  1/30]\tTime  0.838 ( 0.852)"
    "\tLoss 6.000e+00 (6.9000e+00)\tAcc@1  15.62 ( 14.50)",
    "the place of another line of ImageNet's": "Epoch: [1][ 20/30]\tTim[1][ 10/30]\tTime  0.210 ( 0.310)\tLoss 5.7000e+00 (5.7000e+00)",
    "another line of prime-rl's": "12:03:15 SUCCESS Step 1 |  14.79s | Loss 0.0011 | Grad. Norm 0.2373 | LR 1.00e-06 | Through4.33s | "
    "Throughput 15350 tokens/s | MFU 31.1%",
    "a name twice in prime-rl's": "12:03:15 SUCCESS Step 1 |  14.79s | Loss 0.0011 | LR 1.00e-06 | Loss 0.0019 | Throughput 15350 tokens/s",
    "another line of OpenCLIP's": "2024-02-11,06:00:50 | INFO | Train Epoch: 0 [ 823296/8192000 (10%)] Loss: 7.1| Train Epoch: 1 "
    "[   4096/8192000 (0%)] Loss: 6.99834 (7.539) Data (t): 0.089 Batch (t): 0.368, 4385.21/s LR: 0.000075 Logit Scale: 14.693",
    "a name twice in Detectron2's": "[11/02 14:02:15 d2.utils.events]:  eta: 0:14:41  iter: 1919  total_loss: 3.19  loss_cls: 1.532  "
    "total_loss: 3.11  loss_cls: 1.244  time: 0.1887  last_time: 0.4253  lr: 0.0067983  max_mem: 5123M",
    "a name twice in Megatron's": " iteration       10/   10640 | consumed samples:        10240 | elapsed time per iteration (ms): "
    "5321.4 | learning rate: 1.382E-05 | global batch size:  1024 | lm loss: 1.432485E+01 | global batch size:     4 |",
    "litgpt's decimals": "Epoch 1 | iter 165 step 41 | loss train: 8.97, val: n/a | iter time: 415.75 ms",
    "a whole number for build-nanogpt's loss": "step    2 | loss: 1004 | dt: 91.90ms | tok/sec: 178287.70",
    "a whole number for verl's rate": "step:11 - train/loss:1.5402 - train/lr(1e-3):9807 - train/global_tokens:65536 - train/mfu:0.3",
    "an evaluation's step in slime's": "model.py:918 - step 4: {'train/loss': -0.0052309694088, 'eval/step': 3}",
    "another step in slime's": "model.py:918 - step 72491: {'train/loss': -0.0052309694088, 'train/step': 1}",
    "half of fairseq's exponent": "epoch 001:    300 / 48213 loss=10.55, ppl=1663.87, wps=98672, num_updates=300, lr=7.4e-0, wall=819",
    "more digits than a float": '{"step": 10, "loss": 0.2994443828599717665958767}',
}


@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED.keys())
def test_a_line_of_two_processes_tells_nothing(line: str) -> None:
    told = records(line)

    assert [record.fields for record in told if record.fields] == []


LOST = {
    "OpenRLHF's rate without its exponent": (
        "Episode [1/1]:  35%|███       | 7/20 [13:46<25:34, 118.00s/it, policy_loss=-0.0045, actor_lr=38, kl=0.0072]",
        "learning_rate",
    ),
    "the rate of another in DeepSpeed's list": (
        "[2026-03-07 10:00:20,100] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[9.00, Time/seq 0.12s.9e-06, 9.2e-06], "
        "mom=[(0.5, 0.15), (0.3, 0.55)]",
        "learning_rate",
    ),
}


@pytest.mark.parametrize(("line", "field"), LOST.values(), ids=LOST.keys())
def test_a_number_that_another_process_cut_is_lost(line: str, field: str) -> None:
    told = records(line)

    assert [record.fields for record in told if field in record.fields] == []
    assert told
    assert told


DICTIONARY = "{{'loss': 1.8421, 'grad_norm': 0.7312498688697815, 'learning_rate': 4.829e-05, 'epoch': {}}}"
JSON_LINE = '{{"current_steps": {}, "total_steps": 50, "loss": 2.5, "lr": 5e-05, "epoch": 0.5, "elapsed_time": "0:00:01"}}'
RICH = "Epoch {}/4 ━━━━━━━━━━━━━━━━ {}/16 0:00:01 • 0:00:02 9.10it/s v_num: 0.000 train_loss: {}"
KERAS = "782/782 - 19s - 24ms/step - accuracy: 0.3592 - loss: {}"
OPENRLHF = "Train step of epoch 0:  {}%|███       | {}/20 [00:06<00:15,  1.10s/it, {}]"
TORCHTUNE = "Step {} | loss:{} lr:2e-05 tokens_per_second_per_gpu:2841.17 grad_norm:0.81 "
OLMO = "2026-02-03 09:30:4{0}.417\tnode1:0\tolmo.train:967\tINFO\t[step={0}/739328,epoch=0]"
AFTER_OTHERS = {
    "a dictionary without the epoch that the ones before had": (
        [DICTIONARY.format("0.34"), DICTIONARY.format("0.35")],
        "{'loss': 0.383769, 'grad_norm': 0.7, 'learning_rate': 4.8e-05}",
    ),
    "a line of LLaMA-Factory's without the time that the ones before had": (
        [JSON_LINE.format(20), JSON_LINE.format(22)],
        '{"current_steps": 24, "total_steps": 50, "loss": 3.2876651, "total_tokens": 75072}',
    ),
    "another total in Lightning's rich bar": (
        [RICH.format(0, 4, "0.512"), RICH.format(0, 5, "0.411")],
        "Epoch 0/4 ━━━━━━━━━━━━━━━━ 6/6 0:00:01 • 0:00:02 9.10it/s v_num: 0.000 train_loss: 0.112",
    ),
    "an evaluation after the epoch that the other rank begins": (
        ["Epoch 11/20", KERAS.format("1.4346"), "Epoch 12/20", KERAS.format("1.2106"), "Epoch 12/20"],
        "157/157 - 2s - 11ms/step - accuracy: 0.7211 - loss: 0.7488",
    ),
    "more batches than Keras has": (
        ["Epoch 1/4", " 50/50 [==============================] - 4s 9ms/step - loss: 1.7863 - accuracy: 0.2224", "Epoch 2/4"],
        "113/50 [======>.......................] - ETA: 4s - loss: 1.5863 - accuracy: 0.3224",
    ),
    "half of Keras's line": (["Epoch 1/4", KERAS.format("1.4346"), "Epoch 2/4"], KERAS.format("1.2106").replace("782/", "82/")),
    "half a name in OpenRLHF's bar": (
        [OPENRLHF.format(25, 5, "gpt_loss=1.99, loss_mean=2.0, lr=9e-6, grad_norm=0.236")],
        OPENRLHF.format(30, 6, "gpt_loss=1.97, loss_mea, lr=9e-6, grad_norm=0.237"),
    ),
    "too few digits for torchtune": (
        [TORCHTUNE.format(at, f"1.86370657254102{at}") for at in range(1, 6)],
        TORCHTUNE.format(6, "1.86370657254"),
    ),
    "another total of OLMo's": ([OLMO.format(1), OLMO.format(2)], OLMO.format(3).replace("739328", "79328")),
}


@pytest.mark.parametrize(("before", "line"), AFTER_OTHERS.values(), ids=AFTER_OTHERS.keys())
def test_a_line_that_is_not_as_the_ones_before_tells_nothing_of_training(before: list[str], line: str) -> None:
    told = records(*before, line)

    training = [record for record in told if record.fields.keys() & {"loss", "learning_rate", "target_steps"}]
    assert training
    assert [record.fields for record in training if record.line > len(before)] == []


@pytest.mark.parametrize(("before", "line"), [AFTER_OTHERS[name] for name in list(AFTER_OTHERS)[:2]], ids=list(AFTER_OTHERS)[:2])
def test_a_program_that_prints_less_from_now_on_is_believed_from_its_second_line_on(before: list[str], line: str) -> None:
    told = records(*before, line, line)

    assert [record.line for record in told if record.line > len(before) and "loss" in record.fields] == [len(before) + 2]


# What stands between two numbers, and what stands there where half of another line does.
REWORDED = {
    "detectron2/plain": ("  loss_box_reg: ", "  loss_boxoss_cls: "),
    "gpt_neox/plain": (" | learning rate: ", " | learning ra learning rate: "),
    "imagenet/plain": ("\tData ", "\tDaData "),
    "maxtext/plain": (", Tokens/s/device: ", ", Tokens/s/device: 90kens/s/device: "),
    "mmengine/plain": ("  data_time: ", "  data_timory: 5  data_time: "),
    "open_clip/plain": (" Logit Scale: ", " Logit Scale: 14.834 Contrastive_loss: "),
    "prime_rl/plain": (" | Mismatch KL ", " | Eismatch KL "),
    "timm/plain": ("/s  (", "/s  (0.557s, 46/s  ("),
    "torchtune/plain": (" peak_memory_alloc:", " peak_memoeak_memory_alloc:"),
}


@pytest.mark.parametrize("case", REWORDED)
def test_a_line_worded_as_none_before_tells_nothing_unless_the_next_one_is_too(case: str) -> None:
    old, new = REWORDED[case]
    lines = 2 * (FIXTURES / case / "input.log").read_text(encoding="utf-8").splitlines()
    before = records(*lines)
    training = [record.line - 1 for record in before if "loss" in record.fields and old in lines[record.line - 1]]
    torn, again = training[-2:]

    told = records(*(line.replace(old, new, 1) if at in (torn, again) else line for at, line in enumerate(lines)))

    lost = {record.line for record in before if "loss" in record.fields} - {record.line for record in told if "loss" in record.fields}
    assert lost == {torn + 1}


CONSOLE = """\
***** Running training *****
  Num examples = 6,400
  Num Epochs = 1
  Total train batch size (w. parallel, distributed & accumulation) = 16
  Total optimization steps = 400

  4%|▍         | 18/400 [00:01<03:11,  2.00it/s]
{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.05}

  5%|▌         | 20/400 /usr/lib/python3.11/site-packages/torch/utils/c[00:01<03:10,  2.00it/s]
 10%|▉         | 39/400 [00:02<03:00,  2.00it/s]
{'loss': 1.4, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}

 10%|█         | 40/400 [00:02<03:00,  2.00it/s]
"""


def test_the_bar_after_one_that_a_warning_tore_does_not_tell_the_step_of_the_line_before_it() -> None:
    told = records(*CONSOLE.splitlines())

    assert [(record.fields["step"], record.fields["loss"]) for record in told if "loss" in record.fields] == [(20, 1.5), (40, 1.4)]


REDRAWN = "Steps:  {}%|██▊       | {}/60 [00:02<00:05,  7.97it/s, loss={}]"
# tqdm moves the count, and then the script changes the values: of two redraws of a count the second is right.
REDRAWS = [(28, 17, 0.9), (28, 17, 0.8), (30, 18, 0.8), (30, 18, 0.7), (32, 19, 0.7), (32, 19, 0.6), (33, 20, 0.6)]


def losses(*lines: str) -> dict[float, float]:
    """What is told of each step."""
    return {record.fields["step"]: record.fields["loss"] for record in records(*lines) if "loss" in record.fields}


def test_a_warning_between_two_redraws_of_a_count_does_not_make_the_first_of_them_right() -> None:
    drawn = [REDRAWN.format(*one) for one in REDRAWS]

    told = losses("\r".join(drawn[:3]) + "UserWarning: lr_scheduler.step() before optimizer.step()", "\r".join(drawn[3:]))

    assert told == {17: 0.8, 18: 0.7, 19: 0.6}


def test_a_count_of_which_the_last_redraw_is_torn_is_lost() -> None:
    drawn = [REDRAWN.format(*one) for one in REDRAWS]
    torn = drawn[3].replace("00:05,  7", "00:0UserWarning: lr_scheduler.step() before optimizer.step()\n5,  7")

    told = losses("\r".join([*drawn[:3], torn, *drawn[4:]]))

    assert told == {17: 0.8, 19: 0.6}


OLMO_CORE = "2026-02-03 09:34:5{0}.360\tnode1:0\tolmo_core.train.callbacks.console_logger:90\tINFO\t[step={0}/1000,epoch=1]"
FIGURES = ("    train/CE loss=10.8{}", "    train/PPL=48,849", "    optim/total grad norm=1.86{}", "    throughput/device/MFU=40.19")
COMPOSER = ("\t Train time/epoch: 0", "\t Train loss/train/total: 9.355{}", "\t Train l2_norm/grad/global: 1.135{}")
OPENING = "========================= Step {}/6 ========================="
NEMO_RL = ("📊 Training Results:", "  • Loss: -0.005{}", "⏱️  Timing:", "  • Total step time: 111.3{}s")


@pytest.mark.parametrize(
    ("header", "figures"),
    [
        (OLMO_CORE, FIGURES),
        ("[batch={}/4800]:", COMPOSER),
        (OPENING, NEMO_RL),
    ],
    ids=["olmo_core", "composer", "nemo_rl"],
)
def test_figures_behind_a_header_that_is_torn_are_not_those_of_the_step_before(header: str, figures: tuple[str, ...]) -> None:
    blocks = [[header.format(step), *(one.format(step) for one in figures)] for step in (1, 2, 3, 4)]
    blocks[2][0] = blocks[2][0][:12] + "gpu-17:4711:4820 [3] NCCL INFO Channel 03/08 : 0[7000] -> 1[f000] via P2P/CUMEM"

    told = records(*(line for block in blocks for line in block))

    shown = [(record.fields.get("step"), (record.line - 1) // len(blocks[0]) + 1) for record in told if "loss" in record.fields]
    assert shown[1:] == [(2, 2), (4, 4)]  # composer's first header is not known as its own


@pytest.mark.parametrize(
    "torn", ["2026-02-03 09:34:51.360\tnode1:0\tolmo_core.train.callba12 workers are up", "console_logger:90\tINFO\t[step=3/1000,epoch=1]"]
)
def test_either_half_of_a_header_ends_the_block_before_it(torn: str) -> None:
    first = [OLMO_CORE.format(1), *(line.format(1) for line in FIGURES)]
    second = [OLMO_CORE.format(2), *(line.format(2) for line in FIGURES[1:])]

    told = records(*first, *second, torn, FIGURES[0].format(3))

    assert [record.fields["step"] for record in told if "loss" in record.fields] == [1]


def test_the_beginning_of_a_step_of_nemo_rl_ends_the_one_before_it() -> None:
    first = [OPENING.format(1), *(line.format(1) for line in NEMO_RL)]

    told = records(*first, OPENING.format(2), "========================= Ste12 workers are up", *(line.format(3) for line in NEMO_RL))

    assert [record.fields["step"] for record in told if "loss" in record.fields] == [1]


LIGHTNING = "Epoch 0: {:3d}%|█████     | {}/50 [00:00<00:00, 26.77it/s, v_num=0, train_loss={}, val_loss=0.341]"
LIGHTNING_REDRAWS = [(10, "0.9"), (10, "0.8"), (12, "0.8"), (12, "0.7"), (14, "0.7"), (16, "0.6"), (16, "0.5"), (18, "0.5")]


@pytest.mark.parametrize(
    "torn",
    [
        LIGHTNING.format(24, 12, "0.7")[:-6] + "WARNING:root:tokenizer has 32000 entries, 17 of 4096 unknown",
        "WARNING:root:tokenizer has 32000 entries, 17 of 4" + LIGHTNING.format(24, 12, "0.7"),
    ],
    ids=["ends in a warning", "begins behind a warning"],
)
def test_the_first_redraw_after_a_torn_one_of_lightnings_is_not_right(torn: str) -> None:
    drawn = [LIGHTNING.format(2 * count, count, loss) for count, loss in LIGHTNING_REDRAWS]

    told = losses(*drawn[:3], torn, *drawn[4:])

    assert told.items() <= {10: 0.8, 12: 0.7, 16: 0.5}.items()
    assert told.keys() >= {10, 16}


def test_values_of_openrlhf_whose_first_redraw_is_torn_have_no_step() -> None:
    """They change before the count moves."""
    redraws = [
        (25, 5, "gpt_loss=2.25"),
        (25, 5, "gpt_loss=2.0"),
        (30, 6, "gpt_loss=2.0"),
        (35, 7, "gpt_loss=1.75"),
        (35, 7, "gpt_loss=1.5"),
    ]

    told = records(*(OPENRLHF.format(*one) for one in redraws))

    shown = [(record.fields.get("step"), record.fields["loss"]) for record in told if "loss" in record.fields]
    assert shown == [(5, 2.25), (5, 2.0), (None, 1.75), (7, 1.5)]


@pytest.mark.parametrize("case", REWORDED)
def test_the_first_value_that_is_not_finite_is_told_after_many_ordinary_lines(case: str) -> None:
    name = case.partition("/")[0]
    ordinary = 2 * (FIXTURES / case / "input.log").read_text(encoding="utf-8").splitlines()
    breaking = (FIXTURES / name / "nonfinite" / "input.log").read_text(encoding="utf-8").splitlines()

    alone, behind = (
        [one for one in records(*lines) if not all(map(isfinite, one.fields.values()))] for lines in (breaking, ordinary + breaking)
    )

    assert alone
    assert {one.line for one in alone} <= {one.line - len(ordinary) for one in behind}
