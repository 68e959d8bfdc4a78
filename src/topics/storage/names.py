"""Which records carry a tag or a key: sealed segments answer by their sidecar, the rest by an index built on demand.

The index of the unsealed part grows only as far as a search has asked, so a topic that is never searched pays nothing
for it, and each record is looked at once. `catch_up` does the long part of that without the store's lock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from topics.format.checksum import Buffer
from topics.format.container import BadContainer
from topics.format.control import Selector, SelectorOp
from topics.format.ops import SEGMENT_LAYOUT, WAL_LAYOUT, collect_keys, collect_tags
from topics.format.segment import ENTRY_DTYPE, TAG
from topics.format.tags import KEYS_MAGIC, MAGIC, TagIndex, build_tags
from topics.model.errors import CorruptRecord, StorageError
from topics.model.record import Gap
from topics.storage.handles import Handles
from topics.storage.reader import FrameBatch, Slice, fetch
from topics.storage.segment import Segment
from topics.storage.topic import Topic

Seqs = npt.NDArray[np.uint64]
Found = dict[int, Seqs]
"""Hits of sealed segments, by their first seq: they can be looked for without the lock, for files do not change."""

_STEP = 16_384
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Names:
    """A kind of name that records carry."""

    word: str
    part: str
    magic: bytes
    collect: Callable[[Buffer, Buffer, int, int, int, int], list[bytes | None]]


TAGS: Final = Names("tag", "tags", MAGIC, collect_tags)
KEYS: Final = Names("key", "keys", KEYS_MAGIC, collect_keys)


class NameTail:
    """Names of the unsealed records: name -> ascending seqs."""

    __slots__ = ("by_name", "kind", "through")

    def __init__(self, kind: Names) -> None:
        self.kind = kind
        self.by_name: dict[bytes, array[int]] = {}
        self.through = 0

    def extend(self, handles: Handles, topic: Topic, start: int) -> None:
        """Look at every published record from `start` on that was not looked at yet."""
        for part in _slices(topic, max(start, self.through + 1)):
            self.look(handles, topic, part)
        self.through = topic.head

    def look(self, handles: Handles, topic: Topic, part: Slice) -> None:
        """Each step counts as looked at on its own: trouble in the middle must not make the next search add a record
        twice."""
        for item in fetch(handles, part, _ALL):
            if isinstance(item, Gap):
                self._skip(topic, part, item.gap_from)
            else:
                self.add(item.first_seq, self.names_of(item))

    def names_of(self, batch: FrameBatch) -> list[bytes | None]:
        return self.kind.collect(batch.buffer, batch.entries, 0, batch.count, batch.layout, batch.base)

    def add(self, first_seq: int, names: Sequence[bytes | None]) -> None:
        self.through = first_seq + len(names) - 1
        for position, name in enumerate(names):
            if name is not None:
                self.by_name.setdefault(name, array("Q")).append(first_seq + position)

    def _skip(self, topic: Topic, part: Slice, seq: int) -> None:
        """A live record whose bytes fail their check may carry any name: to go on would leave it out in silence."""
        if seq not in topic.dead:
            source = part.segment.path("data") if part.segment is not None else part.source.path if part.source else ""
            why = (
                f"record {seq} of topic {topic.name!r} fails its check, "
                f"so nobody can tell whether its {self.kind.word} matches"
            )
            raise CorruptRecord(source, 0, why, seq=seq)
        self.through = seq

    def forget_below(self, seq: int) -> None:
        """Sealed segments have sidecars of their own."""
        for name, seqs in list(self.by_name.items()):
            if seqs[0] < seq:
                rest = seqs[bisect_left(seqs, seq) :]
                if rest:
                    self.by_name[name] = rest
                else:
                    del self.by_name[name]

    def find(self, selector: Selector, start: int) -> list[Seqs]:
        value = selector.value.encode()
        if selector.op == SelectorOp.EQ:
            hits = [self.by_name[value]] if value in self.by_name else []
        else:
            hits = [seqs for name, seqs in self.by_name.items() if name.startswith(value)]
        return [np.array(seqs[bisect_left(seqs, start) :], dtype=np.uint64) for seqs in hits]


def _slices(topic: Topic, first: int) -> Iterator[Slice]:
    """Where the published records from `first` on lie."""
    for segment in topic.segments_between(first, topic.head + 1):
        low = max(first, segment.first_seq)
        yield Slice(topic.id, low, segment.end_seq - low, None, None, None, segment)
    for chunk, low, high in topic.tail.between(max(first, topic.copied + 1), topic.head + 1):
        while low < high:
            source, end = chunk.source_of(low)
            stop = min(end, high, low + _STEP)
            at = (low - chunk.first_seq) * 20
            entries = memoryview(chunk.buffer)[at : at + (stop - low) * 20]
            yield Slice(topic.id, low, stop - low, None, entries, source, None)
            low = stop


def first_slice(topic: Topic, first: int) -> Slice | None:
    """Where the record `first` lies, and some behind it. Under the store's lock."""
    part = next(_slices(topic, first), None)
    if part is None or part.count <= _STEP:
        return part
    entries = None if part.entries is None else part.entries[: _STEP * 20]
    return Slice(part.topic_id, part.first_seq, _STEP, None, entries, part.source, part.segment)


