"""What a member of a group is given: what is reclaimable first, then what nobody had yet, up to the next lost range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from topics.format.control import Selector
from topics.model import limits
from topics.model.leaserows import LeaseRow, LeaseRun
from topics.model.record import Gap
from topics.rules.gap import floor_gap
from topics.rules.lease_values import READY, Ask, Deal
from topics.storage.alive import live_runs
from topics.storage.budget import Budget
from topics.storage.grouping import Place, check, order_claimed, order_parked
from topics.storage.leasing import Now, reserve_tokens, rows_of_grants
from topics.storage.names import TAGS, name_tail, not_gone, sealed_segments, search_segment
from topics.storage.namesearch import catch_up
from topics.storage.scan import check_there
from topics.storage.store import Store
from topics.storage.submission import Submission
from topics.storage.topic import Topic

SCAN_MAX = 100_000
"""Seqs that one call looks at for those that a filter lets through."""
_CHUNK_MIN = 256


@dataclass(slots=True)
class Matches:
    """What a filter lets through of first..through."""

    first: int
    through: int
    seqs: list[int]


@dataclass(slots=True)
class Fetched:
    rows: Sequence[LeaseRow] = ()
    """Ascending by seq; times are monotonic. In stream mode only the seqs say something."""
    spent: list[int] = field(default_factory=list)
    """In hand, on their way to the dead letters: whoever gets this sees to it that they leave it."""
    gap: Gap | None = None
    pending_full: bool = False
    submission: Submission | None = None
    moved: bool = False
    """The cursor went on."""


def find_matches(store: Store, topic: Topic, selector: Selector, first: int) -> Matches:
    """What the filter lets through of the next SCAN_MAX seqs. Without the store's lock."""
    catch_up(store, topic, TAGS)
    with store.lock:
        check_there(store, topic)
        first = max(first, topic.dead.floor + 1)
        through = min(topic.head, first + SCAN_MAX - 1)
        tail, start = name_tail(topic, TAGS)
        tail.extend(store.handles, topic, start)
        found = tail.find(selector, start)
        segments = [s for s in sealed_segments(topic) if s.end_seq > first and s.first_seq <= through]
    for segment in segments:
        try:
            found.append(search_segment(store.handles, topic, segment, TAGS, selector))
        except FileNotFoundError:
            continue  # dropped meanwhile
    seqs = np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)
    low, high = np.searchsorted(seqs, first), np.searchsorted(seqs, through, side="right")
    return Matches(first, through, seqs[int(low) : int(high)].tolist())


def order_fetch(
    place: Place, ask: Ask, bytes_max: int, claim_idle_ms: int | None, now: Now, matches: Matches | None
) -> Fetched:
    """Deal to one member of a queue-mode group. Raises WaitFirst where no tokens are left."""
    topic, group = place.topic, place.group
    check(topic, place.shard)
    reserve_tokens(topic, place.shard, now, ask.most)
    leases, most = group.leases, group.config.max_deliveries
    began = leases.position
    deals: list[Deal] = []
    left = Budget(topic, ask.most, bytes_max)
    if claim_idle_ms is not None:
        deals.append(left.trim(leases, leases.deal_idle(ask, now.ms, claim_idle_ms, None, most), now.ms))
    if leases.tally[READY] and left.records:
        deals.append(left.trim(leases, leases.deal([ask._replace(most=left.records)], iter(()), most), now.ms))
    fetched = Fetched()
    room = group.room()
    if left.records and not room:
        fetched.pending_full = True
    elif left.records and left.bytes > 0:
        gap, end = _pass_gap(topic, leases.position)
        if gap is not None:
            leases.position = gap.gap_to + 1
            fetched.gap = gap
        seqs, through = _choose(left, min(left.records, room), leases.position, end, matches)
        if not deals and isinstance(seqs, range) and leases.begin(seqs):
            fetched.rows = LeaseRun(seqs, topic.tokens.take(len(seqs)), now.ms + ask.lease_ms, 1)
        else:
            deals.append(leases.deal([ask._replace(most=len(seqs))], iter(seqs)))
        leases.position = max(leases.position, through + 1)
    if deals:
        grants = deals[0].grants[0] if len(deals) == 1 else sorted(grant for deal in deals for grant in deal.grants[0])
        fetched.rows = rows_of_grants(grants, topic.tokens.take(len(grants)), now.ms + ask.lease_ms)
    _finish(place, ask, [seq for deal in deals for seq in deal.spent], began, fetched, now)
    return fetched


def order_idle_claim(place: Place, ask: Ask, min_idle_ms: int, seqs: Sequence[int] | None, now: Now) -> Fetched:
    """Take over what was idle long enough, from whoever has it."""
    check(place.topic, place.shard)
    reserve_tokens(place.topic, place.shard, now, ask.most)
    leases = place.group.leases
    deal = leases.deal_idle(ask, now.ms, min_idle_ms, seqs, place.group.config.max_deliveries)
    Budget(place.topic, ask.most, limits.FETCH_BYTES).trim(leases, deal, now.ms)
    grants = deal.grants[0]
    fetched = Fetched(rows_of_grants(grants, place.topic.tokens.take(len(grants)), now.ms + ask.lease_ms))
    _finish(place, ask, deal.spent, leases.position, fetched, now)
    return fetched


