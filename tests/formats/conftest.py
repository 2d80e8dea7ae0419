"""The option that rewrites the goldens of the fixtures."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the parsers say into golden.jsonl, to be read")
