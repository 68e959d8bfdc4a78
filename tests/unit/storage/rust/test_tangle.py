"""Seqs that the Rust program handed out twice: what it acknowledged is imported, what it left behind is not."""

from __future__ import annotations

from tests.unit.storage.rust.directory import Topic, append, create, delete, evict, lease, record, snapshot
from tests.unit.storage.rust.engine import disk_of, findings, gaps, image, imported, opened, report_of, rust, values


def test_writes_that_fill_the_hole_of_a_failed_batch_are_taken_and_so_is_what_lay_behind_it() -> None:
    """The batch 2..3 failed, 4 was acknowledged; the next start dropped 4 and handed 2 and 3 out again."""
    made = rust()
    made.wal(
        create(1, "a", durable=True), append(1, 1, 1), append(1, 4, "old 4", ts=1001), append(1, 2, "new 2", ts=2000),
        append(1, 3, "new 3", ts=2001),
    )  # fmt: skip
    store = imported(made)
    assert values(store, "a") == {1: b"1", 2: b'"new 2"', 3: b'"new 3"', 4: b'"old 4"'}
    assert gaps(store, "a") == []
    assert [(one.first, one.last) for one in findings(made, "out_of_order")] == [(2, 3)]
    assert report_of(made.fs).set_aside == ["rust-wal-wal-0000000000000001.log"]


def test_of_two_records_with_one_seq_the_younger_counts() -> None:
    made = rust()
    made.wal(
        create(1, "a", durable=True), append(1, 1, 1), append(1, 3, "old", ts=1001), append(1, 2, 2, ts=2000),
        append(1, 3, "new", ts=2001), append(1, 4, 4, ts=2002), append(1, 4, "stale", ts=1500),
        append(1, 5, 5, ts=2003),
    )  # fmt: skip
    store = imported(made)
    assert values(store, "a") == {1: b"1", 2: b"2", 3: b'"new"', 4: b"4", 5: b"5"}
    assert report_of(made.fs).counts["out_of_order"] == 3


def test_a_delete_hits_only_what_was_in_the_log_before_it() -> None:
    made = rust()
    made.wal(
        create(1, "a", durable=True), append(1, 1, 1, tag="x"), append(1, 5, 5, tag="x"), append(1, 6, 6, tag="y"),
        delete(1, match=(0, "x"), bound=7), append(1, 2, 2, tag="x", ts=2000), append(1, 3, 3, ts=2001),
    )  # fmt: skip
    store = imported(made)
    assert values(store, "a") == {2: b"2", 3: b"3", 6: b"6"}
    assert gaps(store, "a") == [(4, 4, "crash")], "5 was deleted on purpose, and so was 1"


def test_deletes_below_a_seq_and_of_single_seqs_reach_records_out_of_order() -> None:
    made = rust()
    made.wal(
        create(1, "a", durable=True), append(1, 1, 1), append(1, 4, 4), append(1, 2, 2, ts=2000),
        append(1, 3, 3, ts=2001), delete(1, before=3, bound=5), delete(1, seqs=[4]), append(1, 5, 5, ts=2002),
        append(1, 6, 6, ts=2003), delete(1, seqs=[6]),
    )  # fmt: skip
    store = imported(made)
    assert values(store, "a") == {3: b"3", 5: b"5"}
    assert gaps(store, "a") == []
    assert store.topics["a"].head == 6, "the seq of a deleted record is not handed out again"


def test_what_the_snapshot_holds_stays_below_a_tangle() -> None:
    made = rust()
    made.wal(
        append(1, 2, "in the snapshot"),
        append(1, 5, 5),
        append(1, 3, 3, ts=2000, tag="t"),
        delete(1, match=(0, "t"), bound=4),
    )
    made.snapshot(snapshot([Topic("a", 1, 2, [record(1, 1, tag="t"), record(2, 2)])]))
    store = imported(made)
    assert values(store, "a") == {2: b"2", 5: b"5"}
    assert gaps(store, "a") == [(4, 4, "crash")]


def test_floors_and_leases_count_in_a_tangle_too() -> None:
    made = rust()
    made.wal(
        create(1, "q", type="queue", durable=True, leases_durable=True), append(1, 1, 1), append(1, 4, 4),
        lease(1, 4, 0, 9, 1 << 50, 1, "w"), append(1, 2, 2, ts=2000), append(1, 3, 3, ts=2001), evict(1, 2, 3, 0),
        lease(1, 3, 0, 10, 1 << 50, 1, "w"), delete(1, seqs=[4]),
    )  # fmt: skip
    store = imported(made)
    topic = store.topics["q"]
    assert (values(store, "q"), topic.evict_floor, topic.head) == ({3: b"3"}, 2, 4)
    assert topic.queue is not None
    assert list(topic.queue.leases.entries) == [3]


def test_a_tangle_is_the_same_after_a_restart() -> None:
    made = rust()
    frames = [append(1, seq, seq, ts=1000 + seq) for seq in range(1, 40) if seq % 7]
    again = [append(1, seq, f"again {seq}", ts=5000 + seq) for seq in range(10, 30)]
    made.wal(create(1, "a", durable=True), *frames, *again)
    store = imported(made)
    first = image(store)
    assert [gap[:2] for gap in gaps(store, "a")] == [(7, 7), (35, 35)]
    disk_of(made).power_cut()
    disk_of(made).restart()
    assert image(opened(made.fs)) == first