def _finish(place: Place, ask: Ask, spent: list[int], began: int, fetched: Fetched, now: Now) -> None:
    fetched.moved = place.group.leases.position > began
    if spent and place.group.config.dead_letter is None:
        fetched.submission = order_parked(place, spent, now)
    else:
        fetched.spent = spent
    lost = 0 if fetched.gap is None else fetched.gap.missed
    if fetched.rows or fetched.moved:
        claimed = order_claimed(place, ask, fetched.rows, lost, now)
        if fetched.rows:  # that the cursor moved is nothing to wait for by itself
            fetched.submission = claimed


def stream_fetch(place: Place, most: int, bytes_max: int, matches: Matches | None) -> Fetched:
    """What comes next for a stream-mode group. The cursor lives in memory alone."""
    topic, group = place.topic, place.group
    fetched = Fetched()
    began = cursor = group.cursor
    gap, end = _pass_gap(topic, cursor)
    if gap is not None:
        cursor = gap.gap_to + 1
        fetched.gap = gap
        group.counters.lost += gap.missed
    seqs, through = _choose(Budget(topic, most, bytes_max), most, cursor, end, matches)
    group.handed = max(cursor, through + 1, seqs[-1] + 1 if seqs else 0)
    group.counters.delivered += len(seqs)
    fetched.rows = [(seq, 0, 0, 1) for seq in seqs]
    fetched.moved = group.handed > began
    return fetched


def _choose(left: Budget, most: int, first: int, end: int, matches: Matches | None) -> tuple[Sequence[int], int]:
    """Live seqs from `first` on that may be handed out, and how far that is all of them."""
    topic = left.topic
    end = _sure_end(topic, first, end)
    if matches is None:
        seqs: Sequence[int] = _live(topic, first, end, most)
        through = end - 1 if len(seqs) < most else 0
    else:
        there = [seq for seq in matches.seqs if first <= seq < end]
        live = not_gone(topic, np.array(there, dtype=np.uint64)).tolist()
        seqs = live[:most]
        through = min(matches.through, end - 1) if len(live) <= most else 0
    room = left.take(seqs)
    return (seqs, through) if room == len(seqs) else (seqs[:room], 0)


def _sure_end(topic: Topic, first: int, end: int) -> int:
    """Up to the first record whose end is ordered and not there yet. Nothing passes it: a power cut may take that end
    away, and what is passed without an entry counts as settled."""
    overlay = topic.ordered.overlay
    if overlay is None:
        return end
    for low, high in ((first, overlay.floor), *overlay.ranges()):
        if low >= end:
            break
        start, stop = max(low, first), min(high + 1, end)
        if start < stop and (seq := topic.dead.next_live(start, stop)) < stop:
            return seq
    return end


def coming_end(topic: Topic, cursor: int) -> Submission | None:
    """What is about to end the next record: a fetch that got nothing because of that need only wait for it."""
    overlay, seq = topic.ordered.overlay, topic.dead.next_live(cursor, topic.head + 1)
    if overlay is None or seq > topic.head or seq not in overlay:
        return None
    for effect in topic.pending:
        floor = max(effect.evict_floor, effect.expiry_floor, effect.delete_below - 1)
        if seq <= floor or any(first <= seq <= last for first, last in effect.ranges):
            return None if effect.submission is None or effect.submission.settled else effect.submission
    return None


def _live(topic: Topic, first: int, end: int, most: int) -> Sequence[int]:
    """Up to `most` live seqs of first..end-1, those whose end is ordered left out; a range where nothing lies between
    them."""
    overlay = topic.ordered.overlay
    seq = topic.dead.next_live(first, end)
    row = range(seq, min(seq + most, end))
    if not row or topic.gone_mask(seq, len(row), overlay) is None:
        return row
    seqs: list[int] = []
    while len(seqs) < most and (seq := topic.dead.next_live(seq, end)) < end:
        last = min(seq + max(most - len(seqs), _CHUNK_MIN), end) - 1
        for low, high in live_runs(topic, seq, last, overlay):
            seqs += range(low, min(high + 1, low + most - len(seqs)))
        seq = last + 1
    return seqs


def _pass_gap(topic: Topic, position: int) -> tuple[Gap | None, int]:
    """The lost range at `position`, if one is there, and where the next one or the topic ends."""
    gap = floor_gap(position - 1, topic.evict_floor, topic.expiry_floor, topic.trim_floor)
    at = position if gap is None else gap.gap_to + 1
    lost = topic.lost.at_or_after(at)
    end = topic.head + 1
    if lost is not None and gap is None and topic.dead.next_live(at, lost[0]) >= lost[0] and lost[0] < end:
        gap = Gap(max(lost[0], at), lost[1], lost[2])
        lost = topic.lost.at_or_after(lost[1] + 1)
    return gap, end if lost is None else min(end, lost[0])
