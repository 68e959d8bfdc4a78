"""A file system that breaks down and is mounted again while the machine runs on: what was in memory is gone with it.

The file system is an ext4 in a file. Making and mounting one needs the right to; where that is missing the test is
skipped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import topics
from topics.host.mount import mount_of

_SHUTDOWN = 0x8004587D
_AT_ONCE = 2
"""Neither data nor journal are written any more."""
_CHILD = """
import sys, topics
log = topics.open(sys.argv[1], sync_ms=60_000, wal_shards=1)
for name, durability in (("kept", "fsync"), ("tail", "disk")):
    log.create(name, durability=durability)
log.append("kept", [{"data": n} for n in range(10)])
for n in range(20):
    last = log.append("tail", [{"data": n}] * 100).last_seq
print(last, flush=True)
sys.stdin.read()
"""


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"`{command[0]}` is refused here: {done.stderr.strip()}")


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    run("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_acked_records_that_went_with_a_mount_are_reported(tmp_path: Path) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4 here")
    image, place = tmp_path / "image", tmp_path / "mount"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    run("mkfs.ext4", "-q", "-F", str(image))
    with mounted(image, place):
        fd = os.open(place, os.O_RDONLY)
        try:
            if not (mount_of(fd) or "").startswith("u"):
                pytest.skip("this kernel gives the numbers of mounts again: the two cannot be told apart")
            with subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(place / "data")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as child:
                assert child.stdout is not None
                acked = int(child.stdout.readline())
                fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _AT_ONCE))
                child.kill()
        finally:
            os.close(fd)
    with mounted(image, place), topics.open(place / "data", wal_shards=1) as log:
        assert [item.seq for item in log.read("kept") if isinstance(item, topics.Record)] == list(range(1, 11))
        told: set[int] = set()
        for item in log.read("tail"):
            told |= {item.seq} if isinstance(item, topics.Record) else set(range(item.gap_from, item.gap_to + 1))
        assert set(range(1, acked + 1)) <= told, "each acknowledged record is there, or is said to be lost"
        assert any(isinstance(item, topics.Gap) and item.reason == "crash" for item in log.read("tail"))
        assert log.append("tail", [{"data": "new"}]).first_seq > acked
