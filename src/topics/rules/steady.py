"""A wall clock that follows monotonic time.

TTL and record times rest on the wall clock, and a wall clock can jump: a bad time server, a dead battery, a hand on
`date`. One bad reading must not expire a store. So a step of more than a minute counts only once it has held for a
minute of monotonic time; until then time goes on from the last believed reading. Smaller steps are ordinary
corrections and count at once.
"""

from __future__ import annotations

from typing import Final

STEP_MS_MAX: Final = 60_000
"""A reading this far off the believed clock is adopted at once; one further off must hold."""

HOLD_MS: Final = 60_000
"""How long a larger step must hold. Longer delays honest corrections, shorter believes worse clocks."""

_MS: Final = 1_000_000
_STEP_NS: Final = STEP_MS_MAX * _MS


class Steady:
    """Every reading goes through `read`; the first is believed, for there is nothing to doubt it by.

    What is remembered is not a time but the distance between the two clocks: it stays put while both tick, and changes
    only when the wall clock is set.
    """

    def __init__(self) -> None:
        self._distance_ns: int | None = None
        self._doubted_ns: int | None = None
        """The distance that waits to be believed."""
        self._doubted_since_ns = 0

    def read(self, wall_ms: int, monotonic_ns: int) -> int:
        """The time to use, in ms, given what both clocks say now."""
        distance_ns = wall_ms * _MS - monotonic_ns
        known = self._distance_ns
        if known is not None and self._doubted_ns is None and -_STEP_NS <= distance_ns - known <= _STEP_NS:
            # Every reading but the odd one; asked for with each append.
            self._distance_ns = distance_ns
            return wall_ms
        if self._distance_ns is None or not _is_step(distance_ns, self._distance_ns):
            return self._believe(distance_ns, wall_ms)
        if self._doubted_ns is None or _is_step(distance_ns, self._doubted_ns):
            self._doubted_ns = distance_ns
            self._doubted_since_ns = monotonic_ns
        elif monotonic_ns - self._doubted_since_ns >= HOLD_MS * _MS:
            return self._believe(distance_ns, wall_ms)
        return (monotonic_ns + self._distance_ns) // _MS

    def _believe(self, distance_ns: int, wall_ms: int) -> int:
        self._distance_ns = distance_ns
        self._doubted_ns = None
        return wall_ms


def _is_step(one_ns: int, other_ns: int) -> bool:
    return abs(one_ns - other_ns) > _STEP_NS
