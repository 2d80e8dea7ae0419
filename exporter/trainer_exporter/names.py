"""Names of runs: which directory names say nothing about the run in them, and what a name from outside must look like to be a label.

For all parts: a run has to get the same name from the path of its log on one node and from its process on another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

NAME_LIMIT: Final = 200

_HOMES: Final = frozenset({"home", "users"})  # what stands right below is a person

_SAYS_NOTHING: Final = re.compile(
    r"""\.?|/|logs?|outputs?|results?|sft|lora|train|checkpoints?|saves?|runs?|\d+
    |tmp|home|root|proc|mnt|data|scratch|var|users|workspace
    |attempt_\d+|version_\d+|none_\w+|lightning_logs|tb_logs|tensorboard""",
    re.VERBOSE | re.IGNORECASE,
)


def says_something(directories: Sequence[str], at: int) -> bool:
    """Whether the directory at this place of a path tells runs apart: not where it could hold any run, and not where it is a person's."""
    if at and directories[at - 1].lower() in _HOMES:
        return False
    return not _SAYS_NOTHING.fullmatch(directories[at])


def sanitise(text: str) -> str:
    """A name from outside as a label's value: printable, one line, single blanks, bounded; "" where nothing is left."""
    printable = "".join(letter if letter.isprintable() else "_" for letter in text.strip())
    return " ".join(printable.split())[:NAME_LIMIT].strip()


def sendable(text: str) -> str:
    """The text with what UTF-8 cannot carry spelt out: JSON may hold half a surrogate pair, and the name of a file any byte."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
