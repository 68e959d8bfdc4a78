"""How fast a shard's files fill, and what the next one is made like.

Zeros are there to make syncs faster, and cost as much as the writing. For a writer with hundreds of megabytes and few
syncs a second that is a bad bargain: it gets files whose blocks are only reserved, and longer ones, because every
rotation holds it up for some syncs.
"""

from __future__ import annotations

_FACTOR = 4
_MS = 500
_SYNCS = 50
"""A writer that fills a file of usual size in less time, and has it synced no more often, is hurried. So is one that is
held back as far as it goes, and synced every 10 ms meanwhile."""
_BYTES_MAX = 1 << 31
"""Offsets in a file have 32 bits."""


class Pace:
    """Of one shard, from file to file."""

    __slots__ = ("_begun_ns", "_begun_syncs", "_usual", "hurried")

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._begun_ns = self._begun_syncs = 0
        self.hurried = False
        """The last file was full at once, and hardly synced."""

    def rotated(self, written: int, now_ns: int, syncs: int) -> None:
        """A file with so many bytes was left for the next one. `syncs`: all there were so far."""
        took_ms = (now_ns - self._begun_ns) // 1_000_000
        synced = syncs - self._begun_syncs
        full = written * 2 > self._usual
        self.hurried = full and took_ms * self._usual < _MS * written and synced * self._usual <= _SYNCS * written
        self._begun_ns, self._begun_syncs = now_ns, syncs

    @property
    def longest(self) -> int:
        return min(self._usual * _FACTOR, _BYTES_MAX)

    def capacity(self) -> int:
        """Of the next file that nobody waits for."""
        return self.longest if self.hurried else self._usual
