"""Xid errors by card, each counted once though the driver, the kernel's log and the loss itself may all tell of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from trainer_exporter.clock import Clock
from trainer_exporter.model_gpu import XidCount

OFF_THE_BUS: Final = 79
XIDS_PER_CARD: Final = 256  # NVIDIA's catalogue has under 200
SAME_S: Final = 10.0  # between the two sources: the kernel's log is read every second, a busy child may be late
FALL_S: Final = 60.0  # a card that falls off the bus is told of for some time, by all who notice
UNMATCHED: Final = 256


class Xids:
    """The counts since the start. Written under its owner's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[tuple[str, int], XidCount] = {}
        self._told: dict[tuple[str, int], dict[str, deque[float]]] = {}  # by source: what the other has not told of yet, and when
        self._fell: dict[str, float] = {}

    def hear(self, uuid: str, xid: int, *, source: str) -> None:
        """Take in what one source ("nvml", "kernel") tells. Raises ValueError beyond any number of kinds that exist."""
        if self._is_known(uuid, xid, source):
            return
        self._count(uuid, xid)
        told = self._told.setdefault((uuid, xid), {})
        told.setdefault(source, deque(maxlen=UNMATCHED)).append(self._clock.mono())

    def fall(self, uuid: str, *, answered_mono: float) -> None:
        """A card fell off the bus, whoever says so. It falls again only when it has answered since (a moment of the monotonic clock)."""
        now, fell = self._clock.mono(), self._fell.get(uuid)
        if fell is not None and not (answered_mono > fell and now - fell > FALL_S):
            return
        self._fell[uuid] = now
        self._count(uuid, OFF_THE_BUS)

    def forget(self, uuid: str) -> None:
        """A card is gone for good. Its counts stay, as counters do."""
        self._fell.pop(uuid, None)
        for key in [key for key in self._told if key[0] == uuid]:
            del self._told[key]

    def counts(self) -> Mapping[tuple[str, int], XidCount]:
        return dict(self._counts)

    def _is_known(self, uuid: str, xid: int, source: str) -> bool:
        """Whether another source has told of this one; each of its words stands for one error, so that a burst is counted rightly."""
        now = self._clock.mono()
        for other, moments in self._told.get((uuid, xid), {}).items():
            while moments and now - moments[0] > SAME_S:
                moments.popleft()
            if other != source and moments:
                moments.popleft()
                return True
        return False

    def _count(self, uuid: str, xid: int) -> None:
        before = self._counts.get((uuid, xid))
        if before is None and sum(key[0] == uuid for key in self._counts) >= XIDS_PER_CARD:
            raise ValueError(f"more kinds of Xid than exist: {xid}")
        self._counts[uuid, xid] = XidCount((before.count if before else 0) + 1, self._clock.wall())
