"""What a store takes from the process it gives back when it is closed."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import topics


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
