"""The number of a mount: what was in memory of the system goes with the mount, so the next one has another."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topics.host import mount
from topics.host.fs import OsFs
from topics.host.mount import mount_of


@contextmanager
def mounted(place: Path) -> Iterator[str]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting is impossible here: {done.stderr.strip()}")
    try:
        yield OsFs().identity(str(place))
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_the_next_mount_at_a_place_has_another_identity(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        if not (mount_of(fd) or "").startswith("u"):
            pytest.skip("this kernel gives the numbers of mounts again")
    finally:
        os.close(fd)
    seen = set()
    for _ in range(3):
        with mounted(tmp_path) as identity:
            assert OsFs().identity(str(tmp_path)) == identity
            seen.add(identity)
    assert len(seen) == 3


def test_an_older_kernel_tells_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        info = Path(f"/proc/self/fdinfo/{fd}").read_text()
        monkeypatch.setattr(mount, "_unique", lambda fd: None)
        assert f"mnt_id:\t{mount_of(fd)}\n" in info
    finally:
        os.close(fd)


def test_where_nobody_tells_no_identity_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.host.fs.mount_of", lambda fd: None)
    assert OsFs().identity(str(tmp_path)) != OsFs().identity(str(tmp_path))
