"""The fault catalogue, segments: copying, sealing, flags, and what is found of them at start."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.life import ROOT, Life
from topics.broker.scrubbing import scrub_store
from topics.format.control import Selector, SelectorOp
from topics.format.segment import DELETED, ENTRY, decode_segment_frame
from topics.model import limits
from topics.model.errors import CorruptFile, StorageError
from topics.testing.disk import PowerOff
from topics.testing.faults import Fault

DIRECTORY = f"{ROOT}/topics/00000001"


def segment(first: int, part: str) -> str:
    return f"{DIRECTORY}/seg-{first:016d}.{part}"


def sealed_store(**options: Any) -> Life:
    """Two sealed segments (1..3, 4..6), an active pair (7) and a record in the WAL (8)."""
    life = Life(**{"segment_max_events": 3, **options})
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 7, "x")
    life.store.checkpoint()
    life.append("a", 1)
    return life


def rewrite(life: Life, path: str, data: bytes) -> None:
    file = life.disk.open(path, write=True, create=True)
    file.truncate(0)
    file.write_at(0, [data])
    file.sync()


@pytest.mark.parametrize("call", ["write", "sync", "open", "rename", "mkdir", "sync_dir", "truncate"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_copy_that_fails_changes_nothing_and_is_done_again(call: str, error: str) -> None:
    """F-SEG-EIO-DATA-WRITE, F-SEG-ENOSPC-SEAL, F-SEG-PUT-OVERWRITE-IDEMPOTENT: the WAL has the records until then."""
    life = Life(segment_max_events=3)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 5, "x")
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault(call, 1, error, forever=True, path="/topics"))
    done = life.store.checkpoint()
    assert done == (call == "truncate"), "nothing is truncated by a first copy"
    assert life.seqs("a") == [1, 2, 3, 4, 5]
    life.append("a", 2)
    fs.heal()
    assert life.store.checkpoint()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7]
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7]


def test_a_second_sync_of_data_is_not_believed() -> None:
    """3.3 failed fsync is final: after a failed sync every byte is written again before another sync counts."""
    life = Life(segment_max_events=100)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 3)
    life.store.checkpoint()
    life.append("a", 3)
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("sync", 1, "EIO", path=".data"))
    assert not life.store.checkpoint()
    for _ in range(3):
        assert life.store.checkpoint()
        life.append("a", 1)
    life.disk.power_cut(mode="all_lost")
    life.power_cut()
    life.reopen()


@pytest.mark.parametrize("lost", ["idx", "tags", "idx.tmp"])
def test_a_lost_derived_file_is_made_again(lost: str) -> None:
    """F-SEG-CRASH-AFTER-DATA-BEFORE-IDX, F-SEG-CRASH-IDX-TMP-NOT-RENAMED, F-SEG-DATA-WITHOUT-IDX-LISTED, I8."""
    life = sealed_store()
    life.close()
    life.kill()
    for first in (1, 4, 7):
        path = segment(first, lost)
        if life.disk.exists(path):
            life.disk.remove(path)
    rewrite(life, segment(1, "idx.tmp"), b"half")
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7, 8]
    life.delete("a", tag="x")
    assert life.seqs("a") == [8]
    assert not life.disk.exists(segment(1, "idx.tmp"))


@pytest.mark.parametrize("sealed", [True, False])
def test_records_behind_thousands_of_deleted_ones_survive_a_lost_index(sealed: bool) -> None:
    """I8: what was deleted before the copy left no frame, and a long run of such seqs is no damage."""
    count = limits.HOLE_RUN + 1000
    life = Life(segment_max_events=count if sealed else 2 * count, wal_file_bytes=1 << 20, checkpoint_bytes=1 << 20)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2, "kept")
    life.append("a", count - 4, "gone")
    life.append("a", 2, "kept")
    life.delete("a", tag="gone")
    assert life.store.checkpoint()
    [pair] = life.store.topic("a").segments
    assert (pair.sealed, pair.count) == (sealed, count)
    life.close()
    life.kill()
    life.disk.remove(segment(1, "idx"))
    life.reopen()
    assert life.seqs("a") == [1, 2, count - 1, count]
    assert life.gaps("a") == []


def test_a_lone_index_is_not_listed_and_goes() -> None:
    """F-SEG-IDX-WITHOUT-DATA: what MANIFEST does not list is nobody's."""
    life = sealed_store()
    life.close()
    life.kill()
    rewrite(life, segment(50, "idx"), b"\0" * 20)
    rewrite(life, segment(60, "data"), b"junk")
    life.reopen()
    assert not life.disk.exists(segment(50, "idx"))
    assert not life.disk.exists(segment(60, "data"))


