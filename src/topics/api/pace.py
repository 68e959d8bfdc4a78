"""Whether the disk is quick just now, told by how long the last writes took.

The event loop may write in place only what will not keep it for long, and nobody knows that in advance: behind the
backlog of another program a write that takes 0.1 ms takes seconds. So trust is earned by a write in a thread, lost by
a slow one, and lapses when nothing was written for a while: whatever happened to the disk meanwhile, a thread meets it
first.
"""

from __future__ import annotations

from typing import Final

TRUST_NS: Final = 250_000_000
"""What the last write showed is believed for so long."""
PROOFS: Final = 3
"""Quick writes in a row that make up for a slow one."""


class Pace:
    """Of one kind of write; `quick_ns` is what such a write may take."""

    __slots__ = ("_at", "_quick_ns", "_run")

    def __init__(self, quick_ns: int) -> None:
        self._quick_ns = quick_ns
        self._run = PROOFS - 1
        """Quick ones in a row. One is enough for a disk that is not known yet."""
        self._at = -TRUST_NS

    def is_quick(self, now_ns: int) -> bool:
        return self._run >= PROOFS and now_ns - self._at < TRUST_NS

    def took(self, now_ns: int, spent_ns: int) -> None:
        """A write that ended now took so long."""
        self._run = self._run + 1 if spent_ns <= self._quick_ns else 0
        self._at = now_ns
