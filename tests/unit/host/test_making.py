"""Whole files, by the compiled twin and the plain one alike; the file systems' own suite says what they are for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from topics.host import making
from topics.host.making import NewFile

MakeAll = Callable[[list[NewFile], bool], None]
BLOCK = 4096
STRETCH = 4 * 1024 * 1024


@pytest.fixture(params=["compiled", "plain"])
def make_all(request: pytest.FixtureRequest) -> MakeAll:
    if request.param == "plain":
        return making.make_all_plain
    if making.make_all is making.make_all_plain:
        pytest.skip("the compiled twin was not built")
    return making.make_all


@pytest.mark.parametrize("hot", [True, False])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, STRETCH, STRETCH + BLOCK + 7])
def test_a_file_holds_exactly_what_was_given(make_all: MakeAll, tmp_path: Path, size: int, hot: bool) -> None:
    data = os.urandom(1024) * (size // 1024 + 1)
    (tmp_path / "b").write_bytes(bytes(size + 9000))
    make_all([(str(tmp_path / name), None, memoryview(data)[:size]) for name in "ab"], hot)
    assert (tmp_path / "a").read_bytes() == data[:size]
    assert (tmp_path / "b").read_bytes() == data[:size], "what was there is gone, its end too"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_name_counts_in_its_directory(make_all: MakeAll, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        make_all([("inner/a", fd, bytearray(b"abc"))], True)
    finally:
        os.close(fd)
    assert (tmp_path / "inner" / "a").read_bytes() == b"abc"


def test_the_file_that_cannot_be_made_is_named_and_none_stays_open(make_all: MakeAll, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    bad = str(tmp_path / "absent" / "b")
    for _ in range(3):
        with pytest.raises(OSError) as caught:
            make_all([(str(tmp_path / "a"), None, b"1"), (bad, None, b"2"), (str(tmp_path / "c"), None, b"3")], False)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, bad)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "c").exists()


def test_a_full_disk_is_told(make_all: MakeAll) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    for hot in (True, False):
        with pytest.raises(OSError) as caught:
            make_all([("/dev/full", None, bytes(2 * BLOCK + 1))], hot)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")