@pytest.mark.parametrize("part", ["data", "tail"])
def test_a_segment_shorter_than_its_trusted_length_refuses(part: str) -> None:
    """F-SEG-TORN-DATA-FRAME: named, never served shorter."""
    life = sealed_store()
    life.close()
    life.kill()
    path = segment(1 if part == "data" else 7, "data")
    file = life.disk.open(path, write=True)
    file.truncate(file.size() - 1)
    file.sync()
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert caught.value.path == path


def test_a_length_that_landed_before_its_bytes_is_no_record() -> None:
    """F-METADATA-VS-DATA-REORDER: whichever call of a copy the machine dies in, the files keep the length they had got
    and read as zeros where no sync had passed. Nothing of that is served, and the WAL still has the records."""
    base = Life(segment_max_events=4)
    base.open()
    base.create("a", durability="fsync")
    base.append("a", 6, "x")
    base.store.checkpoint()
    base.append("a", 4, "y")
    base.kill()
    nth = blank = 0
    while True:
        nth += 1
        life = base.clone()
        life.open()
        life.disk.crash_at(life.disk.calls + nth, "kill")
        try:
            life.store.checkpoint()
        except PowerOff:
            life.disk.restart()
        else:
            break
        for path in life.disk.files():
            if "/seg-" in path:
                node = life.disk.open(path).node
                for start, end in list(node.dirty):
                    node.live[start:end] = bytes(end - start)
                    blank += 1
        life.disk.power_cut(mode="all_kept")
        life.power_cut()
        life.reopen()
        assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
        life.append("a", 1)
    assert blank, "no length was ahead of its bytes"


def test_zeros_where_the_last_frame_of_a_listed_segment_should_be_are_damage() -> None:
    """F-METADATA-VS-DATA-REORDER: a whole length does not make its bytes whole; the frame is corrupt and named."""
    life = sealed_store()
    life.close()
    life.kill()
    data = life.disk.read(segment(4, "data"))
    last = decode_segment_frame(data, decode_segment_frame(data, 0, len(data)).end, len(data)).end
    rewrite(life, segment(4, "data"), data[:last] + bytes(len(data) - last))
    life.open()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 7, 8]
    assert life.gaps("a") == [(6, 6, "corrupt")]
    assert [error.path for _, error in scrub_store(life.store, "a", lambda _: True).damage] == [segment(4, "data")]


def test_a_missing_segment_with_live_records_refuses_and_salvage_says_what_is_lost() -> None:
    """3.3 lost file: strict refuses; salvage reports a range of reason corrupt, and counts stay true."""
    life = sealed_store()
    life.close()
    life.kill()
    life.disk.remove(segment(4, "data"))
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert caught.value.path == segment(4, "data")
    life.open(recovery="salvage")
    assert life.seqs("a") == [1, 2, 3, 7, 8]
    assert life.gaps("a") == [(4, 6, "corrupt")]
    topic = life.store.topic("a")
    assert (topic.live, topic.bytes) == (5, 5 * 8)
    life.kill()
    life.open(recovery="strict")
    assert life.gaps("a") == [(4, 6, "corrupt")]


def test_salvage_of_a_missing_segment_tells_nobody_of_what_was_deleted_there() -> None:
    """I5: its frames are gone with those of live records; a deletion stays silent all the same."""
    life = Life(segment_max_events=4)
    life.open()
    life.create("a", durability="fsync")
    for tag in ("keep", "gone", "keep", "keep", "last"):
        life.append("a", 1, tag)
    life.store.checkpoint()
    life.delete("a", tag="gone")
    life.close()
    life.kill()
    life.disk.remove(segment(1, "data"))
    life.open(recovery="salvage")
    assert life.seqs("a") == [5]
    assert life.gaps("a") == [(1, 1, "corrupt"), (3, 4, "corrupt")]
    life.kill()
    life.open(recovery="strict")
    assert life.gaps("a") == [(1, 1, "corrupt"), (3, 4, "corrupt")]


