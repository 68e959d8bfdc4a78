"""Claims and acks of several callers, ordered at once: one submission, one pass over the leases.

Only what is decided the same way for all of them. Whoever is left out asks by itself, and is told there why not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topics.broker.jobs import Hand
from topics.broker.queue import Queues, ask_of
from topics.broker.router import is_behind
from topics.broker.state import counts_of
from topics.model.config import TopicConfig
from topics.rules.lease_values import READY
from topics.storage.append import shares_submission
from topics.storage.leasing import order_acks, order_claim, queue_of, sweep
from topics.storage.store import Store
from topics.storage.submission import Together, WaitFirst
from topics.storage.topic import Topic

Wish = tuple[str, int, int | None]
"""A claim: node, how many, and for how long (None = as the queue says)."""
Done = tuple[str, Sequence[int], Sequence[int | None]]
"""An ack: node, seqs, and the token of each."""


@dataclass(slots=True)
class Acked:
    topic: Topic
    taken: list[bool]
    """Per ack: whether it is among those that were ordered."""


def shares_jobs(config: TopicConfig) -> bool:
    """Whether claims of such a queue may be ordered together: nothing has to be evicted first, and no cohort waits."""
    return shares_submission(config) and not (config.ttl_ms or config.claim_jitter_ms)


def _queue(store: Store, name: str) -> Topic | None:
    """Under the lock."""
    topic = store.topics.get(name)
    if topic is None or topic.closing or topic.queue is None or not shares_jobs(topic.ordered.config):
        return None
    return topic


def claim_together(
    store: Store, queues: Queues, name: str, wishes: Sequence[Wish], waiter: Together
) -> list[Hand] | None:
    """Deal to each as if it had come by itself, in this order; `waiter` is released when that is settled, if it was
    given a submission to wait for. How many more are ready is for `count_jobs` to say, when it is told. None where each
    of them has to be asked for by itself."""
    with store.lock:
        topic = _queue(store, name)
        if topic is None or is_behind(store, topic):
            return None
        now, shard, config = queues.now(), store.shard_for(topic), topic.ordered.config
        sweep(topic, shard, now)
        if config.dead_letter is not None and queue_of(topic).leases.tally[READY]:
            return None  # some of them may have been handed out too often
        asks = [ask_of(config, *wish) for wish in wishes]
        try:
            claims = order_claim(topic, shard, asks, now, in_turn=True)
        except WaitFirst:
            return None
        if claims.submission is not None:
            claims.submission.carry(waiter)
        return [Hand(topic, rows, now.wall_ms + ask.lease_ms) for ask, rows in zip(asks, claims.hands, strict=True)]


def ack_together(store: Store, queues: Queues, name: str, calls: Sequence[Done], waiter: Together) -> Acked | None:
    """Order those in which every job is the node's own and nothing is under way for it; `waiter` is released when that
    is settled. None where there is no such call."""
    with store.lock:
        topic = _queue(store, name)
        if topic is None:
            return None
        now, shard, queue = queues.now(), store.shard_for(topic), queue_of(topic)
        sweep(topic, shard, now)
        if queue.has_gone:
            return None
        seen: set[int] = set()
        taken = []
        for node, seqs, tokens in calls:
            fits = bool(seqs) and seen.isdisjoint(seqs) and queue.leases.holds_all(node, seqs, tokens)
            taken.append(fits)
            if fits:
                seen.update(seqs)
        if not seen:
            return None
        submission = order_acks(topic, shard, sorted(seen), now)
        submission.carry(waiter)
        return Acked(topic, taken)


def count_jobs(store: Store, topic: Topic) -> tuple[int, int]:
    """Those that are ready, and those in flight."""
    with store.lock:
        counts = counts_of(topic)
        return counts.ready, counts.in_flight
