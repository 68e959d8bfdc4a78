"""Pages over a fake disk: gaps of every kind, one tombstone at a time."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.broker.engine import Bench
from topics.broker.history import Range
from topics.broker.reading import SCAN_MAX, Page
from topics.model.record import Gap


def seqs(page: Page) -> list[int]:
    records = msgspec.json.decode(b"[" + b",".join(page.pieces) + b"]")
    return [record["$seq"] for record in records]


def test_records_lost_by_a_restart_are_said_in_band() -> None:
    bench = Bench()
    bench.append("a", 1, 2, durability="ephemeral")
    bench.store.checkpoint(clean=True)
    bench.store.release()
    bench.open()
    bench.append("a", 3)
    page = bench.diff("a")
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 2, "restart")
    assert (seqs(page), page.next_from_seq) == ([3], 3)


def test_un_synced_tail_lost_by_a_power_cut_is_said_in_band() -> None:
    bench = Bench()
    bench.append("a", 1, durability="disk")
    bench.store.checkpoint()
    for number in range(2, 5):
        bench.append("a", number)
    bench.disk.power_cut(mode="all_lost")
    bench.disk.restart()
    bench.open()
    after = bench.append("a", 9).first_seq
    page = bench.diff("a")
    assert seqs(page) == [1]
    assert page.next_from_seq == 1
    second = bench.diff("a", from_seq=1)
    assert second.tombstone is not None
    assert (second.tombstone.gap_from, second.tombstone.reason) == (2, "crash")
    assert seqs(second) == [after]


def test_second_gap_waits_for_the_next_page() -> None:
    bench = Bench()
    bench.append("a", *range(10))
    topic = bench.store.topics["a"]
    from topics.format.control import LostReason

    topic.apply_lost(3, 4, LostReason.CORRUPT)
    topic.apply_lost(7, 8, LostReason.CRASH)
    page = bench.diff("a", from_seq=2)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.earliest_seq) == (3, 5)
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([5, 6], 6, False)
    page = bench.diff("a", from_seq=6)
    assert (page.tombstone and page.tombstone.reason, seqs(page)) == ("crash", [9, 10])
    page = bench.diff("a", from_seq=3)
    assert page.tombstone is not None
    assert page.tombstone.gap_from == 4


@pytest.mark.parametrize("where", ["wal", "segment"])
def test_pages_are_the_same_from_wal_and_segments(where: str) -> None:
    bench = Bench(segment_max_events=7)
    bench.append("a", *({"data": i, "node": f"n{i % 3}", "tag": "t"} for i in range(50)))
    if where == "segment":
        bench.store.checkpoint()
    bench.append("a", *range(50, 60))
    found: list[int] = []
    cursor = 0
    while True:
        page = bench.diff("a", from_seq=cursor, limit=4, exclude_nodes=(b"n1",))
        found += seqs(page)
        cursor = page.next_from_seq
        if page.caught_up:
            break
    assert found == [i + 1 for i in range(60) if i >= 50 or i % 3 != 1]


def test_one_page_walks_only_so_far() -> None:
    bench = Bench()
    for _ in range(8):
        bench.append("a", *({"data": 1, "node": "n"} for _ in range(10_000)))
    page = bench.diff("a", exclude_nodes=(b"n",))
    assert (page.count, page.caught_up) == (0, False)
    assert SCAN_MAX <= page.next_from_seq < 80_000
    assert bench.diff("a", from_seq=page.next_from_seq, exclude_nodes=(b"n",)).caught_up


def test_history_and_times_agree_with_a_plain_list() -> None:
    bench = Bench(segment_max_events=5)
    times: list[int] = []
    for number in range(40):
        bench.append("a", number)
        times.append(bench.clock.now_ms())
        bench.clock.advance(number % 3)
        if number in (9, 23):
            bench.store.checkpoint()
    bench.run(bench.broker.delete("a", 4, None))
    for ts in (0, *range(times[0] - 1, times[-1] + 3)):
        expected = next((seq for seq, time in enumerate(times, 1) if time >= ts and seq >= 4), 41)
        assert bench.run(bench.broker.at("a", ts)).seq == expected, ts
    history = bench.run(bench.broker.history("a", Range(from_ts=times[10], to_ts=times[30])))
    found = [
        seq
        for item in history.items()
        if not isinstance(item, Gap)
        for seq in range(item.batch.first_seq, item.batch.first_seq + item.batch.count)
    ]
    assert found == [seq for seq, time in enumerate(times, 1) if times[10] <= time < times[30]]


def test_ledger_is_the_sum_of_all_topics() -> None:
    bench = Bench(segment_max_events=5)

    def check() -> None:
        assert bench.store.ledger.bytes == sum(topic.bytes for topic in bench.store.all_topics())
        assert bench.store.ledger.ordered == 0

    bench.append("a", *range(20))
    bench.append("b", *("x" * 10 for _ in range(5)), cap_records=3)
    bench.append("c", 1, 2, durability="ephemeral")
    check()
    bench.run(bench.broker.delete("a", 7, None))
    bench.store.checkpoint()
    bench.append("b", "y" * 50)
    check()
    bench.run(bench.broker.drop_topic("b", False))
    check()
    bench.disk.kill()
    bench.disk.restart()
    bench.open()
    check()
    bench.append("a", 1)
    check()


def test_durable_seq_stops_before_un_synced_records() -> None:
    bench = Bench()
    bench.append("a", 1, 2, durability="memory")
    bench.append("b", 1, durability="fsync")
    heads = bench.run(bench.broker.heads({"a": 1, "b": 1}, "", False, lambda _: True, 0))
    assert (heads["a"].durable_seq, heads["b"].durable_seq) == (2, 1)
    bench.append("a", 3, 4)
    state = bench.run(bench.broker.state("a", False))
    assert (state.head_seq, state.durable_seq) == (4, 2)
    shard = bench.store.shards[0]
    sync = shard.take_sync()
    assert sync is not None
    bench.append("a", 5)
    sync.run()
    shard.finish_sync(sync)
    assert bench.run(bench.broker.state("a", False)).durable_seq == 4
    bench.store.drive_once()
    assert bench.run(bench.broker.state("a", False)).durable_seq == 5
    bench.append("c", 1, durability="ephemeral")
    assert bench.run(bench.broker.state("c", False)).durable_seq is None
