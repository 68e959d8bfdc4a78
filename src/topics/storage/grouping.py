"""Ordering what is done in a consumer group: its making and end, members, fetches, and what a holder does.

Each decides by the rules of groups and leases, takes the records in hand, and hands one submission to the WAL; the
state changes when that is written. What settles (ack, commit, reject) is answered after the topic's class is satisfied,
all else after the write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from topics.format.frame import DURABLE
from topics.format.group import GroupEvent, GroupOp
from topics.model import limits
from topics.model.config import Durability
from topics.model.errors import GroupExists, GroupNotFound, InvalidRequest, Throttled, TopicsError
from topics.model.group import GroupConfig
from topics.model.job import Why
from topics.model.leaserows import LeaseRow, seqs_of
from topics.rules.group import Group
from topics.rules.lease_values import PARKED, Ask
from topics.storage.group import Groups
from topics.storage.leasing import Now, reserve_tokens
from topics.storage.submission import Submission, WaitFirst, joined
from topics.storage.topic import Topic
from topics.storage.wal import Shard

T = TypeVar("T")


@dataclass(slots=True)
class GroupVerdict:
    done: Sequence[int] = ()
    stale: list[int] = field(default_factory=list)
    why: dict[int, Why] = field(default_factory=dict)
    submission: Submission | None = None


@dataclass(slots=True, eq=False)
class Place:
    """A group, where it is."""

    topic: Topic
    shard: Shard
    group: Group
    gathered: list[Submission] | None = None
    """Where what is done with records is put, to be submitted together; None = each is submitted by itself."""

    @property
    def groups(self) -> Groups:
        assert self.topic.groups is not None
        return self.topic.groups


def find_group(topic: Topic, shard: Shard, name: str) -> Place:
    """The group, once nothing that would change everything is under way."""
    groups = topic.groups
    group = groups.by_name.get(name) if groups is not None else None
    if groups is not None and group is None and isinstance(making := groups.making.get(name), Submission):
        raise WaitFirst(making)
    if group is None:
        raise GroupNotFound(topic.name, name)
    if isinstance(group.gate, Submission):
        raise WaitFirst(group.gate)
    return Place(topic, shard, group)


def check(topic: Topic, shard: Shard) -> None:
    """What stays in RAM needs no log."""
    topic.check_writable()
    if topic.ordered.config.commit_class != Durability.EPHEMERAL:
        shard.check()


def settles(topic: Topic) -> bool:
    return topic.ordered.config.commit_class == Durability.FSYNC


def holds(topic: Topic) -> bool:
    """Whether leases are to survive: then they are answered after the sync."""
    return topic.ordered.config.leases_durable and settles(topic)


# -- groups ------------------------------------------------------------------------------------------------------------


def order_put(
    topic: Topic, shard: Shard, name: str, config: GroupConfig, start: Callable[[], int], now: Now
) -> tuple[bool, Submission | None]:
    """Make a group, or replace the config of one; True = it is new."""
    groups = topic.groups
    if groups is None:
        groups = topic.groups = Groups()
        groups.restart(now.wall_ms, now.ms, False, topic.dead, topic.head)
    known = groups.by_name.get(name)
    making = groups.making.get(name)
    if known is None and isinstance(making, Submission):
        raise WaitFirst(making)
    if known is not None:
        if isinstance(known.gate, Submission):
            raise WaitFirst(known.gate)
        if known.config.mode != config.mode:
            raise GroupExists(
                f"group {name!r} is in {known.config.mode} mode; it cannot change to {config.mode} mode",
                group=name,
                existing_mode=known.config.mode,
                requested_mode=config.mode,
            )
        if known.config == config:
            return False, None
    elif len(groups.by_name) + len(groups.making) >= limits.GROUPS_PER_TOPIC:
        raise Throttled(
            f"topic {topic.name!r} has {limits.GROUPS_PER_TOPIC} groups, its limit",
            limit="groups",
            max=limits.GROUPS_PER_TOPIC,
        )
    topic.check_writable()
    shard.check()
    op = GroupOp(GroupEvent.PUT, name, number=start() if known is None else 0, text=msgspec.json.encode(config))

    def done() -> None:
        groups.making.pop(name, None)

    submission = _submit(topic, shard, groups, op, now, True, done)
    if known is None:
        groups.making[name] = submission
    return known is None, submission


def order_drop(place: Place, now: Now) -> Submission:
    place.topic.check_writable()
    place.shard.check()
    return _gated(place, GroupOp(GroupEvent.DROP, place.group.name), now)


def order_seek(place: Place, position: int, now: Now) -> Submission:
    place.topic.check_writable()
    place.shard.check()
    return _gated(place, GroupOp(GroupEvent.SOUGHT, place.group.name, number=position), now)


def _gated(place: Place, op: GroupOp, now: Now) -> Submission:
    """Nothing else is decided in the group until it is done."""
    group = place.group

    def done() -> None:
        group.gate = None

    group.gate = submission = _submit(place.topic, place.shard, place.groups, op, now, True, done)
    return submission


# -- members -----------------------------------------------------------------------------------------------------------


def order_join(place: Place, member: str, now: Now) -> tuple[int, Submission | None]:
    """The new generation of the member."""
    topic, group = place.topic, place.group
    check(topic, place.shard)
    sweep_group(place, now)
    _wait_leaving(group, member)
    if member not in group.members and len(group.members) >= limits.MEMBERS_PER_GROUP:
        raise Throttled(
            f"group {group.name!r} has {limits.MEMBERS_PER_GROUP} members, its limit",
            limit="members",
            max=limits.MEMBERS_PER_GROUP,
        )
    reserve_tokens(topic, place.shard, now, 1)
    generation = topic.tokens.take(1)
    return generation, order_op(place, GroupOp(GroupEvent.JOINED, group.name, member, generation), now, False)


def order_leave(place: Place, member: str, now: Now) -> tuple[int, Submission | None]:
    group = place.group
    check(place.topic, place.shard)
    _wait_leaving(group, member)
    known = group.members.get(member)
    if known is None:
        return 0, None
    return known.generation, _leave(place, member, known.generation, now)


def _leave(place: Place, member: str, generation: int, now: Now) -> Submission | None:
    group = place.group
    op = GroupOp(GroupEvent.LEFT, group.name, member, generation)
    if place.topic.ordered.config.commit_class == Durability.EPHEMERAL:
        place.topic.apply_group(op, now.ms)
        return None

    def done() -> None:
        group.leaving.pop(member, None)

    submission = _submit(place.topic, place.shard, place.groups, op, now, False, done)
    group.leaving[member] = submission
    return submission


def sweep_group(place: Place, now: Now) -> None:
    """End leases, delays and sessions that are over. Nobody waits for that."""
    expired = place.group.leases.sweep(now.ms)
    try:
        config = place.topic.ordered.config
        if expired and config.leases_durable and config.commit_class != Durability.EPHEMERAL:
            check(place.topic, place.shard)
            entries = place.group.leases.entries
            rows = [(seq, token, 0, entries[seq].deliveries) for seq, token in expired]
            op = GroupOp(GroupEvent.RELEASED, place.group.name, rows=rows)
            frame = place.groups.frame(place.topic.id, op, now.ms, 0)
            place.shard.submit(Submission(place.topic.id, [frame], _nothing, needs_sync=False, detached=True))
        for member, generation in place.group.over(now.ms):
            check(place.topic, place.shard)
            _leave(place, member, generation, now)
    except TopicsError:
        return


def _nothing(_: Submission) -> None:
    return


def enter(place: Place, member: str, generation: int | None, now: Now) -> None:
    """What every call of a member begins with."""
    sweep_group(place, now)
    _wait_leaving(place.group, member)
    place.group.check_generation(member, generation)
    place.group.touch(member, now.ms)


def _wait_leaving(group: Group, member: str) -> None:
    leaving = group.leaving.get(member)
    if isinstance(leaving, Submission):
        raise WaitFirst(leaving)


# -- what a holder does ------------------------------------------------------------------------------------------------


def judge(
    place: Place, member: str, seqs: Sequence[int], tokens: Sequence[int | None], now: Now, freeing: bool = False
) -> GroupVerdict:
    """Nothing is changed yet; raises WaitFirst while something is under way for a record that is named. `freeing`: a
    parked record is anybody's."""
    leases, head = place.group.leases, place.topic.head
    if leases.holds_all(member, seqs, tokens):
        return GroupVerdict(seqs)
    under_way = leases.under_way
    for seq in seqs:
        if seq > head:
            raise InvalidRequest(f"seq {seq} is above {head}, the last one of topic {place.topic.name!r}")
        waiting = under_way(seq)
        if waiting is not None and isinstance(waiting, Submission):
            raise WaitFirst(waiting)
    verdict = GroupVerdict()
    done: list[int] = []
    entries = leases.entries
    for seq, token in zip(seqs, tokens, strict=True):
        why = leases.judge(seq, member, token, now.ms)
        if why is not None and freeing and seq in entries and entries[seq].kind == PARKED:
            why = None
        if why is None:
            done.append(seq)
        else:
            verdict.stale.append(seq)
            verdict.why[seq] = why
    verdict.done = list(dict.fromkeys(done))
    return verdict


