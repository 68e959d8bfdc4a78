"""Metrics, as Prometheus text or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from topics.api.auth import Key
from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service
from topics.broker.broker import Broker
from topics.broker.state import QueueCounts, counts_of
from topics.storage.turn import SYNC_BUCKETS_US

TEXT: Final = b"text/plain; version=0.0.4"
TOPICS_MAX: Final = 1000
"""Topics shown one by one; a scrape must not grow with the store."""

CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")


@dataclass(slots=True)
class TopicNumbers:
    name: str
    head_seq: int
    earliest_seq: int
    records_live: int
    bytes_live: int
    queue: QueueCounts | None
    """Queues alone."""


@dataclass(slots=True)
class Numbers:
    """Everything that is shown, taken at one moment."""

    ready: bool
    uptime_ms: int
    topics: int = 0
    routers: int = 0
    router_lag: int = 0
    """Source records that the slowest router has not passed yet."""
    router_unmarked: int = 0
    by_class: Counter[str] = field(default_factory=Counter)
    stages_open: int = 0
    staged_bytes: int = 0
    """Of the files of open stages."""
    queue_topics: int = 0
    queue_leases: int = 0
    records_live: int = 0
    bytes_live: int = 0
    each: list[TopicNumbers] = field(default_factory=list)
    """Those whose names the caller may know."""
    truncated: bool = False
    """There are more of them."""
    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    bytes_written: int = 0
    rotations: int = 0
    submit_full: int = 0
    queue_depth: int = 0
    queue_depth_peak: int = 0
    read_only: int = 0
    """Shards that stopped after a failed write."""
    disk_full: int = 0
    """Shards that cannot make their next file."""
    sync_counts: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BUCKETS_US) + 1))
    sync_ns: int = 0
    checkpoint_failed: bool = False
    connections: int = 0
    streams: int = 0
    """Open watch streams and WebSockets."""
    lagging: int = 0
    """Of them, those that wait for their readers."""
    sessions: int = 0
    delivered: int = 0
    pressure: float = 0.0
    ready_topics: int = 0
    """Topics that wait for delivery."""
    delivery_wait_ms: float = 0.0
    """What they waited for their turn, on average."""
    coalesce_ms: float = 0.0
    commit_window_ms: float = 0.0
    shedding: bool = False
    """Routers and topics of negative priority stand back."""
    groups: int = 0
    """Consumer groups."""
    guard_bites: int = 0
    """Evictions that went past what a group with a guard still had to get."""
    refused: int = 0
    """Writes refused because of pressure."""


def collect(broker: Broker, numbers: Numbers, key: Key) -> Numbers:
    """Of everything; by name only the topics that the key may name."""
    store = broker.store
    with store.lock:
        numbers.topics = len(store.topics)
        numbers.staged_bytes = store.staging.bytes
        routers = store.routers.by_name.values()
        numbers.routers = len(routers)
        numbers.router_unmarked = store.routers.unmarked
        heads = ((store.by_id[router.source_id].head, router.cursor) for router in routers)
        numbers.router_lag = max((head - cursor for head, cursor in heads), default=0)
        for topic in store.topics.values():
            numbers.by_class[topic.config.durability or "disk"] += 1
            queue = None
            if topic.queue is not None:
                if not store.closed:
                    broker.queues.sweep(topic)  # of workers that died, nobody else may ask
                queue = counts_of(topic)
                numbers.queue_topics += 1
                numbers.queue_leases += queue.in_flight
            if topic.groups is not None:
                numbers.groups += len(topic.groups.by_name)
                numbers.guard_bites += sum(group.bites for group in topic.groups.by_name.values())
            numbers.stages_open += len(topic.stages.open) if topic.stages is not None else 0
            numbers.records_live += topic.live
            numbers.bytes_live += topic.bytes
            if not key.may_name(topic.name):
                continue
            if len(numbers.each) == TOPICS_MAX:
                numbers.truncated = True
            else:
                numbers.each.append(
                    TopicNumbers(topic.name, topic.head, topic.earliest_seq, topic.live, topic.bytes, queue)
                )
        for shard in store.shards:
            stats = shard.stats
            numbers.frames += stats.frames
            numbers.batches += stats.batches
            numbers.fsyncs += stats.syncs
            numbers.bytes_written += stats.bytes_written
            numbers.rotations += stats.rotations
            numbers.submit_full += stats.submit_full
            numbers.queue_depth += len(shard.queue)
            numbers.queue_depth_peak = max(numbers.queue_depth_peak, stats.depth_peak)
            numbers.read_only += shard.failed is not None
            numbers.disk_full += shard.refusing is not None
            numbers.sync_ns += stats.sync_ns
            numbers.sync_counts = [a + b for a, b in zip(numbers.sync_counts, stats.sync_counts, strict=True)]
        numbers.checkpoint_failed = store.trouble is not None
    return numbers


def metrics(service: Service | None, call: Call, uptime_ms: int, progress: float) -> Response:
    numbers = Numbers(service is not None, uptime_ms)
    if service is not None:
        collect(service.broker, numbers, call.key)
        numbers.connections = service.connections()
        numbers.streams = service.live.streams
        numbers.lagging = service.live.lagging
        numbers.sessions = len(service.live.sessions)
        numbers.delivered = service.live.hub.delivered
        relief = service.live.pressure.relief
        numbers.pressure = round(relief.pressure, 3)
        numbers.ready_topics = service.live.agenda.waiting
        numbers.delivery_wait_ms = round(service.live.pressure.waited_ms, 3)
        numbers.coalesce_ms = round(relief.coalesce_ms, 3)
        numbers.commit_window_ms = round(relief.window_ms, 3)
        numbers.shedding = relief.shed
        numbers.refused = service.pump.refused
        progress = 1.0
    if b"application/json" in call.head.headers.get(b"accept", b""):
        return Response(200, msgspec.json.encode(as_json(numbers, progress)))
    return Response(200, "".join(as_text(numbers, progress)).encode(), TEXT)


def _gauges(numbers: Numbers) -> dict[str, int | float]:
    """What both forms show under one name."""
    return {
        "topics": numbers.topics,
        "routers": numbers.routers,
        "router_lag": numbers.router_lag,
        "records_live": numbers.records_live,
        "bytes_live": numbers.bytes_live,
        "stages_open": numbers.stages_open,
        "staged_bytes": numbers.staged_bytes,
        "queue_topics": numbers.queue_topics,
        "queue_leases_in_flight": numbers.queue_leases,
        "groups": numbers.groups,
        "sse_connections": numbers.streams,
        "sse_lagging": numbers.lagging,
        "watch_sessions": numbers.sessions,
        "pressure": numbers.pressure,
        "ready_topics": numbers.ready_topics,
        "delivery_wait_ms": numbers.delivery_wait_ms,
        "coalesce_ms": numbers.coalesce_ms,
        "commit_window_ms": numbers.commit_window_ms,
        "shedding": numbers.shedding,
        "connections": numbers.connections,
        "checkpoint_failed": numbers.checkpoint_failed,
        "ready": numbers.ready,
    }


def as_json(numbers: Numbers, progress: float) -> dict[str, Any]:
    return {
        **_gauges(numbers),
        **{f"topics_{name}": numbers.by_class[name] for name in CLASSES},
        "refused_total": numbers.refused,
        "group_guard_bites_total": numbers.guard_bites,
        "replay_progress": progress,
        "uptime_ms": numbers.uptime_ms,
        "wal": {
            "fsyncs": numbers.fsyncs,
            "frames": numbers.frames,
            "batches": numbers.batches,
            "bytes_written": numbers.bytes_written,
            "rotations": numbers.rotations,
            "queue_depth": numbers.queue_depth,
            "queue_depth_peak": numbers.queue_depth_peak,
            "submit_full_total": numbers.submit_full,
            "read_only": bool(numbers.read_only),
            "disk_full": bool(numbers.disk_full),
            "fsync_count": sum(numbers.sync_counts),
            "fsync_micros_total": numbers.sync_ns // 1000,
        },
    }


def as_text(numbers: Numbers, progress: float) -> Iterator[str]:
    gauges = {
        **{name: int(value) if isinstance(value, bool) else value for name, value in _gauges(numbers).items()},
        "recovery_progress": progress,
        "topic_metrics_truncated": int(numbers.truncated),
        "wal_queue_depth": numbers.queue_depth,
        "wal_queue_depth_peak": numbers.queue_depth_peak,
        "wal_read_only": int(bool(numbers.read_only)),
        "wal_disk_full": int(bool(numbers.disk_full)),
    }
    counters = {
        "uptime_ms": numbers.uptime_ms,
        "router_unmarked_total": numbers.router_unmarked,
        "deliveries_total": numbers.delivered,
        "refused_total": numbers.refused,
        "group_guard_bites_total": numbers.guard_bites,
        "wal_frames_total": numbers.frames,
        "wal_batches_total": numbers.batches,
        "wal_fsyncs_total": numbers.fsyncs,
        "wal_bytes_written_total": numbers.bytes_written,
        "wal_rotations_total": numbers.rotations,
        "wal_submit_full_total": numbers.submit_full,
    }
    for kind, series in (("gauge", gauges), ("counter", counters)):
        for name, value in series.items():
            yield f"# TYPE topics_{name} {kind}\ntopics_{name} {value}\n"
    yield "# TYPE topics_topics_by_class gauge\n"
    for name in CLASSES:
        yield f'topics_topics_by_class{{class="{name}"}} {numbers.by_class[name]}\n'
    for name in ("head_seq", "earliest_seq", "records_live", "bytes_live"):
        yield f"# TYPE topics_topic_{name} gauge\n"
        for topic in numbers.each:
            yield f'topics_topic_{name}{{topic="{topic.name}"}} {getattr(topic, name)}\n'
    for name in ("ready", "in_flight"):
        yield f"# TYPE topics_topic_queue_{name} gauge\n"
        for topic in numbers.each:
            if topic.queue is not None:
                yield f'topics_topic_queue_{name}{{topic="{topic.name}"}} {getattr(topic.queue, name)}\n'
    yield from _histogram(numbers)


def _histogram(numbers: Numbers) -> Iterator[str]:
    yield "# TYPE topics_wal_fsync_latency_us histogram\n"
    total = 0
    for bound, count in zip((*SYNC_BUCKETS_US, "+Inf"), numbers.sync_counts, strict=True):
        total += count
        yield f'topics_wal_fsync_latency_us_bucket{{le="{bound}"}} {total}\n'
    yield f"topics_wal_fsync_latency_us_sum {numbers.sync_ns // 1000}\n"
    yield f"topics_wal_fsync_latency_us_count {total}\n"
