"""Ordering an append: its seqs, its time, what a cap evicts with it, and the frames of its one submission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from topics.format.control import Dedupe, EvictWatermark, HeadWatermark
from topics.format.frame import DURABLE, MORE, Kind, encode_frame
from topics.format.ops import stamp
from topics.format.prepared import Prepared
from topics.model import limits
from topics.model.config import Durability, TopicConfig
from topics.model.errors import RecordTooLarge, TopicFull
from topics.rules.retention import excess, reserve_ahead
from topics.storage.effect import Effect
from topics.storage.evict import find_evict_floor
from topics.storage.guard import guarded_plan, holds_all, pinned_by, pins_of
from topics.storage.submission import Buffers, Submission, WaitFirst
from topics.storage.tail import ENTRY_SIZE, Chunk, RamBlock
from topics.storage.topic import Topic
from topics.storage.wal import Shard

EPHEMERAL, _DISK, _FSYNC = Durability.EPHEMERAL, Durability.DISK, Durability.FSYNC
"""Looked up once: with each append a member of an enum costs twenty times what a name of the module does."""


class Append(msgspec.Struct, eq=False):
    """An append under way, and what its caller is told."""

    topic: Topic
    first_seq: int
    count: int
    ts: int
    ordered_ns: int = 0
    """Monotonic time at which it was handed to the WAL."""
    deduped: bool = False
    submission: Submission | None = None
    """None where nothing is to be waited for."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class AppendSubmission(Submission):
    """The frames of an append, and what publishing it takes: as fields, because closures would cost as much as the
    write of a single record."""

    __slots__ = ("accounted", "chunk", "count", "effect", "evict", "first_seq", "key", "prefix", "rider", "topic", "ts")

    topic: Topic
    first_seq: int
    count: int
    ts: int
    accounted: int
    effect: Effect
    chunk: Chunk
    prefix: int
    """Bytes of other frames in front of the records."""
    key: str | None
    evict: EvictWatermark | None
    rider: Rider | None


def _publish(done: Submission) -> None:
    assert isinstance(done, AppendSubmission)
    assert done.file is not None
    topic, first, count, key = done.topic, done.first_seq, done.count, done.key
    topic.tail.settle(done.chunk, first, count, done.file, done.offset + done.prefix)
    topic.apply_append(first, count, done.accounted, done.ts)
    if key is not None:
        topic.apply_dedupe(key, first, count, done.ts)
        topic.gates.pop(key, None)
    if done.evict is not None:
        topic.apply_evict(done.evict.evict_floor, done.evict.expiry_floor)
    topic.ledger.ordered -= done.accounted
    if done.rider is not None:
        done.rider.apply()
    topic.settled(done.effect)
    # Each refers to the other: such a ring, with its batch, would wait for the collector.
    done.effect.submission = None
    if topic.waiters:
        topic.wake()


def _give_up(failed: Submission) -> None:
    assert isinstance(failed, AppendSubmission)
    topic = failed.topic
    topic.ledger.ordered -= failed.accounted
    if failed.rider is not None:
        failed.rider.fail()
    if failed.key is not None:
        topic.gates.pop(failed.key, None)
    if failed.file is None:
        topic.withdraw(failed.effect)
        failed.effect.submission = None  # as `_publish` does


def check_room(topic: Topic, prepared: Prepared, mono_ms: int = 0) -> None:
    """A `reject` topic refuses what would exceed a cap, before any seq exists."""
    ordered = topic.ordered
    config = ordered.config
    if config.discard != "reject":
        return
    for cap, alone, live in (
        (config.cap_records, prepared.count, ordered.live),
        (config.cap_bytes, prepared.accounted, ordered.bytes),
    ):
        if excess(alone, cap):
            raise RecordTooLarge(
                f"the batch alone exceeds a cap of topic {topic.name!r} "
                f"(cap_records={config.cap_records}, cap_bytes={config.cap_bytes})",
                topic=topic.name,
            )
        if excess(live + alone, cap):
            raise TopicFull(
                f"topic {topic.name!r} is full; delete records or raise its caps",
                topic=topic.name,
                cap_records=config.cap_records,
                cap_bytes=config.cap_bytes,
                head_seq=topic.head,
                earliest_seq=topic.earliest_seq,
                pinned_by=pinned_by(pins_of(topic, mono_ms), topic.head) or None,
            )


