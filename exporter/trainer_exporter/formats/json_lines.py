"""JSON lines as programs write them: no key twice, no float with more digits than one has. Else two processes wrote into one line."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_LONGER_THAN_A_FLOAT: Final = re.compile(r"[1-9]\d*\.\d{17}|0\.0*[1-9]\d{17}")


def loaded(text: str) -> dict[str, Any]:
    """The object that a line holds; ValueError or RecursionError when it is none, or one that no program wrote."""
    found = json.loads(text, object_pairs_hook=_once)
    if not isinstance(found, dict) or _LONGER_THAN_A_FLOAT.search(text) is not None:
        raise ValueError("no line of one process")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found
