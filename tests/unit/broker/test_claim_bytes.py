"""What one claim may hold, where several are dealt together and after a crash."""

from __future__ import annotations

import pytest

from tests.unit.broker.engine import Bench
from topics.rules.lease_values import Ask
from topics.storage.leasing import order_claim, queue_of


def heavy(count: int = 20, **options: int) -> Bench:
    """A queue of jobs of which eight are as much as one claim may hold."""
    bench = Bench(wal_shards=1, **options)
    for _ in range(count):
        bench.append("jobs", "x" * 1_000_000, type="queue", durability="disk")
    return bench


def seqs(bench: Bench, most: int = 100, node: str = "w") -> list[int]:
    hand = bench.run(bench.broker.queues.claim("jobs", node, most, None))
    return [row[0] for row in hand.rows]


def dealt(bench: Bench, asks: list[Ask], in_turn: bool = False) -> list[list[int]]:
    topic = bench.store.topic("jobs")
    with bench.store.lock:
        claims = order_claim(topic, bench.store.shard_for(topic), asks, bench.broker.queues.now(), in_turn)
    return [[row[0] for row in rows] for rows in claims.hands]


@pytest.mark.parametrize("came_back", [False, True])
def test_claims_dealt_together_get_what_each_would_have_got_by_itself(came_back: bool) -> None:
    bench = heavy()
    if came_back:
        assert seqs(bench, 1) == [1]
        bench.run(bench.broker.queues.nack("jobs", "w", [1], [None], 0))
    asks = [Ask("a", 100, 30_000), Ask("b", 3, 30_000), Ask("c", 100, 30_000)]
    assert dealt(bench, asks, in_turn=True) == [list(range(1, 9)), [9, 10, 11], list(range(12, 20))]


def test_a_cohort_gives_back_what_a_hand_has_no_room_for() -> None:
    bench = heavy()
    asks = [Ask("a", 100, 30_000), Ask("b", 100, 30_000)]
    assert dealt(bench, asks) == [list(range(1, 16, 2)), list(range(2, 17, 2))]
    leases = queue_of(bench.store.topic("jobs")).leases
    assert all(leases.under_way(seq) is None for seq in range(17, 21))
    assert seqs(bench) == [17, 18, 19, 20]


def test_one_job_is_given_whatever_its_size_and_few_are_not_measured() -> None:
    bench = heavy()
    assert seqs(bench, 1) == [1]
    assert seqs(bench, 7) == list(range(2, 9))


def test_what_was_not_given_counts_no_delivery_after_a_crash() -> None:
    bench = heavy(10)
    assert seqs(bench) == list(range(1, 9))
    bench.disk.kill()
    bench.disk.restart()
    bench.open()
    hands = [bench.run(bench.broker.queues.claim("jobs", "v", 100, None)) for _ in range(2)]
    assert [(row[0], row[3]) for hand in hands for row in hand.rows] == [
        *((seq, 2) for seq in range(1, 9)), (9, 1), (10, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("came_back", [False, True])
def test_jobs_whose_segment_is_missing_are_dealt_and_keep_nobody_from_those_behind(came_back: bool) -> None:
    bench = heavy(segment_max_events=10)
    if came_back:
        for _ in range(3):
            bench.run(bench.broker.queues.nack("jobs", "w", taken := seqs(bench), [None] * len(taken), 0))
    bench.store.checkpoint()
    topic = bench.store.topic("jobs")
    segment = topic.segments[0]
    assert (segment.first_seq, segment.count) == (1, 10)
    bench.store.handles.forget(segment)
    for part in ("data", "idx"):
        bench.disk.remove(segment.path(part))
    hands = [seqs(bench) for _ in range(4)]
    assert hands == [list(range(1, 8)), list(range(8, 16)), list(range(16, 21)), []]
    leases = queue_of(topic).leases
    assert not leases.all_under_way()
    assert leases.leased == 20
