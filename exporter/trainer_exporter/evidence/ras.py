"""Asks NCCL itself: the RAS threads of a job (NCCL 2.24 and newer) answer on a socket, by default at localhost:28028, in lines of text.

Protocol: src/ras/client_support.cc of NCCL. An answer may take as long as the job's slowest node, a broken server for ever and without end:
there is one deadline for all of it, and a limit in bytes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINE_BYTES: Final = 256
PIECE_BYTES: Final = 1 << 16
REPLY_S: Final = 5.0  # of the time limit, what is kept for the answer to come over


class RasError(Exception):
    """Why there is no answer: ``refused``, ``timeout``, ``not_ras``, ``too_long`` or ``broken``."""

    def __init__(self, word: str) -> None:
        self.word = word
        super().__init__(word)


@dataclass(frozen=True, slots=True)
class RasLimits:
    """How long one question may take, and how long its answer may be."""

    seconds: float = 25.0  # nodes that do not answer cost NCCL 5 s and more
    size_bytes: int = 16 << 20


def ask(address: tuple[str, int], limits: RasLimits, *, clock: Callable[[], float] = time.monotonic) -> bytes:
    """The job's full status: JSON from servers that can (2.28.7 and newer), else text. RasError where none comes."""
    try:
        with socket.create_connection(address, timeout=limits.seconds) as connection:
            return _Talk(connection, clock() + limits.seconds, clock).status(limits)
    except TimeoutError as error:
        raise RasError("timeout") from error
    except (ConnectionRefusedError, socket.gaierror) as error:
        raise RasError("refused") from error
    except OSError as error:
        raise RasError("broken") from error


class _Talk:
    def __init__(self, connection: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._deadline = deadline
        self._clock = clock
        self._rest = b""

    def status(self, limits: RasLimits) -> bytes:
        if not self._asked("CLIENT PROTOCOL 2").startswith(b"SERVER PROTOCOL"):
            raise RasError("not_ras")
        self._asked(f"TIMEOUT {max(1, round(limits.seconds - REPLY_S))}")
        self._asked("SET FORMAT json")  # refused by older servers, which then answer in text
        self._say("VERBOSE STATUS")
        return self._everything(limits.size_bytes)

    def _say(self, words: str) -> None:
        self._connection.settimeout(self._left())
        self._connection.sendall(words.encode() + b"\n")

    def _asked(self, words: str) -> bytes:
        self._say(words)
        while b"\n" not in self._rest:
            piece = self._piece()
            if not piece or len(self._rest) > LINE_BYTES:
                raise RasError("not_ras")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.strip().upper()

    def _everything(self, most: int) -> bytes:
        """To the end of the connection, which the server closes behind its answer."""
        pieces, size = [self._rest], len(self._rest)
        while piece := self._piece():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise RasError("too_long")
        return b"".join(pieces)

    def _piece(self) -> bytes:
        self._connection.settimeout(self._left())
        return self._connection.recv(PIECE_BYTES)

    def _left(self) -> float:
        left = self._deadline - self._clock()
        if left <= 0:
            raise RasError("timeout")
        return left
