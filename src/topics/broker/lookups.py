"""Exact lookups: by time, by tag; and what a change of retention would remove."""

from __future__ import annotations

import msgspec

from topics.broker.history import Piece, render
from topics.format.control import Selector, SelectorOp
from topics.format.render import COMMA
from topics.model.errors import CorruptRecord
from topics.model.record import Gap
from topics.rules.retention import excess
from topics.storage.evict import find_evict_floor
from topics.storage.guard import guarded_floor, pins_of
from topics.storage.names import TAGS, index_of, name_tail, sealed_segments
from topics.storage.namesearch import catch_up, latest, search
from topics.storage.scan import check_there, scan
from topics.storage.store import Store
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


def tag_names(store: Store, topic: Topic, prefix: str, limit: int) -> list[TagCount]:
    """Distinct tags of live records, with how many carry each. Without the store's lock."""
    catch_up(store, topic, TAGS)
    with store.lock:
        check_there(store, topic)
        tail, start = name_tail(topic, TAGS)
        tail.extend(store.handles, topic, start)
        raw = prefix.encode()
        names = {tag.decode() for tag in tail.by_name if tag.startswith(raw)}
        segments = sealed_segments(topic)
    for segment in segments:
        try:
            names.update(index_of(store.handles, topic, segment, TAGS).names(prefix))
        except FileNotFoundError:
            continue  # dropped meanwhile
    found: list[TagCount] = []
    for name in sorted(names):
        count = len(search(store, topic, TAGS, Selector(SelectorOp.EQ, name)))
        if count:
            found.append(TagCount(name, count))
        if len(found) == limit:
            break
    return found


def latest_of_key(store: Store, topic: Topic, key: str, want: int) -> bytes | None:
    """The newest live record with a key, as JSON; None = there is none. Without the store's lock."""
    while True:
        seq = latest(store, topic, key)
        if seq is None:
            return None
        for item in scan(store, topic, seq - 1, seq + 1, 1, 1 << 30):
            if isinstance(item, Gap):
                if item.reason == "corrupt":
                    raise CorruptRecord(topic.directory, 0, f"record {seq} of topic {topic.name!r} fails its check")
                continue
            text, delivered, *_ = render(Piece(item, item.dead), want, 1, 1 << 62, True, COMMA)
            if delivered:
                return text
        # It went between the search and the read: the one before it is the newest now.


class WouldRemove(msgspec.Struct, frozen=True):
    records: int
    bytes: int
    segments: int
    from_seq: int | None
    to_seq: int | None
    """Inclusive; null where nothing would go."""


class PinnedBy(msgspec.Struct, frozen=True):
    group: str
    committed: int


class LosesFor(msgspec.Struct, frozen=True):
    group: str
    records: int


class RetentionPlan(msgspec.Struct, frozen=True):
    would_remove: WouldRemove
    because: list[str]
    pinned_by: list[PinnedBy]
    """Groups for whose sake something stays."""
    loses_for: list[LosesFor]
    """Groups that would not get what goes."""


def retention_plan(
    topic: Topic, cap_records: int, cap_bytes: int, ttl_ms: int, now_ms: int, mono_ms: int
) -> RetentionPlan:
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
    pins = pins_of(topic, mono_ms)
    wanted, floor = floor, guarded_floor(topic, pins, floor, topic.head, tell=False)
    pinned = [PinnedBy(pin.group.name, pin.committed) for pin in pins if floor < pin.committed <= wanted]
    if floor <= topic.dead.floor:
        return RetentionPlan(WouldRemove(0, 0, 0, None, None), because, pinned, [])
    groups = () if topic.groups is None else topic.groups.by_name.values()
    loses = [
        LosesFor(group.name, topic.measure(group.committed, floor)[0]) for group in groups if group.committed <= floor
    ]
    live, size = topic.measure(topic.dead.floor + 1, floor)
    segments = sum(segment.end_seq - 1 <= floor for segment in topic.segments)
    return RetentionPlan(WouldRemove(live, size, segments, topic.earliest_seq, floor), because, pinned, loses)
