"""How much of what there is one answer may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topics.model import limits
from topics.model.errors import StorageError
from topics.rules.lease import Leases
from topics.rules.lease_values import Deal
from topics.storage.topic import Topic

LARGEST: Final = limits.RECORD_BYTES + limits.META_BYTES
"""More than one record takes."""


class Budget:
    """How much more one answer may hold: its first record always."""

    __slots__ = ("bytes", "records", "topic", "used")

    def __init__(self, topic: Topic, records: int, bytes_max: int) -> None:
        self.topic = topic
        self.records = records
        self.bytes = bytes_max
        self.used = False

    def trim(self, leases: Leases, deal: Deal, now_ms: int, hand: int = 0) -> Deal:
        """What is too much of a hand goes back to where it was."""
        grants = deal.grants[hand]
        keep = self.take([seq for seq, _ in grants])
        if keep < len(grants):
            leases.give_back([seq for seq, _ in grants[keep:]], now_ms)
            deal.grants[hand] = grants[:keep]
        return deal

    def take(self, seqs: Sequence[int]) -> int:
        """How many of them there is room for."""
        taken = 0
        if seqs and seqs[-1] - seqs[0] < 2 * len(seqs):
            whole = self._size(seqs[0], seqs[-1])
            if whole <= self.bytes:
                taken, self.bytes = len(seqs), self.bytes - whole
        for seq in seqs[taken:]:
            size = self._size(seq, seq)
            if size > self.bytes and self.used:
                self.bytes = 0
                break
            self.bytes -= size
            self.used = True
            taken += 1
        self.records -= taken
        self.used = self.used or taken > 0
        return taken

    def _size(self, first: int, last: int) -> int:
        """What first..last take, or at most take where that cannot be read: who reads them says what is wrong, and what
        was dealt already must not be in hand for ever."""
        try:
            return self.topic.measure(first, last)[1]
        except (StorageError, FileNotFoundError):
            return LARGEST * (last - first + 1)
