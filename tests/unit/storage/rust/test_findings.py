"""What an import says, what it sets aside, and what it refuses."""

from __future__ import annotations

import pytest

from tests.crash.ledger import read_all
from tests.unit.storage.rust.directory import (
    Topic,
    append,
    create,
    delete,
    evict,
    frame,
    head_watermark,
    record,
    segment_frame,
    snapshot,
)
from tests.unit.storage.rust.engine import (
    ROOT,
    disk_of,
    findings,
    gaps,
    image,
    imported,
    opened,
    report_of,
    rust,
    values,
)
from topics.format.marks import FileMark
from topics.model.errors import CorruptFile, StoreLocked, UnknownVersion
from topics.model.record import Record
from topics.testing.disk import FakeDisk

# -- what is reported --------------------------------------------------------------------------------------------------


def test_a_jump_in_seqs_is_applied_and_reported_as_a_hole() -> None:
    made = rust()
    path = made.wal(create(1, "a"), append(1, 1, 1), append(1, 5, 5), append(1, 9, 9))
    store = imported(made)
    assert values(store, "a") == {1: b"1", 5: b"5", 9: b"9"}
    assert gaps(store, "a") == [(2, 4, "crash"), (6, 8, "crash")]
    assert [(one.first, one.last, one.path) for one in findings(made, "hole")] == [(2, 4, path), (6, 8, path)]


def test_a_seq_that_comes_again_is_reported_and_its_file_is_kept() -> None:
    made = rust()
    path = made.wal(
        create(1, "a"), append(1, 1, 1), append(1, 2, 2), append(1, 3, 3), append(1, 2, "stale"), append(1, 4, 4)
    )
    before = disk_of(made).read(path)
    store = imported(made)
    assert values(store, "a") == {1: b"1", 2: b"2", 3: b"3", 4: b"4"}
    assert [(one.topic, one.first, one.last) for one in findings(made, "out_of_order")] == [("a", 2, 2)]
    name = "rust-wal-wal-0000000000000001.log"
    assert report_of(made.fs).set_aside == [name]
    assert disk_of(made).read(f"{ROOT}/quarantine/{name}") == before


def test_a_null_that_a_segment_can_supply_is_reported_and_the_segment_is_kept() -> None:
    made = rust()
    made.snapshot(snapshot([Topic("a", 1, 4, [record(1, None), record(2, None), record(3, 3), record(4, None)])]))
    frames = [segment_frame(1, "lost?"), segment_frame(2, None), segment_frame(3, "other"), segment_frame(9, "x")]
    path = made.segment(1, 1, *frames)
    store = imported(made)
    assert values(store, "a")[1] == b"null"
    assert [(one.first, one.path) for one in findings(made, "null")] == [(1, path)]
    kept = [path for path in disk_of(made).files() if "/quarantine/" in path]
    assert [path.rsplit(".", 1)[1] for path in kept] == ["data", "idx"]


def test_text_that_is_no_json_becomes_null_and_is_reported() -> None:
    made = rust()
    made.snapshot(snapshot([Topic("a", 1, 2, [record(1, raw=b""), record(2, raw=b'{"a":')])]))
    assert values(imported(made), "a") == {1: b"null", 2: b"null"}
    assert [one.first for one in findings(made, "broken_json")] == [1, 2]


def test_times_that_fall_are_raised_to_the_one_before() -> None:
    made = rust()
    made.wal(append(1, 3, 3, ts=500), append(1, 4, 4, ts=6000), append(1, 5, 5, ts=5999))
    made.snapshot(snapshot([Topic("a", 1, 2, [record(1, 1, ts=5000), record(2, 2, ts=-1)])]))
    store = imported(made)
    assert values(store, "a") == {seq: b"%d" % seq for seq in range(1, 6)}
    assert [item.ts for item in read_all(store, "a") if isinstance(item, Record)] == [5000, 5000, 5000, 6000, 6000]
    assert report_of(made.fs).counts == {"time_moved": 3}


def test_frames_of_a_topic_that_nobody_made_are_set_aside() -> None:
    made = rust()
    made.wal(create(1, "a"), append(1, 1, 1), append(9, 1, "whose?"))
    store = imported(made)
    assert list(store.topics) == ["a"]
    assert store.next_topic_id == 10
    assert len(findings(made, "unknown_topic")) == 1
    assert report_of(made.fs).set_aside == ["rust-wal-wal-0000000000000001.log"]


def test_a_report_has_one_line_for_each_kind_of_finding() -> None:
    made = rust()
    made.wal(create(1, "a", durable=True), *(append(1, seq, seq) for seq in range(2, 40, 2)), append(1, 2, "again"))
    lines = imported(made).report
    assert len(lines) == 3
    assert lines[1].startswith("import, hole (19): ")
    assert lines[2].startswith("import, out_of_order (1): ")


# -- torn, damaged, foreign --------------------------------------------------------------------------------------------


def test_zeros_behind_the_last_frame_are_the_end_and_so_is_the_end_of_a_file_that_was_cut() -> None:
    made = rust()
    made.wal(create(1, "a"), append(1, 1, 1), zeros=5000)
    made.wal(append(1, 2, 2), file=2, zeros=0)
    made.wal(append(1, 3, 3), file=3, zeros=0)
    assert values(imported(made), "a") == {1: b"1", 2: b"2", 3: b"3"}
    assert report_of(made.fs).counts == {}


