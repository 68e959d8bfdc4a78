"""What a power cut leaves of un-synced bytes and names: every outcome happens, and none that a device rules out."""

from __future__ import annotations

from collections import Counter

import pytest

from topics.host.fs import read_file, write_all
from topics.testing.disk import FakeDisk, FakeFile

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


# Damage.


def test_damage_spares_synced_bytes_of_the_same_sector() -> None:
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", b"s" * 100 + bytes(412))
        write_all(file, 100, [b"u" * 200])
        cut(disk)
        assert disk.read("/a")[:100] == b"s" * 100
        assert disk.read("/a")[300:] == bytes(212)


def test_damage_may_reach_synced_bytes_of_the_same_sector_if_the_promise_is_dropped() -> None:
    hit = 0
    for seed in SEEDS:
        disk = FakeDisk(seed, keep_synced=False)
        file = file_on(disk, "/a", b"s" * 2048)
        write_all(file, 100, [b"u" * 200])
        cut(disk)
        hit += disk.read("/a")[:100] != b"s" * 100
        assert disk.read("/a")[512:] == b"s" * 1536, "other sectors are never touched"
    assert hit > 5


def test_damage_may_reach_sectors_in_front_if_the_promise_is_dropped() -> None:
    hit = 0
    for seed in SEEDS:
        disk = FakeDisk(seed, keep_synced=False)
        file = file_on(disk, "/a", b"s" * 2048)
        write_all(file, 1600, [b"u" * 200])
        cut(disk)
        hit += disk.read("/a")[:1536] != b"s" * 1536
        counted = disk.counters["synced_damaged"]
        assert counted or disk.read("/a")[:1536] == b"s" * 1536
    assert hit


def test_writing_durable_bytes_again_puts_them_at_no_risk() -> None:
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", b"s" * 2048)
        write_all(file, 0, [b"s" * 1500])
        cut(disk)
        assert disk.read("/a") == b"s" * 2048


def test_each_surviving_byte_was_there_or_was_written_or_lies_in_a_damaged_sector() -> None:
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", b"o" * 8192)
        write_all(file, 1000, [b"n" * 5000])
        cut(disk)
        data = disk.read("/a")
        assert data[:1000] == b"o" * 1000
        assert data[6000:] == b"o" * 2192
        strange = sum(set(data[at : at + 512]) - set(b"on") != set() for at in range(0, 8192, 512))
        assert strange <= disk.counters["zeroed"] + disk.counters["garbled"]


def test_a_version_between_the_synced_and_the_last_one_may_survive() -> None:
    seen: set[bytes] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", b"1" * 512)
        write_all(file, 0, [b"2" * 512])
        write_all(file, 0, [b"3" * 512])
        cut(disk)
        seen.add(disk.read("/a"))
    assert {b"1" * 512, b"2" * 512, b"3" * 512} <= seen


def test_an_unsynced_size_ends_anywhere_between_the_two() -> None:
    sizes: set[int] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", b"s" * 1000)
        write_all(file, 1000, [b"n" * 4000])
        cut(disk)
        data = disk.read("/a")
        assert data[:1000] == b"s" * 1000
        sizes.add(len(data))
    assert min(sizes) == 1000
    assert max(sizes) == 5000
    assert len(sizes) > 10


def test_an_unsynced_truncation_may_be_undone_with_the_old_bytes() -> None:
    sizes: set[int] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", b"s" * 3000)
        file.truncate(1000)
        cut(disk)
        data = disk.read("/a")
        assert data == b"s" * len(data)
        sizes.add(len(data))
    assert {1000, 3000} <= sizes


def test_a_file_truncated_and_extended_may_show_its_old_bytes_again() -> None:
    disk = FakeDisk()
    file = file_on(disk, "/a", b"s" * 3000)
    file.truncate(1000)
    write_all(file, 2000, [b"n" * 1000])
    assert disk.read("/a")[1000:2000] == bytes(1000)
    done = disk.clone()
    lose_all(disk)
    assert disk.read("/a") == b"s" * 3000
    done.open("/a").sync()
    lose_all(done)
    assert done.read("/a") == b"s" * 1000 + bytes(1000) + b"n" * 1000


def test_a_later_page_may_survive_an_earlier_lost_one() -> None:
    found = 0
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", bytes(16384))
        write_all(file, 0, [b"n" * 16384])
        cut(disk)
        data = disk.read("/a")
        found += data[:4096] == bytes(4096) and b"n" * 4096 in (data[4096:8192], data[8192:12288], data[12288:])
    assert found > 5


def test_every_outcome_fires_over_a_few_seeds() -> None:
    fired: Counter[str] = Counter()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = file_on(disk, "/a", bytes(8192))
        write_all(file, 0, [b"n" * 9000])
        write_all(disk.open("/b", write=True, create=True), 0, [b"b"])
        disk.rename("/a", "/c")
        cut(disk)
        fired.update(set(disk.counters))
    expected = {"torn", "zeroed", "garbled", "later_survived_earlier_lost", "name_lost", "rename_both"}
    expected |= {"size_lost", "all_lost", "all_kept"}
    assert {name for name in expected if fired[name] >= 5} == expected


# Renames.


