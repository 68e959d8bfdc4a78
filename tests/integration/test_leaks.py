"""What a store takes from the process it gives back when it is closed."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import topics
from topics.embedded import Log
from topics.host.clock import SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.testing.faults import Fault, FaultFs


def descriptors() -> set[str]:
    names = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue
    return names


def mappings(directory: Path) -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum(str(directory) in line for line in maps)


def use(data: Path) -> None:
    with topics.open(data, wal_shards=2, wal_file_bytes=4096, segment_max_events=30) as log:
        for name in ("a", "b"):
            log.create(name, durability="memory")
            for _ in range(3):
                log.append(name, [{"data": n, "tag": "t"} for n in range(20)])
        log.checkpoint()
        for name in ("a", "b"):
            assert len(list(log.read(name))) > 0
            log.get(name, log.info(name).head_seq)
            log.delete(name, before_seq=log.info(name).head_seq - 20)
        log.drop("b")


def test_opening_and_closing_leaves_no_thread_and_no_descriptor(data: Path) -> None:
    use(data)
    gc.collect()
    gc.disable()  # a store must give back what it holds without the help of the collector
    try:
        before, threads = descriptors(), threading.active_count()
        for _ in range(50):
            use(data)
        assert descriptors() - before == set()
        assert threading.active_count() == threads
        assert mappings(data) == 0
    finally:
        gc.enable()


def test_a_reader_left_behind_holds_no_lock_on_the_directory(data: Path) -> None:
    with topics.open(data) as log:
        log.create("orders")
        log.append("orders", [{"data": n} for n in range(100)])
        reading = log.read("orders")
        next(reading)
    with topics.open(data) as log:
        assert log.info("orders").count == 100
    del reading


def test_a_failed_open_leaves_no_thread_and_no_descriptor(data: Path) -> None:
    use(data)
    damaged = sorted(data.glob("meta/snapshot-*.bin"))
    for path in damaged:
        path.write_bytes(b"rot")
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    for _ in range(10):
        try:
            topics.open(data)
        except topics.CorruptFile:
            continue
        raise AssertionError("a store without a snapshot was opened")
    gc.collect()
    assert descriptors() - before == set()
    assert threading.active_count() == threads
    assert [path.read_bytes() for path in damaged] == [b"rot"] * len(damaged)


def forever(act: Callable[..., object], *args: object) -> NoReturn:
    while True:
        act(*args)


def deleted_files(directory: Path) -> list[str]:
    return [name for name in descriptors() if str(directory) in name and name.endswith("(deleted)")]


def test_a_disk_that_was_full_gets_its_blocks_back_without_the_collector(data: Path) -> None:
    fs = FaultFs(OsFs())
    log = Log(fs, str(data), SystemClock(), SystemIds(), wal_file_bytes=64 * 1024, wal_shards=1)
    log.create("orders", durability="fsync")
    gc.collect()
    gc.disable()
    try:
        fs.add(Fault("open", 1, "ENOSPC", forever=True, path=".pre"))
        with pytest.raises(topics.DiskFull):
            forever(log.append, "orders", [{"data": "x" * 5000}] * 5)
        fs.heal()
        for _ in range(2):
            log.delete("orders", before_seq=log.info("orders").head_seq + 1)
            assert log.checkpoint()
        assert deleted_files(data) == []
        log.close()
        del log, fs
        assert [name for name in descriptors() if str(data) in name] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_store_whose_wal_failed_lets_go_of_it_without_the_collector(data: Path, call: str) -> None:
    gc.collect()
    gc.disable()
    try:
        fs = FaultFs(OsFs())
        log = Log(fs, str(data), SystemClock(), SystemIds())
        log.create("orders", durability="disk")
        log.append("orders", [{"data": 1}])
        fs.add(Fault(call, 1, "EIO", forever=True, path="/wal"))
        for expected in (topics.WriteFailed, topics.ReadOnly):
            with pytest.raises(expected):
                forever(log.append, "orders", [{"data": 2}])
        with contextlib.suppress(topics.TopicsError):
            log.close()
        del log, fs
        assert [name for name in descriptors() if str(data) in name] == []
    finally:
        gc.enable()
