"""Forwarding: one pass of a router takes what its source has behind the cursor and orders the copies.

A pass runs under the store's lock and ends in at most one submission. What needs no copy (filtered, deleted, copied
too often) is passed over; what the source lost to a cap or to age before it was copied becomes holes in the dest, so
that its readers are told. A dest that is full and rejects stops the router until it has room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from topics.broker.steps import Nap, Steps, settled
from topics.broker.taken import MARK, key_prefix, taken
from topics.format.control import RouterBits
from topics.format.ops import prepare
from topics.format.segment import ENTRY_SIZE, HOPS
from topics.model import limits
from topics.model.config import Durability
from topics.model.errors import StorageError, TopicsError
from topics.model.record import Gap, Record
from topics.storage.append import Rider, check_room, order_append
from topics.storage.reader import FrameBatch, Slice, fetch, plan
from topics.storage.routers import Router, order_cursor, order_holes
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst
from topics.storage.topic import Topic
from topics.storage.wal import Shard

PASS_RECORDS: Final = 1024
PASS_BYTES: Final = 8 * 1024 * 1024
HOPS_MAX: Final = 8
"""A record that came through so many routers is not copied again: loops end."""

_TRIMS: Final = frozenset({"cap", "ttl", "mixed", "source_trim", "corrupt"})
"""Loss of records that were there. What a crash skipped may never have been handed out."""
_OLD_META: Final = "_topics_original_meta"


@dataclass(slots=True)
class Pass:
    """What a pass came to. Neither moved nor a submission: there is nothing to copy, or the dest has no room."""

    submission: Submission | None = None
    """To be waited for before the next pass."""
    moved: bool = False


def forward(store: Store, router: Router) -> Pass:
    """One pass, under the store's lock."""
    if router.under_way is not None:
        return Pass(router.under_way, moved=True)
    store.check_open()
    source, dest = store.by_id.get(router.source_id), store.by_id.get(router.dest_id)
    if not store.routers.has(router) or source is None or dest is None or dest.closing:
        return Pass()
    if router.cursor >= source.head:
        return Pass()
    shard = store.shard_for(dest)
    now = store.clock.now_ms()
    if dest.ordered.config.commit_class != Durability.EPHEMERAL:
        store.writer_of(dest)
    found = plan(source, router.cursor, source.head + 1, PASS_RECORDS)
    if found is None:
        return Pass(order_cursor(router, dest, shard, source.head, now), moved=True)
    if isinstance(found, Gap):
        return _pass_gap(store, router, source, dest, found)
    if router.filter is None and not router.bits & RouterBits.EXACTLY_ONCE and _is_full(dest):
        return Pass()
    try:
        return _copy(store, router, source, dest, found)
    except OSError as error:
        raise StorageError(f"topic {source.name!r} cannot be read: {error}", path=error.filename) from error


def _pass_gap(store: Store, router: Router, source: Topic, dest: Topic, gap: Gap) -> Pass:
    shard, now = store.shard_for(dest), store.clock.now_ms()
    end = min(gap.gap_to, source.head)
    if gap.reason in _TRIMS:
        return Pass(order_holes(router, dest, shard, end - gap.gap_from + 1, end, now), moved=True)
    return Pass(order_cursor(router, dest, shard, end, now), moved=True)


def _copy(store: Store, router: Router, source: Topic, dest: Topic, part: Slice) -> Pass:
    chosen: list[tuple[Record, int]] = []
    last = router.cursor
    for item in fetch(store.handles, part, PASS_BYTES):
        if isinstance(item, Gap):
            if last == router.cursor:
                return _pass_gap(store, router, source, dest, item)
            break
        chosen += _wanted(router, item)
        last = item.first_seq + item.count - 1
    shard, now = store.shard_for(dest), store.clock.now_ms()
    repeated: list[int] = []
    if chosen and router.bits & RouterBits.EXACTLY_ONCE:
        known = taken(store, router, source, dest)
        if known:
            repeated = [record.seq for record, _ in chosen if record.seq in known]
            chosen = [(record, hops) for record, hops in chosen if record.seq not in known]
    if not chosen:
        return Pass(order_cursor(router, dest, shard, last, now, len(repeated)), moved=True)
    copies = _copies_of(router, source, chosen)
    room = _room(dest, copies)
    if room < len(copies):
        if not room:
            return _pass_repeated(router, dest, shard, repeated, chosen[0][0].seq, now)
        last = chosen[room][0].seq - 1
        del copies[room:]
    prepared = prepare(copies, checked=True)
    store.check_quota(prepared)
    check_room(dest, prepared)
    for at, (_, hops) in enumerate(chosen[: len(copies)]):
        prepared.entries[at * ENTRY_SIZE + 16] |= (hops + 1) << 4
    forwarded = router.forwarded + len(copies) + sum(seq <= last for seq in repeated)
    unmarked = 0
    if router.bits & RouterBits.EXACTLY_ONCE:
        unmarked = sum(copy["meta"] is record.meta_raw for copy, (record, _) in zip(copies, chosen, strict=False))

    def apply() -> None:
        router.under_way = None
        router.advance(last, forwarded)
        store.routers.unmarked += unmarked

    def fail() -> None:
        router.under_way = None

    rider = Rider(lambda ts, flags: router.cursor_frame(last, forwarded, ts, flags), apply, fail)
    append = order_append(
        dest, shard, prepared, now, store.clock.monotonic_ns(), None, store.options.reserve_seqs, rider
    )  # fmt: skip
    router.under_way = append.submission
    return Pass(append.submission, moved=True)


