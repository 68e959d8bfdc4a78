"""Which records carry a tag: sealed segments answer by their sidecar, the rest by an index built on demand.

The index of the unsealed part grows only as far as a search has asked, so a topic that is never searched by tag pays
nothing for it, and each record is looked at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from topics.format.container import BadContainer
from topics.format.control import Selector, SelectorOp
from topics.format.ops import WAL_LAYOUT, collect_tags
from topics.format.tags import TagIndex
from topics.model.errors import CorruptRecord, StorageError
from topics.model.record import Gap
from topics.storage.handles import Handles
from topics.storage.reader import Slice, fetch
from topics.storage.segment import Segment
from topics.storage.topic import Topic

Seqs = npt.NDArray[np.uint64]
_STEP = 16_384
_ALL = 1 << 62


class TagTail:
    """Tags of the unsealed records: tag -> ascending seqs."""

    __slots__ = ("by_tag", "through")

    def __init__(self) -> None:
        self.by_tag: dict[bytes, array[int]] = {}
        self.through = 0

    def extend(self, handles: Handles, topic: Topic, start: int) -> None:
        """Look at every published record from `start` on that was not looked at yet."""
        first = max(start, self.through + 1)
        for segment in topic.segments_between(first, topic.head + 1):
            low = max(first, segment.first_seq)
            self._add(handles, topic, Slice(topic.id, low, segment.end_seq - low, None, None, None, segment))
        for chunk, low, high in topic.tail.between(max(first, topic.copied + 1), topic.head + 1):
            while low < high:
                source, end = chunk.source_of(low)
                stop = min(end, high, low + _STEP)
                at = (low - chunk.first_seq) * 20
                entries = memoryview(chunk.buffer)[at : at + (stop - low) * 20]
                self._add(handles, topic, Slice(topic.id, low, stop - low, None, entries, source, None))
                low = stop
        self.through = topic.head

    def _add(self, handles: Handles, topic: Topic, part: Slice) -> None:
        """Each step counts as looked at on its own: trouble in the middle must not make the next search add a record
        twice."""
        for item in fetch(handles, part, _ALL):
            if isinstance(item, Gap):
                self._skip(topic, part, item.gap_from)
                continue
            self.through = item.first_seq + item.count - 1
            tags = collect_tags(item.buffer, item.entries, 0, item.count, item.layout, item.base)
            for position, tag in enumerate(tags):
                if tag is not None:
                    self.by_tag.setdefault(tag, array("Q")).append(item.first_seq + position)

    def _skip(self, topic: Topic, part: Slice, seq: int) -> None:
        """A live record whose bytes fail their check may carry any tag: to go on would leave it out in silence."""
        if seq not in topic.dead:
            source = part.segment.path("data") if part.segment is not None else part.source.path if part.source else ""
            why = f"record {seq} of topic {topic.name!r} fails its check, so nobody can tell whether its tag matches"
            raise CorruptRecord(source, 0, why, seq=seq)
        self.through = seq

    def forget_below(self, seq: int) -> None:
        """Sealed segments have sidecars of their own."""
        for tag, seqs in list(self.by_tag.items()):
            if seqs[0] < seq:
                rest = seqs[bisect_left(seqs, seq) :]
                if rest:
                    self.by_tag[tag] = rest
                else:
                    del self.by_tag[tag]

    def find(self, selector: Selector, start: int) -> list[Seqs]:
        value = selector.value.encode()
        if selector.op == SelectorOp.EQ:
            hits = [self.by_tag[value]] if value in self.by_tag else []
        else:
            hits = [seqs for tag, seqs in self.by_tag.items() if tag.startswith(value)]
        return [np.array(seqs[bisect_left(seqs, start) :], dtype=np.uint64) for seqs in hits]


def find_tagged(handles: Handles, topic: Topic, selector: Selector, before_seq: int | None) -> Seqs:
    """Seqs, published or ordered, whose tag matches and that are not gone, ascending."""
    found: list[Seqs] = []
    floor = topic.dead.floor
    unsealed = topic.dead.floor + 1
    for segment in topic.segments:
        if segment.end_seq <= floor + 1:
            continue
        if not segment.sealed:
            break
        found.append(_in_segment(handles, topic, segment, selector))
        unsealed = max(unsealed, segment.end_seq)
    tail = topic.tag_tail
    if not isinstance(tail, TagTail):
        tail = topic.tag_tail = TagTail()
    tail.forget_below(unsealed)
    tail.extend(handles, topic, unsealed)
    found += tail.find(selector, unsealed)
    found += [_in_batch(effect_first, tags, selector) for effect_first, tags in _ordered(topic)]
    seqs = np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)
    if before_seq is not None:
        seqs = seqs[: int(np.searchsorted(seqs, before_seq))]
    return _not_gone(topic, seqs)


def _in_segment(handles: Handles, topic: Topic, segment: Segment, selector: Selector) -> Seqs:
    if segment.tags:
        try:
            return TagIndex(handles.tags(segment)).find(selector)
        except (BadContainer, FileNotFoundError, StorageError, ValueError):
            pass  # derived and damaged: the records themselves tell
    scan = TagTail()
    scan._add(handles, topic, Slice(topic.id, segment.first_seq, segment.count, None, None, None, segment))
    hits = scan.find(selector, segment.first_seq)
    return np.sort(np.concatenate(hits)) if hits else np.empty(0, dtype=np.uint64)


def _ordered(topic: Topic) -> list[tuple[int, list[bytes | None]]]:
    """(first seq, tags) of the appends that are ordered and not published."""
    batches = []
    for effect in topic.pending:
        batch = effect.batch
        if batch is not None and batch.has_tags:
            first = effect.head - batch.count + 1
            batches.append((first, collect_tags(batch.frames, batch.entries, 0, batch.count, WAL_LAYOUT, 0)))
    return batches


def _in_batch(first: int, tags: list[bytes | None], selector: Selector) -> Seqs:
    hits = [first + i for i, tag in enumerate(tags) if tag is not None and selector.matches(tag.decode())]
    return np.array(hits, dtype=np.uint64)


def _not_gone(topic: Topic, seqs: Seqs) -> Seqs:
    if not len(seqs):
        return seqs
    first, last = int(seqs[0]), int(seqs[-1])
    mask = topic.gone_mask(first, last - first + 1, topic.ordered.overlay)
    if mask is None:
        return seqs
    kept: Seqs = seqs[np.frombuffer(mask, dtype=np.uint8)[(seqs - np.uint64(first)).astype(np.int64)] == 0]
    return kept
