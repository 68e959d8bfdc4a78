"""Which dirty topic is served next: five bands by priority, weighted turns between them, first come first in each.

A topic stands in the ready set at most once, however often it is marked. Waiting raises its priority by 0.1 a ms, so
it climbs; whoever waited ten seconds stands in the top band whatever its priority. The one exception is a topic of
negative priority while negative work is shed: it keeps its place below and is served when the pressure has gone.

`take` costs a few steps whatever the number of waiting topics. Once a topic has waited for an aging tick, the moment is
noted at which waiting alone could lift it into the next band; nobody is looked at before that.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from topics.rules.priority import effective_priority

WEIGHTS: Final = (8, 4, 2, 1, 1)
"""Turns of each band in one round while all have work, from the top band down."""

FLOORS: Final = (750, 500, 250, 0)
"""The lowest priority of each band but the last."""

TOP: Final = 0
NEGATIVE: Final = len(FLOORS)

AGING_TICK_MS: Final = 50
"""How exact climbing is. Shorter looks more often at topics whose recency fades while they wait."""

WAIT_MS_MAX: Final = 10_000
"""After this a topic is in the top band outright."""

_PER_MS: Final = 0.1

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Urgency:
    """What a topic brings along: its configured priority and how long ago it was read, at the moment it was marked."""

    manual: int | None = None
    auto: bool = True
    idle_ms: int | None = None
    """None = never read."""

    def priority(self, waited_ms: int) -> int:
        idle_ms = None if self.idle_ms is None else self.idle_ms + waited_ms
        return effective_priority(self.manual, self.auto, idle_ms, waited_ms)


def band_of(priority: int) -> int:
    for band, floor in enumerate(FLOORS):
        if priority >= floor:
            return band
    return NEGATIVE


@dataclass(slots=True)
class _Place:
    urgency: Urgency
    since_ms: int
    band: int
    plan: int = 0
    """The number of its entry among the climbs; 0 = none."""


class Schedule(Generic[Key]):
    """The ready set of one delivery shard. Times are monotonic ms."""

    def __init__(self) -> None:
        self._bands: tuple[OrderedDict[Key, None], ...] = tuple(OrderedDict() for _ in WEIGHTS)
        self._places: dict[Key, _Place] = {}
        self._fresh: dict[Key, None] = {}
        """Marked since the last aging tick. Most are served before the next one and never plan a climb."""
        self._ticked_ms = 0
        self._climbs: list[tuple[int, int, Key]] = []
        """When to look at whom again. Entries of topics served since are passed over."""
        self._plans = 0
        self._turns = [0] * len(WEIGHTS)
        """What each band may still take in this round."""
        self.shed = False
        """Negative work waits."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def servable(self) -> bool:
        """Whether `take` would give something."""
        return len(self._places) > (len(self._bands[NEGATIVE]) if self.shed else 0)

    def mark(self, key: Key, urgency: Urgency, now_ms: int) -> bool:
        """The topic has something to deliver. False if it waits already; then it keeps its place and its time."""
        if key in self._places:
            return False
        place = _Place(urgency, now_ms, band_of(urgency.priority(0)))
        self._places[key] = place
        self._bands[place.band][key] = None
        self._fresh[key] = None
        return True

    def band(self, key: Key, now_ms: int) -> int | None:
        """Where the topic stands now, 0 = top; None if it does not wait."""
        self._climb(now_ms)
        place = self._places.get(key)
        return None if place is None else place.band

    def forget(self, key: Key) -> None:
        """The topic is gone."""
        place = self._places.pop(key, None)
        if place is not None:
            del self._bands[place.band][key]

    def set_shed(self, shed: bool, now_ms: int) -> None:
        if shed == self.shed:
            return
        self.shed = shed
        # What waited below while it was shed has waited all the same, and what had climbed out goes back.
        for key in [k for k, place in self._places.items() if place.urgency.priority(0) < 0]:
            self._settle(key, now_ms)

    def take(self, now_ms: int) -> tuple[Key, int] | None:
        """The next topic to serve and how long it waited, in ms. It leaves the set."""
        self._climb(now_ms)
        if not self.servable():
            return None
        bands = NEGATIVE if self.shed else len(WEIGHTS)
        while True:
            for band in range(bands):
                waiting = self._bands[band]
                if not waiting:
                    self._turns[band] = 0
                elif self._turns[band] > 0:
                    self._turns[band] -= 1
                    key, _ = waiting.popitem(last=False)
                    return key, now_ms - self._places.pop(key).since_ms
            for band in range(bands):
                self._turns[band] = WEIGHTS[band] if self._bands[band] else 0

    # -- climbing -----------------------------------------------------------------------------------------------------

    def _climb(self, now_ms: int) -> None:
        if now_ms - self._ticked_ms >= AGING_TICK_MS:
            self._ticked_ms = now_ms
            fresh, self._fresh = self._fresh, {}
            for key in fresh:
                place = self._places.get(key)
                if place is None:
                    continue
                if now_ms - place.since_ms >= AGING_TICK_MS:
                    self._settle(key, now_ms)
                else:
                    self._fresh[key] = None
        while self._climbs and self._climbs[0][0] <= now_ms:
            _, plan, key = heapq.heappop(self._climbs)
            place = self._places.get(key)
            if place is not None and place.plan == plan:
                self._settle(key, now_ms)

    def _settle(self, key: Key, now_ms: int) -> None:
        place = self._places[key]
        band = self._band(place, now_ms)
        if band != place.band:
            del self._bands[place.band][key]
            self._bands[band][key] = None
            place.band = band
        self._plan_climb(key, place, now_ms)

    def _band(self, place: _Place, now_ms: int) -> int:
        waited_ms = now_ms - place.since_ms
        if self.shed and place.urgency.priority(0) < 0:
            return NEGATIVE
        if waited_ms >= WAIT_MS_MAX:
            return TOP
        return band_of(place.urgency.priority(waited_ms))

    def _plan_climb(self, key: Key, place: _Place, now_ms: int) -> None:
        if place.band == TOP or (self.shed and place.urgency.priority(0) < 0):
            return
        waited_ms = now_ms - place.since_ms
        missing = FLOORS[place.band - 1] - place.urgency.priority(waited_ms)
        in_ms = max(int(missing / _PER_MS) - AGING_TICK_MS, AGING_TICK_MS)
        at_ms = min(now_ms + in_ms, max(place.since_ms + WAIT_MS_MAX, now_ms + 1))
        self._plans += 1
        place.plan = self._plans
        heapq.heappush(self._climbs, (at_ms, place.plan, key))
