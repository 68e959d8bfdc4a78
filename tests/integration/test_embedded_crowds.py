"""Many callers of one store who want the same thing at once: a turn, a seq, the last place under a limit."""

from __future__ import annotations

import contextlib
import threading

import pytest

import topics
from tests.integration.conftest import Opener
from tests.integration.test_embedded_threads import TINY, records, together


@pytest.mark.parametrize("shards", [1, 3])
def test_each_of_thirty_two_writers_on_four_topics_is_answered(reopen: Opener, shards: int) -> None:
    """no_lost_wakeup_multi_topic_high_thread_stress, fsync_concurrent_writers_commit_sequencer_no_loss: each waits for
    its own sync and all return; what they were told is there after a restart."""
    log = reopen(wal_shards=shards)
    names = ["a", "b", "c", "d"]
    for name in names:
        log.create(name, durability="fsync")

    def write(thread: int) -> list[tuple[str, int, list[int]]]:
        done = []
        for n in range(12):
            name = names[(thread + n) % 4]
            done.append((name, log.append(name, [{"data": [thread, n]}]).first_seq, [thread, n]))
        return done

    answers = together([lambda thread=thread: write(thread) for thread in range(32)])  # type: ignore[misc]
    told = {(name, seq): data for answer in answers for name, seq, data in answer}
    assert len(told) == 32 * 12, "a seq was given twice"
    for current in (log, reopen(wal_shards=shards)):
        if current is not log:
            assert {(name, r.seq): r.data for name in names for r in records(current, name)} == told
    assert [current.info(name).head_seq for name in names] == [96] * 4


def test_two_writers_move_the_head_by_two_in_every_round(reopen: Opener) -> None:
    """seq_sequencer_two_writer_stress: each round takes exactly the next two seqs, whoever comes first."""
    log = reopen(**TINY)
    log.create("orders", durability="fsync")
    heads: list[int] = []
    round_ends = threading.Barrier(2, action=lambda: heads.append(log.info("orders").head_seq))
    rounds = 150

    def write(writer: int) -> list[int]:
        seqs = []
        for n in range(rounds):
            seqs.append(log.append("orders", [{"data": [writer, n]}]).first_seq)
            round_ends.wait(30)
        return seqs

    first, second = together([lambda: write(0), lambda: write(1)])
    assert heads == list(range(2, 2 * rounds + 1, 2))
    assert [sorted(pair) for pair in zip(first, second, strict=True)] == [[n, n + 1] for n in range(1, 2 * rounds, 2)]
    assert [r.seq for r in records(reopen(**TINY), "orders")] == list(range(1, 2 * rounds + 1))


def test_racing_creates_never_pass_the_limit_of_topics(reopen: Opener) -> None:
    """limit races: topics. Twelve threads want places of their own while others free some: never more than there are,
    and no place is lost to a refused or a failed try."""
    limit = 5
    log = reopen(max_topics=limit)

    def create(thread: int, turn: int) -> bool:
        with contextlib.suppress(topics.Throttled):
            return log.create(f"t{thread}-{turn}", durability="disk")
        return False

    for turn in range(12):
        made = together([lambda n=n: create(n, turn) for n in range(12)])  # type: ignore[misc]  # noqa: B023
        there = list(log.topics())
        assert sum(made) == len(there) == limit
        drops = [lambda name=name: log.drop(name) for name in there]
        raced = together([*drops, *[lambda n=n: create(n, -1 - turn) for n in range(8)]])  # noqa: B023
        left = list(log.topics())
        assert len(left) == sum(raced[limit:]) <= limit
        for name in left:
            log.drop(name)
    with_room = [create(n, 1000) for n in range(limit + 1)]
    assert with_room == [True] * limit + [False]
    assert len(list(reopen(max_topics=limit).topics())) == limit
