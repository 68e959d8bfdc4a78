"""The fake disk keeps what a real one would keep, and loses all that a real one may lose."""

from __future__ import annotations

from random import Random

import pytest

from topics.host.fs import write_all
from topics.testing.disk import FakeDisk, FakeFile, PowerOff

SEEDS = range(200)


def file_on(disk: FakeDisk, path: str, data: bytes = b"") -> FakeFile:
    """A file whose name and bytes are durable."""
    file = disk.open(path, write=True, create=True)
    write_all(file, 0, [data])
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])
    return file


def cut(disk: FakeDisk) -> None:
    disk.power_cut()
    disk.restart()


def lose_all(disk: FakeDisk) -> None:
    disk.power_cut(mode="all_lost")
    disk.restart()


# What lasts.


def test_synced_bytes_and_names_survive_every_cut() -> None:
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file_on(disk, "/a", b"x" * 3000)
        cut(disk)
        assert disk.read("/a") == b"x" * 3000


def test_unsynced_bytes_may_all_be_lost() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", b"old")
    write_all(file, 0, [b"new, and longer"])
    lose_all(disk)
    assert disk.read("/a") == b"old"
    assert disk.counters["all_lost"] == 1


def test_unsynced_bytes_and_names_may_all_be_kept() -> None:
    disk = FakeDisk()
    disk.mkdir("/d")
    write_all(disk.open("/d/a", write=True, create=True), 0, [b"new"])
    disk.power_cut(mode="all_kept")
    disk.restart()
    assert disk.read("/d/a") == b"new"
    assert disk.counters["all_kept"] == 1


def test_syncing_a_file_does_not_keep_its_name() -> None:
    disk = FakeDisk()
    file = disk.open("/a", write=True, create=True)
    write_all(file, 0, [b"abc"])
    file.sync()
    lose_all(disk)
    assert disk.files() == []


def test_syncing_a_directory_does_not_keep_the_bytes_of_its_files() -> None:
    disk = FakeDisk()
    write_all(disk.open("/a", write=True, create=True), 0, [b"abc"])
    disk.sync_dir("/")
    lose_all(disk)
    assert disk.read("/a") == b""


def test_a_new_directory_is_lost_with_all_in_it_until_its_parent_is_synced() -> None:
    disk = FakeDisk()
    disk.mkdir("/d")
    file_on(disk, "/d/a", b"abc")
    kept = disk.clone()
    lose_all(disk)
    assert not disk.exists("/d")
    kept.sync_dir("/")
    lose_all(kept)
    assert kept.read("/d/a") == b"abc"


def test_an_unsynced_removal_may_be_undone() -> None:
    disk = FakeDisk()
    file_on(disk, "/a", b"abc")
    disk.remove("/a")
    done = disk.clone()
    lose_all(disk)
    assert disk.read("/a") == b"abc"
    done.sync_dir("/")
    lose_all(done)
    assert done.files() == []


def test_a_lying_sync_keeps_nothing() -> None:
    disk = FakeDisk(lying_fsync=True)
    file = disk.open("/a", write=True, create=True)
    write_all(file, 0, [b"abc"], dsync=True)
    file.sync()
    disk.sync_dir("/")
    lose_all(disk)
    assert disk.files() == []


# Ranges.


def test_a_dsync_write_keeps_only_the_sectors_it_wrote() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", bytes(4096))
    write_all(file, 0, [b"a" * 512])
    write_all(file, 1024, [b"c" * 512])
    write_all(file, 600, [b"b" * 10], dsync=True)
    lose_all(disk)
    assert disk.read("/a") == bytes(600) + b"b" * 10 + bytes(4096 - 610)


def test_a_dsync_write_keeps_the_size_needed_to_read_it() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a")
    write_all(file, 0, [b"a" * 1000])
    write_all(file, 2000, [b"b" * 100], dsync=True)
    write_all(file, 2100, [b"c" * 5000])
    lose_all(disk)
    assert disk.read("/a") == bytes(2000) + b"b" * 100


def test_a_dsync_write_takes_its_neighbours_in_the_same_sector_along() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", bytes(1024))
    write_all(file, 0, [b"a" * 100])
    write_all(file, 100, [b"b" * 100], dsync=True)
    lose_all(disk)
    assert disk.read("/a") == b"a" * 100 + b"b" * 100 + bytes(824)


