"""The rules of groups against a plain model, and what a delivery costs while much is pending."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topics.model.errors import StaleGeneration
from topics.model.group import GroupConfig
from topics.rules.group import Group
from topics.rules.lease_columns import pack, unpack
from topics.rules.lease_values import LEASED, PARKED, Ask

VISIBILITY_MS = 1_000
MEMBERS = st.sampled_from(("a", "b", "c"))


class Groups(RuleBasedStateMachine):
    """Everything is applied at once; a restart goes through packed columns and another clock."""

    def __init__(self) -> None:
        super().__init__()
        config = GroupConfig(visibility_ms=VISIBILITY_MS, session_ms=5_000, max_deliveries=3, max_pending=40)
        self.group = Group("g", config.resolved())
        self.now_ms = 1_000_000
        self.head = 0
        self.numbers = 1
        self.gone: set[int] = set()
        self.settled: set[int] = set()
        self.held: dict[int, tuple[str, int, int]] = {}
        """seq -> (member, token, until): what the model knows of leases."""
        self.start = 1
        self.committed = 1

    def _number(self, count: int = 1) -> int:
        self.numbers += count
        return self.numbers - count

    def _sweep(self) -> None:
        self.group.leases.sweep(self.now_ms)
        for member, generation in self.group.over(self.now_ms):
            self._left(member, generation)

    def _left(self, member: str, generation: int) -> None:
        self.group.apply_left(member, generation, self.now_ms)
        self.held = {seq: lease for seq, lease in self.held.items() if lease[0] != member}

    def _fresh(self) -> Iterator[int]:
        return (seq for seq in range(self.group.leases.position, self.head + 1) if seq not in self.gone)

    def _enter(self, member: str) -> None:
        self._sweep()
        if member not in self.group.members:
            self.group.apply_joined(member, self._number(), self.now_ms)
        self.group.touch(member, self.now_ms)

    @rule(count=st.integers(1, 10))
    def append(self, count: int) -> None:
        self.head += count

    @rule(ms=st.sampled_from((1, 400, 1_001, 5_001)))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(member=MEMBERS)
    def join_again(self, member: str) -> None:
        self._enter(member)
        old = self.group.members[member].generation
        self.group.apply_joined(member, self._number(), self.now_ms)
        with pytest.raises(StaleGeneration) as refused:
            self.group.check_generation(member, old)
        assert refused.value.facts["generation"] == self.group.members[member].generation > old

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self._enter(member)
        self._left(member, self.group.members[member].generation)

    @rule(member=MEMBERS, most=st.integers(1, 8))
    def fetch(self, member: str, most: int) -> None:
        self._enter(member)
        leases = self.group.leases
        room = self.group.room()
        ask = Ask(member, most, VISIBILITY_MS)
        deal = leases.deal([ask], islice(self._fresh(), room), self.group.config.max_deliveries)
        self.group.apply_parked([(seq, leases.entries[seq].token_of(seq), 0, 0) for seq in deal.spent])
        token = self._number(len(deal.grants[0]))
        until = self.now_ms + VISIBILITY_MS
        rows = [(seq, token + at, until, count) for at, (seq, count) in enumerate(deal.grants[0])]
        for seq, number, _, _ in rows:
            assert seq not in self.settled
            assert seq not in self.gone
            holder = self.held.get(seq)
            assert holder is None or self.now_ms > holder[2], "one holder at a time"
            self.held[seq] = (member, number, until)
        self.group.apply_claimed(member, rows, leases.position, 0, self.now_ms)

    def _picked(self, member: str, at: int) -> list[tuple[int, int]]:
        mine = self.group.leases.held_by(member)
        return [mine[at % len(mine)]] if mine else []

    @rule(member=MEMBERS, at=st.integers(0, 9), stale=st.booleans())
    def ack(self, member: str, at: int, stale: bool) -> None:
        self._enter(member)
        for seq, token in self._picked(member, at):
            given = token - 1 if stale else token
            why = self.group.leases.judge(seq, member, given, self.now_ms)
            assert why == ("token" if stale else None)
            if why is None:
                before = self.group.counters.acked
                self.group.apply_settled([(seq, token, 0, 0)])
                self.group.apply_settled([(seq, token, 0, 0)])
                assert self.group.counters.acked == before + 1, "twice is once"
                self.settled.add(seq)
                self.held.pop(seq, None)

    @rule(member=MEMBERS, at=st.integers(0, 9), delay_ms=st.sampled_from((0, 700)), count=st.booleans())
    def nack(self, member: str, at: int, delay_ms: int, count: bool) -> None:
        self._enter(member)
        for seq, token in self._picked(member, at):
            deliveries = self.group.leases.entries[seq].deliveries - (not count)
            until = self.now_ms + delay_ms if delay_ms else 0
            self.group.apply_released([(seq, token, until, deliveries)], True, self.now_ms)
            self.held.pop(seq, None)

    @rule(at=st.integers(0, 9))
    def free_a_parked_one(self, at: int) -> None:
        parked = [seq for seq, entry in self.group.leases.entries.items() if entry.kind == PARKED]
        if parked:
            seq = parked[at % len(parked)]
            self.group.apply_released([(seq, self.group.leases.entries[seq].token_of(seq), 0, 0)], True, self.now_ms)

    @rule(first=st.integers(1, 30), count=st.integers(1, 4))
    def delete(self, first: int, count: int) -> None:
        last = min(first + count - 1, self.head)
        self.gone.update(range(first, last + 1))
        if first <= last:
            self.group.leases.forget(first, last)
        self.held = {seq: lease for seq, lease in self.held.items() if seq not in self.gone}

    @rule(position=st.integers(1, 40))
    def seek(self, position: int) -> None:
        position = min(position, self.head + 1)
        self.group.apply_sought(position)
        self.settled, self.held, self.start, self.committed = set(), {}, position, position

    @rule(step_ms=st.sampled_from((0, 3_600_000, -3_600_000)), keep=st.booleans())
    def restart(self, step_ms: int, keep: bool) -> None:
        """Through what a snapshot holds, under another monotonic clock and a wall clock that was set."""
        shift = 10_000_000
        group = self.group
        found = Group("g", group.config, unpack(pack(group.leases.cut(), shift)), group.counters)
        for name, member in group.members.items():
            found.apply_joined(name, member.generation, self.now_ms)
        then_ms = max(self.now_ms + shift + step_ms, self.now_ms + shift)
        self.now_ms = 5_000
        found.restart(then_ms, self.now_ms, keep, lambda seq: seq not in self.gone, self.head)
        assert found.members.keys() == group.members.keys()
        self.group = found
        entries = found.leases.entries
        self.held = {
            seq: (member, token, entries[seq].until)
            for seq, (member, token, _) in self.held.items()
            if seq in entries and entries[seq].kind == LEASED and entries[seq].token_of(seq) == token
        }
        assert keep or not self.held

    @invariant()
    def the_floor_never_passes_what_is_pending(self) -> None:
        leases = self.group.leases
        committed = self.group.committed
        assert committed >= self.committed
        self.committed = committed
        assert all(seq >= committed for seq in leases.entries)
        for seq in range(self.start, leases.position):
            done = seq in self.settled or seq in self.gone
            assert done == (seq not in leases.entries), seq
        assert not self.settled & set(leases.entries)

    @invariant()
    def pending_stays_within_its_limit(self) -> None:
        assert len(self.group.leases.entries) <= self.group.config.max_pending


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class CountedSeq(int):
    """Counts how often heaps and sorts compare it."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        CountedSeq.compared += 1
        return int(self) < int(other)


