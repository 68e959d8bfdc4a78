"""Consumer groups of a real store against a plain model, over kills, power cuts, restarts and clocks that are set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.unit.broker.lease_life import HOUR_MS, PICKS, THEN, LeaseLife
from tests.unit.broker.plain_leases import Paper, Steps
from topics.broker.deadletters import SRC_SEQ, mark_of
from topics.broker.group import Asked, Where
from topics.broker.jobs import read_records
from topics.model.config import make_config
from topics.model.errors import InvalidRequest, StaleGeneration
from topics.model.group import GroupConfig, GroupFilter
from topics.rules.group import Group
from topics.rules.lease import Leases
from topics.storage.grouping import GroupVerdict
from topics.testing.disk import CrashKind

MEMBERS = st.sampled_from(("m", "n"))
VISIBILITY_MS = 1_000
SESSION_MS = 4_500
MAX_PENDING = 9

TOPICS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "durability": st.sampled_from(("fsync", "fsync", "disk", "memory")),
        "durable": st.booleans(),
        "limit": st.sampled_from(({}, {"cap_records": 8}, {"ttl_ms": 3_000})),
        "tag": st.sampled_from((None, None, "a")),
        "guarded": st.booleans(),
        "hold_bytes": st.sampled_from((0, 50, 1 << 30)),
        "group_ttl_ms": st.sampled_from((6_000, 1 << 40)),
    }
)


class GroupLife(LeaseLife):
    """What both modes share: members, seeks, and a floor that waits."""

    group_config = GroupConfig()

    def make(self, topic: dict[str, Any], group: dict[str, Any]) -> None:
        self.tag = topic["tag"]
        fields = {"durability": topic["durability"], "leases_durable": topic["durable"], **topic["limit"]}
        self.set_up(make_config(fields))
        self.group_config = GroupConfig(
            filter=None if self.tag is None else GroupFilter(self.tag), visibility_ms=VISIBILITY_MS,
            session_ms=SESSION_MS, max_pending=MAX_PENDING, retention_guard=topic["guarded"],
            max_hold_bytes=topic["hold_bytes"], group_ttl_ms=topic["group_ttl_ms"], **group,
        )  # fmt: skip
        self.bench.run(self.bench.broker.groups.put(self.name, "g", self.group_config, Where(to="earliest")))
        self.paper.logged(self.now)
        self.since = [self.paper.copy()]
        self.append(["a", "b", "a", "a", "b", "a"])

    def group(self) -> Group:
        assert self.topic.groups is not None
        return self.topic.groups.by_name["g"]

    def leases(self) -> Leases:
        return self.group().leases

    def is_settled(self, seq: int) -> bool:
        return seq < self.leases().position

    def members(self) -> dict[str, int]:
        return {name: member.generation for name, member in self.group().members.items()}

    def guard(self) -> tuple[int, int] | None:
        group = self.group()
        if not self.group_config.retention_guard:
            return None
        unused = self.now - group.used_ms > self.group_config.group_ttl_ms
        return group.committed, 0 if unused else self.group_config.max_hold_bytes

    def who(self, member: str, generation: int | None = None) -> Asked:
        return Asked(self.name, "g", member, generation)

    def entered(self, paper: Paper, member: str, now: int) -> Steps:
        """What every call of a member begins with: leases and sessions that are over end."""
        paper.sweep(now, self.config.leases_durable)
        yield False
        for name, (_, seen) in list(paper.members.items()):
            if now - seen > SESSION_MS:
                paper.leave(name, now)
                yield False
        if member in paper.members:
            paper.members[member] = (paper.members[member][0], now)

    def joined(self, paper: Paper, member: str, now: int) -> Steps:
        paper.members[member] = (0, now)
        paper.logged(now)
        yield False

    def note_generation(self, member: str, before: int) -> None:
        """A member that came anew has a number above all that were given out."""
        generation = self.members()[member]
        if generation != before:
            self.number(generation)
        self.paper.members[member] = (generation, self.paper.members[member][1])
        self.since[-1] = self.paper.copy()

    def reach(self, paper: Paper, at: int, again: bool) -> list[int]:
        """What there is for a fetch that has got to `at`. It ends before the next range that was lost, and the one that
        begins there tells of it; `again` = one that found nothing so far goes on."""
        fresh = paper.fresh(self.tag)
        told = at <= paper.floor
        at = max(at, paper.floor + 1)
        while True:
            lost = [row[:2] for row in self.topic.lost.rows if row[1] >= at]
            if lost and not told and not any(at <= seq < lost[0][0] for seq in paper.live):
                at, told = lost.pop(0)[1] + 1, True
            stop = lost[0][0] if lost else paper.head + 1
            found = [seq for seq in fresh if at <= seq < stop]
            if found or told or not lost or not again:
                return found
            at = stop

    @rule(member=MEMBERS)
    def join(self, member: str) -> None:
        now = self.now

        def steps(paper: Paper) -> Steps:
            yield from self.entered(paper, "", now)
            yield from self.joined(paper, member, now)

        before = self.members().get(member, 0)
        joined = self.do(lambda: self.bench.run(self.bench.broker.groups.join(self.name, "g", member)), steps)
        if joined is not None:
            self.note_generation(member, before)
            assert joined[1] == self.members()[member] > before
            with pytest.raises(StaleGeneration):
                self.bench.run(self.bench.broker.groups.heartbeat(self.who(member, before)))

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        now = self.now

        def steps(paper: Paper) -> Steps:
            yield from self.entered(paper, member, now)
            if member in paper.members:
                paper.leave(member, now)
                yield False

        self.do(lambda: self.bench.run(self.bench.broker.groups.leave(self.who(member))), steps)

    @rule(back=st.integers(0, 12))
    def seek(self, back: int) -> None:
        now, position = self.now, max(self.paper.head + 1 - back, 1)

        def steps(paper: Paper) -> Steps:
            yield from self.retention(paper)
            paper.sweep(now, self.config.leases_durable)
            for name, (_, seen) in list(paper.members.items()):
                if now - seen > SESSION_MS:
                    paper.leave(name, now)
            yield False
            paper.seek(position, now)
            yield True

        groups = self.bench.broker.groups
        self.do(lambda: self.bench.run(groups.seek(self.name, "g", Where(seq=position), True, False)), steps)

    @invariant()
    def every_record_is_where_it_should_be(self) -> None:
        if self.paper.shift:
            self.check()

    def pending(self) -> list[int]:
        """What the group still has to get or to settle, on paper."""
        raise NotImplementedError

    @invariant()
    def no_guarded_floor_passes_what_is_pending(self) -> None:
        if not self.paper.shift:
            return
        committed = self.group().committed
        assert all(seq >= committed for seq in self.pending()), "nothing that is pending lies below the committed one"
        guard = self.guard()
        if guard is not None and guard[1] == 1 << 30:
            assert self.topic.involuntary_floor < max(self.lowest_held(), 1)

    def lowest_held(self) -> int:
        """Below it nobody was waited for."""
        return min([*self.pending(), self.topic.head + 1])


class QueueModeLife(GroupLife):
    max_deliveries = 2

    @initialize(dead_letter=st.sampled_from((None, "dead")), topic=TOPICS)
    def begin(self, dead_letter: str | None, topic: dict[str, Any]) -> None:
        self.make(topic, {"max_deliveries": self.max_deliveries, "dead_letter": dead_letter})

    def pending(self) -> list[int]:
        return [*self.paper.items, *self.paper.fresh(self.tag)]

    def has_copy(self, seq: int) -> bool:
        """Whether a cut took its end away and left its copy among the dead letters, which is known by its key."""
        dead = self.bench.store.topics.get("dead")
        if dead is None:
            return False
        marks = [mark_of(self.topic, record) for record in read_records(self.bench.store, self.topic, [seq])]
        window = dead.config.idempotency_window_ms
        return any(dead.dedupe.get(f"dead:{self.topic.id}:g:{mark}", self.wall, window) is not None for mark in marks)

    def spend(self, paper: Paper, spent: list[int], now: int) -> Steps:
        """What was handed out too often, or rejected."""
        if not spent:
            return
        if self.group_config.dead_letter is None:
            for seq in spent:
                paper.park(seq)
            paper.logged(now)
            yield self.fsync
            return
        if not all(self.has_copy(seq) for seq in spent):
            yield True  # their copies are synced
        for seq in spent:
            del paper.items[seq]
            paper.settled.add(seq)
        paper.logged(now)
        yield self.fsync

    @rule(member=MEMBERS, most=st.integers(1, 8))
    def fetch(self, member: str, most: int) -> None:
        now, cursor = self.now, self.group().cursor
        got: list[int] = []

        def steps(paper: Paper) -> Steps:
            yield from self.retention(paper)
            yield from self.entered(paper, member, now)
            if member not in paper.members:
                yield from self.joined(paper, member, now)
            room = max(MAX_PENDING - len(paper.items), 0)
            back, _ = paper.pick(most, self.max_deliveries, [], now)
            fresh = self.reach(paper, cursor, not back)[:room]
            picked, spent = paper.pick(most, self.max_deliveries, fresh, now)
            parks = self.group_config.dead_letter is None
            if parks:
                yield from self.spend(paper, spent, now)
            paper.lease(member, picked, VISIBILITY_MS, now)
            paper.logged(now)
            got.extend(picked)
            yield False
            if not parks:
                yield from self.spend(paper, spent, now)

        before = self.members().get(member, 0)
        fetch = self.bench.broker.groups.fetch
        batch = self.do(lambda: self.bench.run(fetch(self.who(member), most, None, 0, None)), steps)
        if batch is not None:
            self.note_generation(member, before)
            self.leased(batch.rows, member, got)

    fetch_twice_as_often = fetch

    @rule(member=MEMBERS, idle_ms=st.sampled_from((0, 700)), most=st.integers(1, 4))
    def claim(self, member: str, idle_ms: int, most: int) -> None:
        now = self.now

        def steps(paper: Paper) -> Steps:
            yield from self.entered(paper, member, now)
            taken: list[int] = []
            spent: list[int] = []
            for seq, item in sorted(paper.items.items(), key=lambda pair: (pair[1].last_ms, pair[0])):
                if len(taken) == most:
                    break
                if item.at(now) in ("ready", "leased") and item.count and item.last_ms <= now - idle_ms:
                    (spent if item.count >= self.max_deliveries else taken).append(seq)
            if self.group_config.dead_letter is None:
                yield from self.spend(paper, spent, now)
            paper.lease(member, taken, VISIBILITY_MS, now)
            got.extend(taken)
            yield False
            if self.group_config.dead_letter is not None:
                yield from self.spend(paper, spent, now)

        got: list[int] = []
        claim = self.bench.broker.groups.claim
        batch = self.do(lambda: self.bench.run(claim(self.who(member), idle_ms, most, None)), steps)
        if batch is not None:
            self.leased(batch.rows, member, got)

    def settle(
        self,
        member: str,
        picks: list[int],
        token_off: int,
        call: Callable[[Sequence[int], list[int | None]], GroupVerdict],
        change: Callable[[Paper, list[int]], Steps],
        freeing: bool = False,
        again: bool = False,
    ) -> None:
        """A call of a member about what the model knows, whoever has it: what is not theirs stays as it is."""
        now = self.now
        seqs = self.chosen(member, picks)
        tokens: list[int | None] = [
            self.paper.items[seq].token + token_off if seq in self.paper.items else None for seq in seqs
        ]
        calm = self.paper.copy()
        for _ in self.entered(calm, member, now):
            pass
        whys = {
            seq: why
            for seq, token in zip(seqs, tokens, strict=True)
            if (why := calm.why(seq, member, token, now, freeing)) is not None
        }
        mine = [seq for seq in seqs if seq not in whys]

        def steps(paper: Paper) -> Steps:
            yield from self.entered(paper, member, now)
            if mine:
                yield from change(paper, mine)

        verdict = self.do(lambda: call(seqs, tokens), steps)
        if verdict is not None:
            assert (verdict.done, verdict.why) == (mine, whys)
            assert verdict.stale == [seq for seq in whys if not (again and whys[seq] == "settled")]

    @rule(member=MEMBERS, picks=PICKS, token_off=st.sampled_from((0, 0, 0, 1)), then=THEN)
    def ack(self, member: str, picks: list[int], token_off: int, then: CrashKind | None = None) -> None:
        now = self.now

        def change(paper: Paper, seqs: list[int]) -> Steps:
            for seq in seqs:
                del paper.items[seq]
                paper.settled.add(seq)
            paper.logged(now)
            yield self.fsync

        ack, who = self.bench.broker.groups.ack, self.who(member)
        self.settle(member, picks, token_off, lambda s, t: self.bench.run(ack(who, s, t, ()))[0], change, again=True)
        if then is not None:
            self.crash(then)

    @rule(member=MEMBERS, picks=PICKS, delay=st.sampled_from((0, 800, HOUR_MS)), count=st.booleans())
    def nack(self, member: str, picks: list[int], delay: int, count: bool) -> None:
        now = self.now

        def change(paper: Paper, seqs: list[int]) -> Steps:
            for seq in seqs:
                item = paper.items[seq]
                paper.release(seq, delay, 0 if item.state == "parked" else item.count - (not count), now)
            yield False

        nack, who = self.bench.broker.groups.nack, self.who(member)
        self.settle(member, picks, 0, lambda s, t: self.bench.run(nack(who, s, t, delay, count)), change, freeing=True)

    @rule(member=MEMBERS, picks=PICKS)
    def reject(self, member: str, picks: list[int]) -> None:
        now = self.now
        reject, who = self.bench.broker.groups.reject, self.who(member)
        self.settle(
            member,
            picks,
            0,
            lambda s, t: self.bench.run(reject(who, s, t, "why"))[0],
            lambda paper, seqs: self.spend(paper, seqs, now),
        )

    @rule(member=MEMBERS, picks=PICKS)
    def extend(self, member: str, picks: list[int]) -> None:
        now = self.now

        def change(paper: Paper, seqs: list[int]) -> Steps:
            for seq in seqs:
                paper.items[seq].until, paper.items[seq].last_ms = now + 5_000, now
            paper.logged(now)
            yield self.fsync and self.config.leases_durable

        extend, who = self.bench.broker.groups.extend, self.who(member)
        self.settle(member, picks, 0, lambda s, t: self.bench.run(extend(who, s, t, 5_000))[0], change)

    @rule(member=MEMBERS, above=st.integers(1, 3))
    def ack_above_the_head(self, member: str, above: int) -> None:
        self.doom = None
        who = self.who(member)
        with pytest.raises(InvalidRequest):
            self.bench.run(self.bench.broker.groups.ack(who, [self.topic.head + above], [None], ()))
        for _ in self.entered(self.paper, member, self.now):
            pass
        self._write_all()
        self.since.append(self.paper.copy())

    @invariant()
    def a_dead_letter_comes_once_for_each_time_it_died(self) -> None:
        topic = self.bench.store.topics.get("dead")
        if topic is not None:
            records = read_records(self.bench.store, topic, list(range(1, topic.head + 1)))
            copies: dict[int, list[int]] = {}
            for record in records:
                copies.setdefault(int(record.meta[SRC_SEQ]), []).append(record.ts)
            window = topic.config.idempotency_window_ms
            again = [later - before for times in copies.values() for before, later in pairwise(times)]
            assert min(again, default=window + 1) > window, "a repeated copy is known by its key"

    def teardown(self) -> None:
        """Whatever happened: who goes on working settles everything."""
        if not self.paper.shift:
            return
        self.doom = None
        for _ in range(60):
            left = [seq for seq, item in self.paper.items.items() if item.state != "parked"]
            if not left and not self.paper.fresh(self.tag):
                break
            self.bench.clock.advance(HOUR_MS)
            parked = [seq for seq, item in self.paper.items.items() if item.state == "parked"]
            if len(parked) == MAX_PENDING:  # nothing fresh is handed out until somebody frees one
                self.nack("m", list(range(2 * len(self.paper.live))), 0, True)
            self.fetch("m", 8)
            self.ack("m", list(range(2 * len(self.paper.live))), 0)
            self.every_record_is_where_it_should_be()
        else:
            raise AssertionError(f"records {self.pending()} are neither settled nor parked")


class StreamModeLife(GroupLife):
    @initialize(topic=TOPICS)
    def begin(self, topic: dict[str, Any]) -> None:
        self.make(topic, {"mode": "stream"})

    def is_settled(self, seq: int) -> bool:
        return False  # it has a cursor, and no list

    def pending(self) -> list[int]:
        return [seq for seq in self.paper.live if seq >= self.paper.committed]

    def difference(self, paper: Paper) -> str:
        committed = self.group().committed
        if committed != min(paper.committed, self.topic.head + 1):
            return f"committed {committed}, expected {paper.committed}"
        paper.settled = set()
        return super().difference(paper)

    @rule(member=MEMBERS, most=st.integers(1, 8))
    def fetch(self, member: str, most: int) -> None:
        now, cursor = self.now, self.group().cursor
        got: list[int] = []
        passed: list[int] = []

        def steps(paper: Paper) -> Steps:
            yield from self.retention(paper)
            yield from self.entered(paper, member, now)
            at = cursor if paper.members else paper.committed
            if member not in paper.members:
                yield from self.joined(paper, member, now)
            begun = max(paper.handed + 1, paper.committed)
            passed.extend(seq for seq in paper.fresh(self.tag) if begun <= seq < at or at <= seq < begun)
            got.extend(self.reach(paper, at, True)[:most])
            paper.handed = max([paper.handed, *got])
            yield False

        before = self.members().get(member, 0)
        fetch = self.bench.broker.groups.fetch
        batch = self.do(lambda: self.bench.run(fetch(self.who(member), most, None, 0, None)), steps)
        if batch is not None:
            self.note_generation(member, before)
            assert [row[0] for row in batch.rows] == got
            assert not passed, "the cursor passes nothing that it did not hand out, and hands nothing out twice"

    fetch_twice_as_often = fetch

    @rule(back=st.integers(-1, 10), then=THEN)
    def commit(self, back: int, then: CrashKind | None) -> None:
        now, seq = self.now, max(self.paper.head + 1 - back, 1)
        commit, who = self.bench.broker.groups.commit, Asked(self.name, "g")

        def steps(paper: Paper) -> Steps:
            yield from self.entered(paper, "", now)
            if back >= 0 and seq > paper.committed:
                paper.committed = seq
                paper.logged(now)
                yield self.fsync

        def call() -> int | None:
            if back >= 0:
                return self.bench.run(commit(who, seq))
            with pytest.raises(InvalidRequest):  # it ends leases and sessions that are over all the same
                self.bench.run(commit(who, seq))
            return None

        committed = self.do(call, steps)
        assert committed in (None, self.paper.committed)
        if back >= 0 and then is not None:
            self.crash(then)


TestQueueModeLife = QueueModeLife.TestCase
TestQueueModeLife.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestStreamModeLife = StreamModeLife.TestCase
TestStreamModeLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
