"""The files of a topic, for readers that take bytes instead of records."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from topics.format.segment import ENTRY_SIZE
from topics.model.errors import SegmentGone
from topics.rules.gap import floor_gap
from topics.storage.durable import durable_seq
from topics.storage.handles import Handles
from topics.storage.segment import Segment
from topics.storage.store import Store
from topics.storage.topic import Topic


class SegmentRow(msgspec.Struct, frozen=True, omit_defaults=True):
    first_seq: int
    end_seq: int
    records: int
    """Live ones."""
    bytes: int
    """Of `.data`."""
    tier: str
    sealed: bool
    generation: int
    parts: dict[str, int]
    """Their sizes."""
    deleted: list[tuple[int, int]] = []
    """Inclusive ranges of deletes that the files do not show yet."""
    path: str | None = None
    idx_xxh3: str | None = None
    """Checksum of the whole `.idx` in hex, once it is sealed: an index has none of its own."""


class TailSpan(msgspec.Struct, frozen=True):
    from_seq: int
    to_seq: int


class SegmentList(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    epoch: int
    store: str
    head_seq: int
    durable_seq: int | None
    earliest_seq: int
    loss_floor: int
    segments: list[SegmentRow]
    tail: TailSpan
    """Half-open: what only records can give."""
    gaps: list[tuple[int, int, str]]
    """Inclusive ranges of the asked seqs that were lost against anyone's will, and why."""


def list_segments(store: Store, topic: Topic, from_seq: int, to_seq: int | None, show_paths: bool) -> SegmentList:
    """Under the store's lock."""
    end = topic.head + 1 if to_seq is None else to_seq
    return SegmentList(
        topic=topic.name,
        topic_id=topic.id,
        epoch=topic.epoch,
        store=store.store_id,
        head_seq=topic.head,
        durable_seq=durable_seq(topic, store.shard_for(topic)),
        earliest_seq=topic.earliest_seq,
        loss_floor=min(topic.involuntary_floor, topic.head) + 1,
        segments=[_row(topic, segment, show_paths) for segment in topic.segments_between(max(from_seq, 1), end)],
        tail=TailSpan(topic.copied + 1, topic.head + 1),
        gaps=_gaps(topic, max(from_seq, 1), min(end, topic.head + 1)),
    )


def _gaps(topic: Topic, first: int, end: int) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    gap = floor_gap(first - 1, topic.evict_floor, topic.expiry_floor, topic.trim_floor)
    cursor = first - 1
    if gap is not None and first < end:
        found.append((first, min(gap.gap_to, end - 1), gap.reason))
        cursor = gap.gap_to
    while (lost := topic.lost.at_or_after(cursor + 1)) is not None and lost[0] < end:
        found.append((max(lost[0], cursor + 1), min(lost[1], end - 1), lost[2]))
        cursor = lost[1]
    return found


def _row(topic: Topic, segment: Segment, show_paths: bool) -> SegmentRow:
    topic.count(segment)
    last = segment.end_seq - 1
    unflagged = [
        (max(first, segment.first_seq), min(end, last))
        for first, end in topic.unflagged
        if first <= last and end >= segment.first_seq
    ]
    return SegmentRow(
        first_seq=segment.first_seq,
        end_seq=segment.end_seq,
        records=segment.live,
        bytes=segment.data_len,
        tier="hot",
        sealed=segment.sealed,
        generation=segment.generation,
        parts={"data": segment.data_len, "idx": segment.count * ENTRY_SIZE},
        deleted=unflagged,
        path=segment.path("data") if show_paths else None,
        idx_xxh3=f"{segment.idx_xxh3:016x}" if segment.sealed else None,
    )


@dataclass(slots=True)
class Part:
    """The bytes of one file of a segment."""

    segment: Segment
    name: str
    size: int
    etag: str

    def read(self, handles: Handles, start: int, end: int) -> bytes:
        """Without the lock. The index is proven, or made again from the data, before it is given away."""
        if self.name == "idx":
            return bytes(handles.entries(self.segment, 0, self.size // ENTRY_SIZE)[start:end])
        if self.segment.sealed:
            return bytes(handles.data(self.segment)[start:end])
        return handles.file(self.segment.path("data")).read_at(start, end - start)


def find_part(topic: Topic, first_seq: int, name: str) -> Part:
    """Under the store's lock."""
    segment = topic.segment_of(first_seq)
    if segment is None or segment.first_seq != first_seq or name not in ("data", "idx"):
        gone = first_seq <= topic.dead.floor
        by_choice = first_seq < topic.delete_below
        raise SegmentGone(
            f"topic {topic.name!r} has no part {name!r} of a segment that begins at {first_seq}",
            reason="deleted" if gone and by_choice else "evicted" if gone else "unknown",
            evict_floor=topic.involuntary_floor,
        )
    size = segment.data_len if name == "data" else segment.count * ENTRY_SIZE
    return Part(segment, name, size, f'"{topic.id}-{segment.generation}"')