@pytest.mark.parametrize("first", [1, 7])
def test_a_rotten_frame_is_a_gap_of_its_seq_alone(first: int) -> None:
    """F-SEG-CRC-CORRUPT-DATA, 3.2 h: never null, never a silent skip; the scrub names file and offset."""
    life = Life(segment_max_events=6)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 9)
    life.store.checkpoint()
    life.kill()
    size = decode_segment_frame(data := life.disk.read(segment(first, "data")), 0, len(data)).end
    life.disk.corrupt(segment(first, "data"), size + 30)
    life.open()
    rotten = first + 1
    assert life.gaps("a") == [(rotten, rotten, "corrupt")]
    assert life.seqs("a") == [seq for seq in range(1, 10) if seq != rotten]
    if first == 1:
        found = [error for _, error in scrub_store(life.store, "a", lambda _: True).damage]
        assert [error.path for error in found] == [segment(1, "data")]


def test_an_index_that_points_outside_is_not_followed() -> None:
    """F-SEG-IDX-TORN-STRIDE, F-SEG-IDX-OFFSET-PAST-DATA: MANIFEST's hash fails, and `.data` tells."""
    life = sealed_store()
    life.close()
    life.kill()
    whole = life.disk.read(segment(1, "idx"))
    rewrite(life, segment(1, "idx"), whole[:-7])
    rewrite(life, segment(4, "idx"), ENTRY.pack(0xFFFF_0000, 500, 1, 0, b"\0\0\0") * 3)
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_error_while_an_index_is_read_is_said_and_passes() -> None:
    """F-REC-IDX-BULKLOAD-EIO, 3.3 EIO on read: the error names the file; other topics serve; the process lives."""
    life = sealed_store()
    life.create("b", durability="fsync")
    life.append("b", 1)
    life.close()
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("map", 1, "EIO", path=".idx"))
    with pytest.raises(StorageError) as caught:
        life.seqs("a")
    assert ".idx" in caught.value.path
    assert life.seqs("b") == [1]
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("error", ["EMFILE", "ENFILE"])
def test_a_lack_of_descriptors_hurts_nothing_for_long(error: str) -> None:
    """3.3 fd exhaustion: cached files are let go and the open is tried again; no append is lost."""
    life = sealed_store()
    life.close()
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("open", 1, error, path="/topics"))
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7, 8]
    fs.add(Fault("open", 1, error, forever=True))
    life.append("a", 1)
    assert not life.store.checkpoint()
    fs.heal()
    assert life.store.checkpoint()
    life.power_cut()
    life.reopen()


def test_deleted_records_are_flagged_exactly_and_by_one_sync_per_file() -> None:
    """F-SEG-DELFLIP-PARTIAL-PER-RECORD, 3.2 r: the reference pays one sync per record."""
    life = Life(segment_max_events=20)
    life.open()
    life.create("a", durability="fsync")
    for tag in ("x", "y", "x", "y"):
        life.append("a", 10, tag)
    life.store.checkpoint()
    life.kill()
    fs = life.open_faulty()
    life.delete("a", tag="x")
    before = fs.counts["sync"]
    life.store.checkpoint()
    assert fs.counts["sync"] - before <= 8
    assert deleted_flags(life) == [True] * 10 + [False] * 10
    assert life.disk.read(segment(1, "data"))[-1] != DELETED


def deleted_flags(life: Life) -> list[bool]:
    """Of each record in the first segment of the first topic."""
    data = life.disk.read(segment(1, "data"))
    at, flags = 0, []
    while at < len(data):
        frame = decode_segment_frame(data, at, len(data))
        flags.append(frame.deleted)
        at = frame.end
    return flags


