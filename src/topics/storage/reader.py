"""Reading a topic from a cursor: what lies next, where its bytes are, and the proof that they are whole.

`plan` runs under the store's lock and decides; `fetch` runs without it and touches files. A frame that fails its check
becomes a Gap of reason `corrupt` for its seq, and reading goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topics.format.mending import NOWHERE
from topics.format.ops import SEGMENT_LAYOUT, WAL_LAYOUT, find_runs, make_records, verify
from topics.format.segment import ENTRY, ENTRY_DTYPE
from topics.model.errors import CorruptFile, StorageError
from topics.model.record import Gap, Record
from topics.rules.gap import floor_gap
from topics.storage.handles import Handles
from topics.storage.partfile import PartSource, read_staged
from topics.storage.segment import Segment
from topics.storage.tail import ENTRY_SIZE, Source
from topics.storage.topic import Topic

_FAR = 16 * 1024
"""Frames of one topic further apart than this in a WAL file are read by separate calls."""


@dataclass(slots=True)
class FrameBatch:
    """Verified frames of consecutive seqs: a buffer and the entries that index it."""

    buffer: bytes | memoryview
    entries: bytes | memoryview
    first_seq: int
    count: int
    layout: int
    base: int
    dead: bytes | None
    """One byte per seq, nonzero = no record; None = all are records (or holes)."""

    def records(self) -> list[Record]:
        return make_records(
            self.buffer, self.entries, 0, self.count, self.first_seq, self.layout, self.base, self.dead, Record
        )


@dataclass(slots=True)
class Slice:
    """Seqs first_seq .. first_seq + count - 1, to be fetched from one place."""

    topic_id: int
    first_seq: int
    count: int
    dead: bytes | None
    entries: bytes | memoryview | None
    """None: take them from the segment's `.idx`."""
    source: Source | None
    segment: Segment | None

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


def plan(topic: Topic, cursor: int, end: int, count_max: int) -> Gap | Slice | None:
    """What a reader at `cursor` gets next, of the seqs below `end`; None = nothing is left below `end`."""
    gap = floor_gap(cursor, topic.evict_floor, topic.expiry_floor, topic.trim_floor)
    if gap is not None:
        return gap
    lost = topic.lost.at_or_after(cursor + 1)
    stop = min(end, lost[0]) if lost is not None else end
    first = topic.dead.next_live(cursor + 1, stop)
    if first >= stop:
        if lost is None or lost[0] >= end:
            return None
        return Gap(max(lost[0], cursor + 1), lost[1], lost[2])
    segment = topic.segment_of(first) if first <= topic.copied else None
    if segment is not None:
        count = min(segment.end_seq, stop) - first
        count = min(count, count_max)
        return Slice(topic.id, first, count, topic.dead.mask(first, count), None, None, segment)
    chunk = topic.tail.find(first)
    if chunk is None:
        raise CorruptFile(
            topic.directory, 0, f"record {first} of topic {topic.name!r} is in no segment and not in the WAL"
        )
    source, source_end = chunk.source_of(first)
    count = min(min(source_end, chunk.end_seq, stop) - first, count_max)
    at = (first - chunk.first_seq) * ENTRY_SIZE
    entries = memoryview(chunk.buffer)[at : at + count * ENTRY_SIZE]
    return Slice(topic.id, first, count, topic.dead.mask(first, count), entries, source, None)