def check_seqs(topic: Topic, count: int) -> None:
    """A topic whose last seqs are given refuses what needs more, before anything of it exists."""
    if count > limits.SEQ - topic.ordered.head:
        raise TopicFull(
            f"topic {topic.name!r} has {limits.SEQ - topic.ordered.head} seqs left, and {count} are wanted: "
            "go on in another topic, or drop it and make it again",
            topic=topic.name,
            head_seq=topic.head,
            earliest_seq=topic.earliest_seq,
        )


def shares_submission(config: TopicConfig) -> bool:
    """Whether appends to such a topic may be ordered together: none of them decides what becomes of another."""
    return not (config.cap_records or config.cap_bytes) and config.commit_class is not EPHEMERAL


@dataclass(slots=True)
class Rider:
    """What shares an append's submission: frames in front of its records, and what is done with them or without."""

    frame: Callable[[int, int], bytes]
    """(ts, flags) -> the frame."""
    apply: Callable[[], None]
    fail: Callable[[], None]


def order_append(
    topic: Topic,
    shard: Shard,
    prepared: Prepared,
    now_ms: int,
    mono_ns: int,
    key: str | None,
    reserve_seqs: int,
    rider: Rider | None = None,
    sync: bool = False,
) -> Append:
    """Give the batch its seqs and hand it to the WAL. `prepared` is used up. `sync`: it is done once it is synced,
    whatever the topic's class asks for."""
    ordered = topic.ordered
    config = ordered.config
    cls = config.commit_class
    first, count = ordered.head + 1, prepared.count
    last = first + count - 1
    if last > limits.SEQ:
        check_seqs(topic, count)
    ts = now_ms if now_ms > ordered.ts else ordered.ts
    append = Append(topic, first, count, ts, mono_ns)
    if cls is EPHEMERAL:
        if topic.pending:
            raise WaitFirst(topic.pending[-1].submission)
        _append_in_ram(append, shard, prepared, key, mono_ns // 1_000_000)
        if rider is not None:
            rider.apply()
        return append
    durable = cls is _FSYNC
    flags = DURABLE if durable else 0
    effect = Effect(head=last, ts=ts, live=count, bytes=prepared.accounted, batch=prepared)
    evict = None
    if config.cap_records or config.cap_bytes:
        # The entries go in before the eviction is decided: a batch larger than its cap evicts records of its own.
        chunk = topic.tail.add(first, prepared.entries, count)
        try:
            evict = _plan_eviction(topic, prepared, effect, mono_ns // 1_000_000)
            stamp(
                prepared.frames, prepared.entries, count, topic.id, first, ts, durable, evict is not None, prepared.ends
            )
        except BaseException:
            topic.tail.cut_after(ordered.head)
            raise
        start = (first - chunk.first_seq) * ENTRY_SIZE
        chunk.buffer[start : start + len(prepared.entries)] = prepared.entries
    else:
        stamp(prepared.frames, prepared.entries, count, topic.id, first, ts, durable, False, prepared.ends)
        chunk = topic.tail.add(first, prepared.entries, count)
    buffers: Buffers = []
    prefix = 0
    if key is not None:
        body = Dedupe(key, first, prepared.count).encode()
        frame = encode_frame(Kind.DEDUPE, topic.id, body, ts=ts, flags=flags | MORE)
        prefix = len(frame)
        buffers.append(frame)
    if rider is not None:
        frame = rider.frame(ts, flags | MORE)
        prefix += len(frame)
        buffers.append(frame)
    buffers.append(prepared.frames)
    if evict is not None:
        buffers.append(encode_frame(Kind.EVICT_WATERMARK, topic.id, evict.encode(), ts=ts, flags=flags))
    # A ceiling never falls: one that is high enough now need not be asked again.
    early = cls is _DISK and topic.ceiling < last
    submission = AppendSubmission(
        topic.id,
        buffers,
        _publish,
        needs_sync=durable or sync,
        ceiling=(lambda: topic.ceiling >= last) if early else None,
        on_fail=_give_up,
    )
    submission.frames = len(buffers) - 1 + count
    submission.topic = topic
    submission.first_seq = first
    submission.count = count
    submission.ts = ts
    submission.accounted = prepared.accounted
    submission.effect = effect
    submission.chunk = chunk
    submission.prefix = prefix
    submission.key = key
    submission.evict = evict
    submission.rider = rider
    topic.ledger.ordered += prepared.accounted
    effect.submission = append.submission = submission
    topic.order(effect)
    if key is not None:
        topic.gates[key] = submission
    # Planned only here, where nothing can fail any more: a ceiling noted as asked and never submitted would be waited
    # for by every later append.
    if cls is _DISK and (ceiling := _plan_reservation(topic, last, count, mono_ns, reserve_seqs)) is not None:
        shard.submit(_reserve(topic, ceiling))
    shard.submit(submission)
    return append


def _append_in_ram(append: Append, shard: Shard, prepared: Prepared, key: str | None, mono_ms: int) -> None:
    """An ephemeral append is published at once; nothing of it reaches the disk."""
    topic = append.topic
    effect = Effect(head=append.last_seq, ts=append.ts, live=prepared.count, bytes=prepared.accounted)
    chunk = topic.tail.add(append.first_seq, prepared.entries, prepared.count, ram=True)
    try:
        evict = _plan_eviction(topic, prepared, effect, mono_ms)
        if evict is not None and reaches_disk(topic, evict.evict_floor + 1, ()):
            # Records on disk end by a synced frame alone: that first, then the caller asks again.
            raise WaitFirst(_evict_on_disk(topic, shard, min(evict.evict_floor, topic.head), append.ts))
    except BaseException:
        topic.tail.cut_after(topic.head)
        raise
    stamp(prepared.frames, prepared.entries, prepared.count, topic.id, append.first_seq, append.ts, False, False)
    start = (append.first_seq - chunk.first_seq) * ENTRY_SIZE
    chunk.buffer[start : start + len(prepared.entries)] = prepared.entries
    block = topic.ram
    if block is None or not block.room(len(prepared.frames)):
        block = topic.ram = RamBlock(max(RamBlock.SIZE, len(prepared.frames)))
    topic.tail.settle(chunk, append.first_seq, append.count, block, block.add(prepared.frames))
    topic.apply_append(append.first_seq, append.count, prepared.accounted, append.ts)
    if key is not None:
        topic.apply_dedupe(key, append.first_seq, append.count, append.ts)
    if evict is not None:
        topic.apply_evict(evict.evict_floor, evict.expiry_floor)
        drop_dead_ram(topic)
    topic.ordered = topic.published()
    topic.wake()


def _evict_on_disk(topic: Topic, shard: Shard, floor: int, ts: int) -> Submission:
    """Log the end of everything up to `floor`."""
    shard.check()
    live, size = topic.measure(topic.dead.floor + 1, floor)
    effect = Effect(evict_floor=floor, live=-live, bytes=-size)
    body = EvictWatermark(floor, floor + 1, topic.expiry_floor).encode()

    def apply(_: Submission) -> None:
        topic.apply_evict(floor, 0)
        drop_dead_ram(topic)
        topic.settled(effect)

    def fail(failed: Submission) -> None:
        if failed.file is None:
            topic.withdraw(effect)

    frame = encode_frame(Kind.EVICT_WATERMARK, topic.id, body, ts=ts, flags=DURABLE)
    effect.submission = Submission(topic.id, [frame], apply, needs_sync=True, on_fail=fail)
    topic.order(effect)
    return shard.submit(effect.submission)


def reaches_disk(topic: Topic, below: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    """True if the end of everything below `below`, or of `ranges`, touches records in the WAL or in segments."""
    rams = list(topic.tail.ram_ranges())
    lowest_ram = rams[0][0] if rams else topic.head + 1
    floor = topic.dead.floor + 1
    on_disk = bool(topic.segments) or any(not chunk.ram for chunk in topic.tail.chunks)
    if not on_disk:
        return False
    return (below > floor and floor < lowest_ram) or any(first < lowest_ram for first, _ in ranges)


def drop_dead_ram(topic: Topic) -> None:
    """Free the RAM of records below the floor."""
    chunks = topic.tail.chunks
    while chunks and chunks[0].ram and chunks[0].end_seq <= topic.dead.floor + 1:
        chunks.pop(0)
    if chunks and chunks[0].ram:
        _drop_dead_places(chunks[0], topic.dead.floor)


def _drop_dead_places(chunk: Chunk, floor: int) -> None:
    """Let go of blocks that hold nothing above the floor."""
    keep = 0
    while keep + 1 < len(chunk.places) and chunk.places[keep + 1][0] <= floor + 1:
        keep += 1
    if keep:
        del chunk.places[:keep]


# -- reservations of seqs --------------------------------------------------------------------------------------------


def _plan_reservation(topic: Topic, last: int, count: int, mono_ns: int, reserve_seqs: int) -> int | None:
    """The ceiling to ask for, so early that publication waits for it only if the sync is late."""
    left = topic.ceiling_asked - last
    if left >= max(topic.reserved_last, reserve_seqs) // 2 or topic.ceiling_asked == limits.SEQ:
        return None
    since_ms = (mono_ns - topic.reserved_at) // 1_000_000
    ahead = reserve_ahead(count, reserve_seqs, topic.reserved_last, since_ms)
    topic.reserved_last = ahead
    topic.reserved_at = mono_ns
    topic.ceiling_asked = min(last + ahead, limits.SEQ)
    return topic.ceiling_asked


def _reserve(topic: Topic, ceiling: int) -> Submission:
    body = HeadWatermark(ceiling).encode()
    frame = encode_frame(Kind.HEAD_WATERMARK, topic.id, body, ts=topic.ordered.ts, flags=DURABLE)

    def fail(failed: Submission) -> None:
        if failed.file is None:
            topic.ceiling_asked = topic.ceiling

    return Submission(
        topic.id,
        [frame],
        lambda _: topic.apply_ceiling(ceiling),
        needs_sync=True,
        detached=True,
        on_fail=fail,
    )


# -- eviction by caps ------------------------------------------------------------------------------------------------


def _plan_eviction(topic: Topic, prepared: Prepared, effect: Effect, mono_ms: int) -> EvictWatermark | None:
    """What the caps remove once this batch is in; the answer rides in the batch's own submission."""
    ordered = topic.ordered
    config = ordered.config
    if config.discard == "reject":
        return None
    records = excess(ordered.live + prepared.count, config.cap_records)
    size = excess(ordered.bytes + prepared.accounted, config.cap_bytes)
    if not records and not size:
        return None
    pins = pins_of(topic, mono_ms)
    if pins and holds_all(topic, pins, ordered.bytes + prepared.accounted):
        return None
    plan = find_evict_floor(topic, records, size, effect.head)
    if pins:
        plan = guarded_plan(topic, pins, plan, effect.head)
        if plan.floor <= ordered.evict_floor:
            return None
    effect.live -= plan.live
    effect.bytes -= plan.bytes
    effect.evict_floor = plan.floor
    return EvictWatermark(plan.floor, plan.floor + 1, ordered.expiry_floor)
