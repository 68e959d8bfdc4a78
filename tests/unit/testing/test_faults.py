"""A planned fault hits the call it names, does what a real one does, and nothing else."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from topics.host.fs import File, Fs, read_file, replace_file, write_all
from topics.testing.disk import FakeDisk
from topics.testing.faults import CALLS, Fault, FaultFs
from topics.testing.order import OrderFs


def opened(fs: Fs, path: str = "/a", data: bytes = b"") -> File:
    file = fs.open(path, write=True, create=True)
    if data:
        write_all(file, 0, [data])
    return file


USES: dict[str, Callable[[Fs], object]] = {
    "open": lambda fs: fs.open("/a"),
    "read": lambda fs: fs.open("/a").read_at(0, 1),
    "write": lambda fs: fs.open("/a", write=True).write_at(0, [b"x"]),
    "sync": lambda fs: fs.open("/a").sync(),
    "dsync": lambda fs: fs.open("/a", write=True).write_at(0, [b"x"], dsync=True),
    "sync_dir": lambda fs: fs.sync_dir("/"),
    "rename": lambda fs: fs.rename("/a", "/b"),
    "remove": lambda fs: fs.remove("/a"),
    "truncate": lambda fs: fs.open("/a", write=True).truncate(1),
    "allocate": lambda fs: fs.open("/a", write=True).allocate(9),
    "mkdir": lambda fs: fs.mkdir("/d"),
    "list": lambda fs: fs.list("/"),
    "lock": lambda fs: fs.lock("/lock"),
    "map": lambda fs: fs.open("/a").map(),
    "uncache": lambda fs: fs.open("/a").uncache(),
}


@pytest.mark.parametrize("call", [call for call in CALLS if call != "free"])
def test_every_class_of_calls_can_fail_once(call: str) -> None:
    disk = FakeDisk()
    opened(disk, data=b"abc")
    fs = FaultFs(disk, Fault(call, error="ENOSPC"))
    with pytest.raises(OSError) as caught:
        USES[call](fs)
    assert caught.value.errno == errno.ENOSPC
    assert fs.fired == 1
    USES[call](fs)
    assert fs.fired == 1
    assert fs.counts[call] == 2


def test_a_blank_fails_as_an_allocate_does() -> None:
    disk = FakeDisk()
    opened(disk, data=b"abc")
    file = FaultFs(disk, Fault("allocate", error="EIO")).open("/a", write=True)
    with pytest.raises(OSError, match="EIO"):
        file.blank(3)
    assert file.read_at(0, 3) == b"abc"
    file.blank(3)
    assert file.read_at(0, 3) == bytes(3)


def test_a_full_disk_says_that_nothing_is_left() -> None:
    fs = FaultFs(FakeDisk(), Fault("free", error="ENOSPC"))
    assert fs.free("/") == 0
    assert fs.free("/") > 1 << 40
    fs.add(Fault("free", error="EMFILE"))
    with pytest.raises(OSError, match="EMFILE"):
        fs.free("/")


def test_a_fault_waits_for_its_turn() -> None:
    fs = FaultFs(FakeDisk(), Fault("sync", nth=3))
    file = opened(fs, data=b"abc")
    file.sync()
    file.sync()
    with pytest.raises(OSError):
        file.sync()
    file.sync()


def test_a_fault_for_ever_stays_until_it_is_healed() -> None:
    fs = FaultFs(FakeDisk(), Fault("write", nth=2, error="ENOSPC", forever=True))
    file = opened(fs, data=b"abc")
    for _ in range(3):
        with pytest.raises(OSError):
            file.write_at(0, [b"x"])
    assert fs.fired == 3
    fs.heal()
    file.write_at(0, [b"x"])


def test_a_fault_counts_only_the_paths_it_is_meant_for() -> None:
    fs = FaultFs(FakeDisk(), Fault("write", nth=2, path="wal"))
    other, wal = opened(fs, "/seg"), opened(fs, "/wal")
    for _ in range(5):
        other.write_at(0, [b"x"])
    wal.write_at(0, [b"x"])
    with pytest.raises(OSError):
        wal.write_at(0, [b"x"])


def test_a_rename_is_found_by_either_path() -> None:
    fs = FaultFs(FakeDisk(), [Fault("rename", path="/a"), Fault("rename", path="/c")])
    opened(fs)
    with pytest.raises(OSError):
        fs.rename("/a", "/b")
    fs.rename("/a", "/b")
    with pytest.raises(OSError):
        fs.rename("/b", "/c")


def test_rmdir_counts_as_a_remove() -> None:
    fs = FaultFs(FakeDisk(), Fault("remove"))
    fs.mkdir("/d")
    with pytest.raises(OSError):
        fs.rmdir("/d")
    fs.rmdir("/d")


def test_a_short_write_is_finished_by_the_loop_around_it() -> None:
    disk = FakeDisk()
    fs = FaultFs(disk, Fault("write", error="SHORT", forever=True))
    file = opened(fs)
    assert file.write_at(0, [b"abcd", b"ef"]) == 3
    write_all(file, 0, [b"abcd", b"ef", b"g"])
    assert disk.read("/a") == b"abcdefg"
    assert fs.fired > 3


def test_a_short_read_looks_like_the_end_of_the_file() -> None:
    fs = FaultFs(FakeDisk(), Fault("read", error="SHORT"))
    opened(fs, data=b"abcdef")
    with pytest.raises(EOFError):
        read_file(fs, "/a")
    assert read_file(fs, "/a") == b"abcdef"


def test_a_write_that_fails_with_eio_may_leave_part_of_its_bytes() -> None:
    disk = FakeDisk()
    file = opened(FaultFs(disk, Fault("write", error="EIO")))
    with pytest.raises(OSError):
        file.write_at(0, [b"abcdef"])
    assert disk.read("/a") == b"abc"


def test_a_write_without_room_leaves_nothing() -> None:
    disk = FakeDisk()
    file = opened(FaultFs(disk, Fault("write", error="ENOSPC")))
    with pytest.raises(OSError):
        file.write_at(0, [b"abcdef"])
    assert disk.read("/a") == b""


@pytest.mark.parametrize("wrapped", [False, True])
def test_after_a_failed_sync_a_second_one_proves_nothing(wrapped: bool) -> None:
    disk = FakeDisk()
    inner: Fs = OrderFs(disk) if wrapped else disk
    fs = FaultFs(inner, Fault("sync"))
    file = opened(fs, data=b"abc")
    disk.sync_dir("/")
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert disk.read("/a") == b"abc"
    disk.power_cut(mode="all_lost")
    assert disk.read("/a") == bytes(3)


def test_a_failed_sync_is_felt_by_a_file_that_was_renamed_since() -> None:
    disk = FakeDisk()
    fs = FaultFs(disk, Fault("sync"))
    file = opened(fs, data=b"abc")
    disk.rename("/a", "/b")
    disk.sync_dir("/")
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    disk.power_cut(mode="all_lost")
    assert disk.read("/b") == bytes(3)


@pytest.mark.parametrize("call", ["sync", "dsync"])
def test_a_dsync_write_that_fails_has_written_but_not_synced(call: str) -> None:
    disk = FakeDisk()
    fs = FaultFs(disk, Fault(call))
    file = opened(fs)
    disk.sync_dir("/")
    with pytest.raises(OSError):
        file.write_at(0, [b"abc"], dsync=True)
    assert disk.read("/a") == b"abc"
    file.sync()
    disk.power_cut(mode="all_lost")
    assert disk.read("/a") == bytes(3)


def test_a_dsync_write_counts_as_write_and_sync_and_dsync() -> None:
    fs = FaultFs(FakeDisk())
    opened(fs).write_at(0, [b"abc"], dsync=True)
    assert fs.counts == {"open": 1, "write": 1, "sync": 1, "dsync": 1}


def test_a_sweep_over_all_calls_leaves_the_old_file_or_the_new_one() -> None:
    clean = FaultFs(FakeDisk())
    replace_file(clean, "/a", b"old")
    before = clean.counts.copy()
    replace_file(clean, "/a", b"new")
    for call in clean.counts:
        for nth in range(before[call] + 1, clean.counts[call] + 1):
            for error in ("EIO", "ENOSPC"):
                disk = FakeDisk()
                fs = FaultFs(disk, Fault(call, nth=nth, error=error))
                replace_file(fs, "/a", b"old")
                with pytest.raises(OSError):
                    replace_file(fs, "/a", b"new")
                assert fs.fired == 1
                # Only the last step, the sync of the directory, fails when the new file is there.
                assert disk.read("/a") == (b"new" if call == "sync_dir" else b"old")
                assert disk.files() == ["/a"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fault("flush"),
        lambda: Fault("sync", error="SHORT"),
        lambda: Fault("sync", error="EWHATEVER"),
        lambda: Fault("sync", nth=0),
    ],
)
def test_a_fault_that_could_never_fire_is_refused(make: Callable[[], Fault]) -> None:
    with pytest.raises(ValueError):
        make()
