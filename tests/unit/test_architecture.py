"""The borders, as data: who may import whom, and which outside library has which owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "trainer_exporter"
SOURCES = Path(__file__).parents[2] / "exporter" / PACKAGE

FOR_ALL = {"model", "model_gpu", "errors", "clock", "health", "names", "regular", "version"}
# Modules that plug the boxes together; everything else sees its own box and what is for all.
COMPOSITION = {
    "__main__",
    "allotment",
    "app",
    "backtest",
    "catalogue",
    "cli",
    "feed",
    "feeds",
    "hangs",
    "logfeed",
    "remembered",
    "replay",
    "saves",
    "scout",
    "service",
    "support",
    "trackerfeed",
    "workloads",
}
# Boxes that another box is built on.
ALLOWED = {
    "config_model": {"config_section", "gpu"},  # a configured card is one whose peak is known
    "config_shown": {"config_section"},
    "config_web": {"config_section"},
    "config": {"config_shown", "config_web", "config_evidence", "config_formats", "config_model", "config_section"},
    "config_evidence": {"config_section"},
    "config_formats": {"config_section", "patterns"},
    "intake": {"envelope", "formats", "incidents", "candidates", "claims", "halves", "likeness", "torn"},
    "claims": {"formats", "private"},
    "halves": {"envelope"},
    "likeness": {"candidates", "envelope", "formats", "numbers"},
    "private": {"formats"},
    "envelope": {"numbers"},
    "formats": {"numbers"},
    "incidents": {"numbers"},
    "sources": {"numbers"},
}
OWNERS = {
    "yaml": {"config"},
    "pynvml": {"gpu"},
    "prometheus_client": {"metrics"},
    "watchdog": {"sources"},
    "tensorboard": {"sources"},
    "mlflow": {"sources"},
    "bcrypt": {"config_web", "metrics"},
    "matplotlib": {"backtest"},
    "grpc": {"attribution"},
}


def modules() -> list[Path]:
    return sorted(SOURCES.rglob("*.py"))


def box(path: Path) -> str:
    relative = path.relative_to(SOURCES)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == PACKAGE:
                yield from (f"{PACKAGE}.{name.name}" for name in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCES)))
def test_boxes_do_not_import_each_other(path: Path) -> None:
    own = box(path)
    if own in COMPOSITION or own == "__init__":
        return
    allowed = FOR_ALL | {own} | ALLOWED.get(own, set())

    inside = [name.split(".") for name in imports(path) if name.split(".")[0] == PACKAGE]

    strangers = {parts[1] for parts in inside if len(parts) > 1 and parts[1] not in allowed}
    assert not strangers


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCES)))
def test_an_outside_library_has_one_owner(path: Path) -> None:
    for name in imports(path):
        owners = OWNERS.get(name.split(".")[0])
        assert owners is None or box(path) in owners


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCES)))
def test_only_the_guard_catches_everything(path: Path) -> None:
    if box(path) == "health":
        return

    caught = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}))
        and not any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))  # clean up and pass on
    ]
    assert not caught