def test_a_rename_ends_as_old_or_new_or_both_and_never_as_neither() -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file_on(disk, "/old", b"abc")
        disk.rename("/old", "/new")
        cut(disk)
        names = tuple(disk.files())
        seen.add(names)
        assert all(disk.read(name) == b"abc" for name in names)
    assert seen == {("/old",), ("/new",), ("/new", "/old")}


def test_a_rename_over_a_file_leaves_one_of_the_two_whole() -> None:
    seen: set[bytes] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file_on(disk, "/a", b"old")
        file_on(disk, "/a.tmp", b"new")
        disk.rename("/a.tmp", "/a")
        cut(disk)
        seen.add(disk.read("/a"))
    assert seen == {b"old", b"new"}


@pytest.mark.parametrize("synced", ["", "/from", "/to"])
def test_a_rename_between_directories_never_loses_the_file(synced: str) -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        disk.mkdir("/from")
        disk.mkdir("/to")
        disk.sync_dir("/")
        file_on(disk, "/from/a", b"abc")
        disk.rename("/from/a", "/to/a")
        if synced:
            disk.sync_dir(synced)
        cut(disk)
        seen.add(tuple(disk.files()))
    assert () not in seen
    assert ("/to/a",) in seen
    assert (("/from/a",) in seen) == (synced == "")
    assert (("/from/a", "/to/a") in seen) == (synced != "/from")


def test_a_renamed_directory_has_one_name_after_a_cut() -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        disk.mkdir("/d")
        disk.sync_dir("/")
        file_on(disk, "/d/a", b"abc")
        disk.rename("/d", "/e")
        cut(disk)
        seen.add(tuple(disk.files()))
    assert seen == {("/d/a",), ("/e/a",)}


def test_name_changes_survive_one_by_one() -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file_on(disk, "/a")
        disk.remove("/a")
        disk.open("/b", create=True)
        disk.open("/c", create=True)
        cut(disk)
        seen.add(tuple(disk.files()))
    assert len(seen) == 8


# Blocks that are only reserved.

BLOCK = 4096


def reserved_on(disk: FakeDisk, size: int, *, synced: bool = True) -> FakeFile:
    file = disk.open("/a", write=True, create=True)
    file.allocate(size)
    if synced:
        file.sync()
    disk.sync_dir("/")
    return file


def test_reserved_blocks_are_zeros_until_what_was_written_is_synced() -> None:
    outcomes: Counter[tuple[bool, ...]] = Counter()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = reserved_on(disk, 5 * BLOCK)
        write_all(file, 0, [b"s" * BLOCK], dsync=True)
        write_all(file, BLOCK, [b"u" * 3 * BLOCK])
        assert file.read_at(0, 5 * BLOCK) == b"s" * BLOCK + b"u" * 3 * BLOCK + bytes(BLOCK)
        cut(disk)
        found = disk.read("/a")
        assert len(found) == 5 * BLOCK
        assert found[:BLOCK] == b"s" * BLOCK
        assert found[4 * BLOCK :] == bytes(BLOCK), "nobody wrote there"
        outcomes[tuple(any(found[at : at + BLOCK]) for at in range(BLOCK, 4 * BLOCK, BLOCK))] += 1
    one_was_lost = {(False, True, True), (True, False, True), (False, False, True)}
    assert one_was_lost | {(False, False, False), (True, True, True)} <= outcomes.keys()


def test_a_reservation_that_was_not_synced_may_be_lost_with_all_that_was_written_behind_what_was() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = FakeDisk(seed)
        file = reserved_on(disk, 4 * BLOCK, synced=False)
        write_all(file, 0, [b"s" * BLOCK], dsync=True)
        cut(disk)
        found = disk.read("/a")
        assert found[:BLOCK] == b"s" * BLOCK
        sizes.add(len(found))
    assert {BLOCK, 4 * BLOCK} < sizes


def test_a_file_counts_as_reserved_until_it_is_overwritten_as_a_whole() -> None:
    disk = FakeDisk()
    file = reserved_on(disk, 2 * BLOCK)
    file.allocate(BLOCK)
    write_all(file, 0, [b"x" * BLOCK])
    assert disk.is_reserved("/a")
    assert disk.clone().is_reserved("/a")
    write_all(file, 0, [bytes(2 * BLOCK)])
    assert not disk.is_reserved("/a")
    file.allocate(2 * BLOCK)
    assert not disk.is_reserved("/a"), "it had all of its blocks"


def test_a_file_that_was_blanked_holds_its_old_bytes_until_that_is_synced() -> None:
    found = set()
    for seed in range(20):
        disk = FakeDisk(seed)
        write_all(file := disk.open("/a", write=True, create=True), 0, [b"x" * BLOCK])
        file.sync()
        disk.sync_dir("/")
        file.blank(BLOCK)
        assert disk.is_reserved("/a")
        disk.power_cut()
        disk.restart()
        found.add(b"x" in read_file(disk, "/a"))
    assert found == {True, False}


def test_what_a_cut_takes_from_reserved_files_is_counted() -> None:
    disk = FakeDisk(3)
    write_all(reserved_on(disk, 2 * BLOCK), 0, [b"x" * BLOCK])
    lose_all(disk)
    assert disk.counters["reserved_lost"] == 1
