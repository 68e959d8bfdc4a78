"""The fault catalogue, snapshots: the file itself, and the capture beside live work."""

from __future__ import annotations

import pytest

from tests.crash.life import ROOT, Life
from topics.format.ops import prepare
from topics.format.snapshot import decode_snapshot
from topics.model.errors import CorruptFile
from topics.testing.disk import PowerOff
from topics.testing.faults import Fault


def two_snapshots() -> Life:
    life = Life(segment_max_events=4)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 3, "x")
    life.store.checkpoint()
    life.append("a", 3)
    return life


def snapshots(life: Life) -> list[str]:
    return [path for path in life.disk.files() if path.startswith(f"{ROOT}/meta/snapshot-")]


def replace(life: Life, path: str, data: bytes) -> None:
    file = life.disk.open(path, write=True)
    file.truncate(0)
    file.write_at(0, [data])
    file.sync()


@pytest.mark.parametrize(
    ("call", "path"),
    [("write", "/meta/"), ("sync", "/meta/"), ("rename", "/meta/"), ("sync_dir", "/meta"), ("open", "/meta/")],
)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_snapshot_that_fails_leaves_the_old_ones_and_the_wal(call: str, path: str, error: str) -> None:
    """F-SNAP-EIO-TMP-WRITE, F-SNAP-ENOSPC-TMP, F-SNAP-EIO-TMP-FSYNC, F-SNAP-EIO-RENAME, F-SNAP-EIO-DIRFSYNC."""
    life = two_snapshots()
    life.kill()
    fs = life.open_faulty()
    before = snapshots(life)
    fs.add(Fault(call, 1, error, forever=True, path=path))
    assert not life.store.checkpoint()
    assert life.store.trouble is not None
    assert set(before) <= set(snapshots(life))
    assert not [name for name in life.disk.files() if name.endswith(".tmp")]
    life.append("a", 1)
    fs.heal()
    assert life.store.checkpoint(), "tried again, and whole"
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_at_any_call_of_a_snapshot_leaves_one_that_is_valid(kind: str) -> None:
    """F-SNAP-CRASH-AFTER-TMP-BEFORE-RENAME, F-SNAP-CRASH-AFTER-RENAME-BEFORE-DIRFSYNC, F-SNAP-CRASH-BEFORE-PRUNE,
    F-SWEEP-SNAPSHOT-WRITE, F-SNAP-CHECKPOINT-FLUSH-CRASH."""
    life = two_snapshots()
    life.kill()
    probe = life.clone()
    probe.open()
    before = probe.disk.calls
    probe.store.checkpoint()
    for nth in range(1, probe.disk.calls - before + 1):
        again = life.clone()
        again.open()
        again.disk.crash_at(again.disk.calls + nth, "kill" if kind == "kill" else "power")
        with pytest.raises(PowerOff):
            again.store.checkpoint()
        if kind == "kill":
            again.kill()
        else:
            again.power_cut()
        again.reopen()
        assert again.seqs("a") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: b"XXXX" + data[4:],
        lambda data: data[:4] + b"\x02\0\0\0" + data[8:],
        lambda data: data[:8] + b"\xff" * 8 + data[16:],
        lambda data: data[:11],
        lambda data: b"",
        lambda data: data + b"\0",
    ],
    ids=["torn", "rotten", "magic", "version", "length", "header", "empty", "longer"],
)
def test_a_bad_newest_snapshot_is_skipped_and_set_aside(spoil: object) -> None:
    """F-SNAP-TORN-BODY, F-SNAP-CRC-CORRUPT, F-SNAP-BAD-MAGIC, F-SNAP-VERSION-MISMATCH, F-SNAP-BODYLEN-OVERFLOW,
    F-SNAP-TRUNCATED-HEADER, F-FUZZ-SNAPSHOT-DECODER, 3.2 g: the older one and the WAL it needs are still there."""
    assert callable(spoil)
    life = two_snapshots()
    life.store.checkpoint()
    life.append("a", 2)
    life.delete("a", tag="x")
    life.store.checkpoint()
    life.append("a", 1)
    life.kill()
    newest = snapshots(life)[-1]
    replace(life, newest, spoil(life.disk.read(newest)))
    life.reopen()
    assert life.seqs("a") == [4, 5, 6, 7, 8, 9]
    assert any(newest in line for line in life.store.report)
    assert any("/quarantine/snapshot-" in path for path in life.disk.files())
    life.append("a", 1)
    life.store.checkpoint()
    assert snapshots(life)[-1] > newest, "ids go on above the highest seen"
    life.power_cut()
    life.reopen()


def test_the_newest_snapshot_may_rot_over_a_reshard_a_seal_and_a_drop() -> None:
    """3.2 g: the older snapshot lists what there was, and the WAL tells the rest."""
    life = Life(segment_max_events=2)
    life.open()
    for name in "abc":
        life.create(name, durability="fsync")
        life.append(name, 3)
    life.store.checkpoint()
    life.kill()
    life.reopen(wal_shards=3)
    life.append("a", 3)
    life.drop("b")
    life.delete("c", before_seq=3)
    life.store.checkpoint()
    life.append("c", 1)
    life.kill()
    newest = snapshots(life)[-1]
    life.disk.corrupt(newest, 30)
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6]
    assert life.seqs("c") == [3, 4]
    assert "b" not in life.store.topics


