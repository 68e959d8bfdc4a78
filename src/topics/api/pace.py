"""Whether the loop may write in place, told by how long the last writes took.

In place is the quickest way while the disk is quick, and nobody knows in advance whether it is: behind the backlog of
another program a sync that takes 0.1 ms takes seconds. So trust lapses when nothing was written for a while: whatever
happened to the disk meanwhile, a thread meets it first. It is lost for a time by a write that kept the loop for long,
and by several in a row that were not quick; a single one says more about who else wants the processor than about the
disk. A quick write, in a thread or not, brings it back.
"""

from __future__ import annotations

from typing import Final

TRUST_NS: Final = 250_000_000
"""What the last write showed is believed for so long."""
LONG_NS: Final = 50_000_000
"""A write that takes longer keeps the loop from too many others."""
SLOW_MAX: Final = 4
"""So many in a row that are not quick are no accident."""
DISTRUST_NS: Final = (50_000_000, 5_000_000_000)
"""How long trust is lost after them: more each time, from the first to the second."""


class Pace:
    """Of one kind of write; `quick_ns` is what such a write may take."""

    __slots__ = ("_at", "_distrust_ns", "_quick_ns", "_slow", "_until")

    def __init__(self, quick_ns: int) -> None:
        self._quick_ns = quick_ns
        self._slow = 0
        """In a row."""
        self._distrust_ns = DISTRUST_NS[0]
        self._until = 0
        """There is no trust before."""
        self._at = -TRUST_NS

    def is_quick(self, now_ns: int) -> bool:
        return self._until <= now_ns < self._at + TRUST_NS

    def took(self, now_ns: int, spent_ns: int) -> None:
        """A write that ended now took so long."""
        self._at = now_ns
        if spent_ns <= self._quick_ns:
            self._slow = self._until = 0
            self._distrust_ns = DISTRUST_NS[0]
        elif spent_ns > LONG_NS:
            self._until = now_ns + 20 * spent_ns
        elif now_ns >= self._until:
            self._slow += 1
            if self._slow >= SLOW_MAX:
                self._slow = SLOW_MAX - 1  # the next one is a trial
                self._until = now_ns + self._distrust_ns
                self._distrust_ns = min(2 * self._distrust_ns, DISTRUST_NS[1])
