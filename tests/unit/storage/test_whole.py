"""Pairs that are made at once: the same bytes as those that grow block by block, and none counts too soon."""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import topics
from tests.crash.life import Life
from topics.format.ops import prepare
from topics.host.fs import Buffer, Fs
from topics.model import limits
from topics.storage import whole
from topics.storage.segment import Segment
from topics.storage.whole import WholePairs
from topics.testing.disk import FakeDisk
from topics.testing.wrap import WrappedFs

TOPICS = "/data/topics"


def fill(life: Life) -> None:
    """Records with and without tags and keys, deletes, and pairs whose records lie in several WAL files."""
    store = life.open(segment_max_events=8)
    for name in ("t", "other"):
        life.create(name, durability="disk")
    for turn in range(12):
        for name in ("t", "other"):
            life.append(name, 5, tag=f"tag-{turn % 2}" if turn % 3 else None)
            life.append(name, 3)
        with_keys = store.append("other", prepare([{"data": turn, "key": f"k{turn}"}] * (turn % 3 + 1)))
        if with_keys.submission is not None:
            store.drive(with_keys.submission)
        if turn == 5:
            life.delete("t", tag="tag-1")
        if turn == 7:
            life.delete("t", before_seq=21)
        if turn in (3, 9, 11):
            assert store.checkpoint()


def files(disk: FakeDisk) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for directory in disk.list(TOPICS):
        for name in disk.list(f"{TOPICS}/{directory}"):
            file = disk.open(f"{TOPICS}/{directory}/{name}")
            found[f"{directory}/{name}"] = file.read_at(0, file.size())
    return found


def test_pairs_made_at_once_are_the_same_bytes_as_pairs_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, grown = Life(), Life()
    made: list[Segment] = []
    plan = WholePairs.plan

    def counted(self: WholePairs, index: int, at: int) -> Segment | None:
        segment = plan(self, index, at)
        if segment is not None:
            made.append(segment)
        return segment

    with monkeypatch.context() as patch:
        patch.setattr(WholePairs, "plan", counted)
        fill(at_once)
    with monkeypatch.context() as patch:
        patch.setattr(WholePairs, "plan", lambda *_: None)
        fill(grown)
    one, other = files(at_once.disk), files(grown.disk)
    assert len(made) > 10
    assert {Path(name).suffix for name in one} == {".data", ".idx", ".tags", ".keys", ""}, "with their MANIFESTs"
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []


def test_a_pair_that_its_bytes_would_fill_before_grows_block_by_block() -> None:
    life = Life()
    life.open(segment_max_events=8, segment_max_bytes=300)
    life.create("t", durability="disk")
    life.append("t", 40)
    assert life.store.checkpoint()
    counts = [segment.count for segment in life.store.topics["t"].segments]
    assert sum(counts) == 40
    assert max(counts) < 8
    life.power_cut()
    life.reopen()


class Troubled(WrappedFs):
    """What is made first fails; the rest is still under way then."""

    def __init__(self, inner: Fs) -> None:
        super().__init__(inner)
        self.turn = threading.Lock()
        self.calls = self.under_way = 0
        self.go_on = threading.Event()

    def make_files(self, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        with self.turn:
            self.calls += 1
            first = self.calls == 1
            self.under_way += 1
        try:
            if first:
                raise OSError(errno.EIO, "failed", files[0][0])
            self.go_on.wait(10)
            with self.turn:  # the fake disk knows no threads
                super().make_files(files, hot=hot)
        finally:
            with self.turn:
                self.under_way -= 1


def test_a_checkpoint_that_failed_leaves_nothing_under_way_and_the_next_one_makes_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "_GO_PAIRS", 2)
    life = Life()
    disk = Troubled(life.ordered())
    store = life.open(disk)
    life.create("t", durability="disk")
    life.append("t", 30)
    with ThreadPoolExecutor(4) as store.pool:
        timer = threading.Timer(0.2, disk.go_on.set)
        timer.start()
        assert store.checkpoint() is False
        assert disk.calls > 1
        assert disk.under_way == 0, "the next checkpoint makes the same files"
        timer.join()
        assert store.topics["t"].segments == []
        assert store.checkpoint()
    store.pool = None
    assert sum(segment.count for segment in store.topics["t"].segments) == 30
    life.power_cut()
    life.reopen()


def test_the_newest_pairs_of_a_burst_stay_in_memory_and_the_rest_goes_past_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "BURST_BYTES", 20_000)
    monkeypatch.setattr(limits, "BURST_FRESH_BYTES", 5_000)
    seen: list[tuple[bool, int]] = []
    make = WholePairs._make

    def noted(self: WholePairs, planned: list, files: list, hot: bool) -> None:  # type: ignore[type-arg]
        seen.append((hot, len(planned)))
        make(self, planned, files, hot)

    monkeypatch.setattr(WholePairs, "_make", noted)
    with topics.open(tmp_path, segment_max_events=10) as log:
        log.create("small", durability="disk")
        log.append("small", [{"data": "x" * 50}] * 100)
        assert log.checkpoint()
        assert {hot for hot, _ in seen} == {True}, "a checkpoint of usual size stays in memory whole"
        seen.clear()
        log.create("burst", durability="disk")
        log.append("burst", [{"data": "x" * 50}] * 1000)
        assert log.checkpoint()
        assert sum(count for hot, count in seen if not hot) > 80
        assert 3 <= sum(count for hot, count in seen if hot) <= 8
        assert [record.seq for record in log.read("burst")] == list(range(1, 1001))  # type: ignore[union-attr]


class Scarce(WrappedFs):
    """Descriptors for `room` files at once."""

    def __init__(self, inner: Fs, room: int, number: int) -> None:
        super().__init__(inner)
        self.room = room
        self.number = number
        self.sizes: list[int] = []

    def make_files(self, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        self.sizes.append(len(files))
        if len(files) > self.room:
            super().make_files(files[: self.room], hot=hot)
            raise OSError(self.number, "too many open files", files[self.room][0])
        super().make_files(files, hot=hot)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_pairs_are_made_file_by_file_where_descriptors_have_run_out(number: int) -> None:
    life = Life()
    disk = Scarce(life.ordered(), 1, number)
    store = life.open(disk)
    life.create("t", durability="disk")
    life.append("t", 30)
    assert store.checkpoint(), store.trouble
    assert max(disk.sizes) > 1
    assert [segment.sealed for segment in store.topics["t"].segments] == [True] * 10
    life.power_cut()
    life.reopen()


@pytest.mark.parametrize(("files_max", "pairs"), [(2000, 16), (1024, 12), (200, 2), (16, 1)])
def test_what_is_made_at_once_is_a_share_of_the_files_that_a_process_may_open(files_max: int, pairs: int) -> None:
    life = Life()
    disk = Scarce(life.ordered(), 1000, 0)
    store = life.open(disk)
    store.files_max = files_max
    life.create("t", durability="disk")
    life.append("t", 120)
    assert store.checkpoint()
    assert max(disk.sizes) == 2 * pairs, "records without tag and key have two files a pair"


def test_an_open_store_knows_how_many_files_it_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 4096))
    with topics.open(tmp_path) as log:
        assert log._store.files_max == 200
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with topics.open(tmp_path) as log:
        assert log._store.files_max == 1024
