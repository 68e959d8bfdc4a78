"""Workers of the simulated store's queues, and what was promised to them: leases, counts, ids that never repeat.

That an acked job stays gone is a matter of records: the oracle is told of an ack as of any delete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from topics.model.config import Durability
from topics.model.errors import TopicNotFound
from topics.model.leaserows import LeaseRow
from topics.rules.lease_values import Ask, Kind
from topics.storage.leasing import Now, order_ack, order_claim, order_extend, order_nack, queue_of
from topics.storage.store import Store
from topics.storage.submission import State, Submission
from topics.storage.topic import Topic
from topics.storage.wal import Shard
from topics.testing.oracle import Step, Violation
from topics.testing.plain import Deleted

if TYPE_CHECKING:
    from tests.crash.client import Client, Operation

NODES = ("a", "b", "c")


@dataclass
class Said:
    """One call about leases that was handed to the log."""

    verb: str
    node: str
    rows: Sequence[LeaseRow]
    token: Submission | None
    shift_ms: int
    """From the rows' times to logged ones."""
    ram: bool

    @property
    def done(self) -> bool:
        return self.token is None or self.token.state == State.DONE

    @property
    def failed(self) -> bool:
        return self.token is not None and self.token.state == State.FAILED

    def must_survive(self, power: bool) -> bool:
        if self.ram or not self.done or self.token is None:
            return False
        file = self.token.file
        return not power or (file is not None and self.token.end <= file.synced)


class Seen(NamedTuple):
    token: int
    deliveries: int
    until: int
    """By the logged clock; 0 = nothing is known of it."""
    kind: Kind
    """What it is until then."""


@dataclass
class Jobs:
    """Of one queue, over all lives."""

    last_token: int = 0
    said: list[Said] = field(default_factory=list)
    """In order; what a restart showed is folded into `known`."""
    known: dict[int, Seen] = field(default_factory=dict)
    """By seq, as the last start showed it."""
    in_ram: set[int] = field(default_factory=set)
    """Jobs last claimed while their queue lived in RAM: a snapshot may know of it, and the WAL does not."""


