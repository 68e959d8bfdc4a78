from __future__ import annotations

import ctypes
import errno
from pathlib import Path

import pytest

from topics.host import blanking
from topics.host.blanking import blank_range
from topics.host.fs import OsFs, write_all


def test_a_system_that_cannot_gets_zeros_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: int) -> int:
        ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    for call in (unable, None):
        monkeypatch.setattr(blanking, "_fallocate", call)
        assert not blank_range(0, 1)
        file = OsFs().open(str(tmp_path / "a"), write=True, create=True)
        write_all(file, 0, [b"x" * 100_000])
        file.blank(200_000)
        assert file.read_at(0, 300_000) == bytes(200_000)
        file.close()


def test_a_call_that_a_signal_broke_off_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    def broken_off_once(*given: int) -> int:
        calls.append(given)
        if len(calls) == 1:
            ctypes.set_errno(errno.EINTR)
            return -1
        return 0

    monkeypatch.setattr(blanking, "_fallocate", broken_off_once)
    ctypes.set_errno(errno.EIO)  # left by somebody else
    assert blank_range(7, 4096)
    assert calls == [(7, 0x10, 0, 4096)] * 2


def test_any_other_trouble_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="Bad file") as caught:
        blank_range((1 << 31) - 1, 4096)
    assert caught.value.errno == errno.EBADF

    def full(*_: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(blanking, "_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        blank_range(0, 4096)
