"""The fault catalogue, WAL: writing, syncing, and what is found at start. Ids are those of the catalogue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.life import ROOT, Life
from topics.format.ops import prepare
from topics.model import limits
from topics.model.errors import DiskFull, ReadOnly, StorageError, Throttled, TopicsError, WriteFailed
from topics.testing.disk import FakeDisk, PowerOff
from topics.testing.faults import Fault


def fsync_store(**options: Any) -> Life:
    life = Life(**options)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2)
    life.kill()
    return life


def written(life: Life) -> tuple[str, int]:
    """Path and length of the WAL file in use."""
    file = life.store.shards[0].file
    assert file is not None
    return file.path, file.written


def spoil_tail(life: Life, data: bytes, back: int = 0) -> None:
    """Kill the store and put `data` where its WAL ends, or `back` bytes before."""
    path, end = written(life)
    life.kill()
    file = life.disk.open(path, write=True)
    file.write_at(end - back, [data])
    file.sync()


def append_many(life: Life, count: int) -> None:
    for _ in range(40):
        life.append("a", count)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT", "EFBIG", "EROFS"])
def test_a_failed_write_refuses_its_batch_and_makes_the_shard_read_only(error: str) -> None:
    """F-WAL-EIO-WRITE, F-WAL-ENOSPC-WRITE: none of the batch is visible; what was there before stays readable.

    The reference rewinds and goes on; here a failed write is final until the store is reopened (D-11).
    """
    life = fsync_store()
    fs = life.open_faulty()
    fs.add(Fault("write", 1, error))
    with pytest.raises(WriteFailed):
        life.append("a", 3)
    with pytest.raises(ReadOnly):
        life.append("a", 1)
    with pytest.raises(ReadOnly):
        life.delete("a", before_seq=2)
    assert life.seqs("a") == [1, 2]
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [1, 2], "a batch of which half was written is absent"


def test_a_short_write_is_looped_to_completion() -> None:
    """F-WAL-SHORT-WRITE, short_write_is_looped_to_completion: the frame lands whole."""
    life = fsync_store()
    fs = life.open_faulty()
    fs.add(Fault("write", 1, "SHORT", forever=True))
    life.append("a", 3)
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("call", ["write", "open", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_start_that_cannot_make_its_wal_file_refuses(call: str, error: str) -> None:
    """F-WAL-EIO-SETLEN-PREALLOC, F-WAL-EIO-OPEN: no start on a half-made file, and the next start is whole."""
    life = fsync_store()
    with pytest.raises(StorageError):
        life.open_faulty(Fault(call, 1, error, forever=True, path="/wal"))
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [1, 2]


@pytest.mark.parametrize("kept", [1, 3, 5, 20, 38, 45, 60])
def test_a_torn_last_frame_is_cut_back_to_the_one_before(kept: int) -> None:
    """F-WAL-TORN-MID-LENPREFIX, F-WAL-TORN-MID-HEADER, F-WAL-TORN-MID-PAYLOAD: no field of the torn frame is used."""
    life = fsync_store()
    life.open()
    before = written(life)[1]
    life.append("a", 1)
    path, end = written(life)
    life.kill()
    file = life.disk.open(path, write=True)
    size = file.size()
    file.truncate(before + min(kept, end - before - 1))
    file.truncate(size)
    file.sync()
    life.open()
    assert life.seqs("a") == [1, 2]
    done = life.store.append("a", prepare([{"data": 1}]))
    life.store.drive(done.submission)
    assert life.seqs("a") == [1, 2, 3]


@pytest.mark.parametrize(
    "junk",
    [b"\xff\xff\xff\xff" + b"x" * 60, b"\1\0\0\0" + b"x" * 60, b"junk" * 20, b"\0\0\0\0junk"],
    ids=["huge_length", "length_below_minimum", "noise", "zeros_then_noise"],
)
def test_junk_behind_the_tail_is_cut_and_not_read(junk: bytes) -> None:
    """F-WAL-LEN-GARBAGE-HUGE, F-WAL-LEN-BELOW-MIN, torn_tail_is_truncated_not_read_as_data: cut, nothing allocated."""
    life = fsync_store()
    life.open()
    spoil_tail(life, junk)
    life.reopen()
    assert life.seqs("a") == [1, 2]
    life.append("a", 1)
    life.power_cut()
    life.reopen()


def test_a_flip_in_the_last_frame_cuts_that_frame_alone() -> None:
    """F-WAL-CRC-FLIP-TAIL: nothing behind it proves that it was synced."""
    life = fsync_store()
    life.open()
    life.append("a", 1)
    spoil_tail(life, b"\xaa", back=9)
    life.open()
    assert life.seqs("a") == [1, 2]


def test_a_flip_in_the_middle_of_proven_frames_refuses() -> None:
    """F-WAL-CRC-FLIP-MIDLOG, 3.2 k: the reference drops what follows; here a mark proves it, so the start refuses."""
    life = fsync_store()
    life.open()
    at = written(life)[1]
    for _ in range(3):
        life.append("a", 1)
        life.clock.advance(200)
    path, _ = written(life)
    life.kill()
    life.disk.corrupt(path, at + 50)
    with pytest.raises(StorageError) as caught:
        life.open()
    assert caught.value.path == path
    life.open(recovery="salvage")
    assert life.seqs("a")[-1] == 5
    assert {gap[2] for gap in life.gaps("a")} <= {"corrupt"}


def test_rot_in_an_older_wal_file_is_not_skipped_over() -> None:
    """3.2 k: the next file's first frame states the valid length, so the older file may not end early."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    for _ in range(12):
        life.append("a", 1)
    life.kill()
    path = f"{ROOT}/wal/wal-0000000000000001.log"
    life.disk.corrupt(path, 500)
    with pytest.raises(StorageError) as caught:
        life.open()
    assert caught.value.path == path


