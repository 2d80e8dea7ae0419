"""A server that speaks the words of NCCL's RAS threads on a port of loopback, or breaks them in one way or another."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

Counts = Mapping[int, int]  # collectives by rank


def communicator(
    counts: Counts, *, missing: Mapping[int, str] | None = None, name: str = "0xa1", ranks: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """One communicator of a JSON report. ``ranks`` tells which rank of the job each of its ranks is: process 100 + rank."""
    job = ranks or {rank: rank for rank in [*counts, *(missing or {})]}

    def who(rank: int) -> dict[str, Any]:
        return {"rank": rank, "host": "10.0.0.1", "pid": 100 + job[rank], "cuda_dev": job[rank] % 8, "nvml_dev": job[rank] % 8}

    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "hash": name,
        "secondary_hash": "0x1:0x2",
        "size": len(job),
        "ranks_count": len(counts),
        "missing_ranks_count": len(missing or {}),
        "ranks": [
            {**who(rank), "status": status, "collective_counts": {"Broadcast": 1, "Reduce": 0, "AllReduce": count}}
            for rank, count in counts.items()
        ],
        "missing_ranks": [
            {**who(rank), "status": {"unresponsive": word != "missing", "considered_dead": word == "dead"}}
            for rank, word in (missing or {}).items()
        ],
    }


def report(*communicators: Mapping[str, Any]) -> bytes:
    """A JSON report as NCCL 2.28.7 and newer give it."""
    head = {"nccl_version": "2.30.7", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2026-11-30 12:00:00"}
    tail = {"ras": {"collection_time_sec": 0.02, "timeouts_count": 0}}
    return json.dumps({**head, "communicators_count": len(communicators), "communicators": list(communicators), **tail}, indent=2).encode()


@contextmanager
def ras_server(answers: Sequence[bytes], *, manner: str = "json") -> Iterator[tuple[str, int]]:
    """Gives one answer after the other, the last for ever. ``manner``: json, text, stranger, silent, stuck, flood or rude."""
    server = _Server(answers, manner)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield "127.0.0.1", server.server_address[1]
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answers: Sequence[bytes], manner: str) -> None:
        super().__init__(("127.0.0.1", 0), _Talk)
        self.answers = list(answers)
        self.manner = manner
        self.over = threading.Event()

    def next_answer(self) -> bytes:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class _Talk(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked has had enough
            self._talk(self.server.manner)

    def _talk(self, manner: str) -> None:
        if manner == "silent":
            self.server.over.wait(60)
            return
        for line in self.rfile:
            words = line.decode().strip().upper()
            if manner == "stranger":
                self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            elif words.startswith("CLIENT PROTOCOL "):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif words.startswith("TIMEOUT ") or (words == "SET FORMAT JSON" and manner != "text"):
                self.wfile.write(b"OK\n")
            elif words == "VERBOSE STATUS":
                self._answer(manner)
                return
            else:
                self.wfile.write(f"ERROR: Unknown command {words}\n".encode())

    def _answer(self, manner: str) -> None:
        if manner == "stuck":
            self.wfile.write(self.server.next_answer()[:40])
            self.server.over.wait(60)
        elif manner == "flood":
            while not self.server.over.is_set():
                self.wfile.write(b"x" * 65536)
        elif manner == "rude":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
        else:
            self.wfile.write(self.server.next_answer())
