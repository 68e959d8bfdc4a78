"""Reading WAL groups: which files follow each other, and is a bad frame a torn tail or damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.format.control import FileMark, SyncMark
from topics.format.current import Current
from topics.format.frame import DURABLE, Kind, encode_frame
from topics.format.snapshot import Position
from topics.format.walscan import OFFSETS_END
from topics.host.fs import OsFs
from topics.model.errors import CorruptFile, UnknownVersion
from topics.storage.paths import Paths, wal_name
from topics.storage.walread import GroupRead, GroupReader
from topics.testing.disk import FakeDisk

RECORD = encode_frame(Kind.APPEND, 1, b'{"d":1}', seq=1, ts=1)
SIZE = 1024


def mark(number: int, previous: int = 0, length: int = 0) -> bytes:
    return encode_frame(Kind.CHECKPOINT_MARK, 0, FileMark(0, number, previous, length).encode(), flags=DURABLE)


def evidence(number: int, synced: int) -> bytes:
    return encode_frame(Kind.CHECKPOINT_MARK, 0, SyncMark(0, number, synced).encode(), flags=DURABLE)


class Group:
    def __init__(self) -> None:
        self.disk = FakeDisk(1)
        for path in ("/data", "/data/wal"):
            self.disk.mkdir(path)

    def put(self, number: int, data: bytes, size: int = SIZE) -> int:
        file = self.disk.open(f"/data/wal/{wal_name(number)}", write=True, create=True)
        file.write_at(0, [data.ljust(size, b"\0")])
        return len(data)

    def current(self, active: int, *sealed: tuple[int, int]) -> None:
        text = Current(wal_name(active), tuple((wal_name(number), length) for number, length in sealed)).encode()
        self.disk.open("/data/wal/CURRENT", write=True, create=True).write_at(0, [text])

    def read(self, file: int = 1, offset: int = 0, salvage: bool = False) -> GroupRead:
        return GroupReader(self.disk, Paths("/data"), "", Position(file, offset), salvage).read()


def numbers(group: GroupRead) -> list[tuple[int, int]]:
    return [(read.wal.number, read.wal.written) for read in group.files]


def test_files_are_chained_by_their_first_frames() -> None:
    group = Group()
    one = group.put(1, mark(1) + RECORD)
    two = group.put(2, mark(2, 1, one) + RECORD)
    three = group.put(5, mark(5, 2, two))
    assert numbers(group.read()) == [(1, one), (2, two), (5, three)]
    assert group.read().highest == 5


def test_files_below_the_position_are_older_and_not_read() -> None:
    group = Group()
    group.put(1, b"rotten from end to end")
    two = group.put(2, mark(2, 1, 500) + RECORD)
    read = group.read(file=2, offset=len(mark(2)))
    assert [number for number, _ in read.older] == [1]
    assert numbers(read) == [(2, two)]
    assert read.files[0].scans[0].frames == 1


def test_files_below_the_position_keep_their_valid_length() -> None:
    group = Group()
    one = group.put(1, mark(1) + RECORD)
    two = group.put(2, mark(2, 1, one) + RECORD * 2)
    assert group.read(3).older == [(1, one), (2, two)]
    group.current(2, (1, one))
    assert group.read(3).older == [(1, one), (2, two)]
    group.current(2, (1, 2 * SIZE))  # more than there is
    assert group.read(3).older == [(1, one), (2, two)]


def test_a_missing_link_of_the_chain_is_damage() -> None:
    group = Group()
    group.put(1, mark(1) + RECORD)
    group.put(3, mark(3, 2, 100))
    with pytest.raises(CorruptFile) as caught:
        group.read()
    assert caught.value.path.endswith(wal_name(2))


def test_a_file_shorter_than_the_next_one_says_is_damage() -> None:
    group = Group()
    one = group.put(1, mark(1) + RECORD)
    group.put(2, mark(2, 1, one + len(RECORD)))
    with pytest.raises(CorruptFile):
        group.read()


@pytest.mark.parametrize("left", [0, len(mark(1)), len(mark(1)) + 7])
def test_a_file_that_ends_before_the_position_is_damage_if_a_later_one_proves_more(left: int) -> None:
    group = Group()
    whole = mark(1) + RECORD + RECORD
    position = len(mark(1) + RECORD)
    group.put(1, whole[:left], size=left)
    two = group.put(2, mark(2, 1, len(whole)) + RECORD)
    with pytest.raises(CorruptFile) as caught:
        group.read(offset=position)
    assert caught.value.path.endswith(wal_name(1))
    read = group.read(offset=position, salvage=True)
    assert numbers(read) == [(1, left), (2, two)]
    assert {error.path for error in read.damage} == {f"/data/wal/{wal_name(1)}"}
    assert [sum(scan.frames for scan in file.scans) for file in read.files] == [0, 2]


def test_a_highest_file_that_was_never_begun_is_empty() -> None:
    group = Group()
    one = group.put(1, mark(1) + RECORD)
    group.put(2, b"")
    group.put(3, mark(3, 1, one)[:40])
    read = group.read()
    assert numbers(read) == [(1, one)]
    assert read.empty == [2, 3]


def test_a_highest_file_with_a_bad_first_frame_and_evidence_is_damage() -> None:
    group = Group()
    first = bytearray(mark(1))
    first[45] ^= 1
    body = bytes(first) + RECORD
    group.put(1, body + evidence(1, len(body)) + RECORD)
    with pytest.raises(CorruptFile):
        group.read()


def test_a_bad_first_frame_below_the_position_is_not_judged() -> None:
    group = Group()
    first = bytearray(mark(1))
    first[45] ^= 1
    end = group.put(1, bytes(first) + RECORD)
    read = group.read(file=1, offset=len(first))
    assert numbers(read) == [(1, end)]
    assert read.empty == []


def test_a_file_under_a_wrong_number_is_damage_and_never_empty() -> None:
    group = Group()
    group.put(4, mark(3) + RECORD)
    with pytest.raises(CorruptFile) as caught:
        group.read()
    assert "file 3" in caught.value.why
    read = group.read(salvage=True)
    assert read.empty == []
    assert read.damage


def test_a_torn_tail_is_cut_and_damage_below_evidence_is_not() -> None:
    group = Group()
    start = mark(1) + RECORD
    group.put(1, start + b"torn frame")
    assert numbers(group.read()) == [(1, len(start))]
    whole = start + RECORD
    group = Group()
    group.put(1, start + b"x" * len(RECORD) + evidence(1, len(whole)) + RECORD)
    with pytest.raises(CorruptFile) as caught:
        group.read()
    assert caught.value.offset == len(start)


def test_evidence_of_another_file_or_of_its_own_future_proves_nothing() -> None:
    start = mark(1) + RECORD
    for stray in (evidence(2, len(start) + 50), evidence(1, 1 << 40)):
        group = Group()
        group.put(1, start + b"torn" * 12 + stray + stray)
        assert numbers(group.read()) == [(1, len(start))]


def test_a_length_in_current_proves_and_never_shortens() -> None:
    group = Group()
    end = group.put(1, mark(1) + RECORD + RECORD)
    group.put(2, b"")
    group.current(2, (1, len(mark(1))))
    assert numbers(group.read()) == [(1, end)]
    group.current(2, (1, end + 10))
    with pytest.raises(CorruptFile):
        group.read()


def test_a_file_that_current_names_must_be_there_unless_the_position_is_past_it() -> None:
    group = Group()
    end = group.put(3, mark(3, 2, 100) + RECORD)
    group.current(3, (2, 100))
    assert numbers(group.read(file=3, offset=len(mark(3)))) == [(3, end)]
    group.current(4, (3, end))
    with pytest.raises(CorruptFile) as caught:
        group.read(file=3, offset=len(mark(3)))
    assert caught.value.path.endswith(wal_name(4))


def test_a_whole_frame_of_an_unknown_kind_is_not_a_torn_tail() -> None:
    group = Group()
    start = mark(1) + RECORD
    group.put(1, start + encode_frame(99, 1, b"newer"))
    for salvage in (False, True):
        with pytest.raises(UnknownVersion) as caught:
            group.read(salvage=salvage)
        assert caught.value.offset == len(start)


def test_an_unfinished_submission_is_not_applied() -> None:
    group = Group()
    start = mark(1) + RECORD
    more = encode_frame(Kind.APPEND, 1, b'{"d":2}', seq=2, ts=1, flags=8)
    group.put(1, start + more)
    read = group.read()
    assert numbers(read) == [(1, len(start))]
    assert read.files[0].scans[0].frames == 2


def test_salvage_applies_frames_on_both_sides_of_damage() -> None:
    group = Group()
    start = mark(1) + RECORD
    end = group.put(1, start + b"x" * 60 + RECORD + RECORD)
    group.put(2, mark(2, 1, end))
    read = group.read(salvage=True)
    assert [scan.frames for scan in read.files[0].scans] == [2, 2]
    assert read.files[0].damaged


def test_no_file_at_all_is_an_empty_group_only_for_a_position_that_needs_none() -> None:
    group = Group()
    assert numbers(group.read()) == []
    with pytest.raises(CorruptFile):
        group.read(file=1, offset=100)


def sparse(directory: Path, start: int, frames: bytes, size: int) -> GroupReader:
    """A group of one file as long as none may be, with frames at `start`, from where the snapshot lets it be read."""
    (directory / "wal").mkdir()
    path = directory / "wal" / wal_name(1)
    with path.open("wb") as file:
        file.write(mark(1))
        file.seek(start)
        file.write(frames)
        file.truncate(size)
    return GroupReader(OsFs(), Paths(str(directory)), "", Position(1, start), False)


def test_frames_beyond_what_offsets_can_name_are_damage_and_no_torn_tail(tmp_path: Path) -> None:
    start = OFFSETS_END - len(RECORD) - 10
    reader = sparse(tmp_path, start, RECORD * 3, OFFSETS_END + 4096)
    with pytest.raises(CorruptFile, match="lies beyond") as caught:
        reader.read()
    assert (caught.value.path, caught.value.offset) == (str(tmp_path / "wal" / wal_name(1)), start + len(RECORD))
    reader = GroupReader(OsFs(), Paths(str(tmp_path)), "", Position(1, start), True)
    read = reader.read()
    assert [scan.frames for scan in read.files[0].scans] == [1]
    assert [error.offset for error in read.damage] == [start + len(RECORD)]
    assert read.lost_bytes >= 2 * len(RECORD)


def test_a_file_that_is_too_long_with_nothing_in_the_rest_is_read(tmp_path: Path) -> None:
    start = OFFSETS_END - len(RECORD) - 10
    read = sparse(tmp_path, start, RECORD, OFFSETS_END + 50).read()
    assert numbers(read) == [(1, start + len(RECORD))]
    assert not read.damage
