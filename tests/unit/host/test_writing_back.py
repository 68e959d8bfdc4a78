from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from topics.host import writing_back
from topics.host.fs import OsFs, write_all
from topics.host.writing_back import write_back


def test_a_file_is_written_back_and_reads_as_before(tmp_path: Path) -> None:
    file = OsFs().open(str(tmp_path / "a"), write=True, create=True)
    file.allocate(100_000)
    write_all(file, 5000, [b"abc"], dsync=True)
    write_all(file, 9000, [b"def"])
    file.sync()
    assert file.read_at(4999, 5) == b"\0abc\0"
    assert file.read_at(9000, 3) == b"def"
    assert file.size() == 100_000


def test_trouble_is_told_as_that_of_a_sync_is() -> None:
    with pytest.raises(OSError, match="Bad file") as caught:
        write_back((1 << 31) - 1)
    assert caught.value.errno == errno.EBADF
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="seek"):
            write_back(writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_trouble_is_told_though_a_signal_breaks_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call would hear nothing of it any more."""

    def broken_off(*_: int) -> int:
        ctypes.set_errno(errno.EIO)
        raise KeyboardInterrupt

    monkeypatch.setattr(writing_back, "_sync_file_range", broken_off)
    with open(tmp_path / "a", "wb") as file, pytest.raises(OSError, match="Input/output error"):
        write_back(file.fileno())
    ctypes.set_errno(errno.EIO)  # left by somebody else
    monkeypatch.undo()
    with open(tmp_path / "a", "wb") as file:
        write_back(file.fileno())
