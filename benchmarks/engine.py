"""Speed of the embedded engine, as ratios to what the same machine does bare in the same run.

    .venv/bin/python benchmarks/engine.py                  everything, a few minutes
    .venv/bin/python benchmarks/engine.py append fsync     some parts
    .venv/bin/python benchmarks/engine.py --seconds 5      shorter appends
    .venv/bin/python benchmarks/engine.py --json           for machines

Every figure is a median of repeats. These machines are noisy: compare ratios, not single numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The folder of this script holds an `http.py`, which would hide the module of that name from everybody.
sys.path.pop(0)

import topics
from topics.embedded import Log
from topics.format.ops import KERNEL, prepare, scan_wal
from topics.storage.reader import FrameBatch

PAYLOAD = b'{"id":1234567,"sku":"A-1002-XL","qty":3,"price":19.99,"cur":"EUR","who":"customer-77","at":"warehouse-4"}'
BATCH = [{"data": PAYLOAD} for _ in range(1000)]
Row = tuple[str, float, str, str]


@contextmanager
def directory(root: str | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="topics-bench-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# -- appends -----------------------------------------------------------------------------------------------------------


def bare_pwritev(path: Path, frames: bytes, seconds: float, sync_s: float = 0.01) -> float:
    """MB/s of a loop of `os.pwritev` of such batches with an fdatasync every 10 ms, on zero-filled files."""
    size = 64 * 1024 * 1024
    zeros = bytes(1024 * 1024)
    written = 0
    deadline = time.perf_counter() + seconds
    number = 0
    spent = 0.0
    while time.perf_counter() < deadline:
        fd = os.open(path / f"bare-{number % 4}", os.O_CREAT | os.O_RDWR, 0o600)
        number += 1
        for offset in range(0, size, len(zeros)):
            os.pwrite(fd, zeros, offset)
        os.fdatasync(fd)
        begin = synced = time.perf_counter()
        offset = 0
        while offset + len(frames) <= size:
            os.pwritev(fd, [frames], offset)
            offset += len(frames)
            now = time.perf_counter()
            if now - synced >= sync_s:
                os.fdatasync(fd)
                synced = time.perf_counter()
        os.fdatasync(fd)  # as a rotation does
        spent += time.perf_counter() - begin
        written += offset
        os.close(fd)
    return written / spent / 1e6


def bench_append(root: str | None, seconds: float) -> list[Row]:
    frames = bytes(prepare(BATCH).frames)

    def measure_bare() -> list[float]:
        with directory(root) as path:
            return [bare_pwritev(path, frames, seconds / 8) for _ in range(2)]

    bare = measure_bare()
    with directory(root) as path, topics.open(path) as log:
        log.create("events", durability="disk")
        count, checkpoints = 0, set()
        start, busy = time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) - start < seconds:
            for _ in range(50):
                log.append("events", BATCH)
            count += 50_000
            checkpoints.add(log._store.snapshots.next_id)
        elapsed, busy = now - start, time.process_time() - busy
        left = sum(shard.wal_bytes for shard in log._store.shards)
        per_checkpoint = count * len(frames) / 1000 / max(len(checkpoints), 1)
    floor = statistics.median(bare + measure_bare())  # before and after, because neighbours come and go
    rate = count / elapsed
    return [
        ("append 1000 x 100 B, disk, one caller", rate / 1e6, "M records/s", ">= 2"),
        ("  the same in WAL bytes", rate * len(frames) / 1e9, "MB/s", ""),
        ("  CPU of all its threads", busy / count * 1e9, "ns/record", ""),
        ("  bare pwritev, same cadence", floor, "MB/s", ""),
        ("  ratio to bare", rate * len(frames) / 1e9 / floor, "x", ">= 0.20"),
        ("  checkpoints during the run", len(checkpoints) - 1, "", ">= 1"),
        ("  WAL left over / WAL per checkpoint", left / per_checkpoint, "x", "<= 2"),
    ]


def bench_fsync(root: str | None, seconds: float) -> list[Row]:
    rows: list[Row] = []
    record = [{"data": PAYLOAD}]
    with directory(root) as path, topics.open(path, wal_shards=1) as log:
        log.create("events", durability="fsync")
        fd = os.open(path / "bare", os.O_CREAT | os.O_RDWR, 0o600)
        os.pwrite(fd, bytes(4 * 1024 * 1024), 0)
        os.fdatasync(fd)
        frame = bytes(160)
        ours: list[float] = []
        bare: list[float] = []
        for turn in range(400):  # alternating, so that the disk's moods hit both
            offset = turn * 160
            begin = time.perf_counter()
            os.pwrite(fd, frame, offset)
            os.fdatasync(fd)
            bare.append(time.perf_counter() - begin)
            ours.append(timed(lambda: log.append("events", record)))
        os.close(fd)
        lone, floor = statistics.median(ours), statistics.median(bare)
        rows += [
            ("fsync, lone writer", lone * 1e6, "us", ""),
            ("  bare write + fdatasync", floor * 1e6, "us", ""),
            ("  ratio", lone / floor, "x", "<= 1.3"),
        ]
    with directory(root) as path, topics.open(path, wal_shards=1) as log:
        log.create("events", durability="fsync")
        stop = time.perf_counter() + min(seconds, 5)
        counts = [0] * 64

        def writer(index: int) -> None:
            while time.perf_counter() < stop:
                log.append("events", record)
                counts[index] += 1

        before = log._store.shards[0].stats.syncs
        threads = [threading.Thread(target=writer, args=(i,)) for i in range(64)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - begin
        syncs = log._store.shards[0].stats.syncs - before
        rows += [
            ("fsync, 64 waiting writers", sum(counts) / elapsed, "appends/s", ""),
            ("  syncs per acked append", syncs / sum(counts), "", "<= 0.125"),
        ]
    return rows


# -- reading and recovery ----------------------------------------------------------------------------------------------


def fill(log: Log, name: str, records: int) -> None:
    log.create(name, durability="disk")
    for _ in range(records // 1000):
        log.append(name, BATCH)


def bench_read(root: str | None, _seconds: float) -> list[Row]:
    records = 1_000_000
    rows: list[Row] = []
    with directory(root) as path:
        with topics.open(path) as log:
            fill(log, "events", records)
        with topics.open(path) as log:
            found = log._store.topics["events"]
            entries = sum(segment.count for segment in found.segments)

            def load() -> None:
                log._store.handles.close()
                for segment in found.segments:
                    log._store.handles.entries(segment, 0, segment.count)

            index = statistics.median(timed(load) for _ in range(5))

            def batches() -> int:
                return sum(b.count for b in log.read_batches("events") if isinstance(b, FrameBatch))

            def objects() -> int:
                return sum(1 for _ in log.read("events"))

            assert batches() == records
            by_batch = statistics.median(timed(batches) for _ in range(5))
            by_record = statistics.median(timed(objects) for _ in range(3))
            seqs = [(i * 7919) % records + 1 for i in range(20_000)]
            one = statistics.median(timed(lambda: [log.get("events", s) for s in seqs]) for _ in range(3)) / len(seqs)
            rows += [
                ("index load of sealed segments", entries / index / 1e6, "M entries/s", ">= 50"),
                ("sequential read, verified frame batches", records / by_batch / 1e6, "M records/s", ">= 5"),
                ("sequential read, Record objects", records / by_record / 1e6, "M records/s", ">= 1"),
                ("random read of one sealed record", one * 1e6, "us", "<= 10"),
            ]
    return rows


def bench_replay(root: str | None, _seconds: float) -> list[Row]:
    rows: list[Row] = []
    for label, topic_count, batch, target in (
        ("WAL replay, runs of 1000 per topic", 4, 1000, ">= 3"),
        ("WAL replay, runs of 100 per topic", 40, 100, ">= 3"),
        ("WAL replay, interleaved, runs of 1", 40, 1, ""),
    ):
        with directory(root) as path:
            options = {"checkpoint_bytes": 1 << 40, "checkpoint_ms": 1 << 30, "wal_shards": 1}
            log = topics.open(path, **options)
            total = 2_000_000 if batch > 1 else 100_000
            for number in range(topic_count):
                log.create(f"t{number}", durability="memory")
            for turn in range(total // batch):
                log.append(f"t{turn % topic_count}", BATCH[:batch])
            log._background.stop()  # as a kill would: no clean checkpoint
            log._store.release()
            spent = []
            for _ in range(3):
                copy = path.with_name(path.name + "-copy")
                shutil.copytree(path, copy)
                begin = time.perf_counter()
                again = topics.open(copy, **options)
                spent.append(time.perf_counter() - begin)
                assert sum(again.info(f"t{n}").count for n in range(topic_count)) == total
                again._background.stop()
                again._store.release()
                shutil.rmtree(copy)
            scanned = 0.0
            for file in sorted((path / "wal").glob("wal-*.log")):
                data = file.read_bytes()
                begin = time.perf_counter()
                scan_wal(data, 0, len(data), bytearray())
                scanned += time.perf_counter() - begin
            seconds = statistics.median(spent)
            rows.append((label, total / seconds / 1e6, "M frames/s, whole open", target))
            rows.append(("  scan and verify alone", total / scanned / 1e6, "M frames/s", ""))
    return rows


def bench_scale(root: str | None, _seconds: float) -> list[Row]:
    rows: list[Row] = []
    for topic_count in (10, 100, 1_000, 10_000):
        with directory(root) as path, topics.open(path) as log:
            for number in range(topic_count):
                log.create(f"t{number}", durability="memory")
            turns = max(20_000, topic_count)
            begin = time.perf_counter()
            for turn in range(turns):
                log.append(f"t{turn % topic_count}", BATCH[:10])
            spent = time.perf_counter() - begin
            check = timed(log.checkpoint)
            rows.append((f"{topic_count:>6} topics: append of 10", spent / turns * 1e6, "us", "flat"))
            rows.append(("        a checkpoint of it", check, "s", ""))
            rows.append(("        resident", rss_mb(), "MB", ""))
    for records in (100_000, 1_000_000, 10_000_000):
        with directory(root) as path:
            with topics.open(path) as log:
                fill(log, "events", records)
            begin = time.perf_counter()
            with topics.open(path) as log:
                opened = time.perf_counter() - begin
                spent = statistics.median(timed(lambda: log.append("events", BATCH)) for _ in range(50))

                seqs = [(turn * 7919) % records + 1 for turn in range(2000)]

                def some(log: Log = log, seqs: list[int] = seqs) -> None:
                    for seq in seqs:
                        log.get("events", seq)

                first = timed(some) / 2000  # opens, maps and proves the index of every segment it meets
                one = statistics.median(timed(some) for _ in range(5)) / 2000
                rows.append((f"10^{len(str(records)) - 1} records: append of 1000", spent * 1e6, "us", "flat"))
                rows.append(("        open after a clean stop", opened * 1000, "ms", ""))
                rows.append(("        random read, the first 2000 of a life", first * 1e6, "us", ""))
                rows.append(("        random read", one * 1e6, "us", "<= 10, flat"))
                rows.append(("        resident", rss_mb(), "MB", ""))
    return rows


PARTS = {
    "append": bench_append,
    "fsync": bench_fsync,
    "read": bench_read,
    "replay": bench_replay,
    "scale": bench_scale,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is given")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the append runs")
    parser.add_argument("--dir", default=None, help="where to put the data (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    found: list[Row] = []
    if not options.json:
        print(f"kernel: {'compiled' if KERNEL else 'Python reference'}")
    for name in options.parts or PARTS:
        for row in PARTS[name](options.dir, options.seconds):
            found.append(row)
            if not options.json:
                print(f"{row[0]:<48}{row[1]:>12.3f} {row[2]:<24}{row[3]}", flush=True)
    if options.json:
        print(json.dumps([{"what": w.strip(), "value": v, "unit": u, "target": t} for w, v, u, t in found]))


if __name__ == "__main__":
    main()
