"""The thread that syncs by the timer: when it looks again, and what becomes of its own mistakes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

import topics
from topics.embedded import Log
from topics.format.ops import prepare
from topics.host.clock import SystemClock
from topics.host.fs import File, OsFs
from topics.host.ids import SystemIds
from topics.model import limits
from topics.model.errors import ReadOnly, StoreClosed, WriteFailed
from topics.rules.catchup import FROM_BURSTS, NS_PER_BYTE
from topics.storage import commit
from topics.storage.commit import Background, Bell, until_due_ns
from topics.storage.staging import Staging
from topics.storage.store import Store
from topics.testing.wrap import WrappedFile, WrappedFs

MS = 1_000_000


@pytest.mark.parametrize(
    ("dirty_since", "until"),
    [
        ([], 10 * MS),
        ([None, None], 10 * MS),
        ([None, 95 * MS], 5 * MS),
        ([99 * MS, 93 * MS, None], 3 * MS),
        ([90 * MS], MS),
        ([10 * MS], MS),
    ],
)
def test_next_sync_is_due_when_the_oldest_bytes_are(dirty_since: list[int | None], until: int) -> None:
    assert until_due_ns(dirty_since, 10 * MS, 100 * MS) == until


def test_mistake_of_our_own_in_a_background_sync_stops_the_shard_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    log = topics.open(tmp_path / "store", wal_shards=1)
    log.create("t", durability="disk")
    monkeypatch.setattr(Background, "_sync", broken)
    with pytest.raises((ReadOnly, WriteFailed)):
        deque((log.append("t", [{"data": 1}]) for _ in count()), maxlen=0)
    monkeypatch.undo()
    with pytest.raises(WriteFailed, match="not synced"):
        log.close()
    assert "WAL shard 0 stops: its background sync broke off" in caplog.text
    assert "a mistake of ours" in caplog.text


def test_append_behind_more_than_one_write_takes_returns_when_it_is_readable_itself(tmp_path: Path) -> None:
    with topics.open(tmp_path / "store", wal_shards=1, queue_submissions=2 * limits.COMMIT_SUBMISSIONS) as log:
        log.create("t", durability="fsync")
        with log._lock:  # nobody waits for these, so the next caller writes them
            for n in range(limits.COMMIT_SUBMISSIONS):
                log._store.append("t", prepare([{"data": n}]))
        done = log.append("t", [{"data": "last"}])
        assert done.first_seq == limits.COMMIT_SUBMISSIONS + 1
        assert log._store.topic("t").head == done.last_seq


def in_time(act: Callable[[], object]) -> None:
    """Run `act` in a thread of its own: it must come back."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for ever"
    if errors:
        raise errors[0]


def until(reached: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("owner", "name", "thread"),
    [
        (Staging, "tend", "the thread that checkpoints"),
        (Store, "checkpoint_due", "the thread that checkpoints"),
        (Background, "_pause_s", "the thread that syncs"),
        (Background, "_spare", "the thread that makes WAL files"),
    ],
)
def test_a_background_thread_goes_on_when_memory_has_run_out_anywhere_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, thread: str
) -> None:
    real, starved = getattr(owner, name), threading.Event()
    starved.set()

    def starving(*args: Any) -> Any:
        if starved.is_set():
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(owner, name, starving)
    log = topics.open(tmp_path / "store", wal_shards=1)
    log.create("t", durability="disk")
    shard = log._store.shards[0]

    def told() -> bool:
        log.append("t", [{"data": 1}])
        return f"{thread} broke off and goes on: MemoryError" in log.trouble

    until(told)
    starved.clear()
    until(lambda: not log.trouble)
    in_time(log.checkpoint)
    log.append("t", [{"data": 1}])
    file = shard.file
    assert file is not None
    until(lambda: file.synced == file.written)
    in_time(log.close)


def test_a_thread_goes_on_when_memory_runs_out_in_the_telling_of_that_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starving(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "tend", starving)
        patch.setattr(commit.log, "error", starving)
        log = topics.open(tmp_path / "store", wal_shards=1)
        until(lambda: log.trouble)
    in_time(log.checkpoint)
    in_time(log.close)


@pytest.mark.parametrize("error", [MemoryError, ZeroDivisionError])
def test_a_background_sync_that_broke_off_stops_the_shard_and_keeps_nobody_waiting(
    tmp_path: Path, error: type[Exception]
) -> None:
    class Starved(WrappedFs):
        def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
            return StarvedFile(self.inner.open(path, write=write, create=create, exclusive=exclusive))

    class StarvedFile(WrappedFile):
        def sync(self) -> None:
            if threading.current_thread().name == "topics-sync":
                raise error
            self.inner.sync()

    log = Log(Starved(OsFs()), str(tmp_path / "store"), SystemClock(), SystemIds(), wal_shards=1)
    log.create("t", durability="disk")
    with pytest.raises((ReadOnly, WriteFailed)):
        deque((log.append("t", [{"data": 1}]) for _ in count()), maxlen=0)
    with pytest.raises(WriteFailed, match="not synced"):
        in_time(log.close)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_background_thread_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Background, "_checkpoint_turn", ends)
        patch.setattr(Background, "_sync_turn", ends)
        log = topics.open(tmp_path / "store", wal_shards=1)
    until(lambda: log.trouble)
    with pytest.raises(ReadOnly, match="the thread that syncs has ended"):
        log.create("t", durability="disk")
    with pytest.raises(StoreClosed):
        in_time(log.checkpoint)
    with pytest.raises(StoreClosed):
        in_time(log.close)
    topics.open(tmp_path / "store", wal_shards=1).close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a weight of its own")
def test_threads_that_work_in_bulk_leave_the_cores_to_callers(tmp_path: Path) -> None:
    with topics.open(tmp_path / "store") as log:
        log.create("t", durability="disk")
        log.append("t", [{"data": 1}])
        log.checkpoint()
        weights = {
            thread.name: os.getpriority(os.PRIO_PROCESS, thread.native_id)
            for thread in log._background._threads
            if thread.native_id is not None
        }
        usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert weights["topics-sync"] == usual
    assert weights["topics-checkpoint"] > usual


def test_a_writer_with_bursts_of_wal_behind_it_waits_behind_its_own_appends_alone(tmp_path: Path) -> None:
    class Noted(Bell):
        waits: ClassVar[list[float]] = []

        def wait(self, timeout_s: float) -> None:
            self.waits.append(timeout_s)

    with topics.open(tmp_path, checkpoint_gap_ms=1 << 40, checkpoint_burst_bytes=1 << 30) as log:
        log.create("t", durability="memory")
        committer, shard = log._committer, log._store.shards[0]
        committer._silent = Noted()
        batch = [{"data": "x" * 1000}] * 100
        log.append("t", batch)
        assert Noted.waits == []
        shard.wal_bytes = (FROM_BURSTS + 1) << 30
        log.append("t", batch)
        size = shard.wal_bytes - ((FROM_BURSTS + 1) << 30)
        assert Noted.waits == [pytest.approx(size * NS_PER_BYTE / 1e9)]
        log.append("t", batch[:1])
        assert len(Noted.waits) == 1, "what is not worth a sleep is kept for the next one"
        assert committer.held_back_ns > 0
        shard.wal_bytes = 0
        log.append("t", batch)
        assert len(Noted.waits) == 1
