"""Configuration files of every kind of wrong, for the tests and the long run: mangled, nonsense of the right shape, hostile YAML."""

from __future__ import annotations

import json
import random
import re

from hypothesis import strategies as st

from trainer_exporter import config
from trainer_exporter.errors import ConfigError

FULL = """
sources:
  - path: /data/runs/*/train.log
    run: llama-sft
    labels: {team: nlp, page: "no"}
    format: heron
    owner: here
    model: {parameters: 37B, frozen: 7.5B, layers: 32, hidden: 4096, gpus: 64, gpu: NVIDIA H100 80GB HBM3, dtype: bf16, attention: causal}
formats:
  - name: heron
    kind: pattern
    pattern: 'it (?P<step>\\d+) \\| ce (?P<loss>\\S+)'
    contains: "ce "
  - {name: crow, kind: json, keys: {it: step, crossent: loss}}
limits: {history: 64MiB, line: 8KiB, files: 10, max_age: 7d}
runs: {name: "{job}", latch: 2m, ended_grace: 1h, failed_grace: 1d, maximum: 8}
gpu: {enabled: true, metrics: false, interval: 15s, deadline: 1m, devices: 8}
processes: {discover: true, pids: [4711], cgroups: [/system.slice/train-*.service]}
attribution: {kubelet: true, kubelet_socket: /run/kubelet.sock, job_mapping_dir: /var/run/jobs}
web: {listen_address: "127.0.0.1:9999", enable_lifecycle: true}
"""
_JUNK = ["&a ", "*a", "<<: ", "!!int ", "!!float ''", "!!timestamp x", "!!bool x", "!!binary x", "!!set ", "? ", "- ", ": ", "\t", "\0"]
_JUNK += ["'", "[", "{", "2026-99-99", "1:99:99", "0x", ".inf", ".nan", "1e999", "9" * 5000, "%YAML 9.9\n---\n", "---\n", "#", "|\n", "="]
_JUNK += ["\ud800", "yes"]
_ODD = ["15s", "-1s", "9" * 30 + "d", "1e9999d", "5 MiB", "nan", "here", "(?P<step>", "(a+)+$", "bf16", "H100", "{job}", ":0", "[::1]:x"]
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.just(10**400),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(_ODD),
)
_NAMES = sorted(set(re.findall(r"(\w+):", FULL)))
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=5), inner, max_size=5),
    max_leaves=12,
)


def _mangled(seed: int, cuts: int) -> str:
    """The full configuration with pieces of it moved, doubled or lost, and junk in between."""
    chance, text = random.Random(seed), FULL
    for _ in range(cuts):
        at, to = sorted(chance.choices(range(len(text) + 1), k=2))
        text = text[:at] + chance.choice((chance.choice(_JUNK) + text[at:], text[to:], text[to : to + 20] + text[at:]))
    return text


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from(_JUNK) | st.sampled_from(FULL.split()), max_size=12).map("".join),
    st.builds(_mangled, st.integers(0, 1 << 32), st.integers(1, 4)),
    st.dictionaries(st.sampled_from(_NAMES), _TREES, max_size=4).map(json.dumps),
)


def verdict(text: str) -> str:
    """What the loader says of a text: nothing, or its message, of which each part is told."""
    try:
        config.parse(text, file="odd.yml")
    except ConfigError as error:
        assert error.file == "odd.yml"
        assert error.found
        assert error.expected
        assert len(error.found) < 1000, "a message is read by a person"
        return str(error)
    return ""