def test_a_frame_of_zeros_below_proven_bytes_refuses() -> None:
    """F-WAL-ZEROED-FRAME: zeros end the log only if nothing but zeros follows (section 4)."""
    life = fsync_store()
    life.open()
    at = written(life)[1]
    for _ in range(3):
        life.append("a", 1)
        life.clock.advance(200)
    path, _ = written(life)
    life.kill()
    file = life.disk.open(path, write=True)
    file.write_at(at, [bytes(40)])
    file.sync()
    with pytest.raises(StorageError):
        life.open()


@pytest.mark.parametrize("seed", range(40))
def test_any_subset_of_unsynced_pages_leaves_whole_batches(seed: int) -> None:
    """F-WAL-REORDER-UNSYNCED, F-WAL-NONDURABLE-LOST-TAIL, F-WAL-PARTIAL-BATCH-FSYNC, F-PSOW-OUTSIDE-RANGE-DAMAGE."""
    life = Life(FakeDisk(seed, sector=64, page=128))
    life.open()
    life.create("a", durability="disk")
    life.create("m", durability="memory")
    for _ in range(4):
        life.append("a", 3)
        life.append("m", 2)
    life.power_cut()
    life.reopen()
    life.append("a", 1)
    life.power_cut()
    life.reopen()


def test_a_crash_before_the_next_file_is_begun_repeats_the_rotation() -> None:
    """F-WAL-ROTATE-CRASH-PRE-SEAL, F-WAL-ROTATE-NEW-FILE-TORN: the old file is whole, the new one is cut to empty."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    while life.store.shards[0].stats.rotations < 2:
        life.disk.crash_at(None)
        before = life.disk.calls
        life.append("a", 1)
    made = life.disk.calls - before
    for nth in range(1, made + 1):
        again = Life(wal_file_bytes=1024)
        again.open()
        again.create("a", durability="fsync")
        again.disk.crash_at(before + nth)
        with pytest.raises(PowerOff):
            append_many(again, 1)
        again.power_cut()
        again.reopen()
        again.append("a", 1)


def test_a_rotation_that_cannot_make_its_file_refuses_and_heals() -> None:
    """rotation_failure_surfaces_and_latches_read_only: no byte was written, so it heals when space returns (section 10;
    the reference stays read-only for good)."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("open", 1, "ENOSPC", forever=True, path=".pre"))
    with pytest.raises(DiskFull):
        append_many(life, 1)
    head = life.seqs("a")[-1]
    with pytest.raises(DiskFull):
        life.append("a", 1)
    fs.heal()
    shard = life.store.shards[0]
    assert shard.wants_spare()
    shard.adopt_spare(shard.plan_spare().run())
    assert life.append("a", 1) == head + 1, "the refused seqs were given back"
    life.power_cut()
    life.reopen()


