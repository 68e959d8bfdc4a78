"""Two clocks, never confused: wall time says when, monotonic time says how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

WALL_MS_MAX: Final = (1 << 62) - 1
"""No wall time of ours is later. Files hold 64 bits, and a deadline lies days behind the time it was set at."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, ms since 1970. May be stepped in either direction by whoever sets the machine's clock."""
        ...

    def monotonic_ns(self) -> int:
        """Never goes back; its zero means nothing."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)


class Reading(Protocol):
    """A rule that makes one time of what both clocks say; `topics.rules.steady.Steady` is the one we use."""

    def read(self, wall_ms: int, monotonic_ns: int) -> int: ...


class SteadyClock:
    """A clock whose wall time has gone through a rule, so that one bad reading does not reach its users.

    It tells no time before 1970 and none that a file could not hold, whatever the machine says: a write that cannot be
    stamped would stop its shard. The rule comes from outside because it is pure and this package is not: neither
    imports the other.
    """

    def __init__(self, clock: Clock, rule: Reading) -> None:
        # Bound here, because every append asks for both times.
        self._wall_ms = clock.now_ms
        self._read = rule.read
        self.monotonic_ns: Callable[[], int] = clock.monotonic_ns

    def now_ms(self) -> int:
        ms = self._read(self._wall_ms(), self.monotonic_ns())
        return ms if 0 <= ms <= WALL_MS_MAX else min(max(ms, 0), WALL_MS_MAX)
