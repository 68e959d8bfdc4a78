"""What closing a log says, and that it lets go of everything whatever it says."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import topics
from topics.host.clock import SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.storage.opening import open_store
from topics.storage.options import make_options
from topics.storage.submission import Submission
from topics.testing.faults import Fault, FaultFs

SLOW = 60_000
"""ms until a background sync: what is appended is not synced before the end."""


class Closing:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.fs = FaultFs(OsFs())
        self.others = set(threading.enumerate())
        self.log = topics.Log(self.fs, str(data), SystemClock(), SystemIds(), sync_ms=SLOW)

    def fill(self, durability: str = "disk") -> None:
        self.log.create("orders", durability=durability)
        self.log.append("orders", [{"data": n} for n in range(5)])

    def fail(self, call: str, error: str = "EIO", path: str = "") -> None:
        self.fs.add(Fault(call, 1, error, forever=True, path=path))

    def check_let_go(self) -> None:
        """No thread, no descriptor, no lock is left."""
        assert [thread.name for thread in threading.enumerate() if thread not in self.others] == []
        gc.collect()  # an append that failed leaves a ring, which holds its file until then
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
        assert [path for path in held if path.startswith(str(self.data))] == []
        self.fs.heal()
        if (self.data / "meta" / "FORMAT").exists():
            with topics.open(self.data) as again:
                assert [item.data for item in again.read("orders") if isinstance(item, topics.Record)][:5] == [
                    *range(5)
                ]


def _is_open(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


@pytest.fixture
def closing(tmp_path: Path) -> Closing:
    return Closing(tmp_path / "data")


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_a_sync_that_fails_at_the_end_is_told(closing: Closing, durability: str) -> None:
    closing.fill(durability)
    closing.fail("sync", path="/wal")
    with pytest.raises(topics.WriteFailed, match=r"acknowledged writes may be lost: .* not synced") as told:
        closing.log.close()
    assert isinstance(told.value.__cause__, topics.WriteFailed)
    assert told.value.path.endswith(".log")
    closing.log.close()  # it is closed; what there was to say was said
    closing.check_let_go()


def test_a_directory_that_was_removed_is_told(closing: Closing) -> None:
    closing.fill("fsync")
    shutil.rmtree(closing.data)
    closing.log.append("orders", [{"data": 5}])
    with pytest.raises(topics.StorageError, match=r"acknowledged writes are lost: .* is gone") as told:
        closing.log.close()
    assert not str(told.value).endswith("None")
    assert all("None" not in line for line in closing.log.trouble)
    closing.check_let_go()


@pytest.mark.parametrize("directory", ["/topics", "/meta"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_checkpoint_that_fails_at_the_end_loses_nothing_and_is_trouble(
    closing: Closing, error: str, directory: str
) -> None:
    closing.fill()
    closing.fail("write", error, directory)
    closing.log.close()
    assert "the last checkpoint failed" in closing.log.trouble[0]
    closing.check_let_go()


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_failure_that_its_writer_was_told_is_not_told_again(closing: Closing, call: str) -> None:
    closing.fill("fsync")
    closing.fail(call, path="/wal")
    with pytest.raises(topics.WriteFailed):
        closing.log.append("orders", [{"data": 5}])
    closing.log.close()
    closing.check_let_go()


def test_what_a_failed_shard_never_synced_is_told(closing: Closing) -> None:
    closing.fill("disk")
    closing.log.create("sums", durability="fsync")
    closing.log.append("orders", [{"data": 5}])
    closing.fail("sync", path="/wal")
    with pytest.raises(topics.WriteFailed):
        closing.log.append("sums", [{"data": 1}])
    with pytest.raises(topics.WriteFailed, match="may be lost"):
        closing.log.close()
    closing.check_let_go()


def work(closing: Closing, error: Exception | None = None) -> None:
    with closing.log:
        closing.fail("sync", path="/wal")
        if error is not None:
            raise error


def test_an_error_of_the_body_is_not_replaced(closing: Closing) -> None:
    closing.fill()
    with pytest.raises(KeyError, match="mine") as told:
        work(closing, KeyError("mine"))
    (note,) = told.value.__notes__
    assert "closing the log failed, too: acknowledged writes may be lost" in note
    closing.check_let_go()


def test_a_body_without_an_error_hears_of_the_failed_end(closing: Closing) -> None:
    closing.fill()
    with pytest.raises(topics.WriteFailed):
        work(closing)
    closing.check_let_go()


_AFTER_MAIN = """
import atexit, sys, threading
import topics