# -- searching ---------------------------------------------------------------------------------------------------------


def sealed_segments(topic: Topic) -> list[Segment]:
    """Those that may hold something live. Under the store's lock."""
    floor = topic.dead.floor
    found = []
    for segment in topic.segments:
        if segment.end_seq > floor + 1:
            if not segment.sealed:
                break
            found.append(segment)
    return found


def find_tagged(
    handles: Handles, topic: Topic, selector: Selector, before_seq: int | None, known: Found | None = None
) -> Seqs:
    """Seqs, published or ordered, whose tag matches and that are not gone, ascending."""
    seqs = _find(handles, topic, TAGS, selector, known or {}, _ordered(topic, selector))
    if before_seq is not None:
        seqs = seqs[: int(np.searchsorted(seqs, before_seq))]
    return not_gone(topic, seqs)


def find_named(handles: Handles, topic: Topic, kind: Names, selector: Selector, known: Found) -> Seqs:
    """Published seqs whose name matches and that are not gone, ascending. Under the store's lock."""
    return not_gone(topic, _find(handles, topic, kind, selector, known, ()))


def _find(handles: Handles, topic: Topic, kind: Names, selector: Selector, known: Found, more: Iterable[Seqs]) -> Seqs:
    found: list[Seqs] = []
    for segment in sealed_segments(topic):
        hits = known.get(segment.first_seq)
        found.append(search_segment(handles, topic, segment, kind, selector) if hits is None else hits)
    tail, start = name_tail(topic, kind)
    tail.extend(handles, topic, start)
    found += tail.find(selector, start)
    found += more
    return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)


def name_tail(topic: Topic, kind: Names) -> tuple[NameTail, int]:
    """The index of the unsealed part, and the first seq of that. Under the store's lock."""
    sealed = sealed_segments(topic)
    start = max(sealed[-1].end_seq if sealed else 0, topic.dead.floor + 1)
    tail = topic.name_tails.get(kind.part)
    if not isinstance(tail, NameTail):
        tail = topic.name_tails[kind.part] = NameTail(kind)
    tail.forget_below(start)
    return tail, start


def search_segment(handles: Handles, topic: Topic, segment: Segment, kind: Names, selector: Selector) -> Seqs:
    """Hits in one sealed segment, gone or not."""
    return index_of(handles, topic, segment, kind).find(selector)


def index_of(handles: Handles, topic: Topic, segment: Segment, kind: Names) -> TagIndex:
    """The index of a sealed segment: its sidecar, or, where that is absent or damaged, one made from the records."""

    def make() -> TagIndex:
        if segment.tags if kind is TAGS else segment.keys:
            try:
                return TagIndex(handles.sidecar(segment, kind.part), kind.magic)
            except (BadContainer, FileNotFoundError, StorageError, ValueError):
                pass  # derived and damaged: the records themselves tell
        tail = NameTail(kind)
        if _may_have(handles, segment, kind):
            tail.look(handles, topic, Slice(topic.id, segment.first_seq, segment.count, None, None, None, segment))
        names: list[bytes | None] = [None] * segment.count
        for name, seqs in tail.by_name.items():
            for seq in seqs:
                names[seq - segment.first_seq] = name
        return TagIndex(build_tags(names, segment.first_seq, kind.magic), kind.magic)

    return handles.index(segment.path(kind.part), make)


def _may_have(handles: Handles, segment: Segment, kind: Names) -> bool:
    if kind is KEYS:
        return segment.keys is not False
    entries = handles.entries(segment, 0, segment.count)
    return bool((np.frombuffer(entries, dtype=ENTRY_DTYPE)["flags"] & TAG).any())


def _ordered(topic: Topic, selector: Selector) -> list[Seqs]:
    """Hits in the appends that are ordered and not published."""
    found = []
    for effect in topic.pending:
        batch = effect.batch
        if batch is not None and batch.has_tags:
            first = effect.head - batch.count + 1
            tags = collect_tags(batch.frames, batch.entries, 0, batch.count, WAL_LAYOUT, 0)
            found.append(_matching(first, tags, selector))
        for run in effect.staged:
            if run.has_tags:
                tags = collect_tags(run.source.map(), run.entries, 0, run.count, SEGMENT_LAYOUT, 0)
                found.append(_matching(run.first_seq, tags, selector))
    return found


def _matching(first: int, tags: list[bytes | None], selector: Selector) -> Seqs:
    hits = [first + i for i, tag in enumerate(tags) if tag is not None and selector.matches(tag.decode())]
    return np.array(hits, dtype=np.uint64)


def not_gone(topic: Topic, seqs: Seqs) -> Seqs:
    """Those of them that nothing, done or ordered, took away. Under the store's lock."""
    if not len(seqs):
        return seqs
    first, last = int(seqs[0]), int(seqs[-1])
    mask = topic.gone_mask(first, last - first + 1, topic.ordered.overlay)
    if mask is None:
        return seqs
    kept: Seqs = seqs[np.frombuffer(mask, dtype=np.uint8)[(seqs - np.uint64(first)).astype(np.int64)] == 0]
    return kept
