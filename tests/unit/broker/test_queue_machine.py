"""Queues of a real store against a plain model, over kills, power cuts, restarts and clocks that are set."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.unit.broker.lease_life import HOUR_MS, PICKS, TAGS, THEN, LeaseLife
from tests.unit.broker.plain_leases import Paper, Steps
from topics.broker.deadletters import SRC_SEQ
from topics.broker.jobs import read_records
from topics.broker.queue import Settled
from topics.model.config import TopicConfig, make_config
from topics.rules.lease import Leases
from topics.testing.disk import CrashKind

NODES = st.sampled_from(("n", "m"))
MAX_DELIVERIES = 2
WINDOW_MS = TopicConfig().resolved().idempotency_window_ms
"""How long the topic of dead letters, made with what is usual, knows the key of a copy."""


class QueueLife(LeaseLife):
    @initialize(
        durability=st.sampled_from(("fsync", "fsync", "disk", "memory")),
        durable=st.booleans(),
        limit=st.sampled_from(({}, {}, {"cap_records": 12}, {"ttl_ms": 4_000})),
    )
    def begin(self, durability: str, durable: bool, limit: dict[str, int]) -> None:
        fields = {"type": "queue", "durability": durability, "leases_durable": durable, "dead_letter": "dead"}
        self.set_up(make_config({**fields, "max_deliveries": MAX_DELIVERIES, **limit}))
        self.add(["a", "b", "a", "b", "a"], [0, 0, 0, 0, 1_000])

    def leases(self) -> Leases:
        assert self.topic.queue is not None
        return self.topic.queue.leases

    def is_settled(self, seq: int) -> bool:
        return False  # an ack is a delete

    @rule(tags=TAGS, delay=st.sampled_from((1_000, HOUR_MS)))
    def append_with_a_delay(self, tags: list[str], delay: int) -> None:
        self.add(tags, [delay, *([0] * (len(tags) - 1))])

    @rule(node=NODES, most=st.integers(1, 6), lease_ms=st.sampled_from((1_000, 5_000, 2 * HOUR_MS)))
    def claim(self, node: str, most: int, lease_ms: int) -> None:
        now = self.now
        got: list[int] = []
        known = {seq for seq, times in self.letters().items() if self.wall - times[-1] <= WINDOW_MS}

        def steps(paper: Paper) -> Steps:
            yield from self.retention(paper)
            paper.sweep(now, self.config.leases_durable)
            yield False
            picked, spent = paper.pick(most, MAX_DELIVERIES, paper.fresh(), now)
            paper.lease(node, picked, lease_ms, now)
            got.extend(picked)
            yield False
            if spent:
                yield bool(set(spent) - known)  # copies are synced; one that is there already is not made
                paper.remove(spent, paper.dead)
                paper.logged(now)
                yield self.fsync

        hand = self.do(lambda: self.bench.run(self.bench.broker.queues.claim(self.name, node, most, lease_ms)), steps)
        if hand is not None:
            self.leased(hand.rows, node, got)

    claim_twice_as_often = claim

    def settle(
        self,
        node: str,
        picks: list[int],
        token_off: int,
        call: Callable[[list[int], list[int | None]], Settled],
        change: Callable[[Paper, list[int]], bool],
    ) -> None:
        """An ack, a nack or an extend of what the model knows, by whoever: what is not theirs stays as it is."""
        now = self.now
        seqs = self.chosen(node, picks)
        tokens: list[int | None] = [
            self.paper.items[seq].token + token_off if seq in self.paper.items else None for seq in seqs
        ]
        whys = {
            seq: why
            for seq, token in zip(seqs, tokens, strict=True)
            if (why := self.paper.why(seq, node, token, now)) is not None
        }
        mine = [seq for seq in seqs if seq not in whys]

        def steps(paper: Paper) -> Steps:
            paper.sweep(now, self.config.leases_durable)
            yield False
            if mine:
                yield change(paper, mine)

        settled = self.do(lambda: call(seqs, tokens), steps)
        if settled is not None:
            assert (settled.verdict.done, settled.verdict.why) == (mine, whys)
            assert settled.verdict.skipped == list(whys)

    @rule(node=NODES, picks=PICKS, token_off=st.sampled_from((0, 0, 0, 1)), then=THEN)
    def ack(self, node: str, picks: list[int], token_off: int, then: CrashKind | None = None) -> None:
        def change(paper: Paper, seqs: list[int]) -> bool:
            paper.remove(seqs, paper.acked)
            return self.fsync

        queues = self.bench.broker.queues
        self.settle(node, picks, token_off, lambda s, t: self.bench.run(queues.ack(self.name, node, s, t)), change)
        if then is not None:
            self.crash(then)

    @rule(node=NODES, picks=PICKS, delay=st.sampled_from((0, 1_000, HOUR_MS)))
    def nack(self, node: str, picks: list[int], delay: int) -> None:
        now = self.now

        def change(paper: Paper, seqs: list[int]) -> bool:
            for seq in seqs:
                paper.release(seq, delay, paper.items[seq].count, now)
            return False

        queues = self.bench.broker.queues
        self.settle(node, picks, 0, lambda s, t: self.bench.run(queues.nack(self.name, node, s, t, delay)), change)

    @rule(node=NODES, picks=PICKS, lease_ms=st.sampled_from((1_000, HOUR_MS)))
    def extend(self, node: str, picks: list[int], lease_ms: int) -> None:
        now = self.now

        def change(paper: Paper, seqs: list[int]) -> bool:
            for seq in seqs:
                paper.items[seq].until, paper.items[seq].last_ms = now + lease_ms, now
            paper.logged(now)
            return self.fsync and self.config.leases_durable

        queues = self.bench.broker.queues
        self.settle(node, picks, 0, lambda s, t: self.bench.run(queues.extend(self.name, node, s, t, lease_ms)), change)

    @invariant()
    def every_job_is_where_it_should_be(self) -> None:
        if self.paper.shift:
            self.check()

    def letters(self) -> dict[int, list[int]]:
        """The times of the dead letters, by the seq of their job."""
        found: dict[int, list[int]] = {}
        topic = self.bench.store.topics.get("dead")
        if topic is not None:
            for record in read_records(self.bench.store, topic, list(range(1, topic.head + 1))):
                found.setdefault(int(record.meta[SRC_SEQ]), []).append(record.ts)
        return found

    @invariant()
    def no_dead_letter_is_lost_or_repeated(self) -> None:
        found = self.letters()
        for times in found.values():
            pairs = itertools.pairwise(times)
            assert all(b - a > WINDOW_MS for a, b in pairs), "while its key is known, no copy is repeated"
        early = found.keys() - self.paper.dead
        assert self.paper.dead <= found.keys()
        assert early <= self.paper.items.keys() | self.paper.evicted, "it is dead here in a moment, or went by itself"

    def teardown(self) -> None:
        """Whatever happened: who goes on working empties the queue, by acks and dead letters alone."""
        if not self.paper.shift:
            return
        self.doom = None
        for _ in range(60):
            if not self.paper.live:
                break
            self.bench.clock.advance(HOUR_MS)
            self.claim("n", 6, 1_000)
            self.ack("n", list(range(2 * len(self.paper.live))), 0)
            self.every_job_is_where_it_should_be()
        else:
            raise AssertionError(f"jobs {sorted(self.paper.live)} are neither acked nor dead")


TestQueueLife = QueueLife.TestCase
TestQueueLife.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
