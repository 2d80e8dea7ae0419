"""Configuration: what is left alone, and what stops the start with a message in four parts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from odd_configs import FULL as EVERYTHING
from odd_configs import TEXTS, verdict
from trainer_exporter import config
from trainer_exporter.config_model import ModelConfig
from trainer_exporter.errors import ConfigError

FULL = """
sources:
  - path: /data/runs/*/train.log
    run: llama-sft
    labels: {team: nlp, page: "no"}
    owner: here
    model:
      parameters: 37B
      active_parameters: 8030261248
      frozen: 7.5B
      layers: 32
      hidden: 4096
      sequence_length: 8192
      global_batch_size: 512
      gpus: 64
      gpu: NVIDIA H100 80GB HBM3
      dtype: bf16
      attention: causal
limits: {history: 64MiB, line: 8KiB, files: 10, max_age: 7d}
runs: {name: "{job}", latch: 2m, ended_grace: 1h, failed_grace: 1d, maximum: 8}
gpu: {enabled: true, metrics: false, interval: 15s, deadline: 1m, devices: 8}
processes: {discover: true, pids: [4711], cgroups: [/system.slice/train-*.service]}
attribution: {kubelet: true, kubelet_socket: /run/kubelet.sock, job_mapping_dir: /var/run/jobs}
web: {listen_address: "127.0.0.1:9999", enable_lifecycle: true}
"""


def test_everything_can_be_set() -> None:
    loaded = config.parse(FULL, file="config.yml")

    source = loaded.sources[0]
    assert (source.path, source.run, source.labels["page"], source.owner) == ("/data/runs/*/train.log", "llama-sft", "no", "here")
    assert source.model == ModelConfig(
        37_000_000_000, 8_030_261_248, 7_500_000_000, 32, 4096, 8192, 512, 64, "NVIDIA H100 80GB HBM3", "bf16", "causal"
    )
    assert (loaded.limits.history_bytes, loaded.limits.max_age_s) == (64 << 20, 7 * 86400.0)
    assert (loaded.runs.latch_s, loaded.runs.maximum) == (120.0, 8)
    assert (loaded.gpu.metrics, loaded.gpu.devices) == (False, 8)
    assert loaded.processes == config.ProcessesConfig(discover=True, pids=(4711,), cgroups=("/system.slice/train-*.service",))
    assert loaded.attribution == config.AttributionConfig(True, "/run/kubelet.sock", "/var/run/jobs")
    assert loaded.web.listen_address == "127.0.0.1:9999"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "sources:\n", "sources: []\ngpu:\n"])
def test_an_empty_configuration_is_all_defaults(text: str) -> None:
    loaded = config.parse(text, file="config.yml")

    assert loaded == config.Config(file="config.yml")


