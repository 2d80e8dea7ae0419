"""Whether an expression can give anything at all, where only some series exist. Its structure is read, nothing is evaluated.

Sound in one direction: what is called empty is empty at every moment. What may give something may still give nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Exists = Callable[[str], bool]  # of a metric's name: whether it ever has a series

_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<number>0x[0-9a-fA-F]+|(?:\d+(?:ms|[smhdwy]))+|\d*\.?\d+(?:[eE][+-]?\d+)?|\d+\.)
    |(?P<word>[a-zA-Z_:][\w:]*)
    |(?P<mark>==|!=|>=|<=|=~|!~|[-+*/%^<>=(){}\[\],:@])""",
    re.VERBOSE,
)
# From the loosest to the tightest.
_LEVELS: Final = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/", "%", "atan2"), ("^",))
_GROUPING: Final = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_FROM_NOTHING: Final = {"absent", "absent_over_time", "vector", "scalar"}
_NUMBERS: Final = {"inf", "nan"}
_CLOSES: Final = {"(": ")", "[": "]", "{": "}"}


class NotUnderstoodError(ValueError):
    """The expression is not understood; whoever asks must take it for one that gives something."""


def may_give(expr: str, exists: Exists) -> bool:
    """Whether ``expr`` can have a value at any moment. NotUnderstoodError for what is no expression, or of a newer language."""
    reader = _Reader(_tokens(expr), exists)
    given = reader.binary(0)
    reader.end()
    return given


def _tokens(expr: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(expr):
        match = _TOKEN.match(expr, at)
        if match is None:
            raise NotUnderstoodError(f"at {expr[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup is not None:
            found.append(match[match.lastgroup])
    return found


class _Reader:
    """One expression, read from left to right. Every method gives whether what it has read may give something."""

    def __init__(self, tokens: list[str], exists: Exists) -> None:
        self._tokens = [*tokens, ""]
        self._exists = exists
        self._at = 0

    def end(self) -> None:
        if self._next:
            raise NotUnderstoodError(f"at {self._next!r}")

    def binary(self, level: int) -> bool:
        if level == len(_LEVELS):
            return self._unary()
        given = self.binary(level + 1)
        while self._next.lower() in _LEVELS[level]:
            operator = self._take().lower()
            self._modifiers()
            right = self.binary(level + 1)
            given = given or right if operator == "or" else given if operator == "unless" else given and right
        return given

    def _modifiers(self) -> None:
        while self._next.lower() in _GROUPING or self._next.lower() == "bool":
            if self._take().lower() != "bool" and self._next == "(":
                self._skip()

    def _unary(self) -> bool:
        while self._next in {"+", "-"}:
            self._take()
        given = self._operand()
        while self._next == "[" or self._next.lower() in {"offset", "@"}:
            if self._next == "[":
                self._skip()
            else:
                self._take()
                self._moment()
        return given

    def _moment(self) -> None:
        """What stands behind ``offset`` or ``@``."""
        while self._next in {"+", "-"}:
            self._take()
        self._take()
        if self._next == "(":
            self._skip()

    def _operand(self) -> bool:
        token = self._take()
        if token == "(":
            given = self.binary(0)
            self._expect(")")
            return given
        if token == "{":
            self._at -= 1
            self._skip()
            return True  # any metric
        if token[:1].isdigit() or token[:1] in {'"', "'", "`", "."} or token.lower() in _NUMBERS:
            return True
        if not (token[:1].isalpha() or token[:1] in {"_", ":"}):
            raise NotUnderstoodError(f"at {token!r}")
        return self._call(token) if self._next == "(" or self._next.lower() in {"by", "without"} else self._selector(token)

    def _selector(self, name: str) -> bool:
        if self._next == "{":
            self._skip()
        return self._exists(name)

    def _call(self, name: str) -> bool:
        self._modifiers()
        self._expect("(")
        given = True
        while self._next != ")":
            given = self.binary(0) and given
            if self._next != ")":
                self._expect(",")
        self._expect(")")
        self._modifiers()
        return given or name.lower() in _FROM_NOTHING

    def _skip(self) -> None:
        """Over a pair of brackets and all that stands in it."""
        waiting = [_CLOSES[self._take()]]
        while waiting:
            token = self._take()
            if token in _CLOSES:
                waiting.append(_CLOSES[token])
            elif token == waiting[-1]:
                waiting.pop()

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise NotUnderstoodError(f"at {self._tokens[self._at - 1]!r}, not {token!r}")

    def _take(self) -> str:
        token = self._tokens[self._at]
        if not token:
            raise NotUnderstoodError("at its end")
        self._at += 1
        return token
