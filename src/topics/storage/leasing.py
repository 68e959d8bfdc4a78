"""Ordering what is done with the jobs of a queue: claim, ack, nack, extend, dead letters.

Each decides by the lease rules, takes the jobs in hand, and hands one submission to the WAL; the state changes when
that is written. A claim is answered after the write, and after the sync only where leases are to survive on an `fsync`
queue. An ack is the delete of its jobs, in the topic's class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topics.format.control import Delete, LeaseEvent, TokenWatermark
from topics.format.frame import DURABLE, MORE, Kind, encode_frame
from topics.format.prepared import Prepared
from topics.model import limits
from topics.model.config import Durability
from topics.model.errors import InvalidRecord, TopicsError
from topics.model.job import Why
from topics.model.leaserows import LeaseRow, LeaseRun, seqs_of
from topics.rules.lease_values import READY, Ask, Grant
from topics.storage.alive import runs_of
from topics.storage.append import Rider, drop_dead_ram, reaches_disk
from topics.storage.budget import LARGEST, Budget
from topics.storage.effect import Effect
from topics.storage.queue import Queue
from topics.storage.submission import Buffers, Submission, WaitFirst, fresh_error
from topics.storage.topic import Topic
from topics.storage.wal import Shard

_WINDOW_MIN = 64
"""Fresh seqs that are looked at together, however few are wanted."""
_FEW = limits.FETCH_BYTES // LARGEST
"""Jobs that one answer has room for, whatever their size."""


class Now(NamedTuple):
    wall_ms: int
    ms: int
    """Monotonic."""


@dataclass(slots=True)
class Claims:
    hands: list[Sequence[LeaseRow]]
    """Per ask, ascending by seq."""
    spent: list[int]
    """In hand: whoever gets this sees to it that they leave it."""
    submission: Submission | None = None


@dataclass(slots=True)
class Verdict:
    done: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    """In the order they were named, repeats too."""
    why: dict[int, Why] = field(default_factory=dict)
    submission: Submission | None = None


def queue_of(topic: Topic) -> Queue:
    assert topic.queue is not None, "only a queue has leases"
    return topic.queue


# -- claiming ----------------------------------------------------------------------------------------------------------


def order_claim(topic: Topic, shard: Shard, asks: Sequence[Ask], now: Now, in_turn: bool = False) -> Claims:
    """Deal what there is to those who ask, round robin or to each `in_turn`, at most limits.FETCH_BYTES to each. Raises
    WaitFirst where no lease ids are left."""
    queue, config = queue_of(topic), topic.ordered.config
    _check(topic, shard)
    sweep(topic, shard, now)
    wanted = sum(ask.most for ask in asks)
    reserve_tokens(topic, shard, now, wanted)
    most = config.max_deliveries if config.dead_letter is not None else 0
    heavy = topic.bytes > limits.FETCH_BYTES and any(ask.most > _FEW for ask in asks)
    claims = None
    if (in_turn or len(asks) == 1) and not queue.leases.tally[READY]:
        claims = _claim_fresh(topic, asks, wanted, heavy, now)
    if claims is None:
        claims = Claims([], [])
        # What one hand has no room for is the next one's first, so where that may be they are dealt one by one.
        for some in [[ask] for ask in asks] if heavy and in_turn else [asks]:
            _claim_any(topic, some, most, in_turn, heavy, now, claims)
    events = [(ask.holder, rows) for ask, rows in zip(asks, claims.hands, strict=True) if rows]
    sync = config.leases_durable and config.commit_class == Durability.FSYNC
    claims.submission = _order_event(topic, shard, LeaseEvent.CLAIMED, events, now, sync)
    return claims


def rows_of_grants(grants: Sequence[Grant], token: int, until: int) -> list[LeaseRow]:
    """With tokens from `token` on."""
    return [(seq, number, until, count) for number, (seq, count) in enumerate(grants, token)]


def _claim_any(
    topic: Topic, asks: Sequence[Ask], most: int, in_turn: bool, heavy: bool, now: Now, claims: Claims
) -> None:
    """Deal what came back, then what is fresh."""
    leases = queue_of(topic).leases
    fresh = fresh_seqs(topic, leases.position, sum(ask.most for ask in asks))
    deal = leases.deal(asks, fresh, most, in_turn)
    claims.spent += deal.spent
    for hand, ask in enumerate(asks):
        if heavy:
            Budget(topic, ask.most, limits.FETCH_BYTES).trim(leases, deal, now.ms, hand)
        grants = deal.grants[hand]
        claims.hands.append(rows_of_grants(grants, topic.tokens.take(len(grants)), now.ms + ask.lease_ms))


def _claim_fresh(topic: Topic, asks: Sequence[Ask], wanted: int, heavy: bool, now: Now) -> Claims | None:
    """Deal in turn where all that are wanted follow each other; None where it is not as simple as that."""
    leases = queue_of(topic).leases
    first = topic.dead.next_live(leases.position, topic.head + 1)
    seqs = range(first, min(first + wanted, topic.head + 1))
    if not seqs or topic.gone_mask(first, len(seqs), topic.ordered.overlay) is not None:
        return None
    most = _shares(topic, seqs, asks) if heavy else [ask.most for ask in asks]
    seqs = seqs[: sum(most)]
    if not leases.begin(seqs):
        return None
    claims, token, at = Claims([], []), topic.tokens.take(len(seqs)), 0
    for ask, share in zip(asks, most, strict=True):
        mine = seqs[at : at + share]
        claims.hands.append(LeaseRun(mine, token + at, now.ms + ask.lease_ms, 1))
        at += len(mine)
    return claims


def _shares(topic: Topic, seqs: range, asks: Sequence[Ask]) -> list[int]:
    """How many of them each may have, in turn."""
    shares, at = [], 0
    for ask in asks:
        shares.append(Budget(topic, ask.most, limits.FETCH_BYTES).take(seqs[at : at + ask.most]))
        at += shares[-1]
    return shares


def fresh_seqs(topic: Topic, start: int, wanted: int) -> Iterator[int]:
    """Live seqs from `start` on, those whose end is ordered left out; about `wanted` of them are looked at together."""
    seq, end, overlay = start, topic.head + 1, topic.ordered.overlay
    while (seq := topic.dead.next_live(seq, end)) < end:
        stop = min(seq + max(wanted, _WINDOW_MIN), end)
        gone = topic.gone_mask(seq, stop - seq, overlay)
        yield from range(seq, stop) if gone is None else (seq + at for at, dead in enumerate(gone) if not dead)
        seq = stop


def sweep(topic: Topic, shard: Shard, now: Now) -> None:
    """End leases and delays that are over. That a durable lease ran out is logged: a clock that is set back must not
    revive it. Nobody waits for that."""
    queue, config = queue_of(topic), topic.ordered.config
    expired = queue.sweep(now.ms)
    if not expired or not config.leases_durable or config.commit_class == Durability.EPHEMERAL or topic.closing:
        return
    frame = queue.frame(topic.id, LeaseEvent.RELEASED, "", expired, now.ms, 0)
    try:
        _check(topic, shard)
        shard.submit(Submission(topic.id, [frame], lambda _: None, needs_sync=False, detached=True))
    except TopicsError:
        return


def reserve_tokens(topic: Topic, shard: Shard, now: Now, count: int) -> None:
    """See to it that `count` lease ids can be given out; raises WaitFirst where a sync has to come first, and what is
    wrong where that failed."""
    tokens, tried = topic.tokens, topic.reserving
    if tried is not None and tried.error is not None and not tokens.has(count):
        if tried.file is None:
            topic.reserving = None  # the next to ask tries again
        raise fresh_error(tried.error)
    ceiling = tokens.wanted(count)
    if ceiling is not None:
        shard.check(frees=True)  # nobody writes what a stopped shard is given: the caller would wait for ever
        tokens.ask(ceiling)
        body = TokenWatermark(ceiling).encode()
        frame = encode_frame(Kind.TOKEN_WATERMARK, topic.id, body, ts=now.wall_ms, flags=DURABLE)
        late = not tokens.has(count)

        def fail(failed: Submission) -> None:
            if failed.file is None:
                tokens.refused()
                if not late:  # nobody waited for it: whoever needs more is not told of it
                    topic.reserving = None

        submission = Submission(
            topic.id, [frame], lambda _: topic.apply_tokens(ceiling), needs_sync=True, detached=not late, on_fail=fail
        )
        topic.reserving = shard.submit(submission)
    if not tokens.has(count):
        raise WaitFirst(topic.reserving)


# -- what a holder does ------------------------------------------------------------------------------------------------


def order_ack(
    topic: Topic, shard: Shard, node: str, seqs: Sequence[int], tokens: Sequence[int | None], now: Now
) -> Verdict:
    verdict = _judge(topic, shard, node, seqs, tokens, now)
    queue = queue_of(topic)
    there = [seq for seq in verdict.done if not queue.is_gone(seq)] if queue.has_gone else verdict.done
    if there:
        _check(topic, shard)
        verdict.submission = _order_end(topic, shard, sorted(there), now, None)
    queue.settle_gone(verdict.done)
    return verdict


def order_acks(topic: Topic, shard: Shard, seqs: list[int], now: Now) -> Submission:
    """Of ascending jobs that were judged, on a queue that is on disk."""
    _check(topic, shard)
    submission = _order_end(topic, shard, seqs, now, None)
    assert submission is not None, "what stays in RAM is not acked this way"
    return submission


def order_nack(
    topic: Topic, shard: Shard, node: str, seqs: Sequence[int], tokens: Sequence[int | None], delay_ms: int, now: Now
) -> Verdict:
    verdict = _judge(topic, shard, node, seqs, tokens, now)
    queue = queue_of(topic)
    rows = queue.leases.rows(verdict.done, now.ms + delay_ms if delay_ms else 0)
    if rows:
        _check(topic, shard)
        verdict.submission = _order_event(topic, shard, LeaseEvent.RELEASED, [(node, rows)], now, False)
    queue.settle_gone(verdict.done)
    return verdict


def order_extend(
    topic: Topic, shard: Shard, node: str, seqs: Sequence[int], tokens: Sequence[int | None], lease_ms: int, now: Now
) -> Verdict:
    verdict = _judge(topic, shard, node, seqs, tokens, now)
    queue, config = queue_of(topic), topic.ordered.config
    until = now.ms + lease_ms
    rows = queue.leases.rows(verdict.done, until)
    if rows:
        _check(topic, shard)
        sync = config.leases_durable and config.commit_class == Durability.FSYNC
        verdict.submission = _order_event(topic, shard, LeaseEvent.EXTENDED, [(node, rows)], now, sync)
    for seq in verdict.done:
        if queue.is_gone(seq):
            queue.extend_gone(seq, until)
    return verdict


def order_release(topic: Topic, shard: Shard, held: Sequence[tuple[int, int]], now: Now) -> Submission | None:
    """Give up leases, by (seq, token), whoever holds them; those that ended meanwhile are passed over."""
    queue = queue_of(topic)
    mine = [seq for seq, token in held if queue.leases.is_leased(seq, token) and queue.leases.under_way(seq) is None]
    rows = queue.leases.rows(mine, 0)
    queue.settle_gone(seq for seq, _ in held)
    if not rows:
        return None
    _check(topic, shard)
    return _order_event(topic, shard, LeaseEvent.RELEASED, [("", rows)], now, False)


def _judge(
    topic: Topic, shard: Shard, node: str, seqs: Sequence[int], tokens: Sequence[int | None], now: Now
) -> Verdict:
    """Nothing is changed yet; raises WaitFirst while something is under way for a job that is named."""
    queue = queue_of(topic)
    sweep(topic, shard, now)
    if not queue.has_gone and queue.leases.holds_all(node, seqs, tokens):
        return Verdict(list(seqs))
    verdict = Verdict()
    under_way, judge = queue.leases.under_way, queue.judge
    seen: set[int] = set()
    for seq, token in zip(seqs, tokens, strict=True):
        waiting = under_way(seq)
        if isinstance(waiting, Submission):
            raise WaitFirst(waiting)
        why: Why | None = "settled" if seq in seen else judge(seq, node, token, now.ms)
        if why is None:
            seen.add(seq)
            verdict.done.append(seq)
        else:
            verdict.skipped.append(seq)
            verdict.why[seq] = why
    return verdict


# -- dead letters ------------------------------------------------------------------------------------------------------


def order_dead(topic: Topic, shard: Shard, seqs: Sequence[int], now: Now) -> Submission | None:
    """They are among the dead letters, durable: here they end, and are counted."""
    queue = queue_of(topic)
    rows = queue.leases.rows(sorted(seqs), 0)
    if not rows:  # deleted meanwhile
        return None
    _check(topic, shard)
    return _order_end(topic, shard, [row[0] for row in rows], now, rows)


def order_revival(topic: Topic, shard: Shard, seqs: Sequence[int], now: Now) -> Submission | None:
    """Their way to the dead letters failed: they are claimable again, and begin to count anew."""
    queue = queue_of(topic)
    rows = [(seq, token, 0, 0) for seq, token, _, _ in queue.leases.rows(seqs, 0)]
    if not rows:
        return None
    try:
        _check(topic, shard)
    except TopicsError:
        queue.leases.give_back(seqs, now.ms)
        raise
    return _order_event(topic, shard, LeaseEvent.RELEASED, [("", rows)], now, False)


# -- the submissions ---------------------------------------------------------------------------------------------------


def _check(topic: Topic, shard: Shard) -> None:
    """What stays in RAM needs no log; a full disk does not keep jobs from being worked off."""
    topic.check_writable()
    if topic.ordered.config.commit_class != Durability.EPHEMERAL:
        shard.check(frees=True)


def _order_event(
    topic: Topic, shard: Shard, event: LeaseEvent, events: list[tuple[str, Sequence[LeaseRow]]], now: Now, sync: bool
) -> Submission | None:
    """(node, rows) each, in one submission."""
    if not events:
        return None
    queue = queue_of(topic)
    seqs = [seq for _, rows in events for seq in seqs_of(rows)]
    if topic.ordered.config.commit_class == Durability.EPHEMERAL:
        for node, rows in events:
            topic.apply_lease(event, node, rows, now.ms)
        return None
    flags = DURABLE if sync else 0
    buffers: Buffers = [
        queue.frame(topic.id, event, node, rows, now.ms, flags | (MORE if at < len(events) - 1 else 0))
        for at, (node, rows) in enumerate(events)
    ]

    def apply(_: Submission) -> None:
        for node, rows in events:
            topic.apply_lease(event, node, rows, now.ms)

    def fail(failed: Submission) -> None:
        if failed.file is None:
            queue.leases.give_back(seqs, now.ms)

    submission = Submission(topic.id, buffers, apply, needs_sync=sync, on_fail=fail)
    if event != LeaseEvent.CLAIMED:  # a deal holds what it gives by itself, and nobody waits for a claim
        queue.leases.hold(seqs, submission)
    return shard.submit(submission)


def _order_end(
    topic: Topic, shard: Shard, seqs: list[int], now: Now, dead: Sequence[LeaseRow] | None
) -> Submission | None:
    """One Delete frame of all of them; in front of it, for dead letters, the event that counts them."""
    queue, ordered = queue_of(topic), topic.ordered
    ranges = tuple(runs_of(seqs))

    def apply(_: Submission | None) -> None:
        if dead is not None:
            topic.apply_lease(LeaseEvent.DEAD, "", dead, now.ms)
        queue.acking = True
        try:
            topic.apply_delete(0, ranges)
        finally:
            queue.acking = False

    if ordered.config.commit_class == Durability.EPHEMERAL and not topic.pending and not reaches_disk(topic, 0, ranges):
        apply(None)
        drop_dead_ram(topic)
        topic.ordered = topic.published()
        return None
    shard.check(frees=True)  # also for a topic that lives in RAM: its older records do not
    sync = ordered.config.commit_class in (Durability.FSYNC, Durability.EPHEMERAL)
    flags = DURABLE if sync else 0
    buffers: Buffers = []
    if dead is not None:
        buffers.append(queue.frame(topic.id, LeaseEvent.DEAD, "", dead, now.ms, flags | MORE))
    body = Delete(seqs=tuple(seqs)).encode()
    buffers.append(encode_frame(Kind.DELETE, topic.id, body, ts=max(now.wall_ms, ordered.ts), flags=flags))
    effect = Effect(ranges=ranges)
    live, size = topic.measure_all(ranges, ordered.overlay)
    effect.live, effect.bytes = -live, -size

    def done(submission: Submission) -> None:
        apply(submission)
        topic.settled(effect)
        effect.submission = None

    def fail(failed: Submission) -> None:
        if failed.file is None:
            topic.withdraw(effect)
            queue.leases.give_back(seqs, now.ms)

    submission = Submission(topic.id, buffers, done, needs_sync=sync, on_fail=fail)
    effect.submission = submission
    topic.order(effect)
    queue.leases.hold(seqs, submission)
    return shard.submit(submission)


# -- delays of an append -----------------------------------------------------------------------------------------------


def check_delays(name: str, topic_type: str, prepared: Prepared) -> None:
    """A log has nobody who would wait."""
    if prepared.delays is not None and topic_type != "queue":
        at = next((at for at, delay in enumerate(prepared.delays) if delay), 0)
        raise InvalidRecord(at, f"'delay_ms' belongs to queues, and topic {name!r} is a log")


def delay_rider(topic: Topic, delays: Sequence[int], now: Now) -> Rider:
    """The frame in front of an append's records that says from when on each may be claimed."""
    queue, first = queue_of(topic), topic.ordered.head + 1
    rows: list[LeaseRow] = [(first + at, 0, now.ms + delay, 0) for at, delay in enumerate(delays) if delay]

    def frame(_: int, flags: int) -> bytes:
        return queue.frame(topic.id, LeaseEvent.RELEASED, "", rows, now.ms, flags)

    return Rider(frame, lambda: topic.apply_lease(LeaseEvent.RELEASED, "", rows, now.ms), _nothing)


def _nothing() -> None:
    return