def test_a_failed_sync_leaves_bytes_that_no_later_sync_keeps() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", bytes(2048))
    write_all(file, 0, [b"a" * 512])
    disk.forget_unsynced("/a")
    write_all(file, 1024, [b"b" * 512])
    file.sync()
    assert disk.read("/a")[:512] == b"a" * 512
    again = disk.clone()
    lose_all(disk)
    assert disk.read("/a") == bytes(1024) + b"b" * 512 + bytes(512)
    file = again.open("/a", write=True)
    write_all(file, 0, [b"a" * 512])
    file.sync()
    lose_all(again)
    assert again.read("/a")[:512] == b"a" * 512


def test_bytes_whose_sync_failed_may_still_survive() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", bytes(512))
    write_all(file, 0, [b"a" * 512])
    file.forget_unsynced()
    disk.power_cut(mode="all_kept")
    assert disk.read("/a") == b"a" * 512


# Lives.


def test_a_kill_keeps_what_was_written_and_the_identity() -> None:
    disk = FakeDisk()
    before = disk.identity("/")
    file = disk.open("/a", write=True, create=True)
    write_all(file, 0, [b"abc"])
    disk.kill()
    disk.restart()
    assert disk.read("/a") == b"abc"
    assert disk.identity("/") == before


def test_what_a_kill_kept_is_no_more_durable_than_before() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", b"old")
    write_all(file, 0, [b"new"])
    disk.kill()
    disk.restart()
    lose_all(disk)
    assert disk.read("/a") == b"old"


def test_a_power_cut_makes_a_new_identity() -> None:
    disk = FakeDisk()
    before = disk.identity("/")
    cut(disk)
    assert disk.identity("/") != before


@pytest.mark.parametrize("kind", ["kill", "power_cut"])
def test_handles_and_locks_die_with_their_life(kind: str) -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", b"abc")
    lock = disk.lock("/lock")
    getattr(disk, kind)()
    for call in (file.size, file.sync, lambda: disk.exists("/a"), lambda: disk.open("/a"), lambda: disk.lock("/lock")):
        with pytest.raises(PowerOff):
            call()
    disk.restart()
    with pytest.raises(PowerOff):
        file.read_at(0, 1)
    held = disk.lock("/lock")
    # The clean-up of a life that is over must not disturb the next one.
    file.close()
    lock.release()
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")
    held.release()


def test_power_off_is_no_os_error() -> None:
    assert not issubclass(PowerOff, OSError)


def test_a_restart_without_a_crash_ends_the_life_all_the_same() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", b"abc")
    disk.lock("/lock")
    disk.restart()
    disk.lock("/lock")
    with pytest.raises(PowerOff):
        file.size()


# A crash in the middle of a call.


def _work(disk: FakeDisk) -> None:
    disk.mkdir("/d")
    disk.sync_dir("/")
    file = disk.open("/d/a.tmp", write=True, create=True)
    file.allocate(1000)
    write_all(file, 0, [b"n" * 2000])
    file.sync()
    write_all(file, 2000, [b"d" * 2000], dsync=True)
    file.truncate(3000)
    file.blank(2500)
    disk.rename("/d/a.tmp", "/d/a")
    disk.sync_dir("/d")
    disk.remove("/d/a")
    disk.rmdir("/d")


def test_every_mutating_call_counts_once() -> None:
    disk = FakeDisk()
    _work(disk)
    kinds = [line.split()[1] for line in disk.log]
    assert disk.calls == len(kinds) == 13
    assert set(kinds) == {
        *("mkdir", "sync_dir", "create", "allocate", "write_at", "sync", "truncate", "blank", "rename", "remove"),
        "rmdir",
    }


@pytest.mark.parametrize("kind", ["power", "kill"])
def test_a_crash_comes_in_the_call_it_was_asked_for_and_stops_everything(kind: str) -> None:
    for n in range(1, 14):
        disk = FakeDisk(n)
        disk.crash_at(n, "power" if kind == "power" else "kill")
        with pytest.raises(PowerOff):
            _work(disk)
        assert disk.calls == n
        with pytest.raises(PowerOff):
            disk.list("/")
        disk.restart()
        disk.list("/")