def test_a_torn_tail_is_cut_and_said() -> None:
    made = rust()
    made.wal(create(1, "a", durable=True), append(1, 1, 1), append(1, 2, 2)[:-3], zeros=64)
    assert values(imported(made), "a") == {1: b"1"}
    assert len(findings(made, "torn_tail")) == 1


def test_damage_with_whole_frames_behind_it_is_refused_and_nothing_changes() -> None:
    made = rust()
    path = made.wal(create(1, "a"), append(1, 1, 1), append(1, 2, 2), append(1, 3, 3))
    disk_of(made).corrupt(path, len(create(1, "a") + append(1, 1, 1)) + 30)
    before = {path: disk_of(made).read(path) for path in disk_of(made).files()}
    with pytest.raises(CorruptFile, match="whole frames follow"):
        imported(made)
    after = {path: disk_of(made).read(path) for path in disk_of(made).files() if not path.endswith(".lock")}
    assert after == before


def test_salvage_reads_past_damage_and_keeps_the_file() -> None:
    made = rust()
    path = made.wal(create(1, "a"), append(1, 1, 1), append(1, 2, 2), append(1, 3, 3))
    disk_of(made).corrupt(path, len(create(1, "a") + append(1, 1, 1)) + 30)
    store = imported(made, recovery="salvage")
    assert values(store, "a") == {1: b"1", 3: b"3"}
    assert gaps(store, "a") == [(2, 2, "crash")]
    assert len(findings(made, "damage")) == 1
    assert report_of(made.fs).set_aside == ["rust-wal-wal-0000000000000001.log"]


def test_a_torn_end_with_another_file_behind_it_is_refused() -> None:
    made = rust()
    made.wal(create(1, "a"), append(1, 1, 1)[:-1])
    made.wal(append(1, 2, 2), file=2)
    with pytest.raises(CorruptFile, match="a later file follows"):
        imported(made)


@pytest.mark.parametrize("first", [(1, 0), (0, 0)])
def test_a_missing_file_is_refused(first: tuple[int, int]) -> None:
    made = rust()
    made.wal(append(1, 1, 1), file=2)
    made.snapshot(snapshot([Topic("a", 1, 0)], first=first))
    with pytest.raises(CorruptFile, match="missing"):
        imported(made)


def test_a_wal_that_begins_in_the_middle_is_refused_without_a_snapshot() -> None:
    made = rust()
    made.wal(create(1, "a"), file=3)
    with pytest.raises(CorruptFile, match="missing"):
        imported(made)


def test_an_older_snapshot_stands_in_for_a_bad_one() -> None:
    made = rust()
    made.wal(append(1, 2, 2))
    made.snapshot(snapshot([Topic("a", 1, 1, [record(1, 1)])]), file=3)
    disk_of(made).corrupt(made.snapshot(snapshot([]), file=4), 25)
    assert values(imported(made), "a") == {1: b"1", 2: b"2"}
    assert len(findings(made, "bad_snapshot")) == 1


def test_snapshots_none_of_which_is_valid_are_refused() -> None:
    made = rust()
    made.wal(create(1, "a"), append(1, 1, 1))
    disk_of(made).corrupt(made.snapshot(snapshot([])), 25)
    with pytest.raises(CorruptFile, match="no valid snapshot"):
        imported(made)


def test_a_snapshot_of_another_version_is_refused_with_a_way_out() -> None:
    made = rust()
    made.snapshot(snapshot([], version=4))
    with pytest.raises(UnknownVersion, match="over HTTP"):
        imported(made)


def test_a_wal_of_ours_that_lost_its_metadata_is_not_taken_for_the_rust_programs() -> None:
    made = rust()
    made.wal(frame(8, 0, FileMark(0, 1, 0, 0).encode()), create(1, "a"))
    with pytest.raises(UnknownVersion, match="that file is lost"):
        imported(made)


@pytest.mark.parametrize("kind", [12, 63, 64, 66, 200])
def test_a_frame_that_the_rust_program_never_writes_is_refused(kind: int) -> None:
    made = rust()
    made.wal(create(1, "a"), frame(kind, 1, b"12345678"))
    with pytest.raises((UnknownVersion, CorruptFile)):
        imported(made)


def test_a_directory_that_the_rust_program_holds_is_left_alone() -> None:
    made = rust()
    made.wal(create(1, "a"))
    guard = made.fs.lock(f"{ROOT}/.topics.lock")
    with pytest.raises(StoreLocked):
        imported(made)
    guard.release()
    assert "a" in imported(made).topics


@pytest.mark.parametrize("seq", [1 << 33, 1 << 62, (1 << 64) - 1])
def test_a_seq_out_of_all_bounds_is_refused(seq: int) -> None:
    for hostile in (append(1, seq, 1), head_watermark(1, seq), evict(1, 1 << 63, 1, 0)):
        made = rust()
        made.wal(create(1, "a"), hostile)
        with pytest.raises(CorruptFile):
            imported(made)


def test_an_import_in_small_and_large_pieces_is_the_same() -> None:
    def make() -> FakeDisk:
        made = rust()
        records = [record(seq, "x" * (seq % 7), tag=f"t{seq % 3}") for seq in range(1, 9000, 2)]
        made.snapshot(snapshot([Topic("a", 1, 9000, records)]))
        made.wal(
            *(append(1, seq, seq, tag=f"t{seq % 3}") for seq in range(9001, 9200)),
            delete(1, match=(0, "t1"), bound=9100),
        )
        return disk_of(made)

    small, large = opened(make(), segment_max_events=100), opened(make(), segment_max_events=10_000)
    assert image(small) == image(large)
    assert len(values(small, "a")) == small.topics["a"].live