log = topics.open(sys.argv[1])
log.create("orders")

def work():
    threading.main_thread().join()
    log.append("orders", [{"data": n} for n in range(5)])
    print(log.checkpoint(), log.trouble)
    log.append("orders", [{"data": 5}])
    log.close()

if sys.argv[2] == "thread":
    threading.Thread(target=work).start()
else:
    log.append("orders", [{"data": n} for n in range(6)])
    print(log.checkpoint(), log.trouble)
    atexit.register(log.close)
"""


@pytest.mark.parametrize("how", ["thread", "atexit"])
def test_a_log_is_checkpointed_and_closed_when_the_main_thread_is_through(tmp_path: Path, how: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _AFTER_MAIN, tmp_path / "data", how], capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("True []\n", "")
    with topics.open(tmp_path / "data") as log:
        assert [item.data for item in log.read("orders") if isinstance(item, topics.Record)] == [*range(6)]


_HELD_BY_A_GENERATOR = """
import atexit, sys
import topics

Closed = topics.StoreClosed

def session():
    with topics.open(sys.argv[1]) as log:
        log.create("orders", durability=sys.argv[3])
        log.append("orders", [{"data": n} for n in range(6)])
        try:
            yield log
        finally:
            try:
                log.checkpoint()
            except Closed:
                print("closed", flush=True)

def begin():
    global held
    held = session()
    next(held)

if sys.argv[2] == "before the end":
    begin()
else:  # behind the moment at which open logs are closed
    atexit._run_exitfuncs()
    begin()
print("through", flush=True)
"""


@pytest.mark.parametrize("durability", ["memory", "fsync"])
@pytest.mark.parametrize("when", ["before the end", "at the end"])
def test_a_log_that_a_generator_holds_at_the_end_of_the_process_keeps_nobody_waiting(
    tmp_path: Path, when: str, durability: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _HELD_BY_A_GENERATOR, tmp_path / "data", when, durability],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert (ran.stdout, ran.stderr) == ("through\nclosed\n", "")
    with topics.open(tmp_path / "data") as log:
        assert [item.data for item in log.read("orders") if isinstance(item, topics.Record)] == [*range(6)]


_LEFT_OPEN = """
import shutil, sys
import topics

log = topics.open(sys.argv[1])
log.create("orders")
log.append("orders", [{"data": 1}])
if sys.argv[2] == "gone":
    shutil.rmtree(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["there", "gone"])
def test_a_log_that_is_left_open_is_closed_when_the_process_ends(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    ran = subprocess.run([sys.executable, "-c", _LEFT_OPEN, data, how], capture_output=True, text=True, check=True)
    if how == "gone":
        assert ran.stderr.startswith("a log that was left open: acknowledged writes are lost")
        return
    assert ran.stderr == ""
    store = open_store(OsFs(), str(data), make_options({"wal_shards": 1}), SystemClock(), SystemIds(), threading.Lock())
    assert [(topic.head, topic.copied) for topic in store.topics.values()] == [(1, 1)]
    store.release()


def test_a_claim_that_outlives_its_log_writes_nothing_where_the_next_one_is_at_home(tmp_path: Path) -> None:
    log = topics.open(tmp_path, wal_shards=1)
    log.create("dead")
    log.create("jobs", type="queue", dead_letter="dead", max_deliveries=1)
    log.append("jobs", [{"data": 1}])
    (job,) = log.queue("jobs").claim("w", lease_ms=60_000)
    log.queue("jobs").nack("w", [job])
    claim = log._queues.claim("jobs", "w", 1, None)  # it moves the job to the dead letters, as the thread of a worker
    copy = next(claim)
    assert isinstance(copy, Submission)
    log._committer.wait_settled(copy)
    log.close()
    assert log.trouble == []
    with topics.open(tmp_path, wal_shards=1) as other:
        other.create("orders", durability="fsync")
        other.append("orders", [{"data": 1}])
        files = {path.name: path.stat().st_ino for path in (tmp_path / "wal").iterdir()}
        assert log._drive(claim).rows == []
        assert {path.name: path.stat().st_ino for path in (tmp_path / "wal").iterdir()} == files
