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
from trainer_exporter.gpu.kernel import KernelXid, bus_id
from trainer_exporter.gpu.xids import OFF_THE_BUS, Xids
from trainer_exporter.model_gpu import GpuIdentity, GpuMemory, GpuProcess, GpuReading, GpuSnapshot

RELEASED: Final = "released"  # the child's word for having let go of the GPUs
REMEMBER_S: Final = 3600.0  # how long a card that is no longer enumerated keeps its rows (design decision 14)
EARLY: Final = 64  # Xids of the kernel's log that can wait for the first list of cards


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
        self._in_kernel = 0
        self._xids = Xids(clock)
        self._early: list[KernelXid] = []
        self._alive = False
        self._renewing = ""  # why the child is about to make room for another, which is no trouble
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
                self._hear(message["uuid"], message, source="nvml")
            elif kind == "driver":
                self._driver = str(message["state"])
            elif kind == "renew":
                self._renewing = str(message["why"])
            elif kind not in {"beat", "bug"}:
                raise ValueError(kind)

    def hear_kernel(self, told: KernelXid) -> bool:
        """Take in an Xid of the kernel's log; whether there is a card at its bus id (or no card is known yet)."""
        with self._lock:
            if not self._cards:
                self._early = [*self._early[1 - EARLY :], told]
                return True
            uuid = self._at(told.bus)
            if uuid is None:
                return False
            self._hear(uuid, told._asdict(), source="kernel")
            return True

    def kernel_lists(self, gpus: int) -> None:
        """The kernel has so many GPUs, whether or not NVML lists them."""
        with self._lock:
            self._in_kernel = max(self._in_kernel, gpus)

    def child_started(self, *, restarts: int) -> None:
        with self._lock:
            self._alive = True
            self._restarts = restarts

    def child_ended(self) -> None:
        """Nothing that a dead child said is served any longer, except while fresh that of one which made room; who is lost stays lost."""
        with self._lock:
            self._alive = False
            for card in self._cards.values() if not self._renewing else ():
                card.reading, card.error = None, "child"

    def snapshot(self) -> GpuSnapshot:
        """All cards as of now. Never waits for anything but a copy."""
        now = self._clock.mono()
        with self._lock:
            self._forget(now)
            readings = [self._reading(card, now) for card in self._cards.values() if not self._is_starting(card, now)]
            devices = sum(not card.lost and not card.identity.parent_uuid for card in self._cards.values()) if not self._driver else 0
            return GpuSnapshot(
                readings=tuple(sorted(readings, key=lambda reading: (reading.identity.index, reading.identity.uuid))),
                lost=frozenset(uuid for uuid, card in self._cards.items() if card.lost),
                xids=self._xids.counts(),
                devices=devices,
                devices_expected=self._configured or max(self._most, self._in_kernel),
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
        for uuid, card in list(self._cards.items()):
            if card.identity.parent_uuid in present and uuid not in present:  # another cut of the same card
                del self._cards[uuid]
            elif uuid not in present and card.gone_mono is None:
                card.gone_mono = now
                self._lose(card)
        self._renewing = ""
        self._most = max(self._most, sum(not identity.parent_uuid for identity in identities))
        early, self._early = self._early, []
        for told in early:
            there = self._at(told.bus)
            if there is not None:
                self._hear(there, told._asdict(), source="kernel")

    def _read(self, uuid: str, values: Mapping[str, Any], took_s: float) -> None:
        # The age of a look is that of its first call: a call that blocked has made the ones before it old.
        card = self._cards[uuid]
        card.read_mono = self._clock.mono() - took_s
        card.collected_wall = self._clock.wall() - took_s
        card.reading = _reading(card.identity, card.collected_wall, values)
        card.error, card.lost = "", False

    def _fail(self, uuid: str, error: str) -> None:
        card = self._cards[uuid]
        card.reading, card.error = None, error
        if error == "lost":
            self._lose(card)

    def _lose(self, card: _Card) -> None:
        """A card is lost; that is Xid 79, whether or not the driver says so. Not when it was taken away, nor when it is a part of one."""
        if card.lost:
            return
        card.lost, card.error = True, "lost"
        if not card.identity.parent_uuid and self._renewing != RELEASED:
            self._xids.fall(card.identity.uuid, answered_mono=card.read_mono)

    def _hear(self, uuid: str, told: Mapping[str, Any], *, source: str) -> None:
        xid = int(told["xid"])
        if xid == OFF_THE_BUS:
            self._xids.fall(uuid, answered_mono=self._cards[uuid].read_mono)
        else:
            self._xids.hear(self._part(uuid, told), xid, source=source)

    def _part(self, uuid: str, told: Mapping[str, Any]) -> str:
        """The MIG instance that an error names, the whole card where it names none that is known."""
        wanted = [(name, told[name]) for name in ("gpu_instance", "compute_instance") if told.get(name)]
        parts = (card.identity for card in self._cards.values() if wanted and card.identity.parent_uuid == uuid)
        return next((part.uuid for part in parts if all(getattr(part, name) == value for name, value in wanted)), uuid)

    def _at(self, bus: tuple[int, ...]) -> str | None:
        """UUID of the card at a bus id; one that is listed now comes before one that was there."""
        cards = (card for card in self._cards.values() if card.identity.pci_bus_id and not card.identity.parent_uuid)
        here = [card for card in cards if bus_id(card.identity.pci_bus_id) == bus]
        return min(here, key=lambda card: card.gone_mono is not None).identity.uuid if here else None

    def _forget(self, now: float) -> None:
        for uuid, card in list(self._cards.items()):
            if card.gone_mono is not None and now - card.gone_mono > REMEMBER_S:
                del self._cards[uuid]
                self._xids.forget(uuid)

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
        return "" if fresh else ("timeout" if self._alive else "child")


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