def find_newest(topic: Topic) -> Slice | None:
    """What `plan` gives to a reader who lacks the last record alone, where that is seen at a glance; None = ask it.

    Whoever reads live asks this for every record, and mostly with a cold processor cache: what counts is how little is
    touched."""
    head, chunks = topic.head, topic.tail.chunks
    # What lies below a floor or was lost is dead, too.
    if not chunks or head <= topic.copied or head in topic.dead:
        return None
    chunk = chunks[-1]
    at = head - chunk.first_seq
    if not 0 <= at < chunk.count or not chunk.places:
        return None
    first, source = chunk.places[-1]
    if first > head or isinstance(source, PartSource):
        return None
    entries = memoryview(chunk.buffer)[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
    return Slice(topic.id, head, 1, None, entries, source, None)


def fetch_one(handles: Handles, part: Slice) -> FrameBatch | None:
    """The one record of a slice of one, or None if its bytes fail their check. What `fetch` does, without columns."""
    segment, entries = part.segment, part.entries
    if isinstance(part.source, PartSource):
        found = next(fetch(handles, part, 1))
        return found if isinstance(found, FrameBatch) else None
    if segment is not None:
        entries = handles.entries(segment, part.first_seq - segment.first_seq, 1)
    assert entries is not None
    offset, length, _ts, _flags, _accounted = ENTRY.unpack_from(entries, 0)
    base = offset
    buffer: bytes | memoryview
    if segment is not None and segment.sealed:
        buffer, base = _mapped(handles, segment), 0
    else:
        source = _data_file(handles, segment) if segment is not None else _given(part.source)
        buffer = source.read_at(offset, length) if offset != NOWHERE else b""
    layout = WAL_LAYOUT if segment is None else SEGMENT_LAYOUT
    if not verify(buffer, entries, 0, 1, part.first_seq, layout, part.topic_id, base):
        return None
    return FrameBatch(buffer, entries, part.first_seq, 1, layout, base, None)


def fetch_few(handles: Handles, part: Slice) -> FrameBatch | None:
    """The records of a slice of a few, where they lie near each other and are whole; None = use `fetch`. What `fetch`
    does, without columns."""
    segment, entries = part.segment, part.entries
    if segment is not None:
        entries = handles.entries(segment, part.first_seq - segment.first_seq, part.count)
    assert entries is not None
    low, high, expected = 0, 0, -1
    for offset, length, _ts, _flags, _accounted in ENTRY.iter_unpack(entries[: part.count * ENTRY_SIZE]):
        if expected < 0:
            low = offset
        elif not 0 <= offset - expected <= _FAR:
            return None
        high = expected = offset + length
    base = low
    buffer: bytes | memoryview
    if low == NOWHERE:
        return None
    if segment is not None and segment.sealed:
        buffer, base = _mapped(handles, segment), 0
    else:
        source = _data_file(handles, segment) if segment is not None else _given(part.source)
        buffer = source.read_at(low, high - low)
    layout = WAL_LAYOUT if segment is None else SEGMENT_LAYOUT
    if verify(buffer, entries, 0, part.count, part.first_seq, layout, part.topic_id, base) < part.count:
        return None
    return FrameBatch(buffer, entries, part.first_seq, part.count, layout, base, part.dead)


def fetch(handles: Handles, part: Slice, bytes_max: int) -> Iterator[FrameBatch | Gap]:
    """The verified batches of a slice, as far as about `bytes_max` bytes reach: at least one record."""
    entries = part.entries
    segment = part.segment
    if entries is None:
        assert segment is not None
        entries = handles.entries(segment, part.first_seq - segment.first_seq, part.count)
    runs = find_runs(entries, part.count, bytes_max, _FAR)
    if segment is not None and segment.sealed:
        buffer = _mapped(handles, segment)
        yield from _proven(part, buffer, entries, 0, runs[-1][1], SEGMENT_LAYOUT, 0)
        return
    source: Source = _data_file(handles, segment) if segment is not None else _given(part.source)
    layout = SEGMENT_LAYOUT if segment is not None else WAL_LAYOUT
    for low, high, base, end in runs:
        try:
            piece = source.read_at(base, max(end - base, 0)) if base != NOWHERE else b""
        except FileNotFoundError:
            raise  # of a staged part that went meanwhile: whoever asked looks again
        except OSError as error:
            raise StorageError(f"{source.path} cannot be read at byte {base}: {error}", path=source.path) from error
        if isinstance(source, PartSource):
            yield from _restamped(part, piece, entries, low, high - low, base)
        else:
            yield from _proven(part, piece, entries, low, high - low, layout, base)


def _restamped(
    part: Slice, buffer: bytes | memoryview, entries: bytes | memoryview, start: int, count: int, base: int
) -> Iterator[FrameBatch | Gap]:
    """What `_proven` gives, of records that lie in a staged part and get their seqs on the way."""
    at, end = start, start + count
    while at < end:
        first = part.first_seq + at
        frames, index, good = read_staged(buffer, entries, at, end - at, first, base)
        if good:
            dead = part.dead[at : at + good] if part.dead is not None else None
            yield FrameBatch(bytes(frames), bytes(index), first, good, SEGMENT_LAYOUT, 0, dead)
            at += good
        if at < end:
            if part.dead is None or not part.dead[at]:
                yield Gap(part.first_seq + at, part.first_seq + at, "corrupt")
            at += 1


def _data_file(handles: Handles, segment: Segment) -> Source:
    return handles.file(segment.path("data"))


def _given(source: Source | None) -> Source:
    assert source is not None
    return source


def _mapped(handles: Handles, segment: Segment) -> memoryview:
    try:
        return handles.data(segment)
    except ValueError:  # an empty file: every frame of it is missing, and each will say so
        return memoryview(b"")


def _proven(
    part: Slice, buffer: bytes | memoryview, entries: bytes | memoryview, start: int, count: int, layout: int, base: int
) -> Iterator[FrameBatch | Gap]:
    """Batches of whole frames, and a Gap for each live seq whose frame is not."""
    at = 0
    while at < count:
        first = part.first_seq + start + at
        good = verify(buffer, entries, start + at, count - at, first, layout, part.topic_id, base)
        if good:
            low, high = (start + at) * ENTRY_SIZE, (start + at + good) * ENTRY_SIZE
            dead = part.dead[start + at : start + at + good] if part.dead is not None else None
            yield FrameBatch(buffer, memoryview(entries)[low:high], first, good, layout, base, dead)
            at += good
        if at < count:
            seq = part.first_seq + start + at
            if part.dead is None or not part.dead[start + at]:
                yield Gap(seq, seq, "corrupt")
            at += 1


def scrub_segment(handles: Handles, topic_id: int, segment: Segment, dead: bytes | None) -> list[CorruptFile]:
    """Read every frame of a sealed segment and name each live one that is damaged, and a damaged `.idx`."""
    part = Slice(topic_id, segment.first_seq, segment.count, dead, None, None, segment)
    entries = handles.entries(segment, 0, segment.count)
    offsets = np.frombuffer(entries, dtype=ENTRY_DTYPE)["offset"]
    buffer = _mapped(handles, segment)
    damage = [
        CorruptFile(
            segment.path("data"),
            int(offsets[item.gap_from - segment.first_seq]),
            f"record {item.gap_from} fails its check",
        )
        for item in _proven(part, buffer, entries, 0, segment.count, SEGMENT_LAYOUT, 0)
        if isinstance(item, Gap)
    ]
    if not handles.is_index_whole(segment):
        path = segment.path("idx")
        damage.append(CorruptFile(path, 0, "its checksum does not match; its records are found without it"))
    return damage