def _pass_repeated(router: Router, dest: Topic, shard: Shard, repeated: list[int], stop: int, now: int) -> Pass:
    """There is no room for the record `stop`; what is there already before it needs none."""
    counted = sum(seq < stop for seq in repeated)
    return Pass(order_cursor(router, dest, shard, stop - 1, now, counted), moved=True) if counted else Pass()


def _wanted(router: Router, batch: FrameBatch) -> list[tuple[Record, int]]:
    """(record, hops so far) of those that are copied."""
    flags = bytes(batch.entries)[16::ENTRY_SIZE]
    first, match = batch.first_seq, router.filter
    return [
        (record, hops)
        for record in batch.records()
        if (hops := (flags[record.seq - first] & HOPS) >> 4) < HOPS_MAX and (match is None or match.matches(record.tag))
    ]


def _copies_of(router: Router, source: Topic, chosen: list[tuple[Record, int]]) -> list[dict[str, Any]]:
    # The bits are looked at once: this runs for every record, and an enum's `&` costs more than all the rest of it.
    with_node, with_tag, with_key = (
        bool(router.bits & bit) for bit in (RouterBits.PRESERVE_NODE, RouterBits.PRESERVE_TAG, RouterBits.EXACTLY_ONCE)
    )
    return [
        {
            "data": record.raw,
            "key": record.key,
            "meta": _with_key(router, source, record) if with_key else record.meta_raw,
            "node": record.node if with_node else None,
            "tag": record.tag if with_tag else None,
        }
        for record, _ in chosen
    ]


def _with_key(router: Router, source: Topic, record: Record) -> bytes | None:
    """The meta of a record, with the place it came from. A record that would outgrow a limit by the addition goes
    without it: a stuck router helps nobody."""
    meta = record.meta
    if not isinstance(meta, dict) or len(meta) >= limits.META_KEYS:
        meta = {} if meta is None else {_OLD_META: msgspec.Raw(record.meta_raw or b"null")}
    else:
        # Values go through as they were sent: only the keys of the object are taken apart.
        meta = msgspec.json.decode(record.meta_raw or b"{}", type=dict[str, msgspec.Raw])
    meta[MARK] = {
        "idempotency_key": f"{key_prefix(router, source)}{record.seq}",
        "router": router.name,
        "source_topic": source.name,
        "source_topic_id": source.id,
        "source_epoch": source.epoch,
        "source_seq": record.seq,
    }
    text = msgspec.json.encode(meta)
    fits = len(text) <= limits.META_BYTES and len(text) + len(record.raw) <= limits.RECORD_BYTES
    return text if fits else record.meta_raw


def _is_full(dest: Topic) -> bool:
    """True if not even the smallest record has a place: known without reading the source."""
    ordered = dest.ordered
    config = ordered.config
    if config.discard != "reject":
        return False
    return 0 < config.cap_records <= ordered.live or 0 < config.cap_bytes <= ordered.bytes


def _room(dest: Topic, copies: list[dict[str, Any]]) -> int:
    """How many of the copies, from the first, a dest that rejects has room for."""
    ordered = dest.ordered
    config = ordered.config
    if config.discard != "reject":
        return len(copies)
    room = len(copies)
    if config.cap_records:
        room = min(room, max(config.cap_records - ordered.live, 0))
    if config.cap_bytes:
        left = config.cap_bytes - ordered.bytes
        for at, copy in enumerate(copies[:room]):
            left -= len(copy["data"]) + len(copy["meta"] or b"")
            if left < 0:
                return at
    return room


# -- reading what was written ------------------------------------------------------------------------------------------


def pull(store: Store, topic: Topic) -> Steps[None]:
    """Bring in everything the direct feeders of a topic had when this was asked: readers see what was written."""
    if not store.routers.into(topic.id):
        return
    with store.lock:
        feeders = [(router, store.by_id[router.source_id]) for router in store.routers.into(topic.id)]
    for router, source in feeders:
        yield from pull_router(store, router, source)


def is_behind(store: Store, topic: Topic) -> bool:
    """Whether a direct feeder of the topic has what is not copied yet. Under the lock."""
    sources = ((router, store.by_id.get(router.source_id)) for router in store.routers.into(topic.id))
    return any(source is not None and router.cursor < source.head for router, source in sources)


def pull_router(store: Store, router: Router, source: Topic) -> Steps[None]:
    """Trouble with the dest ends it: what is there can still be read."""
    head = source.head
    try:
        if router.cursor < head:
            yield from settled(swept(store, router))
        while router.cursor < head and (yield from _pass(store, router)):
            if router.cursor < head:
                # A long way is gone in steps, so that others get their turns between them.
                yield Nap(0)
    except TopicsError:
        return


def _pass(store: Store, router: Router) -> Steps[bool]:
    """False: there is nothing to copy, or no room for it."""
    try:
        with store.lock:
            done = forward(store, router)
    except WaitFirst as first:
        yield from settled(first.submission)
        return True
    yield from settled(done.submission)
    return done.moved


def swept(store: Store, router: Router) -> Submission | None:
    """Evict what the two topics have become too old for: expired records are not copied, and leave room."""
    with store.lock:
        for topic_id in (router.dest_id, router.source_id):
            topic = store.by_id.get(topic_id)
            submission = None if topic is None else store.sweep(topic)
    return submission