def test_a_call_that_a_crash_interrupts_may_have_happened_or_not() -> None:
    seen: set[bool] = set()
    sizes: set[int] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        disk.crash_at(1, "kill")
        with pytest.raises(PowerOff):
            disk.mkdir("/d")
        disk.restart()
        seen.add(disk.exists("/d"))
        file = disk.open("/a", write=True, create=True)
        disk.crash_at(disk.calls + 1, "kill")
        with pytest.raises(PowerOff):
            file.write_at(0, [b"x" * 1000])
        sizes.add(len(disk.read("/a")))
    assert seen == {True, False}
    assert len(sizes) > 50


def test_a_crash_cannot_be_asked_for_in_the_past() -> None:
    disk = FakeDisk()
    _work(disk)
    with pytest.raises(ValueError):
        disk.crash_at(13)
    disk.crash_at(14)
    disk.crash_at(None)
    disk.mkdir("/d")


# Tools.


def test_the_same_seed_gives_the_same_disk() -> None:
    images = []
    for _ in range(2):
        disk = FakeDisk(7)
        for name in "abc":
            write_all(disk.open(f"/{name}", write=True, create=True), 0, [b"n" * 9000])
        cut(disk)
        images.append({path: disk.read(path) for path in disk.files()})
    assert images[0] == images[1]


def test_a_cut_can_be_drawn_from_elsewhere() -> None:
    images = set()
    for seed in (1, 2):
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", bytes(9000))
        write_all(file, 0, [b"n" * 9000])
        disk.power_cut(Random(5))
        images.add(disk.read("/a"))
    assert len(images) == 1


def test_a_clone_has_the_same_future_and_a_life_of_its_own() -> None:
    disk = FakeDisk(4)
    disk.mkdir("/d")
    file = file_on(disk, "/d/a", b"o" * 9000)
    disk.lock("/lock")
    write_all(file, 0, [b"n" * 9000])
    twin = disk.clone()
    twin.lock("/lock").release()
    write_all(twin.open("/d/a", write=True), 0, [b"t"])
    twin.remove("/d/a")
    assert disk.read("/d/a") == b"n" * 9000
    same = disk.clone()
    cut(disk)
    cut(same)
    assert [(path, disk.read(path)) for path in disk.files()] == [(path, same.read(path)) for path in same.files()]


def test_a_clone_keeps_two_names_of_one_file_together() -> None:
    tried = 0
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file_on(disk, "/a", b"abc")
        disk.rename("/a", "/b")
        cut(disk)
        if disk.files() == ["/a", "/b"]:
            tried += 1
            twin = disk.clone()
            write_all(twin.open("/a", write=True), 0, [b"xyz"])
            assert twin.read("/b") == b"xyz"
            assert disk.read("/b") == b"abc"
    assert tried


def test_rot_changes_a_byte_for_good() -> None:
    disk = FakeDisk()
    file_on(disk, "/a", b"abc")
    disk.corrupt("/a", 1, xor=3)
    assert disk.read("/a") == b"aac"
    lose_all(disk)
    assert disk.read("/a") == b"aac"


def test_the_log_keeps_the_last_calls_only() -> None:
    disk = FakeDisk(log_max=3)
    _work(disk)
    assert [line.split()[1] for line in disk.log] == ["sync_dir", "remove", "rmdir"]


def test_a_mapping_shows_the_file_as_it_was() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", b"abc")
    view = file.map()
    write_all(file, 0, [b"xyz"])
    assert bytes(view) == b"abc"


def test_files_made_together_are_synced_and_their_names_are_not() -> None:
    disk = FakeDisk(3)
    disk.mkdir("/d")
    disk.sync_dir("/")
    disk.make_files([("/d/a", b"one"), ("/d/b", b"two")])
    other = disk.clone()
    disk.sync_dir("/d")
    for each in (disk, other):
        each.power_cut()
        each.restart()
    assert [disk.open(f"/d/{name}").read_at(0, 9) for name in "ab"] == [b"one", b"two"]
    for name in other.list("/d"):  # which of the names survived is chance
        assert other.open(f"/d/{name}").size() == 3
