"""What the child's messages add up to: the latest reading of each card, its age, who is lost, which Xids came.

No process and no pipe here, so that every judgement about age can be tested with a clock that stands still. Written by the poller's thread,
read by anybody; the lock is held to copy, never while something waits.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trainer_exporter.clock import Clock
from trainer_exporter.model import GpuIdentity, GpuMemory, GpuProcess, GpuReading, GpuSnapshot, XidCount

REMEMBER_S: Final = 3600.0  # how long a card that is no longer enumerated keeps its rows (design decision 14)
XID_OFF_THE_BUS: Final = 79
XIDS_PER_CARD: Final = 256  # NVIDIA's catalogue has under 200


@dataclass(slots=True)
class _Card:
    """All we know of one card. ``error`` is "" only while ``reading`` is worth showing."""

    identity: GpuIdentity
    enumerated_mono: float
    gone_mono: float | None = None  # since when the driver no longer lists it
    lost: bool = False
    error: str = ""
    reading: GpuReading | None = None
    read_mono: float = 0.0
    collected_wall: float = 0.0


class Board:
    """The state of all cards, folded from messages.

    ``oldest_s`` is the age beyond which a reading is not served; ``expected`` is a configured number of cards, without which the most seen
    since the start counts.
    """

    def __init__(self, clock: Clock, *, oldest_s: float, expected: int | None = None) -> None:
        self._clock = clock
        self._oldest_s = oldest_s
        self._configured = expected
        self._most = 0
        self._lock = threading.Lock()
        self._cards: dict[str, _Card] = {}
        self._xids: dict[tuple[str, int], XidCount] = {}
        self._assumed: set[str] = set()  # UUIDs whose loss was counted as an Xid that the driver has not told (yet)
        self._alive = False
        self._driver = ""
        self._restarts = 0

    def fold(self, message: Mapping[str, Any]) -> None:
        """Take in one message of the child. Raises KeyError, TypeError or ValueError for one that no child of ours sends."""
        kind = message["kind"]
        with self._lock:
            if kind == "cards":
                self._enumerate([GpuIdentity(**card) for card in message["cards"]])
            elif kind == "reading":
                self._read(message["uuid"], message["values"], float(message["took"]))
            elif kind == "failed":
                self._fail(message["uuid"], str(message["error"]))
            elif kind == "xid":
                self._hear(message["uuid"], int(message["xid"]))
            elif kind == "driver":
                self._driver = str(message["state"])
            elif kind not in {"beat", "bug"}:
                raise ValueError(kind)

    def child_started(self, *, restarts: int) -> None:
        with self._lock:
            self._alive = True
            self._restarts = restarts

    def child_ended(self) -> None:
        """Nothing that a dead child said is served any longer; who is lost stays lost."""
        with self._lock:
            self._alive = False
            for card in self._cards.values():
                card.reading, card.error = None, "child"

    def snapshot(self) -> GpuSnapshot:
        """All cards as of now. Never waits for anything but a copy."""
        now = self._clock.mono()
        with self._lock:
            self._forget(now)
            readings = [self._reading(card, now) for card in self._cards.values() if not self._is_starting(card, now)]
            devices = sum(not card.lost for card in self._cards.values()) if not self._driver else 0
            return GpuSnapshot(
                readings=tuple(sorted(readings, key=lambda reading: (reading.identity.index, reading.identity.uuid))),
                lost=frozenset(uuid for uuid, card in self._cards.items() if card.lost),
                xids=dict(self._xids),
                devices=devices,
                devices_expected=self._configured or self._most,
                child_restarts=self._restarts,
                child_alive=self._alive,
                driver=self._driver,
            )

    def _enumerate(self, identities: Sequence[GpuIdentity]) -> None:
        self._driver = ""
        now = self._clock.mono()
        for identity in identities:
            known = self._cards.get(identity.uuid)
            if known is None:
                self._cards[identity.uuid] = _Card(identity, enumerated_mono=now)
            else:  # lost until it answers: a card off the bus can still be listed
                known.identity, known.enumerated_mono, known.gone_mono, known.error = identity, now, None, ""
        present = {identity.uuid for identity in identities}
        for uuid, card in self._cards.items():
            if uuid not in present and card.gone_mono is None:
                card.gone_mono = now
                self._lose(card)
        self._most = max(self._most, len(identities))

    def _read(self, uuid: str, values: Mapping[str, Any], took_s: float) -> None:
        # The age of a look is that of its first call: a call that blocked has made the ones before it old.
        card = self._cards[uuid]
        card.read_mono = self._clock.mono() - took_s
        card.collected_wall = self._clock.wall() - took_s
        card.reading = _reading(card.identity, card.collected_wall, values)
        card.error, card.lost = "", False
        self._assumed.discard(uuid)

    def _fail(self, uuid: str, error: str) -> None:
        card = self._cards[uuid]
        card.reading, card.error = None, error
        if error == "lost":
            self._lose(card)

    def _lose(self, card: _Card) -> None:
        """A card is lost; that is Xid 79, whether or not the driver says so, and it counts once a loss."""
        if card.lost:
            return
        uuid = card.identity.uuid
        card.lost, card.error = True, "lost"
        told = self._xids.get((uuid, XID_OFF_THE_BUS))
        if told is None or told.last_wall is None or self._clock.wall() - told.last_wall > REMEMBER_S:
            self._count(uuid, XID_OFF_THE_BUS)
            self._assumed.add(uuid)

    def _hear(self, uuid: str, xid: int) -> None:
        if xid == XID_OFF_THE_BUS and uuid in self._assumed:
            self._assumed.discard(uuid)
            return
        self._count(uuid, xid)

    def _count(self, uuid: str, xid: int) -> None:
        before = self._xids.get((uuid, xid))
        if before is None and sum(key[0] == uuid for key in self._xids) >= XIDS_PER_CARD:
            raise ValueError(f"more kinds of Xid than exist: {xid}")
        self._xids[uuid, xid] = XidCount((before.count if before else 0) + 1, self._clock.wall())

    def _forget(self, now: float) -> None:
        for uuid, card in list(self._cards.items()):
            if card.gone_mono is not None and now - card.gone_mono > REMEMBER_S:
                del self._cards[uuid]
                self._assumed.discard(uuid)

    def _is_starting(self, card: _Card, now: float) -> bool:
        """A card just found has neither failed nor answered: it has no row yet."""
        never = card.reading is None and not card.error and not card.collected_wall
        return never and not self._driver and now - card.enumerated_mono <= self._oldest_s

    def _reading(self, card: _Card, now: float) -> GpuReading:
        error = self._trouble(card, now)
        if card.reading is not None and not error:
            return replace(card.reading, identity=card.identity)
        return GpuReading(card.identity, success=False, collected_wall=card.collected_wall, error=error)

    def _trouble(self, card: _Card, now: float) -> str:
        """Why a card has no reading to show, in one word; "" when it has."""
        if card.lost:
            return "lost"
        if self._driver:
            return "driver"
        if card.error:
            return card.error
        fresh = card.reading is not None and now - card.read_mono <= self._oldest_s
        return "" if fresh else "timeout"


def _reading(identity: GpuIdentity, collected_wall: float, values: Mapping[str, Any]) -> GpuReading:
    """A reading from the child's values, whose names are the fields of GpuReading; what is absent is what the card cannot say."""
    plain = dict(values)
    memory = plain.pop("memory", None)
    ecc = plain.pop("ecc_errors", None)
    processes = plain.pop("processes", ())
    return GpuReading(
        identity,
        success=True,
        collected_wall=collected_wall,
        memory=GpuMemory(*memory) if memory else None,
        ecc_errors={(kind, counter): count for kind, counter, count in ecc} if ecc else None,
        processes=tuple(GpuProcess(pid, used) for pid, used in processes),
        **plain,
    )
