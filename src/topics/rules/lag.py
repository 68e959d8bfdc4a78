"""How fast a group falls behind, from a few looks at where things stood."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

WINDOW_MS: Final = 60_000
_APART_MS: Final = 1_000
_LEAST_MS: Final = 100
"""A shorter while tells nothing of a speed: one append in it would be thousands a second."""


class Look(NamedTuple):
    ms: int
    committed: int
    head: int
    floor: int
    """The last seq that retention took."""


class Trend:
    """Looks of the last minute, at most one a second."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def add(self, look: Look) -> None:
        looks = self._looks
        if looks and look.committed < looks[-1].committed:
            looks.clear()  # somebody went back on purpose: that is no speed
        if not looks or look.ms - looks[-1].ms >= _APART_MS:
            looks.append(look)
        while looks and look.ms - looks[0].ms > WINDOW_MS:
            looks.popleft()

    def per_s(self, now: Look) -> float:
        """By how many records a second the lag grows; below 0 it shrinks."""
        first, seconds = self._since(now)
        if not seconds:
            return 0.0
        return ((now.head - now.committed) - (first.head - first.committed)) / seconds

    def loss_eta_s(self, now: Look) -> float | None:
        """When retention reaches what is not settled, if it goes on like this; None = it does not come nearer."""
        first, seconds = self._since(now)
        if not seconds:
            return None
        floor_speed = (now.floor - first.floor) / seconds
        if floor_speed <= (now.committed - first.committed) / seconds or floor_speed <= 0:
            return None
        return max(now.committed - 1 - now.floor, 0) / floor_speed

    def _since(self, now: Look) -> tuple[Look, float]:
        if not self._looks or now.ms - self._looks[0].ms < _LEAST_MS:
            return now, 0.0
        first = self._looks[0]
        return first, (now.ms - first.ms) / 1000
