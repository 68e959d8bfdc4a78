"""What a consumer group looks like from outside: how far it got, how far behind it is, who its members are."""

from __future__ import annotations

import msgspec

from topics.model.group import GroupConfig
from topics.rules.group import Group
from topics.rules.lag import Look, Trend
from topics.rules.lease_values import DELAYED, LEASED, PARKED, READY
from topics.storage.leasing import Now
from topics.storage.timesearch import time_of
from topics.storage.topic import Topic


class Lag(msgspec.Struct, frozen=True):
    records: int
    bytes: int
    seconds: float
    """Age of the oldest record that is not settled."""
    trend_per_s: float
    loss_eta_s: float | None


class MemberRow(msgspec.Struct, frozen=True):
    member: str
    generation: int
    in_flight: int
    idle_ms: int


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    mode: str
    cursor: int
    committed: int
    head_seq: int
    lag: Lag
    pending: int
    parked: int
    lost: int
    oldest_pending_ms: int | None
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    dead_lettered: int
    members: list[MemberRow]
    config: GroupConfig


class PendingRow(msgspec.Struct, frozen=True, rename={"seq": "$seq"}):
    seq: int
    member: str
    count: int
    first_ts: int
    last_ts: int
    deadline: int | None
    """When it is free again; null = it is free already, or parked."""


def look_at(topic: Topic, group: Group, now: Now) -> Look:
    return Look(now.ms, group.committed, topic.head, topic.involuntary_floor)


def state_of_group(topic: Topic, group: Group, trend: Trend, now: Now) -> GroupState:
    """Under the store's lock, after a sweep."""
    look = look_at(topic, group, now)
    trend.add(look)
    records, size = topic.measure(max(look.committed, topic.dead.floor + 1), topic.head)
    oldest = topic.dead.next_live(look.committed, topic.head + 1)
    since = time_of(topic, oldest) if oldest <= topic.head else None
    idle_since = group.leases.oldest_ms()
    counters = group.counters
    return GroupState(
        group=group.name,
        mode=group.config.mode,
        cursor=group.cursor,
        committed=look.committed,
        head_seq=topic.head,
        lag=Lag(
            records,
            size,
            0.0 if since is None else max(now.wall_ms - since, 0) / 1000,
            round(trend.per_s(look), 3),
            None if (eta := trend.loss_eta_s(look)) is None else round(eta, 3),
        ),
        pending=group.pending,
        parked=group.leases.parked,
        lost=counters.lost,
        oldest_pending_ms=None if idle_since is None else max(now.ms - idle_since, 0),
        delivered=counters.delivered,
        redelivered=counters.redelivered,
        acked=counters.acked,
        nacked=counters.nacked,
        dead_lettered=counters.dead_lettered,
        members=[
            MemberRow(name, member.generation, group.leases.in_flight(name), max(now.ms - member.seen_ms, 0))
            for name, member in sorted(group.members.items())
        ],
        config=group.config,
    )


def pending_rows(
    group: Group, now: Now, shift_ms: int, member: str | None, min_idle_ms: int, parked: bool | None, limit: int,
    after: int,
) -> list[PendingRow]:  # fmt: skip
    """By seq. `parked`: only those, only the others, or (None) the others as well as those."""
    kinds = (PARKED,) if parked else (READY, LEASED, DELAYED) if parked is False else (READY, LEASED, DELAYED, PARKED)
    rows = group.leases.listing(
        now.ms, after_seq=after, limit=limit, holder=member, min_idle_ms=min_idle_ms, kinds=kinds
    )
    return [
        PendingRow(
            seq, entry.holder, entry.deliveries, entry.first_ms + shift_ms, entry.last_ms + shift_ms,
            entry.until + shift_ms if entry.until else None,
        )
        for seq, entry in rows
    ]  # fmt: skip
