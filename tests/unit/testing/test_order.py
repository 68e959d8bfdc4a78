"""Each rule of OrderFs: what breaks it is raised and kept, what is right passes."""

from __future__ import annotations

import pytest

from topics.host.fs import File, Fs, read_file, replace_file, write_all
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs
from topics.testing.order import OrderFs


def numbers(manifest: bytes) -> set[int]:
    return {int(word) for word in manifest.split()}


@pytest.fixture
def fs() -> OrderFs:
    disk = FakeDisk()
    disk.mkdir("/t")
    return OrderFs(disk, numbers)


def made(fs: Fs, path: str, data: bytes = b"abc", *, sync: bool = False) -> File:
    file = fs.open(path, write=True, create=True)
    write_all(file, 0, [data])
    if sync:
        file.sync()
    return file


def assert_breach(fs: OrderFs, word: str) -> None:
    assert len(fs.violations) == 1
    assert word in fs.violations[0]


# 1. Temporary names.


@pytest.mark.parametrize("suffix", [".tmp", ".pre"])
def test_a_temporary_file_takes_its_name_after_its_sync_only(fs: OrderFs, suffix: str) -> None:
    file = made(fs, f"/a{suffix}")
    with pytest.raises(AssertionError):
        fs.rename(f"/a{suffix}", "/a")
    assert_breach(fs, "rename")
    assert not fs.exists("/a")
    file.sync()
    fs.rename(f"/a{suffix}", "/a")


def test_a_truncation_counts_as_an_unsynced_change(fs: OrderFs) -> None:
    file = made(fs, "/a.tmp", sync=True)
    file.truncate(1)
    with pytest.raises(AssertionError):
        fs.rename("/a.tmp", "/a")
    file.sync()
    fs.rename("/a.tmp", "/a")


def test_allocated_bytes_count_as_unsynced(fs: OrderFs) -> None:
    file = made(fs, "/a.pre", sync=True)
    file.allocate(100)
    with pytest.raises(AssertionError):
        fs.rename("/a.pre", "/a")


def test_blanked_bytes_count_as_unsynced(fs: OrderFs) -> None:
    file = made(fs, "/a.pre", sync=True)
    file.blank(1)
    with pytest.raises(AssertionError):
        fs.rename("/a.pre", "/a")
    file.sync()
    fs.rename("/a.pre", "/a")


def test_a_rename_to_another_temporary_name_may_come_early(fs: OrderFs) -> None:
    file = made(fs, "/a.tmp")
    fs.rename("/a.tmp", "/a.pre")
    with pytest.raises(AssertionError):
        fs.rename("/a.pre", "/a")
    file.sync()
    fs.rename("/a.pre", "/a")


def test_a_second_sync_after_a_failed_one_is_not_believed(fs: OrderFs) -> None:
    faulty = FaultFs(fs, Fault("sync"))
    file = made(faulty, "/a.tmp")
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    with pytest.raises(AssertionError):
        faulty.rename("/a.tmp", "/a")
    write_all(file, 0, [b"abc"])
    file.sync()
    faulty.rename("/a.tmp", "/a")


def test_a_failed_sync_is_noticed_from_outside_too() -> None:
    fs = OrderFs(FaultFs(FakeDisk(), Fault("sync")))
    file = made(fs, "/a.tmp")
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    with pytest.raises(AssertionError):
        fs.rename("/a.tmp", "/a")


def test_replacing_a_file_keeps_every_rule(fs: OrderFs) -> None:
    replace_file(fs, "/t/CURRENT", b"one")
    replace_file(fs, "/t/CURRENT", b"two")
    assert fs.violations == []
    assert read_file(fs, "/t/CURRENT") == b"two"


# 2. Segments and their MANIFEST.


def test_a_listed_segment_is_not_unlinked(fs: OrderFs) -> None:
    made(fs, "/t/seg-0000000000000007.data")
    replace_file(fs, "/t/MANIFEST", b"1 7")
    with pytest.raises(AssertionError):
        fs.remove("/t/seg-0000000000000007.data")
    assert_breach(fs, "MANIFEST")
    replace_file(fs, "/t/MANIFEST", b"1")
    fs.remove("/t/seg-0000000000000007.data")


def test_a_manifest_counts_from_the_sync_of_its_directory(fs: OrderFs) -> None:
    made(fs, "/t/seg-0000000000000007.data")
    replace_file(fs, "/t/MANIFEST", b"7")
    made(fs, "/t/MANIFEST.tmp", b"", sync=True)
    fs.rename("/t/MANIFEST.tmp", "/t/MANIFEST")
    with pytest.raises(AssertionError):
        fs.remove("/t/seg-0000000000000007.data")
    fs.sync_dir("/t")
    fs.remove("/t/seg-0000000000000007.data")


def test_a_manifest_of_an_earlier_life_counts() -> None:
    disk = FakeDisk()
    disk.mkdir("/t")
    made(disk, "/t/seg-0000000000000007.data")
    replace_file(disk, "/t/MANIFEST", b"7")
    fs = OrderFs(disk, numbers)
    with pytest.raises(AssertionError):
        fs.remove("/t/seg-0000000000000007.data")


