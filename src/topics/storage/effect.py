"""What ordered submissions will do to their topics: an effect each, and the view that all of them together make."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from topics.format.prepared import Prepared
from topics.model.config import TopicConfig
from topics.storage.columns import Ranges
from topics.storage.dead import DeadSet
from topics.storage.partfile import PartSource
from topics.storage.submission import Submission


@dataclass(slots=True)
class Ledger:
    """Accounted bytes of the live records of all topics together."""

    bytes: int = 0
    ordered: int = 0
    """Of appends handed to the WAL and not published yet."""
    bytes_max: int = 0
    """What both may come to; 0 = no limit."""


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Consecutive records of a commit that lie in one staged part."""

    first_seq: int
    count: int
    entries: bytearray
    source: PartSource
    has_tags: bool


class Effect(msgspec.Struct, eq=False):
    """What one ordered submission will do to its topic, as far as later decisions need to know."""

    submission: Submission | None = None
    head: int = 0
    ts: int = 0
    live: int = 0
    bytes: int = 0
    evict_floor: int = 0
    expiry_floor: int = 0
    delete_below: int = 0
    ranges: Ranges = ()
    config: TopicConfig | None = None
    batch: Prepared | None = None
    """The records of an append: a delete by tag ordered behind it looks at them too."""
    staged: tuple[StagedRun, ...] = ()
    """The same of a commit of staged parts."""

    def miss(self, seqs: np.ndarray, sizes: np.ndarray, left: np.ndarray) -> None:
        """Of these records, which never came, those that it was to end do not count among what it ends. `left`: the
        ones that nothing before it was to end; that changes with it."""
        floor = max(self.evict_floor, self.expiry_floor, self.delete_below - 1)
        ended = seqs <= floor
        for first, last in self.ranges:
            ended |= (seqs >= first) & (seqs <= last)
        ended &= left
        self.live += int(np.count_nonzero(ended))
        self.bytes += int(sizes[ended].sum())
        left &= ~ended


@dataclass(slots=True)
class Ordered:
    """The published state plus the effects still under way."""

    head: int
    ts: int
    live: int
    bytes: int
    evict_floor: int
    expiry_floor: int
    delete_below: int
    config: TopicConfig
    overlay: DeadSet | None = None
    """Seqs that ordered deletes and floors will kill, beyond those dead already; None = none."""

    @property
    def floor(self) -> int:
        return max(self.evict_floor, self.expiry_floor, self.delete_below - 1)

    def add(self, effect: Effect) -> None:
        if effect.head > self.head:
            self.head = effect.head
        if effect.ts > self.ts:
            self.ts = effect.ts
        self.live += effect.live
        self.bytes += effect.bytes
        if effect.config is not None:
            self.config = effect.config
        if effect.ranges or effect.evict_floor or effect.expiry_floor or effect.delete_below:
            self.evict_floor = max(self.evict_floor, effect.evict_floor)
            self.expiry_floor = max(self.expiry_floor, effect.expiry_floor)
            self.delete_below = max(self.delete_below, effect.delete_below)
            if self.overlay is None:
                self.overlay = DeadSet()
            self.overlay.mark_all(effect.ranges)
            self.overlay.raise_floor(self.floor)
