"""Protocol buffers as bytes: the fields of a message, without a description of it. Enough for reading a few fields of a stable message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT: Final = 0
_EIGHT_BYTES: Final = 1
_BYTES: Final = 2
_FOUR_BYTES: Final = 5
_LONGEST: Final = 10  # bytes of a number of 64 bits


def messages(data: bytes, field: int) -> Iterator[bytes]:
    """The values of one field that are messages, texts or bytes. Raises ValueError for what is no message."""
    return (value for number, value in _fields(data) if number == field)


def text(data: bytes, field: int) -> str:
    """The value of one field that is a text; "" where it is not there, which is all that the format can say. Raises ValueError."""
    return next((value.decode(errors="replace") for value in messages(data, field)), "")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and value of each field with a length; numbers are read over."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _number(data, at)
            continue
        if kind == _BYTES:
            size, at = _number(data, at)
        elif kind in {_EIGHT_BYTES, _FOUR_BYTES}:
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field of the unknown kind {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"a field of {size} bytes at byte {at} of {len(data)}")
        if kind == _BYTES:
            yield key >> 3, data[at : at + size]
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST):
        if at + place >= len(data):
            raise ValueError(f"a number that ends with the {len(data)} bytes")
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError(f"a number without an end at byte {at}")
