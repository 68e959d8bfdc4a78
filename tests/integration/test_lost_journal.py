"""A real ext4 that gives up its journal while files are synced: what a sync called durable is there after the mount.

Such a file system answers every call with an error from then on, as a broken disk makes it do. Only the call under way
in that moment may be wrong, and one in nine is where a file's blocks were only reserved and it is synced plainly.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import threading
import time
from pathlib import Path
from random import Random

import pytest

from tests.conftest import SEED
from topics.host.fs import File, OsFs, write_all

MEMORY = Path("/dev/shm")
"""A disk in memory is quick, so most of a sync is the file system's own work."""
ROUNDS = 80
IMAGE_BYTES = 64 * 1024 * 1024
FILE_BYTES = 16 * 1024 * 1024
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_JOURNAL = struct.pack("I", 2)


def run(*command: str | Path) -> None:
    """Skip the test where this machine does not let us."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"a file system of its own is needed, and there is no `{command[0]}` here")
    if done.returncode:
        pytest.skip(f"a file system of its own is needed, and {command[0]} failed: {done.stderr.strip()}")


def shut_down_after(seconds: float, place: Path) -> threading.Thread:
    def shut_down() -> None:
        time.sleep(seconds)
        directory = os.open(place, os.O_RDONLY)
        fcntl.ioctl(directory, SHUTDOWN, WITHOUT_JOURNAL)
        os.close(directory)

    thread = threading.Thread(target=shut_down)
    thread.start()
    return thread


def write_until_it_fails(file: File, rng: Random) -> int:
    """How many bytes were said to be durable."""
    durable = 0
    data = b"\xff" * 12_000
    while durable < FILE_BYTES - len(data):
        piece, dsync = data[: rng.randint(200, len(data))], rng.random() < 0.5
        try:
            write_all(file, durable, [piece], dsync)
            if not dsync:
                file.sync()
        except OSError:
            break
        durable += len(piece)
    return durable


@pytest.mark.slow
def test_what_was_synced_outlives_a_file_system_that_loses_its_journal(tmp_path: Path) -> None:
    rng = Random(SEED)
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    if MEMORY.is_dir():
        image = MEMORY / f"topics-test-{os.getpid()}"
    try:
        lost = shut_down_often(image, place, rng)
    finally:
        image.unlink(missing_ok=True)
    assert not lost, f"(turn, bytes said to be durable, the first that is not): {lost}"


def shut_down_often(image: Path, place: Path, rng: Random) -> list[tuple[int, int, int]]:
    with image.open("wb") as made:
        made.truncate(IMAGE_BYTES)
    run("mkfs.ext4", "-q", "-F", image)
    lost: list[tuple[int, int, int]] = []
    for turn in range(ROUNDS):
        run("mount", "-o", "loop", image, place)
        try:
            file = OsFs().open(f"{place}/{turn}", write=True, create=True)
            if turn % 2:
                write_all(file, 0, [b"x" * FILE_BYTES])
                file.sync()
                file.blank(FILE_BYTES)
            else:
                file.allocate(FILE_BYTES)
            file.sync()
            OsFs().sync_dir(str(place))
            cut = shut_down_after(rng.uniform(0.0005, 0.02), place)
            durable = write_until_it_fails(file, rng)
            cut.join()
            file.close()
        finally:
            subprocess.run(["umount", str(place)], check=True)
        run("mount", "-o", "loop", image, place)
        try:
            path = place / str(turn)
            found = path.read_bytes()[:durable]
            path.unlink()
        finally:
            subprocess.run(["umount", str(place)], check=True)
        if found != b"\xff" * durable:
            lost.append((turn, durable, len(found) - len(found.lstrip(b"\xff"))))
    return lost