def test_an_unlinked_manifest_counts_until_its_directory_is_synced(fs: OrderFs) -> None:
    made(fs, "/t/seg-0000000000000007.data")
    replace_file(fs, "/t/MANIFEST", b"7")
    fs.remove("/t/MANIFEST")
    with pytest.raises(AssertionError):
        fs.remove("/t/seg-0000000000000007.data")
    fs.sync_dir("/t")
    fs.remove("/t/seg-0000000000000007.data")


def test_segments_of_a_deleted_topic_may_go(fs: OrderFs) -> None:
    made(fs, "/t/seg-0000000000000007.data")
    replace_file(fs, "/t/MANIFEST", b"7")
    fs.rename("/t", "/t.deleted")
    fs.remove("/t.deleted/seg-0000000000000007.data")
    assert fs.violations == []


def test_a_directory_made_again_under_the_old_name_starts_afresh(fs: OrderFs) -> None:
    replace_file(fs, "/t/MANIFEST", b"7")
    fs.rename("/t", "/t.deleted")
    fs.mkdir("/t")
    made(fs, "/t/seg-0000000000000007.data")
    fs.remove("/t/seg-0000000000000007.data")


# 3. Range syncs.


def test_a_dsync_write_over_unsynced_bytes_before_it_is_a_breach(fs: OrderFs) -> None:
    file = made(fs, "/wal-0000000000000001.log")
    with pytest.raises(AssertionError):
        file.write_at(3, [b"def"], dsync=True)
    assert_breach(fs, "dsync")
    file.sync()
    file.write_at(3, [b"def"], dsync=True)
    file.write_at(6, [b"ghi"], dsync=True)


def test_a_hole_before_a_dsync_write_counts_as_unsynced(fs: OrderFs) -> None:
    file = made(fs, "/a", sync=True)
    file.write_at(10, [b"x"], dsync=True)
    with pytest.raises(AssertionError):
        file.write_at(11, [b"y"], dsync=True)
    file.write_at(3, [bytes(7)], dsync=True)
    file.write_at(11, [b"y"], dsync=True)


def test_unsynced_bytes_behind_a_dsync_write_are_no_breach(fs: OrderFs) -> None:
    file = made(fs, "/a", bytes(100), sync=True)
    write_all(file, 50, [b"later"])
    file.write_at(0, [b"first"], dsync=True)
    assert fs.violations == []


# 4. WAL files of an earlier life.


def old_wal() -> tuple[OrderFs, File]:
    disk = FakeDisk()
    made(disk, "/wal-0000000000000001.log", b"abcdef")
    fs = OrderFs(disk)
    return fs, fs.open("/wal-0000000000000001.log", write=True)


def test_an_old_wal_file_gets_no_new_bytes() -> None:
    for offset, data in ((6, b"g"), (0, b"x"), (5, b"fg")):
        fs, file = old_wal()
        with pytest.raises(AssertionError):
            file.write_at(offset, [data])
        assert_breach(fs, "earlier life")


def test_an_old_wal_file_is_neither_extended_nor_allocated() -> None:
    _, file = old_wal()
    with pytest.raises(AssertionError):
        file.truncate(7)
    with pytest.raises(AssertionError):
        file.allocate(7)
    with pytest.raises(AssertionError):
        file.blank(3)


def test_an_old_wal_file_may_be_rewritten_as_it_is_and_cut() -> None:
    fs, file = old_wal()
    file.write_at(0, [b"abc", b"def"])
    file.truncate(4)
    file.sync()
    assert fs.violations == []


def test_an_old_wal_file_that_is_recycled_under_another_name_is_old_no_more() -> None:
    fs, file = old_wal()
    fs.rename("/wal-0000000000000001.log", "/wal-0000000000000002.pre")
    write_all(file, 0, [bytes(100)])
    file.sync()
    fs.rename("/wal-0000000000000002.pre", "/wal-0000000000000002.log")
    write_all(fs.open("/wal-0000000000000002.log", write=True), 0, [b"new"])
    assert fs.violations == []


def test_a_wal_file_of_this_life_is_written_freely(fs: OrderFs) -> None:
    file = made(fs, "/wal-0000000000000001.pre", bytes(100), sync=True)
    fs.rename("/wal-0000000000000001.pre", "/wal-0000000000000001.log")
    write_all(file, 0, [b"abc"], dsync=True)
    write_all(fs.open("/wal-0000000000000001.log", write=True), 3, [b"def"], dsync=True)
    assert fs.violations == []


# 5. Reads.


def test_a_read_past_the_end_is_a_breach(fs: OrderFs) -> None:
    file = made(fs, "/a")
    assert file.read_at(0, 3) == b"abc"
    assert file.read_at(3, 0) == b""
    with pytest.raises(AssertionError):
        file.read_at(1, 3)
    assert_breach(fs, "past its end")
