"""What stays in memory of segment files that were just written."""

from __future__ import annotations

import threading

import pytest

from topics.host.fs import File, write_all
from topics.model import limits
from topics.storage.handles import Handles
from topics.storage.segment import Segment
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs
from topics.testing.wrap import WrappedFile, WrappedFs


class Watched(WrappedFs):
    """Notes which files need not stay in memory."""

    def __init__(self) -> None:
        super().__init__(FakeDisk(1))
        self.uncached: list[str] = []

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        return WatchedFile(self, self.inner.open(path, write=write, create=create, exclusive=exclusive))


class WatchedFile(WrappedFile):
    def __init__(self, fs: Watched, inner: File) -> None:
        super().__init__(inner)
        self.fs = fs

    def uncache(self) -> None:
        self.fs.uncached.append(self.path)


def sealed(fs: Watched, first_seq: int) -> Segment:
    segment = Segment("", first_seq, 1, 100, sealed=True)
    file = fs.open(segment.path("data"), write=True, create=True)
    write_all(file, 0, [bytes(100)])
    return segment


def test_the_newest_segments_stay_in_memory_and_older_ones_that_nobody_read_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FRESH_BYTES", 250)
    fs = Watched()
    handles = Handles(fs)
    segments = [sealed(fs, first_seq) for first_seq in range(1, 6)]
    for segment in segments:
        handles.written(segment.path("data"), 100)
    assert fs.uncached == [segment.path("data") for segment in segments[:3]]


def test_a_segment_that_somebody_reads_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRESH_BYTES", 150)
    fs = Watched()
    handles = Handles(fs)
    segments = [sealed(fs, first_seq) for first_seq in range(1, 4)]
    handles.data(segments[0])
    for segment in segments:
        handles.written(segment.path("data"), 100)
    assert fs.uncached == [segments[1].path("data")]


def test_a_segment_that_is_gone_by_then_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRESH_BYTES", 50)
    fs = Watched()
    segment = sealed(fs, 1)
    fs.remove(segment.path("data"))
    Handles(fs).written(segment.path("data"), 100)
    assert fs.uncached == []


def test_whoever_finds_no_descriptor_takes_no_file_from_under_a_look_at_it() -> None:
    fs = FaultFs(FakeDisk(1))
    for name in ("/known", "/other"):
        write_all(fs.open(name, write=True, create=True), 0, [bytes(100)])
    handles = Handles(fs)
    known = handles.file("/known")
    fs.add(Fault("open", 1, "EMFILE", path="/other"))
    other = threading.Thread(target=handles.mapped, args=("/other",))
    with handles._lock:
        other.start()
        other.join(0.05)
        assert list(handles._files) == ["/known"]
    other.join()
    assert not handles._files
    assert handles.file("/known") is not known
