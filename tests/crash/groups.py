"""Members of the simulated store's consumer groups, and what was promised to them.

A settled record never comes back, one that is not settled is never passed over, a record has one holder at a time, and
tokens and generations never repeat; over every crash, and until somebody seeks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from topics.model.config import Durability
from topics.model.errors import TopicNotFound
from topics.model.group import GroupConfig
from topics.model.leaserows import LeaseRow
from topics.rules.group import Group
from topics.rules.lease_values import Ask, Kind
from topics.storage.groupfetch import order_fetch
from topics.storage.grouping import (
    Place,
    enter,
    find_group,
    gathered,
    order_ack,
    order_drop,
    order_extend,
    order_join,
    order_leave,
    order_nack,
    order_put,
    order_seek,
)
from topics.storage.leasing import Now
from topics.storage.store import Store
from topics.storage.submission import State, Submission
from topics.storage.topic import Topic
from topics.storage.wal import Shard
from topics.testing.oracle import Violation

if TYPE_CHECKING:
    from tests.crash.client import Client, Operation

MEMBERS = ("a", "b")
NAMES = ("g0", "g0", "g0", "g1")
HOLDS = (0, 400, 1 << 30)


class Held(NamedTuple):
    holder: str
    until: int
    token: Submission | None
    """What gave it."""

    def lasts(self, now_ms: int) -> bool:
        """Not if the call that gave it failed: then nobody has the record."""
        return now_ms <= self.until and (self.token is None or self.token.state != State.FAILED)


@dataclass
class Told:
    """What one group was told since it was made or sought."""

    made: list[Submission] = field(default_factory=list)
    """Its making, its seeks and its end: while one of them is not known to have happened, nothing else is."""
    start: int = 1
    """What lies below it is nothing to the group."""
    hold: int | None = None
    """How many bytes retention leaves to it; None = it does not ask."""
    dropped: Submission | None = None
    settled: set[int] = field(default_factory=set)
    """Known to be so over any crash."""
    acks: list[tuple[Sequence[int], Submission | None]] = field(default_factory=list)
    promised: list[tuple[Sequence[int], Submission]] = field(default_factory=list)
    """Of those the ones that, once they are done, hold over a power cut too."""
    live: dict[int, Held] = field(default_factory=dict)
    """By seq, of leases given in this life."""
    ram: set[int] = field(default_factory=set)
    """Leases that the log has not heard of: nor does it understand what becomes of them."""


@dataclass
class Topics:
    last_token: int = 0
    groups: dict[str, Told] = field(default_factory=lambda: defaultdict(Told))
    was_ram: bool = False
    """It was ephemeral once: of what was done then a snapshot may know, and the WAL does not."""


class GroupLedger:
    def __init__(self) -> None:
        self.topics: dict[int, Topics] = defaultdict(Topics)

    def token(self, topic: Topic, number: int) -> None:
        known = self.topics[topic.id]
        if number <= known.last_token:
            raise Violation(f"{topic.name!r}: the number {number} comes again")
        known.last_token = number

    def fetched(
        self, place: Place, member: str, rows: Sequence[LeaseRow], now: Now, submission: Submission | None
    ) -> None:
        told = self.topics[place.topic.id].groups[place.group.name]
        gone = {seq for seqs, token in told.acks if token is None or token.state != State.FAILED for seq in seqs}
        for seq, token, until, _ in rows:
            self.token(place.topic, token)
            if seq in told.settled or seq in gone:
                raise Violation(
                    f"{place.topic.name!r}: record {seq} was settled in {place.group.name!r} and comes again"
                )
            held = told.live.get(seq)
            if held is not None and held.lasts(now.ms):
                raise Violation(f"{place.topic.name!r}: record {seq} went to {member!r} while {held.holder!r} holds it")
            told.live[seq] = Held(member, until, submission)
            if place.topic.ordered.config.commit_class == Durability.EPHEMERAL:
                self.topics[place.topic.id].was_ram = True
                told.ram.add(seq)
            else:
                told.ram.discard(seq)

    def left_ram(self, topic: Topic, token: Submission) -> int:
        """What was done with leases in RAM is logged by what ends that: its acks are as good as this. How many."""
        settled = 0
        for told in self.topics[topic.id].groups.values():
            settled += sum(len(seqs) for seqs, ack in told.acks if ack is None)
            told.acks = [(seqs, token if ack is None else ack) for seqs, ack in told.acks]
            told.ram.clear()
        return settled

    def begin_anew(self, topic: Topic, name: str, start: int, token: Submission | None, hold: int | None) -> None:
        """The group is made, or somebody sought."""
        made = [token] if token is not None else []
        self.topics[topic.id].groups[name] = Told(made, start, hold)

    def check_recovered(self, store: Store, power: bool, doubt: bool, damaged: bool, fallback: bool) -> int:
        """How many settled records stayed so."""
        kept = 0
        if damaged:  # even the id of a topic may be given again, where all that told of it is gone
            self.topics = defaultdict(
                Topics, {key: self.topics[key] for key in self.topics.keys() & store.by_id.keys()}
            )
        for topic in store.by_id.values():
            known = self.topics[topic.id]
            found = {} if topic.groups is None else topic.groups.by_name
            known.was_ram = known.was_ram or topic.config.commit_class == Durability.EPHEMERAL
            for name, told in known.groups.items():
                # After a fallback the older snapshot and the WAL behind it are all there is.
                sure = not doubt and not damaged and not (fallback and known.was_ram)
                if sure and all(_survives(token, power) for token in told.made):
                    kept += self._check(topic, name, found.get(name), told, power)
            for group in found.values():
                self._check_none_is_lost(topic, group)
            known.groups = defaultdict(Told)
            for name, group in found.items():
                below = range(topic.dead.floor + 1, min(group.leases.position, topic.head + 1))
                settled = {seq for seq in below if seq not in topic.dead and seq not in group.leases.entries}
                known.groups[name] = Told(settled=settled, hold=hold_of(group.config))
        return kept

    def _check(self, topic: Topic, name: str, group: Group | None, told: Told, power: bool) -> int:
        if told.dropped is not None:
            if group is not None and _survives(told.dropped, power):
                raise Violation(f"{topic.name!r}: group {name!r} is back")
            return 0
        if group is None:
            raise Violation(f"{topic.name!r}: group {name!r} is lost")
        maybe = {seq for seqs, token in told.acks if token is None or token.state != State.FAILED for seq in seqs}
        maybe |= {seq for seqs, token in told.acks if token is not None and token.file is not None for seq in seqs}
        settled = set(told.settled)
        for seqs, token in told.acks:
            if token is not None and token.state == State.DONE and _survives(token, power):
                settled.update(seq for seq in seqs if seq not in told.ram)
        for seqs, token in told.promised:
            if token.state == State.DONE:
                settled.update(seq for seq in seqs if seq not in told.ram)
        entries, position = group.leases.entries, group.leases.position
        for seq in settled:
            if seq not in topic.dead and seq <= topic.head and (seq in entries or seq >= position):
                raise Violation(f"{topic.name!r}: record {seq} was settled in {name!r}, and is not any more")
        for seq in range(max(topic.dead.floor + 1, told.start), min(position, topic.head + 1)):
            if seq in topic.dead or seq in entries or seq in settled or seq in maybe:
                continue
            raise Violation(f"{topic.name!r}: nobody settled record {seq} in {name!r}, and it is below {position}")
        return len(settled)

    @staticmethod
    def _check_none_is_lost(topic: Topic, group: Group) -> None:
        for seq, entry in group.leases.entries.items():
            if seq in topic.dead or seq > topic.head:
                raise Violation(f"{topic.name!r}: {entry} is left of record {seq}, which is gone")
            if seq < group.committed:
                raise Violation(f"{topic.name!r}: record {seq} is pending below {group.committed}")
            if entry.kind == Kind.LEASED and not topic.config.leases_durable:
                raise Violation(f"{topic.name!r}: record {seq} is leased after a start, and leases do not last there")


def hold_of(config: GroupConfig) -> int | None:
    return config.max_hold_bytes if config.retention_guard else None


def _survives(token: Submission, power: bool) -> bool:
    if token.state != State.DONE or token.file is None:
        return False
    return not power or token.end <= token.file.synced


class GroupUsers:
    """Those who make groups, join, fetch, ack, nack, extend, leave and seek."""

    def __init__(self, client: Client, ledger: GroupLedger) -> None:
        self.client = client
        self.ledger = ledger

    def draw(self, name: str) -> Operation:
        rng = self.client.rng
        group, member = rng.choice(NAMES), rng.choice(MEMBERS)
        picks = [rng.randint(0, 40) for _ in range(4)]
        config = GroupConfig(
            visibility_ms=rng.choice((400, 5000, 60_000)), session_ms=rng.choice((2000, 60_000)),
            max_deliveries=rng.choice((0, 0, 2)), max_pending=rng.choice((5, 1000)), retention_guard=picks[3] % 3 > 0,
            max_hold_bytes=HOLDS[picks[2] % 3], group_ttl_ms=1 << 40,
        ).resolved()  # fmt: skip
        roll, most = rng.random(), rng.choice((1, 4, 20))
        return lambda: self.act(name, group, member, roll, most, picks, config)

    def act(
        self, name: str, group: str, member: str, roll: float, most: int, picks: list[int], config: GroupConfig
    ) -> Submission | None:
        client = self.client
        client.sweep(name)
        instance = client.instance(name)
        try:
            topic = client.store.topic(name)
        except TopicNotFound:
            client.absent(instance, "a call of a group")
            return None
        client.present(instance, "a call of a group")
        shard, now = client.store.shard_for(topic), self._now()
        if topic.groups is None or group not in topic.groups.by_name:
            return self._put(topic, shard, group, config, now)
        place = find_group(topic, shard, group)
        if roll < 0.04:
            return self._drop(place, now)
        if roll < 0.08:
            position = min(1 + picks[0], topic.head + 1)
            sought = order_seek(place, position, now)
            self.ledger.begin_anew(topic, group, position, sought, hold_of(place.group.config))
            client.counts["group seek"] += 1
            return sought
        enter(place, member, None, now)
        if member not in place.group.members or roll < 0.1:
            if member not in place.group.members:  # its session was over, and with it its leases
                told = self.ledger.topics[topic.id].groups[group]
                told.live = {seq: lease for seq, lease in told.live.items() if lease.holder != member}
            generation, token = order_join(place, member, now)
            self.ledger.token(topic, generation)
            client.counts["group join"] += 1
            return token
        if roll < 0.14:
            held = [seq for seq, _ in place.group.leases.held_by(member)]
            told = self.ledger.topics[topic.id].groups[group]
            _, token = order_leave(place, member, now)
            for seq in held:
                told.live.pop(seq, None)
            client.counts["group leave"] += 1
            return token
        if roll < 0.55:
            return self._fetch(place, Ask(member, most, place.group.config.visibility_ms), now)
        return self._settle(place, member, roll, picks, now)

    def _now(self) -> Now:
        clock = self.client.store.clock
        return Now(clock.now_ms(), clock.monotonic_ns() // 1_000_000)

    def _put(self, topic: Topic, shard: Shard, group: str, config: GroupConfig, now: Now) -> Submission | None:
        created, token = order_put(topic, shard, group, config, lambda: topic.earliest_seq, now)
        assert created
        self.ledger.begin_anew(topic, group, topic.earliest_seq, token, hold_of(config))
        self.client.counts["group put"] += 1
        return token

    def _drop(self, place: Place, now: Now) -> Submission:
        told = self.ledger.topics[place.topic.id].groups[place.group.name]
        told.dropped = order_drop(place, now)
        self.client.counts["group drop"] += 1
        return told.dropped

    def _fetch(self, place: Place, ask: Ask, now: Now) -> Submission | None:
        told = self.ledger.topics[place.topic.id].groups[place.group.name]
        # Sessions that ended freed what their members held.
        entries = place.group.leases.entries
        told.live = {
            seq: lease
            for seq, lease in told.live.items()
            if (seq not in entries or entries[seq].kind == Kind.LEASED or now.ms <= lease.until)
            and lease.holder in place.group.members
        }

        def fetch(most: int) -> Submission | None:
            fetched = order_fetch(place, ask._replace(most=most), 1 << 20, None, now, None)
            self.ledger.fetched(place, ask.holder, fetched.rows, now, fetched.submission)
            self.client.counts["group fetch"] += bool(fetched.rows)
            self.client.counts["group refetch"] += any(row[3] > 1 for row in fetched.rows)
            return fetched.submission

        if ask.most % 2:
            return fetch(ask.most)
        # Two calls that came at the same time.
        _, together = gathered(place, lambda: [fetch(ask.most // 2) for _ in range(2)])
        self.client.counts["group fetch of two"] += together is not None
        return together

    def _ack(self, place: Place, member: str, seqs: list[int], tokens: list[int | None], now: Now) -> Submission | None:
        """As two calls that came at the same time, where there is more than one record."""
        told = self.ledger.topics[place.topic.id].groups[place.group.name]

        def ack(part: slice) -> Submission | None:
            verdict = order_ack(place, member, seqs[part], tokens[part], (), now)
            if verdict.done:
                told.acks.append((verdict.done, verdict.submission))
                if verdict.submission is not None and place.topic.ordered.config.commit_class == Durability.FSYNC:
                    told.promised.append((verdict.done, verdict.submission))
            self.client.counts["group ack"] += bool(verdict.done)
            return verdict.submission

        if len(seqs) < 2:
            return ack(slice(None))
        _, together = gathered(place, lambda: [ack(part) for part in (slice(1), slice(1, None))])
        self.client.counts["group ack of two"] += together is not None
        return together

    def _settle(self, place: Place, member: str, roll: float, picks: list[int], now: Now) -> Submission | None:
        told = self.ledger.topics[place.topic.id].groups[place.group.name]
        held = place.group.leases.held_by(member)
        mine = [seq for seq, _ in held] or [seq for seq in picks if seq <= place.topic.head]
        seqs = list(dict.fromkeys(mine[pick % len(mine)] for pick in picks)) if mine else []
        tokens: list[int | None] = [dict(held).get(seq) for seq in seqs]
        if roll < 0.82:
            return self._ack(place, member, seqs, tokens, now)
        if roll < 0.93:
            verdict = order_nack(place, member, seqs, tokens, 50 * (picks[0] % 3), bool(picks[1] % 3), now)
            for seq in verdict.done:
                told.live.pop(seq, None)
            verb = "nack"
        else:
            verdict = order_extend(place, member, seqs, tokens, 1000, now)
            for seq in verdict.done:
                told.live[seq] = Held(member, now.ms + 1000, verdict.submission)
            verb = "extend"
        self.client.counts[f"group {verb}"] += bool(verdict.done)
        return verdict.submission