def test_no_valid_snapshot_refuses_to_start() -> None:
    """3.2 g: the reference goes on with whatever WAL is left; here a start would forget acked data (section 6)."""
    life = two_snapshots()
    life.store.checkpoint()
    life.kill()
    for path in snapshots(life):
        life.disk.corrupt(path, 30)
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert all(path in caught.value.message for path in snapshots(life))
    assert [path for path in life.disk.files() if path.endswith(".data")]


def test_two_snapshots_are_kept_and_the_wal_of_the_older() -> None:
    """repeated_snapshots_keep_one_and_stay_consistent, snapshot_drops_absorbed_wal_and_replays_tail,
    monitorfs_passes_real_snapshot_write: the reference keeps one; here two, and the WAL both need. Every write of them
    is made under the rules of order."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    for _ in range(8):
        life.append("a", 4)
        life.store.checkpoint()
    assert len(snapshots(life)) == 2
    older = decode_snapshot(life.disk.read(snapshots(life)[0]))
    kept = [path for path in life.disk.files() if path.endswith(".log")]
    assert f"{ROOT}/wal/wal-{older.positions[''].file:016d}.log" in kept
    assert len(kept) <= 5
    assert f"{ROOT}/wal/wal-0000000000000001.log" not in kept
    life.append("a", 2)
    assert life.order is not None
    assert not life.order.violations
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == list(range(1, 35))


def test_nothing_is_trimmed_while_there_is_one_snapshot() -> None:
    """Section 6: with one snapshot, losing it would lose what its WAL alone still has."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    for _ in range(12):
        life.append("a", 1)
    assert len(life.store.snapshots.kept) == 1
    life.store.trim()
    assert f"{ROOT}/wal/wal-0000000000000001.log" in life.disk.files()


def test_writes_during_the_capture_are_in_the_snapshot_or_in_the_wal() -> None:
    """F-SNAP-RACE-WRITE-DURING-CAPTURE, snapshot_with_inflight_same_topic_writers_loses_no_acked_write."""
    life = two_snapshots()
    checkpoint = life.store.begin_checkpoint()
    life.append("a", 2)
    life.delete("a", before_seq=3)
    life.append("a", 1)
    checkpoint.run()
    life.append("a", 1)
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [3, 4, 5, 6, 7, 8, 9, 10]


def test_a_delete_beside_a_snapshot_does_not_come_back() -> None:
    """snapshot_blocks_on_inflight_delete_no_resurrection, snapshot_during_inflight_delete_does_not_resurrect: the cut
    holds the effect of every frame before the mark and of none after it."""
    life = two_snapshots()
    before, _ = life.store.delete("a", 3, None)
    checkpoint = life.store.begin_checkpoint()
    after, _ = life.store.delete("a", 5, None)
    life.store.drive(after)
    assert before is not None
    assert before.settled
    life.ledger.topics[1].ask_delete([1, 2, 3, 4])
    checkpoint.run()
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [5, 6]


def test_a_position_beyond_the_end_of_the_wal_loses_nothing() -> None:
    """F-SNAP-CHECKPOINT-AHEAD-OF-WAL: a file that ends before its position loses nothing, the snapshot has it all."""
    life = two_snapshots()
    life.store.checkpoint()
    position = life.store.positions[""]
    life.kill()
    path = f"{ROOT}/wal/wal-{position.file:016d}.log"
    file = life.disk.open(path, write=True)
    file.truncate(position.offset - 60)
    file.sync()
    life.disk.remove(f"{ROOT}/wal/CURRENT")
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6]


def test_a_snapshot_is_read_back_before_it_counts() -> None:
    """3.3 lost write: a snapshot whose bytes did not land is not counted as kept."""
    life = two_snapshots()
    life.kill()
    fs = life.open_faulty()
    kept = list(life.store.snapshots.kept)
    fs.add(Fault("read", 1, "SHORT", path="/meta/snapshot-"))
    assert not life.store.checkpoint()
    assert life.store.snapshots.kept == kept
    assert life.store.checkpoint()
    life.power_cut()
    life.reopen()


def test_a_new_store_killed_at_any_call_begins_again() -> None:
    """F-REC-CRASH, first start: the empty snapshot, then FORMAT; whatever is there before FORMAT is begun again."""
    probe = Life()
    probe.open()
    for nth in range(1, probe.disk.calls + 1):
        for kind in ("kill", "power"):
            life = Life()
            life.disk.crash_at(nth, "kill" if kind == "kill" else "power")
            with pytest.raises(PowerOff):
                life.open()
            life.power_cut() if kind == "power" else life.kill()
            life.open(wal_shards=2)
            life.create("a", durability="fsync")
            done = life.store.append("a", prepare([{"data": 1}]))
            life.store.drive(done.submission)
            assert life.seqs("a") == [1]