@pytest.mark.parametrize(("call", "nth"), [("sync", 3), ("sync_dir", 1)])
def test_an_error_of_the_sync_at_rotation_counts(call: str, nth: int) -> None:
    """3.2 l: the reference ignores it; here the shard is read-only and nothing acked is lost. The first sync is
    that of the reservation, the second that of the new file, the third that of the old."""
    life = Life(wal_file_bytes=1024, reserve_seqs=4096)
    life.open()
    life.create("a", durability="disk")
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault(call, nth, "EIO", path="/wal"))
    with pytest.raises(WriteFailed):
        append_many(life, 2)
    assert life.store.shards[0].failed is not None
    life.power_cut()
    life.reopen()


def test_a_failed_sync_acks_nothing_and_is_never_repeated() -> None:
    """F-WAL-EIO-FSYNC, eio_on_fsync_fails_batch_not_prior_state, 3.3 failed fsync is final: later syncs would succeed,
    so a second try would believe a lie."""
    life = fsync_store()
    fs = life.open_faulty()
    fs.add(Fault("sync", 1, "EIO", path="/wal"))
    with pytest.raises(WriteFailed):
        life.append("a", 2)
    syncs = fs.counts["sync"]
    for _ in range(3):
        with pytest.raises(ReadOnly):
            life.append("a", 1)
    life.sync()
    assert fs.counts["sync"] == syncs
    assert life.seqs("a") == [1, 2]
    assert not life.disk.exists(f"{ROOT}/meta/BOOT"), "the page cache is not trusted any more"
    life.power_cut()
    life.reopen()


def test_an_acked_write_after_a_failed_one_survives() -> None:
    """F-WAL-FSYNC-EIO-PERSIST, F-COMPOUND-FSYNC-FAIL-THEN-CRASH, 3.2 a, 3.2 e: reopened without a power cut in between,
    the store finds the failed batch in the page cache alone; it is written again before the next ack."""
    life = fsync_store()
    fs = life.open_faulty()
    fs.add(Fault("sync", 1, "EIO", path="/wal"))
    with pytest.raises(WriteFailed):
        life.append("a", 2)
    life.kill()
    life.reopen()
    life.append("a", 1)
    life.power_cut()
    life.reopen()
    life.append("a", 1)
    life.power_cut()
    life.reopen()


def test_a_batch_that_failed_whole_and_a_shorter_one_after_it_do_not_mix() -> None:
    """3.2 d: the reference rewinds and overwrites, so the rest of the failed batch replays; here nothing is rewound."""
    life = fsync_store()
    fs = life.open_faulty()
    fs.add(Fault("sync", 1, "EIO", path="/wal"))
    with pytest.raises(WriteFailed):
        life.append("a", 5)
    life.kill()
    life.reopen()
    life.append("a", 1)
    life.kill()
    life.reopen()
    seqs = life.seqs("a")
    assert seqs == list(range(1, len(seqs) + 1))


def test_writes_of_the_second_life_survive_a_crash_before_a_snapshot() -> None:
    """3.2 b: after a crash the head jumps to the reservation, and the jump is announced before the first write."""
    life = Life()
    life.open()
    life.create("a", durability="disk")
    life.append("a", 2)
    for _ in range(3):
        life.power_cut()
        life.reopen()
        first = life.append("a", 2)
        life.sync()
        assert first in life.seqs("a")


def test_a_snapshot_position_lies_on_synced_bytes() -> None:
    """3.2 f: the mark is synced before its position counts, so frames after a cut never count as absorbed."""
    life = Life()
    life.open()
    life.create("a", durability="disk")
    for _ in range(3):
        life.append("a", 3)
        life.store.checkpoint()
        position = life.store.positions[""]
        file = life.store.shards[0].file
        assert file is not None
        assert position.file < file.number or position.offset <= file.synced
        life.append("a", 2)
        life.power_cut()
        life.reopen()


def test_an_idle_store_syncs_its_tail_by_the_timer() -> None:
    """3.2 t: the reference leaves the tail un-synced until the next snapshot."""
    life = Life(sync_ms=10)
    life.open()
    life.create("a", durability="disk")
    life.append("a", 1)
    shard = life.store.shards[0]
    assert not shard.sync_due(life.clock.monotonic_ns())
    life.clock.advance(10)
    assert shard.sync_due(life.clock.monotonic_ns())
    life.sync()
    life.disk.power_cut(mode="all_lost")
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [1]


