"""One process per data directory, with real processes and the real file system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import topics
from topics.model.errors import StoreLocked

HOLDER = """
import sys, topics
log = topics.open(sys.argv[1], wal_shards=1)
log.create("a", durability="fsync")
log.append("a", [{"data": 1}])
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.realdisk
def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """F-WAL-DOUBLE-WRITER-FENCING, I9: refused on the lock; a killed holder leaves no lock behind."""
    try:
        with pytest.raises(StoreLocked):
            topics.open(tmp_path / "data")
        assert (tmp_path / "data" / ".topics.lock").read_text() == f"pid={holder.pid}\n"
    finally:
        end(holder)
    with topics.open(tmp_path / "data") as log:
        assert [item.seq for item in log.read("a") if isinstance(item, topics.Record)] == [1]


@pytest.mark.realdisk
def test_a_second_engine_of_the_same_process_is_refused(tmp_path: Path) -> None:
    """data_dir_lock_rejects_second_live_engine."""
    with topics.open(tmp_path / "data"):
        with pytest.raises(StoreLocked):
            topics.open(tmp_path / "data")
        with pytest.raises(StoreLocked):
            topics.open(tmp_path / "." / "data")
    topics.open(tmp_path / "data").close()


@pytest.mark.realdisk
def test_a_symlink_to_the_directory_meets_the_same_lock(tmp_path: Path) -> None:
    """3.3 name and path tricks, symlinked data dir."""
    with topics.open(tmp_path / "data") as log:
        (tmp_path / "other").symlink_to(tmp_path / "data")
        with pytest.raises(StoreLocked):
            topics.open(tmp_path / "other")
        log.create("a")
        log.append("a", [{"data": 1}])
    with topics.open(tmp_path / "other") as log:
        assert log.info("a").count == 1


@pytest.mark.realdisk
def test_a_forked_child_that_ends_does_not_let_go_of_the_lock(tmp_path: Path) -> None:
    """3.3 two processes, fork: an inherited descriptor neither writes nor unlocks."""
    with topics.open(tmp_path / "data", wal_shards=1) as log:
        log.create("a", durability="fsync")
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(StoreLocked):
            topics.open(tmp_path / "data")
        log.append("a", [{"data": 1}])
    with topics.open(tmp_path / "data") as log:
        assert log.info("a").count == 1


@pytest.mark.realdisk
def test_a_started_program_inherits_no_descriptor(tmp_path: Path) -> None:
    """3.3 two processes: a program started by the holder does not keep the directory locked after it."""
    log = topics.open(tmp_path / "data")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        log.close()
        topics.open(tmp_path / "data").close()
    finally:
        child.communicate(b"\n")


@pytest.mark.realdisk
def test_files_and_directories_are_private(tmp_path: Path) -> None:
    """Files of a store are readable by their owner alone."""
    with topics.open(tmp_path / "data") as log:
        log.create("a")
        log.append("a", [{"data": 1}])
        log.checkpoint()
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.realdisk
def test_deleting_the_lock_file_lets_nobody_in(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """3.3 two processes, lock file deleted: the directory itself is held too."""
    try:
        (tmp_path / "data" / ".topics.lock").unlink()
        with pytest.raises(StoreLocked):
            topics.open(tmp_path / "data")
    finally:
        end(holder)
    topics.open(tmp_path / "data").close()


@pytest.mark.realdisk
def test_a_process_whose_directory_was_replaced_leaves_the_new_one_alone(tmp_path: Path) -> None:
    """3.3 removed dir under us: whoever held the old directory goes on there, or fails, and never writes into the
    store that stands at its path now."""
    data, moved = tmp_path / "data", tmp_path / "moved"
    old = topics.open(data, wal_shards=1)
    old.create("a", durability="fsync")
    old.append("a", [{"data": "old"}])
    data.rename(moved)
    with topics.open(data, wal_shards=1) as new:
        new.create("a", durability="fsync")
        new.append("a", [{"data": "new"}])
        new.checkpoint()
        before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
        old.append("a", [{"data": "older"}] * 10)
        old.checkpoint()
        old.close()
        assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    for place, values in ((data, ["new"]), (moved, ["old"] + ["older"] * 10)):
        with topics.open(place) as log:
            assert [item.data for item in log.read("a") if isinstance(item, topics.Record)] == values


@pytest.mark.realdisk
def test_a_process_whose_directory_was_removed_makes_no_new_one(tmp_path: Path) -> None:
    """3.3 removed dir under us: an error, and nothing at the path."""
    data = tmp_path / "data"
    log = topics.open(data, wal_shards=1)
    log.create("a")
    log.append("a", [{"data": 1}])
    shutil.rmtree(data)
    assert not log.checkpoint()
    assert str(data) in " ".join(log.trouble)
    with suppress(topics.TopicsError):
        log.close()
    assert not data.exists()