@pytest.mark.parametrize("in_ram", [0, 1])
def test_a_delete_between_the_mark_of_a_checkpoint_and_its_copy_is_flagged_by_the_next_one(in_ram: int) -> None:
    """Also beside records that lie in RAM alone: to the snapshot they count as gone, and to the topic they do not."""
    life = Life(segment_max_events=20)
    store = life.open()
    life.create("a", durability="fsync")
    for tag in ("x", "y", "z"):
        life.append("a", 1, tag)
    life.configure("a", durability="ephemeral")
    if in_ram:
        life.append("a", in_ram)
    checkpoint = store.begin_checkpoint()
    for mark in checkpoint.marks:
        store.drive(mark)
    life.delete("a", tag="y")
    assert checkpoint.run()
    assert deleted_flags(life) == [False] * 3
    life.configure("a", durability="fsync")
    assert store.checkpoint()
    assert deleted_flags(life)[:3] == [False, True, False]


def test_a_delete_survives_when_its_frame_was_trimmed() -> None:
    """F-SEG-DELFLIP-SURVIVES-WAL-TRIM: the snapshot's list and the flag carry it."""
    life = Life(wal_file_bytes=1024, segment_max_events=20)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 4, "x")
    life.append("a", 4, "y")
    life.store.checkpoint()
    life.delete("a", tag="x")
    for _ in range(5):
        life.append("a", 5)
        life.store.checkpoint()
    assert not life.disk.exists(f"{ROOT}/wal/wal-0000000000000001.log")
    life.power_cut()
    life.reopen()
    assert life.seqs("a")[0] == 5


def test_a_wholly_deleted_segment_goes_and_its_manifest_first() -> None:
    """F-SEG-DELFLIP-WHOLE-SEGMENT-CLEAR: the order of MANIFEST and unlink is asserted under every test by OrderFs."""
    life = sealed_store()
    life.delete("a", before_seq=7)
    life.store.checkpoint()
    assert not life.disk.exists(segment(1, "data"))
    assert not life.disk.exists(segment(4, "idx"))
    assert life.seqs("a") == [7, 8]
    life.power_cut()
    life.reopen()


def test_a_restart_with_old_records_makes_no_segment_per_record() -> None:
    """3.2 j: age counts from when this process opened the segment, not from the time of its records."""
    life = Life(segment_max_events=100, segment_max_age_ms=1000)
    life.open()
    life.create("a", durability="fsync")
    for _ in range(6):
        life.append("a", 1)
    life.kill()
    life.clock.advance(10_000_000)
    life.reopen()
    life.store.checkpoint()
    assert len(life.store.topic("a").segments) == 1


def test_a_clock_far_ahead_seals_early_and_stays_dense() -> None:
    """F-CLOCK-FORWARD-SEG-AGE: an early seal, nothing twice, nothing missing."""
    life = Life(segment_max_events=100, segment_max_age_ms=1000)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2)
    life.store.checkpoint()
    life.clock.advance(1 << 40)
    assert life.store.checkpoint_due()
    life.store.checkpoint()
    assert [part.sealed for part in life.store.topic("a").segments] == [True]
    life.append("a", 2)
    life.store.checkpoint()
    assert life.seqs("a") == [1, 2, 3, 4]
    life.power_cut()
    life.reopen()


def test_records_are_readable_while_a_seal_is_under_way() -> None:
    """slow_seal_does_not_block_same_topic_visibility, F-SEG-SEAL-RACE-APPEND: appends between the cut and the copy."""
    life = sealed_store()
    checkpoint = life.store.begin_checkpoint()
    life.append("a", 4)
    assert life.seqs("a")[-1] == 12
    checkpoint.run()
    life.append("a", 1)
    assert life.seqs("a") == list(range(1, 14))
    life.store.checkpoint()
    assert life.seqs("a") == list(range(1, 14))
    life.power_cut()
    life.reopen()