def _cost_of_a_round(pending: int) -> int:
    """Comparisons that a fetch of 100, their acks and a look at `committed` take while so many are pending."""
    group = Group("g", GroupConfig(max_pending=1 << 30).resolved(), used_ms=1)
    leases = group.leases
    group.apply_joined("m", 1, 0)
    token = 2

    def fetch(count: int) -> list[tuple[int, int, int, int]]:
        nonlocal token
        fresh = (CountedSeq(seq) for seq in range(leases.position, leases.position + count))
        grants = leases.deal([Ask("m", count, 1_000_000)], fresh).grants[0]
        rows = [(seq, token + at, 1_000_000, deliveries) for at, (seq, deliveries) in enumerate(grants)]
        token += count
        group.apply_claimed("m", rows, leases.position, 0, 0)
        return rows

    fetch(pending)
    assert group.committed == 1
    leases.oldest_ms()
    for _ in range(30):  # what is built once is built
        group.apply_settled(fetch(100))
    CountedSeq.compared = 0
    for _ in range(30):
        group.apply_settled(fetch(100))
        assert group.committed == 1
    return CountedSeq.compared // 30


def test_the_cost_of_a_delivery_does_not_grow_with_what_is_pending() -> None:
    few, many = _cost_of_a_round(1_000), _cost_of_a_round(100_000)
    assert many <= 3 * few, (few, many)
