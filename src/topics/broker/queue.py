"""Queues: jobs are claimed under a lease, and acked, nacked or extended by who holds it. Thin over the lease rules.

Claims of a queue with `claim_jitter_ms` gather in a cohort: the first one waits that long, those that come meanwhile
join it, and one pass deals to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from topics.broker.deadletters import bury
from topics.broker.jobs import Hand
from topics.broker.redrive import redrive
from topics.broker.state import counts_of
from topics.broker.steps import Nap, Steps, asked, settled
from topics.model import limits
from topics.model.config import TopicConfig
from topics.model.errors import NotAQueue, TopicNotFound, TopicsError
from topics.model.job import Redriven
from topics.rules.lease_values import Ask
from topics.storage.leasing import (
    Claims,
    Now,
    Verdict,
    order_ack,
    order_claim,
    order_extend,
    order_nack,
    order_release,
    queue_of,
    sweep,
)
from topics.storage.store import Store
from topics.storage.submission import fresh_error
from topics.storage.topic import Topic
from topics.storage.wal import Shard

CLAIM_MAX: Final = 1000
LEASE_MS_MIN: Final = 100

LOOK_MS: Final = 250
"""How often a stream looks for jobs whose lease or delay is over: nothing else tells it."""

_LATE_MS: Final = 60_000
"""How much longer than its window a cohort may take before a member asks for itself."""


@dataclass(slots=True, eq=False)
class _Member:
    ask: Ask
    nap: Nap
    hand: Hand | None = None
    error: TopicsError | None = None


@dataclass(slots=True)
class _Cohort:
    members: list[_Member] = field(default_factory=list)


@dataclass(slots=True)
class Settled:
    """The answer to an ack, a nack or an extend."""

    verdict: Verdict
    ready: int
    in_flight: int
    deadline: int = 0
    """Wall time; of an extend."""
    synced_ns: int = 0
    """How long it waited to be safe on disk; 0 = it did not have to be."""


@dataclass(slots=True, eq=False)
class Work:
    """A stream of jobs: what it may hold, and holds."""

    name: str
    node: str
    most: int
    lease_ms: int | None
    held: dict[int, int] = field(default_factory=dict)
    """seq -> token."""
    topic: Topic | None = None
    nap: Nap | None = None
    """What it waits by: to be released, under the lock, when it has to go."""


def ask_of(config: TopicConfig, node: str, most: int, lease_ms: int | None) -> Ask:
    """What a claim asks for, within what it may; `lease_ms` None = as long as the queue says."""
    wanted = config.lease_ms if lease_ms is None else lease_ms
    return Ask(node, min(max(most, 1), CLAIM_MAX), min(max(wanted, LEASE_MS_MIN), limits.LEASE_MS))


class Queues:
    def __init__(self, store: Store, swept: Callable[[str], Steps[Topic]]) -> None:
        self._store = store
        self._swept = swept
        """The topic of a name, with what its sources had for it and without what is too old."""
        self._cohorts: dict[int, _Cohort] = {}
        self._streams: dict[str, set[Work]] = {}
        """Streams of jobs, by topic."""

    def now(self) -> Now:
        clock = self._store.clock
        return Now(clock.now_ms(), clock.monotonic_ns() // 1_000_000)

    def find(self, name: str) -> Topic:
        """Under the lock: a queue of this name."""
        topic = self._store.topic(name)
        if topic.queue is None:
            raise NotAQueue(name)
        return topic

    # -- claiming ------------------------------------------------------------------------------------------------------

    def claim(self, name: str, node: str, most: int, lease_ms: int | None) -> Steps[Hand]:
        """Lease up to `most` jobs to `node`; `lease_ms` None = as long as the queue says."""
        topic = yield from self._swept(name)
        if topic.queue is None:
            raise NotAQueue(name)
        config = topic.config
        ask = ask_of(config, node, most, lease_ms)
        if config.claim_jitter_ms:
            return (yield from self._claim_together(topic, ask, config.claim_jitter_ms))
        return (yield from self._deal(topic, [ask]))[0]

    def _deal(self, topic: Topic, asks: Sequence[Ask]) -> Steps[list[Hand]]:
        store = self._store

        def order() -> tuple[Claims, Now]:
            if self.find(topic.name) is not topic:  # dropped meanwhile, and made again
                raise TopicNotFound(topic.name)
            now = self.now()
            return order_claim(topic, store.shard_for(topic), asks, now), now

        claims, now = yield from asked(store, order)
        try:
            yield from settled(claims.submission)
        except BaseException:
            self._give_back(topic, claims.spent)
            raise
        if claims.spent:
            yield from bury(store, topic, claims.spent, self.now)
        with store.lock:
            ready = counts_of(topic).ready
        return [
            Hand(topic, rows, now.wall_ms + ask.lease_ms, ready) for ask, rows in zip(asks, claims.hands, strict=True)
        ]

    def _give_back(self, topic: Topic, seqs: list[int]) -> None:
        with self._store.lock:
            queue_of(topic).leases.give_back(seqs, self.now().ms)

    def _claim_together(self, topic: Topic, ask: Ask, jitter_ms: int) -> Steps[Hand]:
        store = self._store
        with store.lock:
            cohort = self._cohorts.get(topic.id)
            opens = cohort is None
            if cohort is None:
                cohort = self._cohorts[topic.id] = _Cohort()
            me = _Member(ask, Nap(jitter_ms if opens else jitter_ms + _LATE_MS))
            cohort.members.append(me)
        if opens:
            yield from self._lead(topic, cohort, me)
        else:
            try:
                yield me.nap
            finally:
                with store.lock:
                    me.nap.leave()
                    if me in cohort.members:  # nobody dealt yet, and whoever leaves wants nothing
                        cohort.members.remove(me)
        if me.error is not None:
            raise fresh_error(me.error)
        if me.hand is None:  # whoever led went away
            return (yield from self._deal(topic, [ask]))[0]
        return me.hand

    def _lead(self, topic: Topic, cohort: _Cohort, me: _Member) -> Steps[None]:
        """Wait the window, deal to all members, tell them."""
        store = self._store
        members: list[_Member] = [me]
        try:
            try:
                yield me.nap
            finally:
                with store.lock:
                    del self._cohorts[topic.id]
                    members, cohort.members = cohort.members, []
            hands = yield from self._deal(topic, [member.ask for member in members])
            for member, hand in zip(members, hands, strict=True):
                member.hand = hand
        except TopicsError as error:
            for member in members:
                member.error = error
        finally:
            with store.lock:
                for member in members:
                    member.nap.release()

    # -- what a holder does --------------------------------------------------------------------------------------------

    def ack(self, name: str, node: str, seqs: Sequence[int], tokens: Sequence[int | None]) -> Steps[Settled]:
        done = yield from self._settle(name, lambda t, s, now: order_ack(t, s, node, seqs, tokens, now))
        self.wake(name, node)
        return done

    def nack(
        self, name: str, node: str, seqs: Sequence[int], tokens: Sequence[int | None], delay_ms: int
    ) -> Steps[Settled]:
        delay_ms = min(delay_ms, limits.DELAY_MS)
        done = yield from self._settle(name, lambda t, s, now: order_nack(t, s, node, seqs, tokens, delay_ms, now))
        self.wake(name)
        return done

    def extend(
        self, name: str, node: str, seqs: Sequence[int], tokens: Sequence[int | None], lease_ms: int
    ) -> Steps[Settled]:
        lease_ms = min(max(lease_ms, LEASE_MS_MIN), limits.LEASE_MS)
        return (
            yield from self._settle(
                name, lambda t, s, now: order_extend(t, s, node, seqs, tokens, lease_ms, now), lease_ms
            )
        )

    def _settle(self, name: str, order: Callable[[Topic, Shard, Now], Verdict], lease_ms: int = 0) -> Steps[Settled]:
        store = self._store

        def ask() -> tuple[Topic, Verdict, Now]:
            topic, now = self.find(name), self.now()
            return topic, order(topic, store.shard_for(topic), now), now

        topic, verdict, now = yield from asked(store, ask)
        synced_ns = 0
        if verdict.submission is not None and verdict.submission.needs_sync:
            ordered_ns = store.clock.monotonic_ns()
            yield from settled(verdict.submission)
            synced_ns = store.clock.monotonic_ns() - ordered_ns
        else:
            yield from settled(verdict.submission)
        with store.lock:
            counts = counts_of(topic)
        return Settled(verdict, counts.ready, counts.in_flight, now.wall_ms + lease_ms, synced_ns)

    # -- dead letters --------------------------------------------------------------------------------------------------

    def redrive(
        self, name: str, to: str | None, most: int, rate_per_s: int, dry_run: bool, allowed: Callable[[str], bool]
    ) -> Steps[Redriven]:
        topic = yield from self._swept(name)
        return (yield from redrive(self._store, topic, to, most, rate_per_s, dry_run, allowed))

    # -- streams of work -----------------------------------------------------------------------------------------------

    def refill(self, work: Work) -> Steps[Hand]:
        """What a stream is to be sent next: as many jobs as it may have beyond those it holds, or none when it has
        waited a while for them."""
        store = self._store
        with store.lock:
            topic = self.find(work.name)
            self._streams.setdefault(work.name, set()).add(work)
            sweep(topic, store.shard_for(topic), self.now())
            leases = queue_of(topic).leases
            work.held = {seq: token for seq, token in work.held.items() if leases.is_leased(seq, token)}
            nap = work.nap = Nap(LOOK_MS)  # before the claim, so that no append is missed
            nap.watch(topic)
        try:
            if len(work.held) < work.most:
                hand = yield from self.claim(work.name, work.node, work.most - len(work.held), work.lease_ms)
                work.held.update((seq, token) for seq, token, _, _ in hand.rows)
                work.topic = hand.topic
                if hand.rows:
                    return hand
            yield nap
        finally:
            with store.lock:
                nap.leave()
        return Hand(topic)

    def release(self, work: Work) -> Steps[None]:
        """The stream is gone: what it still holds is claimable at once."""
        store, topic = self._store, work.topic
        with store.lock:
            others = self._streams.get(work.name, set())
            others.discard(work)
            if not others:
                self._streams.pop(work.name, None)
            if topic is None or store.closed or store.by_id.get(topic.id) is not topic or topic.closing:
                return
            try:
                submission = order_release(topic, store.shard_for(topic), list(work.held.items()), self.now())
            except TopicsError:
                return  # they run out by themselves
        if submission is not None and not submission.settled:
            yield submission
        self.wake(work.name)

    def wake(self, name: str, node: str | None = None) -> None:
        """Streams look again: all of a topic when jobs came back, those of a node when it may hold more."""
        if name not in self._streams:
            return
        with self._store.lock:
            for work in self._streams.get(name, ()):
                if work.nap is not None and (node is None or work.node == node):
                    work.nap.release()

    def sweep(self, topic: Topic) -> None:
        """Under the lock, before its counters are read."""
        if topic.queue is not None:
            sweep(topic, self._store.shard_for(topic), self.now())
