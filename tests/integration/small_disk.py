"""A file system so small that it can be filled, and the ballast that fills it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

DISK_BYTES = 6 * 1024 * 1024


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A tmpfs at `place`. Mounting one needs the right to; where that is missing the test is skipped."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "topics-test", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("a full disk needs a small file system of its own, and there is no `mount` here")
    if done.returncode:
        pytest.skip(f"a full disk needs a small file system of its own, and mounting one failed: {done.stderr.strip()}")
    try:
        yield place
    finally:
        if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


class Ballast:
    """Takes room on the disk and gives it back."""

    def __init__(self, disk: Path) -> None:
        self.path = disk / "ballast"

    def leave(self, left: int) -> None:
        """Take all but `left` bytes."""
        with self.path.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        with self.path.open("r+b") as file:
            file.truncate(max(self.path.stat().st_size - left, 0))

    def drop(self) -> None:
        self.path.unlink()
