"""The thread that syncs by the timer: when it looks again, and what becomes of its own mistakes."""

from __future__ import annotations

import os
import sys
from collections import deque
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

import topics
from topics.format.ops import prepare
from topics.model import limits
from topics.model.errors import ReadOnly, WriteFailed
from topics.rules.catchup import FROM_BURSTS, NS_PER_BYTE
from topics.storage.commit import Background, Bell, until_due_ns

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
