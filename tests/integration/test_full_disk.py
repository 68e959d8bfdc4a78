"""A disk that is really full: writes are refused and say why, reads go on, and room that comes back heals without loss.

The disk is a small tmpfs. Mounting one needs the right to; where that is missing these tests are skipped.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.integration.small_disk import Ballast

pytestmark = pytest.mark.realdisk

SMALL: dict[str, Any] = {"wal_shards": 2, "wal_file_bytes": 131_072, "segment_max_events": 200}
NEVER: dict[str, Any] = {"checkpoint_bytes": 1 << 40, "checkpoint_ms": 1 << 40}


class Ledger:
    def __init__(self) -> None:
        self.acked: dict[tuple[str, int], str] = {}
        self.unknown: list[str] = []

    def append(self, log: topics.Log, name: str, what: str) -> None:
        """One append of three records; noted as acked, or as unknown where only a reopened store can tell."""
        try:
            done = log.append(name, [{"data": f"{what}.{i}", "tag": "x" * 200} for i in range(3)])
        except topics.WriteFailed:
            self.unknown.append(what)
            raise
        for i in range(3):
            key = (name, done.first_seq + i)
            assert key not in self.acked, f"{key} was handed out twice"
            self.acked[key] = f"{what}.{i}"

    def check(self, log: topics.Log) -> None:
        found: dict[tuple[str, int], str] = {}
        for name in log.topics():
            for item in log.read(name):
                assert isinstance(item, topics.Record), item
                found[name, item.seq] = item.data
        assert {key: found.get(key) for key in self.acked} == self.acked
        more = {key: value for key, value in found.items() if key not in self.acked}
        assert {value.rpartition(".")[0] for value in more.values()} <= set(self.unknown), "records were invented"
        assert len(more) % 3 == 0, "a part of a batch"


def fill(log: topics.Log, ledger: Ledger, prefix: str = "fill", name: str = "orders") -> topics.TopicsError:
    """Append until the store refuses; its refusal."""
    for n in range(100_000):
        try:
            ledger.append(log, name, f"{prefix}.{n}")
        except (topics.DiskFull, topics.WriteFailed) as error:
            return error
    raise AssertionError("the disk never became full")


def append_when_healed(log: topics.Log, ledger: Ledger, what: str, name: str = "orders") -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            return ledger.append(log, name, what)
        except topics.DiskFull:
            assert time.monotonic() < deadline, "room came back, but writes are refused still"
            time.sleep(0.02)


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_full_disk_refuses_writes_and_heals_when_room_comes_back(
    disk: Path, ballast: Ballast, durability: str
) -> None:
    ledger = Ledger()
    with topics.open(disk / "data", **SMALL, **NEVER) as log:
        log.create("orders", durability=durability)
        ledger.append(log, "orders", "first")
        ballast.leave(600_000)
        error = fill(log, ledger)
        assert isinstance(error, topics.DiskFull)
        assert "cannot make its next file" in str(error)
        assert "free disk space to write again" in str(error)
        ledger.check(log)
        info = log.info("orders")
        assert (info.read_only, info.trouble) == (False, error.message)
        assert error.message in log.trouble
        with pytest.raises(topics.DiskFull):
            log.append("orders", [{"data": 1}])
        head = log.info("orders").head_seq
        ballast.drop()
        append_when_healed(log, ledger, "healed")
        assert ledger.acked["orders", head + 1] == "healed.0", "seqs of refused appends are given back"
        assert log.info("orders").trouble is None
        assert log.trouble == []
        for n in range(100):
            ledger.append(log, "orders", f"after.{n}")
        ledger.check(log)
    with topics.open(disk / "data", **SMALL) as log:
        assert log.recovery_report == []
        ledger.check(log)


def test_a_full_disk_is_survived_by_closing_and_opening_again(disk: Path, ballast: Ballast) -> None:
    ledger = Ledger()
    data = disk / "data"
    with topics.open(data, **SMALL, **NEVER) as log:
        log.create("orders", durability="fsync")
        ballast.leave(500_000)
        fill(log, ledger)
        ballast.leave(0)
    ballast.leave(0)
    why = ""
    try:  # what a start cuts off and clears away may be room enough for it
        with topics.open(data, **SMALL) as log:
            ledger.check(log)
    except topics.TopicsError as error:
        why = error.message
    assert not why or "No space left on device" in why
    ballast.drop()
    for shards in (2, 1):
        with topics.open(data, **{**SMALL, "wal_shards": shards}) as log:
            ledger.check(log)
            ledger.append(log, "orders", f"again.{shards}")
            ledger.check(log)


def test_a_checkpoint_without_room_is_made_when_room_comes_back(disk: Path, ballast: Ballast) -> None:
    ledger = Ledger()
    with topics.open(disk / "data", **SMALL, **NEVER) as log:
        log.create("orders")
        for n in range(200):
            ledger.append(log, "orders", f"before.{n}")
        ballast.leave(8192)
        assert log.checkpoint() is False
        assert any("the last checkpoint failed and will be tried again" in line for line in log.trouble)
        ledger.check(log)
        ballast.drop()
        assert log.checkpoint() is True
        assert log.info("orders").segments > 0
        ledger.check(log)
        append_when_healed(log, ledger, "after")
    with topics.open(disk / "data", **SMALL) as log:
        ledger.check(log)


def test_many_writers_meet_a_full_disk_and_go_on_after_it(disk: Path, ballast: Ballast) -> None:
    ledgers = [Ledger() for _ in range(4)]
    refused: list[type[Exception]] = []
    stop = threading.Event()

    def work(log: topics.Log, me: int) -> None:
        n = 0
        name = f"topic-{me % 2}"
        while not stop.is_set():
            n += 1
            try:
                ledgers[me].append(log, name, f"{me}.{n}")
                if n % 50 == 0:
                    log.delete(name, tag="none")
            except topics.DiskFull:
                refused.append(topics.DiskFull)
                time.sleep(0.01)

    with topics.open(disk / "data", **SMALL) as log:
        for name in ("topic-0", "topic-1"):
            log.create(name, durability="disk", cap_records=3000)
        threads = [threading.Thread(target=work, args=(log, me)) for me in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            ballast.leave(100_000)
            before = len(refused)
            deadline = time.monotonic() + 120
            while len(refused) < before + 4 and time.monotonic() < deadline:
                ballast.leave(100_000)  # again, because a store that meets a full disk frees what it can
                time.sleep(0.01)
            assert len(refused) >= before + 4, "nobody was refused"
            ballast.drop()
            deadline = time.monotonic() + 120
            while log.trouble and time.monotonic() < deadline:
                log.checkpoint()
                time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        check_together(log, ledgers)
    with topics.open(disk / "data", **SMALL) as log:
        check_together(log, ledgers)


def test_a_store_with_caps_outlives_a_disk_that_it_fills_by_itself(disk: Path) -> None:
    """The WAL leaves the room that a checkpoint needs to give up what the caps let go; nobody has to help."""
    ledgers = [Ledger()]
    refused = 0
    with topics.open(disk / "data", **SMALL, checkpoint_gap_ms=0) as log:
        for name in ("topic-0", "topic-1"):
            log.create(name, durability="disk", cap_records=1000)
        for n in range(12_000):  # 9 MB of frames on a disk of 6
            while True:
                try:
                    ledgers[0].append(log, f"topic-{n % 2}", str(n))
                    break
                except topics.DiskFull:
                    refused += 1
                    assert refused < 20_000, log.trouble
                    time.sleep(0.005)
        check_together(log, ledgers)
    with topics.open(disk / "data", **SMALL) as log:
        check_together(log, ledgers)


def test_a_disk_that_the_store_filled_by_itself_does_not_keep_it_from_opening(disk: Path) -> None:
    ledger = Ledger()
    with topics.open(disk / "data", **SMALL, **NEVER, checkpoint_gap_ms=1 << 40) as log:
        log.create("orders", durability="fsync")
        fill(log, ledger)
    for _ in range(2):
        with topics.open(disk / "data", **SMALL, **NEVER, checkpoint_gap_ms=1 << 40) as log:
            ledger.check(log)
            fill(log, ledger, "more")


def test_what_frees_room_is_taken_on_a_full_disk(disk: Path) -> None:
    with topics.open(disk / "data", **SMALL) as log:
        for name in ("orders", "other"):
            log.create(name, durability="fsync")
        log.create("jobs", type="queue", durability="fsync")
        log.append("jobs", [{"data": n} for n in range(3)])
        jobs = log.queue("jobs")
        held = [job.seq for job in jobs.claim("worker", max=3)]
        ledger, others = Ledger(), Ledger()
        for _ in range(20):  # until even a checkpoint frees nothing
            fill(log, ledger)
            fill(log, others, name="other")
            log.checkpoint()
        with pytest.raises(topics.DiskFull):
            log.append("orders", [{"data": "x" * 100_000}])
        assert jobs.ack("worker", held).done == 3
        log.drop("other")
        assert log.delete("orders", before_seq=1 << 40).deleted == len(ledger.acked)
        append_when_healed(log, Ledger(), "after")
    with topics.open(disk / "data", **SMALL) as log:
        assert log.topics() == ["jobs", "orders"]
        assert [item.data for item in log.read("orders") if isinstance(item, topics.Record)] == [
            f"after.{i}" for i in range(3)
        ]
        assert list(log.read("jobs")) == []


def check_together(log: topics.Log, ledgers: list[Ledger]) -> None:
    """Every acked record above the cap's floor is there, and nothing else is."""
    acked: dict[tuple[str, int], str] = {}
    for ledger in ledgers:
        assert not acked.keys() & ledger.acked.keys(), "a seq was handed out twice"
        acked.update(ledger.acked)
    for name in ("topic-0", "topic-1"):
        floor = log.info(name).evict_floor
        items = list(log.read(name, from_seq=floor - 1))
        found = {(name, item.seq): item.data for item in items if isinstance(item, topics.Record)}
        assert len(found) == len(items), [item for item in items if isinstance(item, topics.Gap)]
        assert found == {key: value for key, value in acked.items() if key[0] == name and key[1] >= floor}
