"""What a topic looks like from outside."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from topics.model.config import TopicConfig
from topics.rules.priority import effective_priority
from topics.storage.durable import durable_seq
from topics.storage.store import Store
from topics.storage.topic import Topic


class SegmentTotals(msgspec.Struct, frozen=True):
    hot: int
    cold: int
    hot_bytes: int
    cold_bytes: int


class QueueCounts(msgspec.Struct, frozen=True):
    ready: int
    in_flight: int
    dead_lettered: int


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    type: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    epoch: int
    store: str
    created_ts: int
    durable_seq: int | None
    segments: SegmentTotals
    groups: int
    queue: QueueCounts | msgspec.UnsetType = msgspec.UNSET
    """Queues alone."""


class TopicRow(msgspec.Struct, frozen=True):
    """A topic in a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int


@dataclass(slots=True)
class Touched:
    """When a topic was last used; known to this process alone."""

    read_ms: int | None = None
    consumed_ms: int | None = None


class Clocks:
    """Read and consume clocks, by topic id so that a re-created topic starts fresh."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, Touched] = {}

    def of(self, topic: Topic) -> Touched:
        row = self._rows.get(topic.id)
        if row is None:
            row = self._rows[topic.id] = Touched()
        return row

    def read(self, topic: Topic, now_ms: int) -> None:
        row = self.of(topic)
        row.read_ms = row.consumed_ms = now_ms

    def forget(self, topic_id: int) -> None:
        self._rows.pop(topic_id, None)


def priority_of(topic: Topic, clocks: Clocks, now_ms: int) -> int:
    consumed = clocks.of(topic).consumed_ms
    idle = None if consumed is None else now_ms - consumed
    return effective_priority(topic.config.priority, topic.config.auto_priority, idle)


def state_of(store: Store, topic: Topic, clocks: Clocks, now_ms: int) -> TopicState:
    return TopicState(
        topic=topic.name,
        type=topic.config.type,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        next_seq=topic.head + 1,
        count=topic.live,
        bytes=topic.bytes,
        config=topic.config,
        effective_priority=priority_of(topic, clocks, now_ms),
        last_write_ts=topic.last_ts or None,
        last_read_ts=clocks.of(topic).read_ms,
        epoch=topic.epoch,
        store=store.store_id,
        created_ts=topic.created_ts,
        durable_seq=durable_seq(topic, store.shard_for(topic)),
        segments=SegmentTotals(len(topic.segments), 0, sum(s.data_len for s in topic.segments), 0),
        groups=0 if topic.groups is None else len(topic.groups.by_name),
        queue=msgspec.UNSET if topic.queue is None else counts_of(topic),
    )


def counts_of(topic: Topic) -> QueueCounts:
    """As of the last sweep of its leases."""
    assert topic.queue is not None
    leases = topic.queue.leases
    ready = topic.live - leases.leased - leases.delayed
    return QueueCounts(ready, leases.leased, topic.queue.dead_lettered)


def row_of(topic: Topic, clocks: Clocks, now_ms: int) -> TopicRow:
    return TopicRow(
        topic.name,
        topic.head,
        topic.earliest_seq,
        topic.live,
        topic.bytes,
        topic.config.commit_class.name == "FSYNC",
        priority_of(topic, clocks, now_ms),
    )
