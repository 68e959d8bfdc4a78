"""Ordering deletes, evictions by age and config changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np

from topics.format.control import Delete, EvictWatermark, HeadWatermark, LostRange, LostReason, Selector, TopicCreate
from topics.format.frame import DURABLE, MORE, Kind, encode_frame
from topics.format.segment import ENTRY_DTYPE
from topics.model import limits
from topics.model.config import Durability, TopicConfig
from topics.rules.retention import excess
from topics.storage.alive import last_live, live_runs, runs_of
from topics.storage.append import drop_dead_ram, reaches_disk
from topics.storage.columns import Ranges
from topics.storage.effect import Effect
from topics.storage.evict import find_evict_floor
from topics.storage.guard import guarded_floor, holds_all, pins_of
from topics.storage.keeping import kept_frames
from topics.storage.routers import Router
from topics.storage.submission import Buffers, Submission
from topics.storage.tail import ENTRY_SIZE
from topics.storage.topic import Topic
from topics.storage.wal import Shard


def join_ranges(seqs: np.ndarray) -> Ranges:
    """Ascending seqs as inclusive ranges."""
    if not len(seqs):
        return ()
    breaks = np.flatnonzero(np.diff(seqs) != 1)
    firsts = seqs[np.concatenate(([0], breaks + 1))]
    lasts = seqs[np.concatenate((breaks, [len(seqs) - 1]))]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))


def order_delete(
    topic: Topic, shard: Shard, now_ms: int, before_seq: int | None, match: Selector | None, ranges: Ranges
) -> tuple[Submission | None, Callable[[], int]]:
    """Delete everything below `before_seq`, or the `ranges` that `match` hit. The second value tells, once the
    submission is done, how many records died by it."""
    ordered = topic.ordered
    bound = ordered.head + 1
    below = min(before_seq, bound) if before_seq is not None and match is None else 0
    died = 0

    def died_so_far() -> int:
        return died

    if match is not None and not ranges:
        return None, died_so_far
    if match is None and below <= max(ordered.delete_below, 1):
        return None, died_so_far
    kept_on_disk = reaches_disk(topic, below, ranges)
    if topic.durability == Durability.EPHEMERAL and not kept_on_disk and not topic.pending:
        died = topic.apply_delete(below, ranges)
        drop_dead_ram(topic)
        topic.ordered = topic.published()
        return None, died_so_far
    sync = ordered.config.commit_class in (Durability.FSYNC, Durability.EPHEMERAL)
    flags = DURABLE if sync else 0
    pieces = [ranges[i : i + limits.DELETE_RANGES] for i in range(0, len(ranges), limits.DELETE_RANGES)] or [()]
    ts = max(now_ms, ordered.ts)
    buffers: Buffers = []
    for number, piece in enumerate(pieces):
        body = Delete(before_seq=before_seq if match else below, match=match, bound=bound, ranges=piece).encode()
        more = MORE if number < len(pieces) - 1 else 0
        buffers.append(encode_frame(Kind.DELETE, topic.id, body, ts=ts, flags=flags | more))
    effect = Effect(delete_below=below, ranges=ranges)
    for live, size in (
        topic.measure(ordered.floor + 1, below - 1, ordered.overlay),
        topic.measure_all(ranges, ordered.overlay),
    ):
        effect.live -= live
        effect.bytes -= size

    def apply(_: Submission) -> None:
        nonlocal died
        died = topic.apply_delete(below, ranges)
        topic.settled(effect)

    return _hand_over(topic, shard, buffers, effect, apply, sync), died_so_far


def order_seqs(topic: Topic, shard: Shard, now_ms: int, seqs: Sequence[int]) -> Submission | None:
    """Delete these, by one frame that names them."""
    topic.check_writable()
    ordered = topic.ordered
    ranges = tuple(runs_of(sorted(seqs)))
    if ordered.config.commit_class == Durability.EPHEMERAL and not topic.pending and not reaches_disk(topic, 0, ranges):
        topic.apply_delete(0, ranges)
        drop_dead_ram(topic)
        topic.ordered = topic.published()
        return None
    shard.check(frees=True)
    sync = ordered.config.commit_class in (Durability.FSYNC, Durability.EPHEMERAL)
    body = Delete(seqs=tuple(sorted(seqs))).encode()
    frame = encode_frame(Kind.DELETE, topic.id, body, ts=max(now_ms, ordered.ts), flags=DURABLE if sync else 0)
    effect = Effect(ranges=ranges)
    live, size = topic.measure_all(ranges, ordered.overlay)
    effect.live, effect.bytes = -live, -size

    def apply(_: Submission) -> None:
        topic.apply_delete(0, ranges)
        topic.settled(effect)

    return _hand_over(topic, shard, [frame], effect, apply, sync)


def _hand_over(
    topic: Topic,
    shard: Shard,
    buffers: Buffers,
    effect: Effect,
    apply: Callable[[Submission], None],
    sync: bool,
) -> Submission:
    def fail(failed: Submission) -> None:
        if failed.file is None:
            topic.withdraw(effect)

    submission = Submission(topic.id, buffers, apply, needs_sync=sync, on_fail=fail)
    effect.submission = submission
    topic.order(effect)
    return shard.submit(submission)


def order_retention(topic: Topic, shard: Shard, now_ms: int, ttl_ready: bool, mono_ms: int) -> Submission | None:
    """Evict what the TTL, or caps tightened since, remove. The floor moves once the frame is written."""
    ordered = topic.ordered
    config = ordered.config
    evict, expiry = ordered.evict_floor, ordered.expiry_floor
    if config.ttl_ms and ttl_ready:
        expiry = max(expiry, expired_through(topic, now_ms - config.ttl_ms))
    if config.discard == "old" and not topic.pending:
        records, size = excess(topic.live, config.cap_records), excess(topic.bytes, config.cap_bytes)
        if records or size:
            evict = max(evict, find_evict_floor(topic, records, size, topic.head).floor)
    if expiry <= ordered.expiry_floor and evict <= ordered.evict_floor:
        return None
    pins = pins_of(topic, mono_ms)
    if pins:
        if holds_all(topic, pins, ordered.bytes):
            return None
        allowed = guarded_floor(topic, pins, max(evict, expiry), ordered.head)
        evict, expiry = max(min(evict, allowed), ordered.evict_floor), max(min(expiry, allowed), ordered.expiry_floor)
        if expiry <= ordered.expiry_floor and evict <= ordered.evict_floor:
            return None
    effect = Effect(evict_floor=evict, expiry_floor=expiry)
    floor = max(evict, expiry)
    live, size = topic.measure(ordered.floor + 1, floor, ordered.overlay)
    effect.live, effect.bytes = -live, -size
    if config.commit_class == Durability.EPHEMERAL and not topic.pending and not reaches_disk(topic, floor + 1, ()):
        topic.apply_evict(evict, expiry)
        drop_dead_ram(topic)
        topic.ordered = topic.published()
        return None
    body = EvictWatermark(evict, floor + 1, expiry).encode()
    sync = config.commit_class == Durability.EPHEMERAL
    frame = encode_frame(Kind.EVICT_WATERMARK, topic.id, body, ts=max(now_ms, ordered.ts), flags=DURABLE if sync else 0)

    def apply(_: Submission) -> None:
        topic.apply_evict(evict, expiry)
        drop_dead_ram(topic)
        topic.settled(effect)

    return _hand_over(topic, shard, [frame], effect, apply, sync)


def expired_through(topic: Topic, oldest_ms: int) -> int:
    """The last live seq whose time lies before `oldest_ms`, 0 if there is none.

    What was deleted, or is about to be, does not expire: a deletion that was asked for is never told as a loss.
    """
    start = max(topic.dead.floor, topic.ordered.floor) + 1
    last = _old_through(topic, start, oldest_ms)
    if topic.dead.next_live(start, last + 1) > last:
        return 0
    found = last_live(topic, start, last, topic.ordered.overlay)
    return found if found >= start else 0


def _old_through(topic: Topic, start: int, oldest_ms: int) -> int:
    """The last seq from `start` on, gone or not, whose time lies before `oldest_ms`; start - 1 if there is none. Times
    never go back, so each layer is searched by halves."""
    last = start - 1
    for segment in topic.segments_between(start, topic.head + 1):
        view = topic.handles.entries(segment, 0, segment.count)
        stop = _first_young(view, segment.count, oldest_ms)
        if stop:
            last = max(last, segment.first_seq + stop - 1)
        if stop < segment.count:
            return last
    for chunk, low, high in topic.tail.between(max(start, topic.copied + 1), topic.head + 1):
        at = (low - chunk.first_seq) * ENTRY_SIZE
        view = memoryview(chunk.buffer)[at : at + (high - low) * ENTRY_SIZE]
        stop = _first_young(view, high - low, oldest_ms)
        if stop:
            last = max(last, low + stop - 1)
        if stop < high - low:
            return last
    return last


def _first_young(entries: memoryview, count: int, oldest_ms: int) -> int:
    times = np.frombuffer(entries, dtype=ENTRY_DTYPE)["ts"]
    return bisect_left(times, oldest_ms, 0, count)


def order_config(
    topic: Topic, shard: Shard, now_ms: int, config: TopicConfig, mono_ms: int, feeders: Sequence[Router] = ()
) -> Submission:
    """Replace the config. Leaving a class that keeps no promise about seqs also states where they stand, and leaving
    RAM, what was done there with leases, and how far `feeders`, the routers into the topic, are."""
    ordered = topic.ordered
    old = ordered.config.commit_class
    new = config.commit_class
    ts = max(now_ms, ordered.ts)
    head = ordered.head
    body = TopicCreate(topic.name, msgspec.json.encode(config)).encode()
    leaving = old in (Durability.EPHEMERAL, Durability.MEMORY) and new != old
    leaving_ram = old == Durability.EPHEMERAL and new != old
    rams = topic.tail.ram_ranges() if leaving_ram else ()
    left_behind = [run for part in rams for run in live_runs(topic, *part, ordered.overlay)]
    frames: list[tuple[Kind, bytes]] = [(Kind.CONFIG_UPDATE, body)]
    if leaving:
        frames.append((Kind.HEAD_WATERMARK, HeadWatermark(head).encode()))
    floor = max(topic.evict_floor, topic.expiry_floor)
    if leaving_ram and floor:  # what was evicted in RAM was logged nowhere, and is to be told after a crash, too
        floors = EvictWatermark(topic.evict_floor, floor + 1, topic.expiry_floor)
        frames.append((Kind.EVICT_WATERMARK, floors.encode()))
    gone = [(first, last, LostReason.RESTART) for first, last in left_behind]
    if leaving_ram:  # what a router's source had lost is said in RAM alone so far, and must outlive it
        gone += topic.lost.of(LostReason.SOURCE_TRIM)
    for first, last, reason in gone:
        frames.append((Kind.LOST_RANGE, LostRange(first, last, reason).encode()))
    kept: list[Callable[[int], bytes]] = []
    if leaving_ram:
        kept = kept_frames(topic, mono_ms)
        kept += [partial(_progress, feeder, ts) for feeder in feeders]
    more = len(frames) + len(kept) - 1
    buffers: Buffers = [
        encode_frame(kind, topic.id, data, ts=ts, flags=DURABLE | (MORE if number < more else 0))
        for number, (kind, data) in enumerate(frames)
    ]
    buffers += [make(DURABLE | (MORE if number < more else 0)) for number, make in enumerate(kept, len(frames))]
    effect = Effect(config=config, ranges=tuple(left_behind))
    live, size = topic.measure_all(tuple(left_behind), ordered.overlay)
    effect.live, effect.bytes = -live, -size

    def apply(_: Submission) -> None:
        topic.apply_config(config)
        if leaving:
            topic.apply_ceiling(head)
        for first, last, reason in gone:
            topic.apply_lost(first, last, reason)
        if leaving_ram:
            topic.tail.chunks = [chunk for chunk in topic.tail.chunks if not chunk.ram]
            topic.ram = None
        topic.settled(effect)

    return _hand_over(topic, shard, buffers, effect, apply, True)


def _progress(router: Router, ts: int, flags: int) -> bytes:
    return router.cursor_frame(router.cursor, router.forwarded, ts, flags)