class JobLedger:
    def __init__(self) -> None:
        self.queues: dict[int, Jobs] = defaultdict(Jobs)

    # -- while it lives ------------------------------------------------------------------------------------------------

    def claimed(self, topic: Topic, node: str, rows: Sequence[LeaseRow], token: Submission | None, now: Now) -> None:
        jobs = self.queues[topic.id]
        for seq, lease_id, _, deliveries in rows:
            if lease_id <= jobs.last_token:
                raise Violation(f"{topic.name!r}: the lease id {lease_id} of job {seq} comes again")
            jobs.last_token = lease_id
            holder = self._holder(jobs, seq, now)
            if holder is not None:
                raise Violation(f"{topic.name!r}: job {seq} went to {node!r} while {holder} holds it")
            before = self._deliveries(jobs, seq)
            if deliveries != before + 1:
                raise Violation(f"{topic.name!r}: job {seq} says delivery {deliveries} behind {before}")
        self.say(topic, "claim", node, rows, token)

    def say(self, topic: Topic, verb: str, node: str, rows: Sequence[LeaseRow], token: Submission | None) -> None:
        ram = topic.ordered.config.commit_class == Durability.EPHEMERAL
        self.queues[topic.id].said.append(Said(verb, node, rows, token, queue_of(topic).shift_ms, ram))

    @staticmethod
    def _of(jobs: Jobs, seq: int) -> list[tuple[Said, LeaseRow]]:
        return [(said, row) for said in jobs.said if not said.failed for row in said.rows if row[0] == seq]

    def _holder(self, jobs: Jobs, seq: int, now: Now) -> str | None:
        """Who has a lease on it that was given in this life and is not over."""
        holder = None
        for said, (_, _, until, _) in self._of(jobs, seq):
            holder = said.node if said.verb in ("claim", "extend") and now.ms <= until else None
        return holder

    def _deliveries(self, jobs: Jobs, seq: int) -> int:
        deliveries = jobs.known[seq].deliveries if seq in jobs.known else 0
        for said, (_, _, _, count) in self._of(jobs, seq):
            if said.verb == "claim":
                deliveries = count
        return deliveries

    # -- after a start -------------------------------------------------------------------------------------------------

    def check_recovered(self, store: Store, power: bool, doubt: bool, damaged: bool, fallback: bool) -> tuple[int, int]:
        """How many counts and leases lived through it."""
        counts = leases = 0
        if damaged:  # even the id of a queue may be given again, where all that told of it is gone
            there = self.queues.keys() & store.by_id.keys()
            self.queues = defaultdict(Jobs, {key: Jobs(self.queues[key].last_token) for key in there})
        for topic in store.by_id.values():
            if topic.queue is None:
                continue
            jobs = self.queues[topic.id]
            for said in jobs.said:
                if said.verb == "claim":
                    seqs = {row[0] for row in said.rows}
                    jobs.in_ram = jobs.in_ram | seqs if said.ram else jobs.in_ram - seqs
            if not damaged:
                # After a fallback the older snapshot and the WAL behind it are all there is.
                unsure = jobs.in_ram if fallback else frozenset[int]()
                found = self._check_topic(topic, jobs, unsure, power, doubt, store.clock.monotonic_ns() // 1_000_000)
                counts, leases = counts + found[0], leases + found[1]
            entries, shift = topic.queue.leases.entries, topic.queue.shift_ms
            jobs.said = []
            jobs.known = {
                seq: Seen(
                    entry.token_of(seq), entry.deliveries, entry.until + shift if entry.until else 0, Kind(entry.kind)
                )
                for seq, entry in entries.items()
            }
        return counts, leases

    def _check_topic(
        self, topic: Topic, jobs: Jobs, unsure: Set[int], power: bool, doubt: bool, now_ms: int
    ) -> tuple[int, int]:
        queue, name = queue_of(topic), topic.name
        entries = queue.leases.entries
        logged_ms = now_ms + queue.shift_ms
        least = {seq: seen for seq, seen in jobs.known.items() if seq not in unsure}
        most = {seq: seen.deliveries for seq, seen in jobs.known.items()}
        for said in jobs.said:
            for seq, token, until, count in said.rows:
                if said.verb == "claim":
                    most[seq] = max(most.get(seq, 0), count)
                # What was claimed in RAM alone is not known to the log, nor is what became of it.
                logged = said.verb == "claim" or (seq in least and least[seq].token == token)
                if logged and said.must_survive(power) and not doubt:
                    kind = Kind.DELAYED if said.verb == "nack" else Kind.LEASED
                    least[seq] = Seen(token, count, until + said.shift_ms if until else 0, kind)
                elif seq in least:
                    # Nobody knows whether this one counts: the lease before it may have ended, or been extended.
                    least[seq] = least[seq]._replace(until=0)
        counts = leases = 0
        for seq, entry in entries.items():
            if seq in topic.dead or seq > topic.head:
                raise Violation(f"{name!r}: a lease is left of job {seq}, which is gone")
            if entry.kind == Kind.LEASED and not topic.config.leases_durable:
                raise Violation(f"{name!r}: job {seq} is leased after a start, and leases do not last there")
            if entry.deliveries > most.get(seq, 0):
                raise Violation(
                    f"{name!r}: job {seq} was handed out {entry.deliveries} times, at most {most.get(seq, 0)}"
                )
        for seq, seen in least.items():
            if seq in topic.dead or seq > topic.head:
                continue
            found = entries.get(seq)
            if found is None and not seen.token and seen.kind == Kind.READY:
                continue  # nobody was ever given it: it is as good as fresh
            if found is None or found.deliveries < seen.deliveries or found.token_of(seq) < seen.token:
                raise Violation(f"{name!r}: job {seq} was {seen}, and is {found} now")
            counts += seen.deliveries > 0
            if found.token_of(seq) != seen.token or not seen.until:
                continue
            if seen.kind == Kind.LEASED and topic.config.leases_durable:
                holds = seen.until >= logged_ms
            else:
                holds = seen.kind == Kind.DELAYED and seen.until > logged_ms
            if found.kind != (seen.kind if holds else Kind.READY):
                raise Violation(f"{name!r}: job {seq} was {seen}, and is {found} at {logged_ms}")
            leases += found.kind == Kind.LEASED
        self._check_none_is_lost(topic)
        return counts, leases

    @staticmethod
    def _check_none_is_lost(topic: Topic) -> None:
        leases = queue_of(topic).leases
        for seq in range(topic.dead.floor + 1, min(leases.position, topic.head + 1)):
            if seq not in topic.dead and seq not in leases.entries:
                raise Violation(
                    f"{topic.name!r}: job {seq} lies below the position {leases.position}, and nobody has it"
                )


class QueueUsers:
    """Those who claim, ack, nack and extend."""

    def __init__(self, client: Client, ledger: JobLedger) -> None:
        self.client = client
        self.ledger = ledger

    def draw(self, name: str) -> Operation:
        rng = self.client.rng
        node = rng.choice(NODES)
        roll = rng.random()
        if roll < 0.45:
            ask = Ask(node, rng.choice((1, 3, 8)), rng.choice((100, 400, 5000)))
            return lambda: self.claim(name, ask)
        picks = [rng.randint(0, 40) for _ in range(3)]
        if roll < 0.75:
            return lambda: self._settle(name, "ack", node, picks, 0)
        if roll < 0.9:
            delay_ms = rng.choice((0, 0, 50, 500))
            return lambda: self._settle(name, "nack", node, picks, delay_ms)
        lease_ms = rng.choice((100, 5000))
        return lambda: self._settle(name, "extend", node, picks, lease_ms)

    def delays(self, count: int) -> list[int] | None:
        rng = self.client.rng
        if rng.random() < 0.7:
            return None
        self.client.counts["queue delay"] += 1
        return [rng.choice((0, 50, 700)) for _ in range(count)]

    def _now(self) -> Now:
        clock = self.client.store.clock
        return Now(clock.now_ms(), clock.monotonic_ns() // 1_000_000)

    def _find(self, name: str) -> tuple[Topic, Shard] | None:
        client = self.client
        client.sweep(name)
        instance = client.instance(name)
        try:
            topic = client.store.topic(name)
        except TopicNotFound:
            client.absent(instance, "a call of a worker")
            return None
        client.present(instance, "a call of a worker")
        return topic, client.store.shard_for(topic)

    def claim(self, name: str, ask: Ask) -> Submission | None:
        found = self._find(name)
        if found is None:
            return None
        topic, shard = found
        now = self._now()
        asks = [ask]
        if ask.most % 2 == 0:  # somebody else came at the same time
            asks = [ask._replace(most=ask.most // 2), ask._replace(holder=f"{ask.holder}+", most=ask.most // 2)]
        claims = order_claim(topic, shard, asks, now, in_turn=True)
        for each, rows in zip(asks, claims.hands, strict=True):
            if rows or each is asks[0]:
                self.ledger.claimed(topic, each.holder, rows, claims.submission, now)
        self.client.counts["queue claim"] += bool(claims.hands[0])
        self.client.counts["queue claim of two"] += bool(claims.hands[-1]) and len(asks) > 1
        self.client.counts["queue reclaim"] += any(row[3] > 1 for rows in claims.hands for row in rows)
        return claims.submission

    def _settle(self, name: str, verb: str, node: str, picks: list[int], ms: int) -> Submission | None:
        """`ms` is the delay of a nack, the new time of an extend."""
        found = self._find(name)
        if found is None:
            return None
        topic, shard = found
        entries, now = queue_of(topic).leases.entries, self._now()
        leased = [entry.holder for entry in entries.values() if entry.kind == Kind.LEASED]
        if leased and picks[0] % 4:  # otherwise, most likely, somebody who holds nothing
            node = leased[picks[0] % len(leased)]
        mine = sorted(seq for seq, entry in entries.items() if entry.holder == node and entry.kind == Kind.LEASED)
        seqs = list(dict.fromkeys(mine[pick % len(mine)] if mine else pick for pick in picks))
        tokens = [entries[seq].token_of(seq) if seq in entries else None for seq in seqs]
        before = dict(entries)
        if verb == "ack":
            verdict = order_ack(topic, shard, node, seqs, tokens, now)
            self._tell_oracle(topic, verdict.done, verdict.submission)
        else:
            order = order_nack if verb == "nack" else order_extend
            verdict = order(topic, shard, node, seqs, tokens, ms, now)
            until = now.ms + ms if ms else 0
            rows = [
                (seq, before[seq].token_of(seq), until, before[seq].deliveries) for seq in verdict.done if seq in before
            ]
            if rows:
                self.ledger.say(topic, verb, node, rows, verdict.submission)
        self.client.counts[f"queue {verb}"] += bool(verdict.done)
        return verdict.submission

    def _tell_oracle(self, topic: Topic, seqs: list[int], token: Submission | None) -> None:
        instance = self.client.instance(topic.name)
        state = self.client.present(instance, "ack")
        assert instance is not None
        gone = frozenset(seq for seq in seqs if seq in state.records)
        if gone or token is not None:
            instance.add(Step(Deleted(0, gone, ram=token is None), token, state.durability))
