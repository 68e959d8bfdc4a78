"""What a store shows of its topics, read without threads, as the oracle compares it with the plain model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from topics.model.config import TopicConfig
from topics.model.record import Gap, Record
from topics.storage.reader import fetch, plan
from topics.storage.store import Store
from topics.storage.topic import Topic
from topics.testing.plain import join_gaps


@dataclass(slots=True)
class View:
    """One topic: what `info` says and what reading it from the start gives."""

    name: str
    id: int
    now_ms: int
    config: TopicConfig
    head: int
    earliest_seq: int
    evict_floor: int
    expiry_floor: int
    delete_below: int
    count: int
    bytes: int
    last_ts: int
    items: list[Record | Gap]
    keys: dict[str, tuple[int, int, int]]
    """Idempotency keys that would be answered now."""
    routers: dict[int, tuple[int, int, int]]
    """Those into this topic: id -> cursor, copies and holes so far, head of the source."""
    txns: dict[str, tuple[int, int]]
    """Commits of staged parts that are remembered: first seq and count."""
    records: dict[int, Record] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def __post_init__(self) -> None:
        for item in self.items:
            if isinstance(item, Gap):
                self.gaps.append(item)
            else:
                self.records[item.seq] = item


def read_items(store: Store, topic: Topic, cursor: int, count_max: int = 1000) -> Iterator[Record | Gap]:
    """Everything behind `cursor`, to the head of this moment."""
    end = topic.head + 1
    while True:
        part = plan(topic, cursor, end, count_max)
        if part is None:
            return
        if isinstance(part, Gap):
            cursor = part.gap_to
            yield part
            continue
        for item in fetch(store.handles, part, 1 << 20):
            if isinstance(item, Gap):
                cursor = item.gap_to
                yield item
            else:
                cursor = item.first_seq + item.count - 1
                yield from item.records()


def view_topic(store: Store, topic: Topic) -> View:
    now = store.clock.now_ms()
    window = topic.config.idempotency_window_ms
    return View(
        name=topic.name,
        id=topic.id,
        now_ms=now,
        config=topic.config,
        head=topic.head,
        earliest_seq=topic.earliest_seq,
        evict_floor=topic.evict_floor,
        expiry_floor=topic.expiry_floor,
        delete_below=topic.delete_below,
        count=topic.live,
        bytes=topic.bytes,
        last_ts=topic.last_ts,
        items=list(join_gaps(read_items(store, topic, 0))),
        keys={key: (first, count, ts) for key, first, count, ts in topic.dedupe.rows() if now - ts <= window},
        routers={
            router.id: (router.cursor, router.forwarded, store.by_id[router.source_id].head)
            for router in store.routers.into(topic.id)
        },
        txns={row.txn: (row.first_seq, row.records) for row in topic.stages.memory.rows()} if topic.stages else {},
    )


def view_store(store: Store) -> dict[int, View]:
    return {topic.id: view_topic(store, topic) for topic in store.all_topics()}
