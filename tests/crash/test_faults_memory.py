"""Fault catalogue, memory that runs out: at any file call of a start, an append, a snapshot, or behind an error."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.crash.life import ROOT, Life
from topics.embedded import Log
from topics.host.clock import SystemClock
from topics.host.fs import File, Fs, OsFs
from topics.host.ids import SystemIds
from topics.model.errors import TopicsError
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs
from topics.testing.ids import FakeIds

OPTIONS: dict[str, Any] = {
    "wal_shards": 1, "wal_file_bytes": 1024, "segment_max_events": 3, "checkpoint_gap_ms": 1 << 40, "evidence_ms": 0,
}  # fmt: skip


class StarvingFs(FaultFs):
    """The n-th call from `starve` on finds no memory; with `behind_error` only calls behind one that failed count. The
    makers of spare files are not starved: a writer that finds no spare makes its next file itself."""

    def __init__(self, inner: Fs) -> None:
        super().__init__(inner)
        self.left = 0
        self.behind_error = False
        self.starved = False

    def starve(self, nth: int, *, behind_error: bool = False) -> None:
        self.left, self.behind_error, self.starved = nth, behind_error, False

    def due(self, call: str, path: str) -> str | None:
        spared = threading.current_thread().name == "topics-spare"
        if self.left and not spared and (self.fired or not self.behind_error):
            self.left -= 1
            if not self.left:
                self.starved = True
                raise MemoryError
        return super().due(call, path)


def busy() -> Life:
    """A store with records in segments, in the WAL, and a delete; killed."""
    life = Life()
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 4, "x")
    life.store.checkpoint()
    life.append("a", 3, "y")
    life.delete("a", tag="x")
    life.kill()
    return life


def starve_in_start(base: Life, nth: int, fault: Fault | None = None) -> bool:
    """Let the n-th call of a start find no memory, or the n-th behind `fault`; False if there were fewer calls."""
    life = base.clone()
    fs = StarvingFs(life.ordered())
    if fault is not None:
        fs.add(fault)
    fs.starve(nth, behind_error=fault is not None)
    with contextlib.suppress(MemoryError, TopicsError):
        life.open(fs)
    if not life.is_open:
        life.disk.lock(f"{ROOT}/.topics.lock").release()
    life.kill()
    life.reopen()
    assert life.seqs("a") == [5, 6, 7]
    life.append("a", 1)
    life.power_cut()
    life.reopen()
    return fs.starved


def test_memory_that_runs_out_in_any_call_of_a_start_leaves_the_store_whole() -> None:
    """3.3 memory exhaustion, replay: the directory is let go, nothing is half-done, and the next start converges."""
    base, nth = busy(), 1
    while starve_in_start(base, nth):
        nth += 1
    assert nth > 30


@pytest.mark.parametrize("call", ["write", "rename", "open"])
def test_memory_that_runs_out_while_a_start_cleans_up_behind_an_error_leaves_the_store_whole(call: str) -> None:
    """F-COMPOUND-OOM-IN-ERROR-PATH: a clean failure, and the next start converges."""
    base = busy()
    starved = 0
    for failed in range(1, 8):
        nth = 1
        while nth < 4 and starve_in_start(base, nth, Fault(call, failed, "EIO", path="/wal")):
            nth += 1
        starved += nth - 1
    assert starved


def append(log: topics.Log, acked: dict[int, int]) -> None:
    for n in range(100, 105):
        acked[log.append("orders", [{"data": n, "tag": "t" * 150}]).first_seq] = n


def snapshot(log: topics.Log, _: dict[int, int]) -> None:
    log.checkpoint()


def starve_in(act: Callable[[topics.Log, dict[int, int]], None], nth: int, fault: Fault | None) -> bool:
    """Let the n-th call of `act` find no memory, then go on; False if there were fewer calls."""
    disk = FakeDisk(nth, sector=64)
    fs = StarvingFs(disk)
    log = topics.Log(fs, ROOT, FakeClock(), FakeIds(nth), **OPTIONS)
    log.create("orders", durability="fsync")
    acked = {log.append("orders", [{"data": n}]).first_seq: n for n in range(5)}
    log.checkpoint()
    acked |= {log.append("orders", [{"data": n}]).first_seq: n for n in range(5, 9)}
    log.create("quiet", durability="fsync")
    log.append("quiet", [{"data": 0}])
    if fault is not None:
        fs.add(fault)
    fs.fired = 0
    fs.starve(nth, behind_error=fault is not None)
    with contextlib.suppress(MemoryError, topics.WriteFailed, topics.ReadOnly, topics.DiskFull):
        act(log, acked)
    starved = fs.starved
    fs.left = 0
    fs.heal()
    seen = {item.seq: item.data for item in log.read("orders") if isinstance(item, topics.Record)}
    assert {seq: seen.get(seq) for seq in acked} == acked
    with contextlib.suppress(topics.ReadOnly, topics.DiskFull):
        for n in range(1000, 1003):
            acked[log.append("orders", [{"data": n, "tag": "t" * 250}] * 3).first_seq] = n
            assert log.checkpoint(), log.trouble
    log._store.guard.release()  # leave it as a kill would
    disk.power_cut()
    disk.restart()
    with topics.Log(disk, ROOT, FakeClock(), FakeIds(nth), **OPTIONS) as again:
        items = list(again.read("orders"))
        found = {item.seq: item.data for item in items if isinstance(item, topics.Record)}
        assert len(found) == len(items), items
        assert {seq: found.get(seq) for seq in acked} == acked
        assert set(found.values()) <= {*range(9), *range(100, 105), *range(1000, 1003)}
        assert [item.data for item in again.read("quiet") if isinstance(item, topics.Record)] == [0]
        assert again.append("orders", [{"data": 0}]).first_seq > max(found)
    log._background.stop()
    return starved


@pytest.mark.parametrize("act", [append, snapshot], ids=["append", "snapshot"])
@pytest.mark.parametrize(
    "fault",
    [None, Fault("sync", 1, "EIO"), Fault("open", 1, "ENOSPC", forever=True), Fault("rename", 1, "EIO")],
    ids=["healthy", "sync", "full", "rename"],
)
def test_memory_that_runs_out_refuses_and_changes_nothing(
    act: Callable[[topics.Log, dict[int, int]], None], fault: Fault | None
) -> None:
    """3.3 memory exhaustion, append, snapshot and error paths: what was acked stays and is read, the store goes on or
    says that it stopped, and the next start has it all."""
    nth = 1
    while starve_in(act, nth, fault):
        nth += 1
    assert nth > (5 if fault is None else 0)


def test_the_maker_of_spare_files_tries_again_when_memory_ran_out(tmp_path: Path) -> None:
    class Starved(OsFs):
        left = 2

        def open(self, path: str, *args: Any, **more: Any) -> File:
            if path.endswith(".pre") and threading.current_thread().name == "topics-spare" and self.left:
                self.left -= 1
                raise MemoryError
            return super().open(path, *args, **more)

    fs = Starved()
    with Log(fs, str(tmp_path / "data"), SystemClock(), SystemIds(), wal_shards=1, wal_file_bytes=65536) as log:
        log.create("a", durability="fsync")
        end = time.monotonic() + 20
        while (fs.left or log._store.shards[0].spare is None) and time.monotonic() < end:
            log.append("a", [{"data": "x" * 2000}])
        assert not fs.left
        assert log._store.shards[0].spare is not None
