"""One suite for every blob store."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.host.blob import BlobStore, DirectoryBlobs
from topics.host.fs import Fs, OsFs, write_all
from topics.testing.blobs import MemoryBlobs
from topics.testing.disk import FakeDisk, PowerOff
from topics.testing.faults import Fault, FaultFs


def _fake() -> FakeDisk:
    disk = FakeDisk(3)
    disk.mkdir("/cold")
    disk.sync_dir("/")
    return disk


@pytest.fixture(params=["memory", "directory", "directory on a fake disk"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "memory":
        return MemoryBlobs()
    if request.param == "directory":
        return DirectoryBlobs(OsFs(), str(tmp_path))
    return DirectoryBlobs(_fake(), "/cold")


def test_a_blob_is_read_by_ranges(blobs: BlobStore) -> None:
    assert blobs.put("topics/0A/seg-1.data", b"abcdef")
    assert blobs.size("topics/0A/seg-1.data") == 6
    assert blobs.get_range("topics/0A/seg-1.data", 0, 6) == b"abcdef"
    assert blobs.get_range("topics/0A/seg-1.data", 2, 3) == b"cde"
    assert blobs.get_range("topics/0A/seg-1.data", 6, 0) == b""


def test_a_range_past_the_end_is_an_error(blobs: BlobStore) -> None:
    blobs.put("a", b"abc")
    with pytest.raises(EOFError):
        blobs.get_range("a", 1, 3)
    with pytest.raises(EOFError):
        blobs.get_range("a", 4, 1)


def test_an_absent_blob_is_said_to_be_absent(blobs: BlobStore) -> None:
    assert not blobs.exists("a/b")
    with pytest.raises(FileNotFoundError):
        blobs.size("a/b")
    with pytest.raises(FileNotFoundError):
        blobs.get_range("a/b", 0, 1)


def test_a_second_put_of_a_key_is_refused_and_changes_nothing(blobs: BlobStore) -> None:
    assert blobs.put("a/b", bytearray(b"one"))
    assert not blobs.put("a/b", memoryview(b"two"))
    assert blobs.get_range("a/b", 0, 3) == b"one"


def test_delete_may_be_repeated_and_frees_the_key(blobs: BlobStore) -> None:
    blobs.delete("a/b/c")
    blobs.put("a/b/c", b"one")
    blobs.delete("a/b/c")
    blobs.delete("a/b/c")
    assert not blobs.exists("a/b/c")
    assert blobs.put("a/b/c", b"two")


def test_keys_are_listed_by_prefix_in_order(blobs: BlobStore) -> None:
    keys = ["topics/0A/seg-1.data", "topics/0A/seg-1.idx", "topics/0B/seg-1.data", "topics.txt", "z"]
    for key in reversed(keys):
        blobs.put(key, b"")
    assert blobs.list() == sorted(keys)
    assert blobs.list("topics/0A/") == keys[:2]
    assert blobs.list("topics/0A/seg-1.d") == keys[:1]
    assert blobs.list("topics/0") == keys[:3]
    assert blobs.list("topics") == sorted(keys[:4])
    assert blobs.list("nothing/here") == []


def test_a_directory_of_keys_is_no_blob(blobs: BlobStore) -> None:
    blobs.put("a/b", b"")
    assert not blobs.exists("a")


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a\0b", "a.tmp"])
def test_a_key_that_is_no_plain_path_is_refused(blobs: BlobStore, key: str) -> None:
    with pytest.raises(ValueError):
        blobs.put(key, b"")
    with pytest.raises(ValueError):
        blobs.get_range(key, 0, 0)


def _directory(fs: Fs) -> DirectoryBlobs:
    return DirectoryBlobs(fs, "/cold")


def test_a_blob_put_is_whole_or_absent_after_a_power_cut_in_any_call() -> None:
    done = _fake()
    _directory(done).put("topics/0A/seg", b"x" * 2000)
    calls = done.calls
    for n in range(_fake().calls + 1, calls + 1):
        for kind in ("power", "kill"):
            disk = _fake()
            disk.crash_at(n, "power" if kind == "power" else "kill")
            with pytest.raises(PowerOff):
                _directory(disk).put("topics/0A/seg", b"x" * 2000)
            disk.restart()
            blobs = _directory(disk)
            if blobs.exists("topics/0A/seg"):
                assert blobs.get_range("topics/0A/seg", 0, 2000) == b"x" * 2000
                assert blobs.size("topics/0A/seg") == 2000
            # Whatever was left, the blob is durable once a put has answered.
            blobs.put("topics/0A/seg", b"x" * 2000)
            disk.power_cut(mode="all_lost")
            disk.restart()
            assert _directory(disk).get_range("topics/0A/seg", 0, 2000) == b"x" * 2000


def test_a_deleted_blob_stays_deleted_after_a_power_cut() -> None:
    disk = _fake()
    blobs = _directory(disk)
    blobs.put("a/b", b"one")
    blobs.delete("a/b")
    disk.power_cut(mode="all_lost")
    disk.restart()
    assert not _directory(disk).exists("a/b")


def test_a_left_over_tmp_is_no_blob_and_is_replaced() -> None:
    disk = _fake()
    write_all(disk.open("/cold/a.tmp", write=True, create=True), 0, [b"left over, and longer"])
    blobs = _directory(disk)
    assert blobs.list() == []
    blobs.put("a", b"one")
    assert disk.files() == ["/cold/a"]


def test_a_put_that_fails_leaves_the_key_free() -> None:
    for call in ("write", "sync", "rename"):
        disk = _fake()
        faulty = FaultFs(disk, Fault(call, error="ENOSPC"))
        with pytest.raises(OSError):
            _directory(faulty).put("a/b", b"one")
        assert faulty.fired == 1
        assert disk.files() == []
        assert _directory(faulty).put("a/b", b"one")
