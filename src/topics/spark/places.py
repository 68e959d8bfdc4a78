"""Where records are: the answer to "where is seq n", as values that travel to the tasks.

A span is a range of seqs of one topic in one place. A place is a segment's files, a WAL file of a directory at rest, or
the server's own reading. Whoever adds a tier adds a place here and its reading in the origin that gives it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from topics.model.record import GapReason


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    first_seq: int
    end_seq: int
    """Of the whole segment; a span may be less."""
    data_len: int
    generation: int
    sealed: bool
    path: str | None
    """Of `.data`, where somebody said it; else the server gives the bytes."""
    idx_xxh3: int | None = None
    """Checksum of the whole `.idx`, where known."""
    dead: tuple[tuple[int, int], ...] = ()
    """Inclusive ranges that nobody gets, where the files alone do not say it."""


@dataclass(frozen=True, slots=True)
class WalPlace:
    path: str
    entries: bytes = field(repr=False)
    """One per seq of the span."""
    dead: tuple[tuple[int, int], ...] = ()
    staged: bool = False
    """The file is a staged part that was committed: its frames get their seqs and times when they are read."""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """The server reads these records itself: they are in its WAL or in its memory."""


Place = SegmentPlace | WalPlace | ServerPlace


@dataclass(frozen=True, slots=True)
class Span:
    topic: str
    topic_id: int
    start_seq: int
    end_seq: int
    bytes: int
    """About how many, for even partitions."""
    place: Place

    @property
    def count(self) -> int:
        return self.end_seq - self.start_seq

    def cut(self, start_seq: int, end_seq: int) -> Span:
        """The part of it from `start_seq` to `end_seq`."""
        place = self.place
        if isinstance(place, WalPlace):
            size = len(place.entries) // max(self.count, 1)
            low, high = (start_seq - self.start_seq) * size, (end_seq - self.start_seq) * size
            place = replace(place, entries=place.entries[low:high])
        share = self.bytes * (end_seq - start_seq) // max(self.count, 1)
        return replace(self, start_seq=start_seq, end_seq=end_seq, bytes=share, place=place)


@dataclass(frozen=True, slots=True)
class Loss:
    """Seqs (both inclusive) that are gone, and the reader did not choose it."""

    topic: str
    gap_from: int
    gap_to: int
    reason: GapReason | str


def joined_losses(losses: Iterable[Loss]) -> list[Loss]:
    """The losses of one topic in the order of their seqs, those that follow each other for one reason as one."""
    joined: list[Loss] = []
    for loss in sorted(losses, key=lambda one: one.gap_from):
        last = joined[-1] if joined else None
        if last is not None and last.reason == loss.reason and loss.gap_from == last.gap_to + 1:
            joined[-1] = replace(last, gap_to=loss.gap_to)
        else:
            joined.append(loss)
    return joined


@dataclass(frozen=True, slots=True)
class Damage:
    """A record whose bytes fail their check."""

    topic: str
    seq: int
    path: str
    offset: int


@dataclass(frozen=True, slots=True)
class Head:
    """Where a topic stands."""

    id: str
    """Of this instance of the topic, in any store: `<store>-<topic_id>`."""
    topic_id: int
    head_seq: int
    durable_seq: int | None
    """None: the topic keeps its records in memory only."""
    earliest_seq: int
    bytes_ahead: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    spans: list[Span]
    losses: list[Loss]
