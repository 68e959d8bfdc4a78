"""What a checkpoint may change in the list of a topic's segments, and when; and many topics side by side."""

from __future__ import annotations

import dataclasses
import errno
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import topics
from tests.crash.life import Life
from topics.host.fs import Buffer, File, Fs, make_singly
from topics.storage import whole
from topics.storage.copy import TopicCopy
from topics.storage.segment import Segment
from topics.testing.wrap import WrappedFile, WrappedFs


def test_a_twin_has_every_field_of_its_segment() -> None:
    values = {
        field.name: "/d" if field.name == "directory" else at + 2
        for at, field in enumerate(dataclasses.fields(Segment))
    }
    segment = Segment(**values)  # type: ignore[arg-type]
    twin = segment.twin()
    assert twin == segment
    assert twin is not segment
    assert dataclasses.asdict(twin) == values


def test_sealed_segments_that_nothing_changed_stay_the_same_objects() -> None:
    life = Life()
    store = life.open()
    life.create("t", durability="disk")
    life.append("t", 4)
    store.checkpoint()
    found = store.topics["t"]
    sealed, active = found.segments
    life.append("t", 1)
    store.checkpoint()
    assert found.segments[0] is sealed
    assert found.segments[1] is not active
    assert (sealed.count, active.count, found.segments[1].count) == (3, 1, 2)


@pytest.mark.parametrize("after", ["_write_manifest", "_advance"])
def test_a_checkpoint_that_fails_leaves_the_segments_as_they_were(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    store = life.open()
    life.create("t", durability="disk")
    life.append("t", 4)
    store.checkpoint()
    found = store.topics["t"]
    before = [(segment, segment.twin()) for segment in found.segments]
    life.delete("t", before_seq=2)
    life.append("t", 4)

    def fail(_: TopicCopy) -> None:
        raise OSError(5, "failed")

    with monkeypatch.context() as patch:
        patch.setattr(TopicCopy, after, fail)
        assert store.checkpoint() is False
    assert [segment for segment, _ in before] == found.segments
    for segment, twin in before:
        assert (segment.generation, segment.count, segment.data_len) == (twin.generation, twin.count, twin.data_len)
        assert segment.sealed == twin.sealed
    assert store.checkpoint()
    assert found.segments[0].generation == before[0][1].generation + 1, "the deleted record got its flag"
    life.power_cut()
    life.reopen()


def test_more_topics_than_one_turn_takes_are_all_copied(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(70)]
    with topics.open(tmp_path) as log:
        for name in names:
            log.create(name, durability="memory")
            log.append(name, [{"data": name}])
        assert log.checkpoint()
        assert [log.info(name).segments for name in names] == [1] * 70
        assert [log.get(name, 1).data for name in names] == names


def test_one_topic_that_fails_fails_the_checkpoint_and_the_next_one_copies_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(70)]
    real = TopicCopy.run

    def run(self: TopicCopy) -> list[Segment]:
        if self.topic.name == "t40":
            raise OSError(5, "this one fails")
        return real(self)

    with topics.open(tmp_path) as log:
        for name in names:
            log.create(name, durability="memory")
            log.append(name, [{"data": name}])
        with monkeypatch.context() as patch:
            patch.setattr(TopicCopy, "run", run)
            assert not log.checkpoint()
            assert any("this one fails" in line for line in log.trouble)
        assert log.checkpoint()
        assert not log.trouble
        assert [log.info(name).segments for name in names] == [1] * 70
    with topics.open(tmp_path) as log:
        assert [log.get(name, 1).data for name in names] == names


class SlowSync(WrappedFs):
    """While `armed`: the first sync of a `.data` takes until `go_on` and fails then, and no whole pair is made."""

    def __init__(self, inner: Fs) -> None:
        super().__init__(inner)
        self.turn = threading.Lock()  # the fake disk knows no threads
        self.go_on = threading.Event()
        self.armed = self.slow = False
        self.under_way: list[str] = []
        self.beside: list[str] = []

    def arm(self) -> None:
        self.armed = self.slow = True

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        with self.turn:
            return SlowFile(self, self.inner.open(path, write=write, create=create, exclusive=exclusive))

    def make_files(self, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        if self.armed:
            raise OSError(errno.ENOSPC, "full", files[0][0])
        with self.turn:
            make_singly(self.inner, files)


class SlowFile(WrappedFile):
    def __init__(self, fs: SlowSync, inner: File) -> None:
        super().__init__(inner)
        self._fs = fs

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        with self._fs.turn:
            if self.path in self._fs.under_way:
                self._fs.beside.append(f"write into {self.path}")
            return super().write_at(offset, buffers, dsync=dsync)

    def sync(self) -> None:
        fs = self._fs
        with fs.turn:
            if self.path in fs.under_way:
                fs.beside.append(f"sync of {self.path}")
            slow = fs.slow and self.path.endswith(".data")
            if not slow:
                super().sync()
                return
            fs.slow = False
            fs.under_way.append(self.path)
        fs.go_on.wait(10)
        with fs.turn:
            self.forget_unsynced()
            fs.under_way.remove(self.path)
        raise OSError(errno.EIO, "failed", self.path)


def test_a_checkpoint_that_fails_waits_for_its_syncs_and_tells_that_one_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_GO_PAIRS", 2)
    life = Life(segment_max_events=5, wal_file_bytes=1 << 18)
    disk = SlowSync(life.ordered())
    store = life.open(disk)
    life.create("t", durability="fsync")
    life.append("t", 2)
    assert store.checkpoint()
    life.append("t", 100)
    disk.arm()
    with ThreadPoolExecutor(4) as store.pool:
        timer = threading.Timer(0.2, disk.go_on.set)
        timer.start()
        assert store.checkpoint() is False
        assert disk.under_way == [], "the next checkpoint writes and syncs that very file"
        assert isinstance(store.trouble, OSError)
        assert store.trouble.errno == errno.EIO, "a failed sync says more of the disk than one that is full"
        timer.join()
        disk.armed = False
        assert store.checkpoint()
    store.pool = None
    assert disk.beside == []
    life.disk.power_cut(mode="all_lost")
    life.power_cut()
    life.reopen()