def test_a_full_queue_refuses_and_leaves_nothing() -> None:
    """submit_backpressures_when_writer_stalled, submit_batch_rejected_under_backpressure_leaves_nothing."""
    life = Life(wal_file_bytes=1 << 20)
    life.open()
    life.create("a", durability="memory")
    for _ in range(limits.SHARD_QUEUE_SUBMISSIONS):
        life.store.append("a", prepare([{"data": 1}]))
    ordered = life.store.topic("a").ordered.head
    with pytest.raises(Throttled):
        life.store.append("a", prepare([{"data": 2}]))
    assert life.store.topic("a").ordered.head == ordered
    while life.store.step(life.store.shards[0]):
        pass
    assert life.seqs("a")[-1] == limits.SHARD_QUEUE_SUBMISSIONS


def test_a_stalled_shard_does_not_block_others() -> None:
    """a_stalled_shard_does_not_block_others: each shard has its own file and its own turn."""
    life = Life(wal_shards=2)
    life.open()
    names = ["a", "b", "c", "d"]
    for name in names:
        life.create(name, durability="fsync")
    shards = {name: life.store.topic(name).shard for name in names}
    stuck = next(name for name in names if shards[name] == 0)
    free = next(name for name in names if shards[name] == 1)
    life.store.append(stuck, prepare([{"data": 1}]))
    assert life.store.shards[0].take() is not None, "a write is under way and does not return"
    done = life.store.append(free, prepare([{"data": 1}]))
    while life.store.step(life.store.shards[1]):
        pass
    assert done.submission is not None
    assert done.submission.settled


def test_a_failed_shard_leaves_the_others_writable() -> None:
    """D-11: other shards and all reads go on; the read-only one keeps its part of the last snapshot."""
    life = Life(wal_shards=2)
    life.open()
    for name in "abcd":
        life.create(name, durability="fsync")
        life.append(name, 1)
    life.store.checkpoint()
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("sync", 1, "EIO", forever=True, path="/shard-00/"))
    outcome = {}
    for _ in range(2):
        for name in "abcd":
            try:
                life.append(name, 1)
                outcome[name] = True
            except TopicsError:
                outcome[name] = False
    for name in "abcd":
        assert outcome[name] == (life.store.topic(name).shard != 0)
    assert life.store.checkpoint()
    life.close()
    life.power_cut()
    life.reopen()


def test_an_error_while_the_log_is_read_refuses_and_the_next_start_converges() -> None:
    """F-WAL-EIO-MIDLOG-READ-RECOVERY, F-REC-EIO-TRUNCATE, F-REC-EIO-TRUNCATE-FSYNC, F-RECDIR-EIO-CREATE."""
    for call in ("map", "list", "truncate", "sync", "write", "rename", "sync_dir"):
        life = fsync_store()
        life.open()
        spoil_tail(life, b"junk" * 10)
        with pytest.raises(StorageError):
            life.open_faulty(Fault(call, 1, "EIO", path="/wal"))
        life.kill()
        life.reopen()
        assert life.seqs("a") == [1, 2], call


def test_a_directory_that_cannot_be_made_refuses() -> None:
    """F-RECDIR-EIO-CREATE: never start empty."""
    life = Life()
    for nth in range(1, 4):
        with pytest.raises(StorageError):
            life.open_faulty(Fault("mkdir", nth, "EIO"))
        life.kill()
    life.open()
    life.create("a", durability="fsync")


@pytest.mark.parametrize(("name", "remedy"), [("ENOSPC", True), ("EDQUOT", True), ("EMFILE", False), ("ENOENT", False)])
def test_only_a_disk_without_room_is_to_be_freed(name: str, remedy: bool) -> None:
    life = Life(wal_file_bytes=4096)
    life.open()
    life.create("t", durability="fsync")
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("open", 1, name, forever=True, path=".pre"))
    told = ""
    while not told:
        try:
            life.append("t", 3)
        except DiskFull as error:
            told = str(error)
    assert f"] {name}" in told
    assert ("free disk space" in told) == remedy
