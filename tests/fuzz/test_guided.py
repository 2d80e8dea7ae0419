"""The guided fuzzer's targets read what they begin with."""

from __future__ import annotations

import importlib.util
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest


def _program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guided", Path(__file__).with_name("guided.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TARGETS = _program().TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_reads_its_seeds_and_what_is_no_input(name: str) -> None:
    target = TARGETS[name]
    seeds = list(islice(target.seeds(), 20))

    once = target.once()
    for data in (*seeds, b"", b"\0", b"\xff" * 9):
        once(data)

    assert seeds