def in_ranges(place: Place, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """The pending seqs of the ranges."""
    entries = place.group.leases.entries
    found: dict[int, None] = {}
    for first, last in ranges:
        if last > place.topic.head:
            raise InvalidRequest(f"seq {last} is above {place.topic.head}, the last one of the topic")
        few = last - first < len(entries)
        seqs = range(first, last + 1) if few else [seq for seq in entries if first <= seq <= last]
        found.update(dict.fromkeys(seq for seq in seqs if seq in entries))
    return sorted(found)


def order_ack(
    place: Place,
    member: str,
    seqs: Sequence[int],
    tokens: Sequence[int | None],
    ranges: Sequence[tuple[int, int]],
    now: Now,
) -> GroupVerdict:
    verdict = judge(place, member, seqs, tokens, now)
    verdict.stale = [seq for seq in verdict.stale if verdict.why[seq] != "settled"]
    if ranges:
        known = {*seqs}
        more = [seq for seq in in_ranges(place, ranges) if seq not in known]
        also = judge(place, member, more, [None] * len(more), now)
        verdict.done = [*verdict.done, *also.done]
        verdict.stale += also.stale
        verdict.why.update(also.why)
    if verdict.done:
        verdict.submission = order_settled(place, member, verdict.done, now)
    return verdict


def order_settled(place: Place, member: str, seqs: Sequence[int], now: Now) -> Submission | None:
    """Of records that were judged."""
    check(place.topic, place.shard)
    op = GroupOp(GroupEvent.SETTLED, place.group.name, member, rows=place.group.leases.rows(seqs))
    return order_op(place, op, now, settles(place.topic))


def order_nack(
    place: Place,
    member: str,
    seqs: Sequence[int],
    tokens: Sequence[int | None],
    delay_ms: int,
    count: bool,
    now: Now,
) -> GroupVerdict:
    verdict = judge(place, member, seqs, tokens, now, freeing=True)
    if verdict.done:
        check(place.topic, place.shard)
        entries = place.group.leases.entries
        until = now.ms + delay_ms if delay_ms else 0
        rows: list[LeaseRow] = []
        for seq in verdict.done:
            entry = entries[seq]
            # Freed, a parked one begins to count anew: it would be parked again at once.
            left = 0 if entry.kind == PARKED else entry.deliveries - (not count)
            rows.append((seq, entry.token_of(seq), until, left))
        op = GroupOp(GroupEvent.RELEASED, place.group.name, member, 1, rows=rows)
        verdict.submission = order_op(place, op, now, False)
    return verdict


def order_extend(
    place: Place,
    member: str,
    seqs: Sequence[int],
    tokens: Sequence[int | None],
    visibility_ms: int,
    now: Now,
) -> GroupVerdict:
    verdict = judge(place, member, seqs, tokens, now)
    if verdict.done:
        check(place.topic, place.shard)
        rows = place.group.leases.rows(verdict.done, now.ms + visibility_ms)
        op = GroupOp(GroupEvent.EXTENDED, place.group.name, member, rows=rows)
        verdict.submission = order_op(place, op, now, holds(place.topic))
    return verdict


def order_commit(place: Place, seq: int, now: Now) -> Submission | None:
    if seq > place.topic.head + 1:
        raise InvalidRequest(f"seq {seq} is beyond {place.topic.head + 1}, the next one of topic {place.topic.name!r}")
    if seq <= place.group.committed:
        return None
    check(place.topic, place.shard)
    return order_op(
        place, GroupOp(GroupEvent.COMMITTED, place.group.name, number=seq), now, settles(place.topic)
    )  # fmt: skip


def order_parked(place: Place, seqs: Sequence[int], now: Now) -> Submission | None:
    """Nobody gets them until somebody frees them."""
    check(place.topic, place.shard)
    op = GroupOp(GroupEvent.PARKED, place.group.name, rows=place.group.leases.rows(seqs))
    return order_op(place, op, now, settles(place.topic))


def order_dead(place: Place, seqs: Sequence[int], now: Now) -> Submission | None:
    """They are among the dead letters, durable: here they end, and are counted."""
    rows = place.group.leases.rows(sorted(seqs))
    if not rows:
        return None
    check(place.topic, place.shard)
    return order_op(place, GroupOp(GroupEvent.DEAD, place.group.name, rows=rows), now, settles(place.topic))


def order_claimed(place: Place, ask: Ask, rows: Sequence[LeaseRow], lost: int, now: Now) -> Submission | None:
    """Leases begin, and the cursor moves."""
    position = place.group.leases.position
    op = GroupOp(GroupEvent.CLAIMED, place.group.name, ask.holder, position, lost, rows=rows)
    return order_op(place, op, now, holds(place.topic), detached=not rows)


# -- the submissions ---------------------------------------------------------------------------------------------------


def order_op(place: Place, op: GroupOp, now: Now, sync: bool, detached: bool = False) -> Submission | None:
    topic, leases = place.topic, place.group.leases
    if topic.ordered.config.commit_class == Durability.EPHEMERAL:
        topic.apply_group(op, now.ms)
        return None
    seqs = seqs_of(op.rows)

    def fail() -> None:
        leases.give_back(seqs, now.ms)

    submission = _make(topic, place.groups, op, now, sync, None, fail)
    submission.detached = detached
    leases.hold(seqs, submission)
    if place.gathered is None:
        return place.shard.submit(submission)
    submission.shard = place.shard
    place.gathered.append(submission)
    return submission


def gathered(place: Place, act: Callable[[], T]) -> tuple[T, Submission | None]:
    """What `act` says, and one submission of all it did with records of the group; None = that was nothing. What was
    ordered before it raised is submitted all the same."""
    submission: Submission | None = None
    parts: list[Submission] = []
    place.gathered = parts
    try:
        done = act()
    finally:
        place.gathered = None
        if parts:
            submission = place.shard.submit(joined(place.topic.id, parts))
    return done, submission


def _submit(
    topic: Topic, shard: Shard, groups: Groups, op: GroupOp, now: Now, sync: bool, done: Callable[[], None]
) -> Submission:
    """`done` is called when it is over, well or not."""
    return shard.submit(_make(topic, groups, op, now, sync, done, done))


def _make(
    topic: Topic,
    groups: Groups,
    op: GroupOp,
    now: Now,
    sync: bool,
    done: Callable[[], None] | None,
    fail: Callable[[], None],
) -> Submission:
    frame = groups.frame(topic.id, op, now.ms, DURABLE if sync else 0)

    def applied(_: Submission) -> None:
        topic.apply_group(op, now.ms)
        if done is not None:
            done()

    def failed(submission: Submission) -> None:
        if submission.file is None:
            fail()

    return Submission(topic.id, [frame], applied, needs_sync=sync, on_fail=failed)