BROKEN = {
    "unknown_key": ("runz: {}", "runz", "an unknown key", "gpu, limits, processes, runs, sources, web"),
    "unknown_key_inside": ("sources: [{path: /x, pth: /y}]", "sources[0].pth", "an unknown key", "labels, model, owner, path, run"),
    "key_near_another": ("runz: {}", "runz", "an unknown key", "; runs is near"),
    "mistyped_path": ("sources: [{pth: /x}]", "sources[0].pth", "an unknown key", "labels, model, owner, path, run; path is near"),
    "number_as_key": ("gpu: {7: true}", "gpu.7", "an unknown key", "one of deadline, devices,"),
    "wrong_type": ("sources: 3", "sources", "3", "a list"),
    "wrong_type_inside": ("sources: [/x]", "sources[0]", "'/x'", "a mapping"),
    "missing_path": ("sources: [{run: a}]", "sources[0].path", "nothing", "a text that is not empty"),
    "endless_count": (
        f"sources: [{{path: /x, model: {{parameters: {'9' * 400}B}}}}]",
        "sources[0].model.parameters",
        "'9999",
        "such as 350M or 8.03B",
    ),
    "endless_whole_count": (
        f"sources: [{{path: /x, model: {{parameters: {'9' * 400}}}}}]",
        "sources[0].model.parameters",
        "9999",
        "such as 350M or 8.03B",
    ),
    "endless_size": (f"limits: {{line: {'9' * 400}KiB}}", "limits.line", "'9999", "a size such as"),
    "endless_duration": (f"runs: {{latch: {'9' * 400}s}}", "runs.latch", "'9999", "30s, 5m or 2h"),
    "no_count": ("sources: [{path: /x, model: {parameters: 7G}}]", "sources[0].model.parameters", "'7G'", "such as 350M or 8.03B"),
    "too_few": ("sources: [{path: /x, model: {gpus: 0}}]", "sources[0].model.gpus", "0", "1 or more"),
    "active_of_nothing": (
        "sources: [{path: /x, model: {parameters: 1B, active_parameters: 2B}}]",
        "sources[0].model.active_parameters",
        "2000000000",
        "as many as parameters, or fewer",
    ),
    "more_frozen_than_there_is": (
        "sources: [{path: /x, model: {parameters: 1B, frozen: 2B}}]",
        "sources[0].model.frozen",
        "2000000000",
        "or fewer",
    ),
    "card": ("sources: [{path: /x, model: {gpu: H100}}]", "sources[0].model.gpu", "'H100'", "the name that nvidia-smi prints"),
    "data_type": ("sources: [{path: /x, model: {dtype: int4}}]", "sources[0].model.dtype", "'int4'", "one of bf16, fp16"),
    "data_type_of_card": (
        "sources: [{path: /x, model: {dtype: bf16, gpu: Tesla V100-SXM2-32GB}}]",
        "sources[0].model.dtype",
        "'bf16'",
        "the peak of V100 SXM2 is known: fp16",
    ),
    "no_unit": ("runs: {latch: 120}", "runs.latch", "120", "30s, 5m or 2h"),
    "out_of_range": ("runs: {latch: 1s}", "runs.latch", "'1s'", "15s or more"),
    "negative": ("limits: {files: -1}", "limits.files", "-1", "1 or more"),
    "no_list_of_pids": ("processes: {pids: 4711}", "processes.pids", "4711", "a list of whole numbers"),
    "no_pid": ("processes: {pids: [1, '2']}", "processes.pids[1]", "'2'", "1 or more"),
    "no_cgroup": (
        "processes: {cgroups: [train.service]}",
        "processes.cgroups[0]",
        "'train.service'",
        "such as /system.slice/train-*.service",
    ),
    "relative_procfs": ("processes: {procfs: host/proc}", "processes.procfs", "'host/proc'", "an absolute path"),
    "relative_socket": ("attribution: {kubelet_socket: kubelet.sock}", "attribution.kubelet_socket", "'kubelet.sock'", "an absolute path"),
    "truth_for_number": ("limits: {files: true}", "limits.files", "True", "a whole number"),
    "yes_as_label": ("sources: [{path: /x, labels: {page: yes}}]", "sources[0].labels.page", "True", "quote it"),
    "label_of_prometheus": ("sources: [{path: /x, labels: {instance: a}}]", "sources[0].labels.instance", "instance", "do not use"),
    "label_name": ("sources: [{path: /x, labels: {'a-b': c}}]", "sources[0].labels.a-b", "a-b", "a label name"),
    "address": ("web: {listen_address: ':99999'}", "web.listen_address", ":99999", "port of 0 to 65535"),
    "twice": ("gpu: {}\ngpu: {}", "line 2, column 1", "the key 'gpu' twice", "each key once"),
    "broken_yaml": ("sources: [", "line 1", "broken YAML", "valid YAML"),
    "no_number": ("limits: {files: !!int ''}", "line 1, column 17", "a value that is no int", "valid YAML"),
    "no_truth": ("gpu: {enabled: !!bool perhaps}", "line 1, column 16", "a value that is no bool", "valid YAML"),
    "no_date": ("runs: {name: 2026-99-99}", "line 1, column 14", "a value that is no timestamp", "valid YAML"),
    "not_a_mapping": ("- a\n- b", "config.yml", "['a', 'b']", "a mapping"),
    "python_object": ("sources: !!python/object/apply:os.system [true]", "line 1", "could not determine a constructor", "valid YAML"),
}


@pytest.mark.parametrize("text", ["sources: [{path: /x, pathh: /y}]", "sources: [{path: /x, colour: red}]"])
def test_no_key_is_proposed_that_is_there_or_is_another_word(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, file="config.yml")

    assert "is near" not in str(caught.value)


@pytest.mark.parametrize(("text", "key", "found", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_a_message_has_four_parts(text: str, key: str, found: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, file="config.yml")

    message = str(caught.value)
    assert message.startswith("config.yml")
    assert key in message
    assert found in caught.value.found
    assert expected in caught.value.expected


@settings(max_examples=150, deadline=None)
@example("a: &a [*a]")
@example("a: &a [" + "1, " * 9 + "]\nb: &b [" + "*a, " * 9 + "]\nc: &c [" + "*b, " * 9 + "]\nlimits: [" + "*c, " * 9 + "]")
@example("[" * 10_000)
@example("*" + "a" * 5000)
@example('{0,"attribution":{"\\n"}}')
@given(TEXTS)
def test_no_text_makes_the_loader_fail_without_a_message(text: str) -> None:
    assert "\n" not in verdict(text)


def test_the_text_that_is_mangled_is_a_configuration() -> None:
    assert verdict(EVERYTHING) == ""


@pytest.mark.parametrize(
    ("content", "found"),
    [(None, "No such file"), (b"\xff\xfe", "not UTF-8"), ("directory", "Is a directory")],
    ids=["missing", "binary", "directory"],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes | str | None, found: str) -> None:
    path = tmp_path / "config.yml"
    if content == "directory":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=found):
        config.load(os.fspath(path))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [(":19400", "", 19400), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:80", "::1", 80), ("node7:1", "node7", 1)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert config.listen_address(text, file="command line", key="--web.listen-address") == (host, port)
