"""Exact lookups: by time, by tag; and what a change of retention would remove."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from topics.broker.history import History, Piece, Range
from topics.format.container import BadContainer
from topics.format.control import Selector, SelectorOp
from topics.format.tags import TagIndex
from topics.model.record import Gap
from topics.rules.retention import excess
from topics.storage.append import find_evict_floor
from topics.storage.delete import join_ranges
from topics.storage.scan import scan
from topics.storage.store import Store
from topics.storage.tagsearch import TagTail, find_tagged
from topics.storage.timesearch import first_at, time_of
from topics.storage.topic import Topic


class At(msgspec.Struct, frozen=True):
    topic: str
    seq: int
    ts: int | None


class TagCount(msgspec.Struct, frozen=True):
    tag: str
    count: int


def record_at(topic: Topic, ts: int) -> At:
    """The first live record at or after `ts`. Under the store's lock."""
    seq = topic.dead.next_live(first_at(topic, ts), topic.head + 1)
    return At(topic.name, seq, None if seq > topic.head else time_of(topic, seq))


class Tagged(History):
    """Records whose tag matches, found by the index instead of by looking at every record."""

    def __init__(self, store: Store, topic: Topic, match: Selector, wanted: Range) -> None:
        """Under the store's lock, on a swept topic."""
        super().__init__(store, topic, wanted)
        seqs = find_tagged(store.handles, topic, match, self.end_seq)
        self._seqs = seqs[int(np.searchsorted(seqs, self.next_from_seq)) :]

    def items(self, step_records: int = 8192, step_bytes: int = 1 << 20) -> Iterator[Gap | Piece]:
        for first, last in join_ranges(self._seqs):
            for item in scan(self.store, self.topic, first - 1, last + 1, step_records, step_bytes):
                if isinstance(item, Gap):
                    continue  # what was lost since the search has no tag any more
                self.next_from_seq = item.first_seq + item.count
                yield Piece(item, item.dead)
        self.next_from_seq = max(self.next_from_seq, self.end_seq)


def tag_names(store: Store, topic: Topic, prefix: str, limit: int) -> list[TagCount]:
    """Distinct tags of live records, with how many carry each. Under the store's lock."""
    find_tagged(store.handles, topic, Selector(SelectorOp.GLOB, prefix), None)  # brings the unsealed part up to date
    names: set[str] = set()
    for segment in topic.segments:
        if segment.sealed and segment.tags:
            try:
                names.update(TagIndex(store.handles.tags(segment)).names(prefix))
            except (BadContainer, FileNotFoundError, ValueError):
                continue
    if isinstance(topic.tag_tail, TagTail):
        raw = prefix.encode()
        names.update(tag.decode() for tag in topic.tag_tail.by_tag if tag.startswith(raw))
    found: list[TagCount] = []
    for name in sorted(names):
        count = len(find_tagged(store.handles, topic, Selector(SelectorOp.EQ, name), topic.head + 1))
        if count:
            found.append(TagCount(name, count))
        if len(found) == limit:
            break
    return found


class WouldRemove(msgspec.Struct, frozen=True):
    records: int
    bytes: int
    segments: int
    from_seq: int | None
    to_seq: int | None
    """Inclusive; null where nothing would go."""


class RetentionPlan(msgspec.Struct, frozen=True):
    would_remove: WouldRemove
    because: list[str]
    pinned_by: list[str]
    loses_for: list[str]


def retention_plan(topic: Topic, cap_records: int, cap_bytes: int, ttl_ms: int, now_ms: int) -> RetentionPlan:
    """What these limits would remove now. Under the store's lock; nothing changes."""
    floor = topic.dead.floor
    because: list[str] = []
    if topic.config.discard == "old":
        for word, records, size in (
            ("cap_records", excess(topic.live, cap_records), 0),
            ("cap_bytes", 0, excess(topic.bytes, cap_bytes)),
        ):
            if records or size:
                because.append(word)
                floor = max(floor, find_evict_floor(topic, records, size, topic.head).floor)
    if ttl_ms:
        expired = first_at(topic, now_ms - ttl_ms) - 1
        if expired > topic.dead.floor and topic.measure(topic.dead.floor + 1, expired)[0]:
            because.append("ttl_ms")
            floor = max(floor, expired)
    if floor == topic.dead.floor:
        return RetentionPlan(WouldRemove(0, 0, 0, None, None), [], [], [])
    live, size = topic.measure(topic.dead.floor + 1, floor)
    segments = sum(segment.end_seq - 1 <= floor for segment in topic.segments)
    return RetentionPlan(WouldRemove(live, size, segments, topic.earliest_seq, floor), because, [], [])
