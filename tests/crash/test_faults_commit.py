"""Faults at the commit point and around it; ids are those of the fault catalogue."""

from __future__ import annotations

import pytest

from tests.crash.ledger import read_all
from tests.crash.life import ROOT, Life
from topics.format.control import TopicCreate
from topics.format.frame import Kind, decode_frame, encode_frame
from topics.format.ops import prepare
from topics.format.segment import DELETED
from topics.host.fs import write_all
from topics.model.errors import DiskFull, TopicsError, WriteFailed
from topics.model.record import Record
from topics.storage.walfile import WalFile
from topics.testing.disk import CrashKind, FakeDisk, PowerOff
from topics.testing.faults import Fault


def fsync_store(seed: int = 1, **options: object) -> Life:
    life = Life(FakeDisk(seed, sector=64), **options)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 3)
    return life


def active(life: Life) -> WalFile:
    file = life.store.shards[0].file
    assert file is not None
    return file


def test_one_batch_is_whole_or_absent_wherever_a_cut_comes() -> None:
    """F-SWEEP-DURABLE-APPEND, F-WAL-CRASH-AFTER-WRITE-PRE-FSYNC, sweep_durable_append_crash_points,
    submit_batch_commits_all_frames_atomically: every call of one append, twelve ways to tear it; its frames are there
    all or none, and what was synced before stays."""
    first = fsync_store()
    before = first.disk.calls
    first.append("a", 4)
    calls = first.disk.calls - before
    assert calls >= 1
    for nth in range(1, calls + 1):
        for seed in range(12):
            life = fsync_store(seed)
            life.disk.crash_at(life.disk.calls + nth, "power")
            with pytest.raises(PowerOff):
                life.append("a", 4)
            life.power_cut()
            life.reopen()
            assert life.seqs("a") in ([1, 2, 3], [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("damage", ["prefix", "zeroed", "garbled"])
def test_a_tail_that_a_cut_damaged_goes_and_the_synced_prefix_stays(damage: str) -> None:
    """torn_tail_each_damage_mode_truncates, failpoint_wal_after_write_then_crash: the writer dies between its write and
    its sync, and of those bytes a part, all but a sector of zeros, or all but one byte is there."""
    sector = 64
    for at in range(12):
        life = fsync_store()
        done = life.store.append("a", prepare([{"data": life.payload()} for _ in range(4)]))
        shard = life.store.shards[0]
        write = shard.take()
        assert write is not None
        file = active(life)
        start = file.written
        life.disk.crash_at(life.disk.calls + 2)  # the write is the first call, its sync the second
        write.dsync = False
        with pytest.raises(PowerOff):
            shard.run(write)
        assert done.submission is not None
        assert not done.submission.settled
        life.disk.restart()
        raw = life.disk.open(file.path, write=True)
        whole = b"".join(bytes(buffer) for buffer in done.submission.buffers)
        spot = len(whole) * at // 12
        if damage == "prefix":
            left = whole[:spot] + bytes(len(whole) - spot)
        elif damage == "zeroed":
            left = whole[:spot] + bytes(min(sector, len(whole) - spot)) + whole[spot + sector :]
        else:
            left = whole[:spot] + bytes([whole[spot] ^ 0x20]) + whole[spot + 1 :]
        write_all(raw, start, [left])
        raw.sync()
        life.reopen()
        assert life.seqs("a") == [1, 2, 3], at
        life.append("a", 1)
        life.power_cut()
        life.reopen()


def test_batch_synced_and_not_acknowledged_is_there_after_a_cut() -> None:
    """F-WAL-CRASH-AFTER-FSYNC: the machine dies between the sync and the answer."""
    life = fsync_store()
    store = life.store
    done = store.append("a", prepare([{"data": b"4"}, {"data": b"5"}]))
    shard = store.shards[0]
    write = shard.take()
    assert write is not None
    shard.run(write)
    assert done.submission is not None
    assert not done.submission.settled
    assert [item.seq for item in read_all(store, "a") if isinstance(item, Record)] == [1, 2, 3]
    life.disk.power_cut(mode="all_lost")
    life.disk.restart()
    life.open()
    assert life.seqs("a") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_stop_that_is_cut_short_loses_nothing(kind: CrashKind) -> None:
    """F-WAL-CRASH-DURING-SHUTDOWN-DRAIN: at every file call of a clean stop."""
    nth = 0
    while True:
        nth += 1
        life = fsync_store(nth)
        life.create("d", durability="disk")
        life.append("d", 2)
        life.disk.crash_at(life.disk.calls + nth, kind)
        try:
            life.close()
        except PowerOff:
            (life.power_cut if kind == "power" else life.kill)()
            life.reopen()
            assert life.seqs("a") == [1, 2, 3]
            continue
        break
    assert nth > 10


def test_torn_tail_is_cut_by_the_next_start_if_the_first_one_dies_before_it() -> None:
    """F-REC-CRASH-BEFORE-TRUNCATE, F-REC-CRASH-DURING-REPLAY: at every file call of the start."""
    nth = 0
    while True:
        nth += 1
        life = fsync_store()
        file = active(life)
        life.kill()
        raw = life.disk.open(file.path, write=True)
        write_all(raw, file.written, [b"\x30\0\0\0\x01torn"])
        raw.sync()
        life.disk.crash_at(life.disk.calls + nth, "power")
        try:
            life.open()
        except PowerOff:
            life.power_cut()
            life.reopen()
            assert life.seqs("a") == [1, 2, 3]
            assert b"torn" not in life.disk.read(file.path)
            continue
        break
    assert nth > 8


def test_cut_among_delete_flags_leaves_each_record_deleted_and_every_frame_valid() -> None:
    """F-SEG-DELFLIP-CRASH-MID-FLIP: the flag lies outside the checksum; live or deleted, never broken."""
    nth = 0
    flagged = 0
    while True:
        nth += 1
        life = fsync_store(nth, segment_max_events=20)
        assert life.store.checkpoint()
        life.delete("a", before_seq=3)
        life.disk.crash_at(life.disk.calls + nth, "power")
        try:
            life.store.checkpoint()
        except PowerOff:
            life.power_cut()
            life.reopen()
            assert life.seqs("a") == [3]
            assert life.gaps("a") == []
            data = next(life.disk.read(path) for path in life.disk.files() if path.endswith(".data"))
            flagged += bytes([DELETED]) in data
            continue
        break
    assert flagged, "some cut came behind a flag"


def test_segment_cut_before_its_directory_was_synced_takes_no_record_along() -> None:
    """F-SEG-CRASH-BEFORE-DIRFSYNC, F-SWEEP-SEGMENT-SEAL: any subset of the new names survives, at every call."""
    nth = 0
    while True:
        nth += 1
        life = fsync_store(nth, segment_max_events=2)
        life.append("a", 2, "tagged")
        life.disk.crash_at(life.disk.calls + nth, "power")
        try:
            life.store.checkpoint()
        except PowerOff:
            life.power_cut()
            life.reopen()
            assert life.seqs("a") == [1, 2, 3, 4, 5]
            assert life.store.checkpoint()
            continue
        break
    assert nth > 15


def test_frames_of_a_topic_that_nobody_created_are_reported_and_never_served() -> None:
    """F-REC-TOPIC-MISSING-FOR-APPEND: the reference makes the topic with defaults; here its frames are reported."""
    life = fsync_store()
    file = active(life)
    data = life.disk.read(file.path)
    at = 0
    while (frame := decode_frame(data, at, len(data))).kind != Kind.TOPIC_CREATE:
        at = frame.end
    life.kill()
    body = TopicCreate("b", TopicCreate.decode(frame.body).config_json).encode()
    other = encode_frame(Kind.TOPIC_CREATE, frame.topic_id + 8, body, ts=frame.ts, flags=frame.flags)
    raw = life.disk.open(file.path, write=True)
    write_all(raw, at, [other])
    raw.sync()
    assert frame.end - at == len(other)
    life.open()
    assert sorted(life.store.topics) == ["b"]
    assert any(f"unknown topic {frame.topic_id}" in line for line in life.store.report)


def test_snapshot_is_read_from_its_file_and_not_from_an_old_handle() -> None:
    """F-NFS-CTO-SNAPSHOT-READ: what is there when the store opens counts, whatever was there before."""
    life = fsync_store()
    assert life.store.checkpoint()
    life.append("a", 1)
    assert life.store.checkpoint()
    life.kill()
    newest = max(path for path in life.disk.files() if "/meta/snapshot-" in path)
    life.disk.corrupt(newest, 40)
    life.open()
    assert life.seqs("a") == [1, 2, 3, 4]
    assert any(newest in line for line in life.store.report)


@pytest.mark.parametrize("order", ["wal first", "segments first", "snapshots first"])
def test_copy_of_the_files_of_a_running_store_opens_to_a_prefix_or_is_refused(order: str) -> None:
    """3.3 backup taken while running: files are copied one by one while records, deletes and checkpoints go on."""
    life = Life(segment_max_events=2)
    life.open()
    life.create("a", durability="fsync")
    parts = {"wal": "/wal/", "segments": "/topics/", "snapshots": "/meta/"}
    first = parts.pop(order.split()[0])
    copy = FakeDisk(2)
    for part in (first, *parts.values()):
        for path in [path for path in life.disk.files() if part in path]:
            if path in life.disk.files():
                _put(copy, path, life.disk.read(path))
        life.append("a", 3)
        assert life.store.checkpoint()
        life.append("a", 1)
        assert life.store.checkpoint()
    sent = {item.seq: item.raw for item in read_all(life.store, "a") if isinstance(item, Record)}
    restored = Life(copy)
    refusal = None
    try:
        restored.open()
    except TopicsError as error:
        refusal = error.message
    if refusal is not None:
        assert ROOT in refusal
        return
    found = {item.seq: item.raw for item in read_all(restored.store, "a") if isinstance(item, Record)}
    assert found.items() <= sent.items()
    assert sorted(found) == list(range(1, len(found) + 1))


def _put(disk: FakeDisk, path: str, data: bytes) -> None:
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        above = "/" + "/".join(parts[:depth])
        if not disk.exists(above):
            disk.mkdir(above)
    file = disk.open(path, write=True, create=True)
    write_all(file, 0, [data])
    file.sync()


@pytest.mark.parametrize("number", ["EMFILE", "ENFILE"])
@pytest.mark.parametrize("path", ["/data/wal", "CURRENT"])
def test_a_change_of_wal_files_without_a_descriptor_stops_no_shard(number: str, path: str) -> None:
    """Another part of the process may take the last one just then: nothing was synced, so nothing is in doubt."""
    life = Life(FakeDisk(2, sector=64), wal_shards=1, checkpoint_bytes=1 << 20)
    fs = life.open_faulty()
    life.create("t", durability="fsync")
    store, shard = life.store, life.store.shards[0]
    call = "open" if path == "CURRENT" else "sync_dir"
    refused: list[str] = []
    for turn in range(4):
        assert shard.file is not None
        old = shard.file
        fs.add(Fault(call, 1, number, path=path))
        while shard.file is old:
            try:
                life.append("t")
            except DiskFull as error:
                refused.append(error.message)
                shard.adopt_spare(shard.plan_spare().run())
        if turn == 2:
            assert store.checkpoint(), store.trouble
    assert len(refused) == (4 if call == "sync_dir" else 0)
    assert all("writes go on once it can" in message for message in refused)
    seqs = life.seqs("t")
    assert seqs == list(range(1, len(seqs) + 1)), "no seq was used up"
    life.power_cut()
    life.reopen()
    assert life.seqs("t") == seqs


def _append_until(life: Life, rotations: int) -> None:
    while life.store.shards[0].stats.rotations < rotations:
        life.append("t")


@pytest.mark.parametrize("later", [False, True])
def test_a_wal_file_that_was_given_up_and_comes_back_with_a_power_cut_is_none(later: bool) -> None:
    came_back = 0
    for seed in range(24):
        life = Life(FakeDisk(seed, sector=64), wal_shards=1, checkpoint_bytes=1 << 20)
        fs = life.open_faulty()
        life.create("t", durability="fsync")
        shard = life.store.shards[0]
        fs.add(Fault("sync_dir", 1, "EMFILE", path="/data/wal"))
        with pytest.raises(DiskFull):
            _append_until(life, shard.stats.rotations + 1)
        if later:
            shard.adopt_spare(shard.plan_spare().run())
            life.append("t")
        seqs = life.seqs("t")
        life.power_cut()
        came_back += len([name for name in life.disk.list("/data/wal") if name.startswith("wal-")]) > 1 + later
        life.reopen()
        assert life.seqs("t") == seqs
        life.append("t")
        life.power_cut()
        life.reopen()
        assert life.seqs("t") == [*seqs, seqs[-1] + 1]
    assert came_back or later, "the disk never had the name of that file"


def test_a_sync_that_fails_for_want_of_a_descriptor_is_as_final_as_any() -> None:
    life = Life(FakeDisk(2, sector=64), wal_shards=1, checkpoint_bytes=1 << 20)
    fs = life.open_faulty()
    life.create("t", durability="memory")
    shard = life.store.shards[0]
    shard.adopt_spare(shard.plan_spare().run())
    fs.add(Fault("sync", 1, "EMFILE", path="/data/wal"))
    with pytest.raises(WriteFailed):
        _append_until(life, 2)
    assert shard.failed is not None