def test_sealed_records_survive_restart_byte_for_byte() -> None:
    """sealed_records_survive_restart."""
    life = sealed_store()
    for _ in range(3):
        life.close()
        life.kill()
        life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_delete_by_tag_refuses_where_a_record_cannot_be_read() -> None:
    """I6: a record whose bytes fail their check may carry the tag; leaving it out in silence would be a lie."""
    life = Life(segment_max_events=100)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 3, "x")
    life.store.checkpoint()
    life.kill()
    life.disk.corrupt(segment(1, "data"), 60)
    life.open()
    with pytest.raises(CorruptFile) as caught:
        life.store.delete("a", None, Selector(SelectorOp.EQ, "x"))
    assert caught.value.path == segment(1, "data")
    life.delete("a", before_seq=3)
    life.delete("a", tag="x")
    assert life.seqs("a") == []


def test_a_burst_is_copied_before_the_usual_time_is_over() -> None:
    life = Life(checkpoint_bytes=2000, checkpoint_gap_ms=5000, checkpoint_burst_bytes=8000, wal_file_bytes=1 << 16)
    life.open()
    life.create("a", durability="disk")
    life.store.checkpoint()
    while sum(shard.wal_bytes for shard in life.store.shards) < 7000:
        life.append("a", 10)
    assert not life.store.checkpoint_due(), "it is not that much"
    while sum(shard.wal_bytes for shard in life.store.shards) < 8000:
        life.append("a", 10)
    assert life.store.checkpoint_due()
    life.store.checkpoint()
    assert not life.store.checkpoint_due()
    life.power_cut()
    life.reopen()


@pytest.mark.parametrize("snapshot", [0, 3000])
@pytest.mark.parametrize("least", [2000, 20_000])
def test_a_checkpoint_that_is_due_stays_due_until_it_begins(least: int, snapshot: int) -> None:
    life = Life(checkpoint_bytes=least, checkpoint_gap_ms=5000, checkpoint_burst_bytes=8000, wal_file_bytes=1 << 18)
    life.open()
    life.create("a", durability="disk")
    life.store.checkpoint()
    life.store.snapshots.last_size = snapshot
    shard = life.store.shards[0]
    begun = life.store.checkpointed_ns
    for size in range(1000, 40_000, 1000):
        shard.wal_bytes = size
        due = []
        for since_ms in (0, 4999, 5000, 60_000):
            life.store.checkpointed_ns = begun - since_ms * 1_000_000
            due.append(life.store.checkpoint_due())
        assert due == sorted(due), size
        assert due[1] == (size >= max(least, 8000, 8 * snapshot))
        assert due[2] == (size >= max(least, 8 * snapshot))


def test_wal_that_no_checkpoint_can_copy_makes_none_due() -> None:
    life = Life(checkpoint_gap_ms=5000, checkpoint_burst_bytes=8000, checkpoint_ms=60_000, wal_shards=2)
    life.open()
    life.create("a", durability="disk")
    life.create("b", durability="disk")
    life.store.checkpoint()
    stuck, sound = (life.store.shards[life.store.topics[name].shard] for name in ("a", "b"))
    assert stuck is not sound
    stuck.frozen.add(99)
    stuck.wal_bytes = 100_000
    assert not life.store.checkpoint_due()
    life.clock.advance(60_000)
    assert not life.store.checkpoint_due()
    sound.wal_bytes = 1
    assert life.store.checkpoint_due(), "there is something to copy"


def test_wal_of_a_checkpoint_that_failed_waits_for_the_next_one() -> None:
    life = Life(checkpoint_bytes=2000, checkpoint_gap_ms=5000, checkpoint_burst_bytes=8000, wal_file_bytes=1 << 16)
    life.open()
    life.create("a", durability="disk")
    life.kill()
    fs = life.open_faulty()
    assert life.store.checkpoint()
    shard = life.store.shards[0]
    while shard.wal_bytes < 9000:
        life.append("a", 10)
    written = shard.wal_bytes
    fs.add(Fault("write", 1, "ENOSPC", forever=True, path=".data"))
    for _ in range(3):
        assert life.store.checkpoint_due()
        assert not life.store.checkpoint()
        assert shard.wal_bytes >= written, "so that writers are held back"
        assert not life.store.checkpoint_due(), "no disk is written to without end"
        life.clock.advance(5000)
    fs.heal()
    assert life.store.checkpoint()
    assert shard.wal_bytes < 1000
    life.power_cut()
    life.reopen()
