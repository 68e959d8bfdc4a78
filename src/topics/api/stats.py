"""What `topics top` and the console show: how fast every topic grows, and how quick the disk is.

Nothing is counted for it on the way of a request but one number, and that only while somebody watches: a sampler looks
at the heads of all topics about once a second, until nobody has asked for two minutes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.broker.away import away
from topics.broker.steps import Steps
from topics.rules.rates import Rates, percentile
from topics.storage.store import Store
from topics.storage.topic import Topic
from topics.storage.turn import SYNC_BUCKETS_US

if TYPE_CHECKING:
    from topics.api.service import Service

SAMPLE_S: Final = 1.0
WATCH_MS: Final = 120_000
ROWS: Final = 100
ROWS_MAX: Final = 1000
APPEND_BUCKETS_US: Final = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000, 1_000_000)


class PerSecond(msgspec.Struct, frozen=True):
    """Records per second, on average over the last second, ten seconds and minute."""

    s1: float = msgspec.field(name="1s", default=0.0)
    s10: float = msgspec.field(name="10s", default=0.0)
    s60: float = msgspec.field(name="60s", default=0.0)


class Quantiles(msgspec.Struct, frozen=True):
    """Milliseconds, over the last minute; null where nothing happened."""

    p50: float | None
    p99: float | None


class TierStats(msgspec.Struct, frozen=True):
    segments: int
    bytes: int


class Tiers(msgspec.Struct, frozen=True):
    hot: TierStats
    cold: TierStats


class Behind(msgspec.Struct, frozen=True):
    group: str
    lag: int
    """Seqs from what it committed to the head, deleted ones among them."""


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    records_per_s: PerSecond
    head_seq: int
    count: int
    bytes: int
    segments: int
    groups: int
    behind: Behind | None
    """The group with the most before it; null without groups."""


class Stats(msgspec.Struct, frozen=True):
    store: str
    uptime_ms: int
    watched_ms: int
    """How far back the rates reach: 0 when asked for the first time."""
    topics: int
    records_live: int
    bytes_live: int
    groups: int
    connections: int
    records_per_s: PerSecond
    append_ms: Quantiles
    sync_ms: Quantiles
    pressure: float
    """How full the queues before the disk are, 0 to 1."""
    wal_bytes: int
    """Written to the WAL and not yet in segments."""
    tiers: Tiers
    by_topic: list[TopicStats]
    """The busiest of the last ten seconds first, then the largest."""
    truncated: bool
    """There are more topics than are shown."""


class Sampler:
    """Belongs to one server."""

    def __init__(self) -> None:
        self.watched = False
        """Somebody asked lately: appends are worth timing."""
        self._appends = [0] * (len(APPEND_BUCKETS_US) + 1)
        self._rates = Rates(len(SYNC_BUCKETS_US) + 1 + len(self._appends))
        self._asked_ns = 0
        self._lock = threading.Lock()

    def appended(self, waited_ns: int, requests: int = 1) -> None:
        self._appends[bisect_left(APPEND_BUCKETS_US, waited_ns / 1000)] += requests

    def asked(self, service: Service) -> None:
        """Somebody looks: sample from now on. On the event loop."""
        self._asked_ns = service.now_ns()
        if not self.watched:
            self.watched = True
            service.loop.call_later(SAMPLE_S, self._tick, service)

    def _tick(self, service: Service) -> None:
        if service.now_ns() - self._asked_ns > WATCH_MS * 1_000_000:
            self.watched = False
            self._rates = Rates(len(SYNC_BUCKETS_US) + 1 + len(self._appends))
            return
        try:
            service.readers.submit(self.sample, service.broker.store)
        except RuntimeError:
            return  # the server stops
        service.loop.call_later(SAMPLE_S, self._tick, service)

    def sample(self, store: Store) -> None:
        """In a thread. Heads are read without the lock: each by itself is true."""
        with store.lock:
            topics = list(store.by_id.values())
            syncs = [sum(column) for column in zip(*(shard.stats.sync_counts for shard in store.shards), strict=True)]
        heads = {topic.id: topic.head for topic in topics}
        now_ms = store.clock.monotonic_ns() // 1_000_000
        with self._lock:
            self._rates.sample(now_ms, heads, [*syncs, *self._appends])

    def read(self, service: Service, uptime_ms: int, prefix: str, limit: int, call: Call) -> Stats:
        """In a thread."""
        store = service.broker.store
        self.sample(store)
        with self._lock:
            rates, counts, watched_ms = self._rates.per_second(), self._rates.counts(), self._rates.span_ms
        syncs, appends = counts[: len(SYNC_BUCKETS_US) + 1], counts[len(SYNC_BUCKETS_US) + 1 :]
        with store.lock:
            topics = [topic for topic in store.topics.values() if call.key.may_name(topic.name)]
            wal_bytes = sum(shard.wal_bytes for shard in store.shards)
            groups = sum(len(topic.groups.by_name) for topic in topics if topic.groups is not None)
        shown = [topic for topic in topics if topic.name.startswith(prefix)]
        nothing = (0.0, 0.0, 0.0)
        shown.sort(key=lambda topic: (-rates.get(topic.id, nothing)[1], -topic.bytes, topic.name))
        with store.lock:
            rows = [_row(topic, rates.get(topic.id, nothing)) for topic in shown[:limit]]
        segments = [segment for topic in topics for segment in topic.segments]
        total = [sum(column) for column in zip(*(rates.get(topic.id, nothing) for topic in topics), strict=True)]
        return Stats(
            store=store.store_id,
            uptime_ms=uptime_ms,
            watched_ms=watched_ms,
            topics=len(topics),
            records_live=sum(topic.live for topic in topics),
            bytes_live=sum(topic.bytes for topic in topics),
            groups=groups,
            connections=service.connections(),
            records_per_s=_per_second(total or nothing),
            append_ms=_quantiles(appends, APPEND_BUCKETS_US),
            sync_ms=_quantiles(syncs, SYNC_BUCKETS_US),
            pressure=round(service.live.pressure.relief.pressure, 3),
            wal_bytes=wal_bytes,
            tiers=Tiers(TierStats(len(segments), sum(one.data_len for one in segments)), TierStats(0, 0)),
            by_topic=rows,
            truncated=len(shown) > limit,
        )


def _row(topic: Topic, rates: tuple[float, ...]) -> TopicStats:
    """Under the lock."""
    groups = () if topic.groups is None else tuple(topic.groups.by_name.values())
    first = topic.dead.floor + 1
    lags = [Behind(group.name, topic.head + 1 - max(group.committed, first)) for group in groups]
    return TopicStats(
        topic.name, _per_second(rates), topic.head, topic.live, topic.bytes, len(topic.segments), len(groups),
        max(lags, key=lambda one: one.lag, default=None),
    )  # fmt: skip


def _per_second(rates: tuple[float, ...] | list[float]) -> PerSecond:
    return PerSecond(*(round(rate, 3) for rate in rates))


def _quantiles(counts: list[int], bounds_us: tuple[int, ...]) -> Quantiles:
    bounds = [bound / 1000 for bound in bounds_us]
    return Quantiles(percentile(counts, bounds, 0.5), percentile(counts, bounds, 0.99))


def stats(service: Service, call: Call) -> Steps[Response]:
    service.stats.asked(service)
    uptime_ms = (service.now_ns() - service.started_ns) // 1_000_000
    limit = min(call.number("limit", ROWS) or ROWS, ROWS_MAX)
    prefix = call.query.get("prefix", "")
    found = yield from away(
        service.broker.store, service.readers, lambda: service.stats.read(service, uptime_ms, prefix, limit, call)
    )
    return call.answer(found, service.now_ns())
