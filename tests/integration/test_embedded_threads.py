"""Many threads on one store: each call returns when its class is satisfied, and nothing is lost, doubled or mixed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.integration.conftest import Opener
from topics.format.ops import prepare
from topics.host.fs import File, OsFs
from topics.testing.clock import FakeClock
from topics.testing.ids import FakeIds
from topics.testing.wrap import WrappedFile, WrappedFs

TINY: dict[str, Any] = {
    "wal_file_bytes": 16_384, "segment_max_events": 50, "checkpoint_bytes": 4096, "checkpoint_gap_ms": 0,
    "checkpoint_ms": 0, "reserve_seqs": 32, "evidence_ms": 0,
}  # fmt: skip


def together(jobs: Iterable[Callable[[], object]], timeout_s: float = 60) -> list[Any]:
    """Run all jobs at once, each in a thread, and give their answers; the first error is raised here."""
    jobs = list(jobs)
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> object:
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        answers = [pool.submit(run, job) for job in jobs]
        return [answer.result(timeout_s) for answer in answers]


def records(log: topics.Log, topic: str) -> list[topics.Record]:
    items = list(log.read(topic))
    gaps = [item for item in items if isinstance(item, topics.Gap)]
    assert not gaps, f"{topic} reports {gaps}"
    return [item for item in items if isinstance(item, topics.Record)]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("shards", [1, 3])
def test_batches_of_many_threads_are_contiguous_and_all_there(reopen: Opener, durability: str, shards: int) -> None:
    """F-CT-MPSC-SINGLE-CONSUMER, many_concurrent_durable_writers_contiguous_seqs."""
    log = reopen(wal_shards=shards, **TINY)
    for name in ("a", "b"):
        log.create(name, durability=durability)
    acked: dict[tuple[str, int], Any] = {}

    def write(thread: int) -> None:
        for n in range(60):
            name = "ab"[(thread + n) % 2]
            batch = [{"data": [thread, n, i], "tag": f"t{thread}"} for i in range(1 + n % 7)]
            done = log.append(name, batch)
            assert done.last_seq - done.first_seq + 1 == len(batch)
            for i, record in enumerate(batch):
                assert (name, done.first_seq + i) not in acked
                acked[name, done.first_seq + i] = record["data"]

    together([lambda thread=thread: write(thread) for thread in range(8)])  # type: ignore[misc]
    for again in (False, True) if durability != "ephemeral" else (False,):
        current = reopen() if again else log
        found = {(name, record.seq): record.data for name in ("a", "b") for record in records(current, name)}
        assert found == acked
        assert sorted(seq for name, seq in found if name == "a") == list(range(1, current.info("a").head_seq + 1))


def test_sixty_four_waiting_writers_share_their_syncs(reopen: Opener) -> None:
    """F-CT-COMMIT-TOKEN-HANDOFF: every one of them is answered, once."""
    log = reopen(wal_shards=1)
    log.create("orders", durability="fsync")
    shard = log._store.shards[0]
    before = shard.stats.syncs
    together([lambda: [log.append("orders", [{"data": 1}]) for _ in range(20)]] * 64)
    syncs = shard.stats.syncs - before
    assert log.info("orders").head_seq == 64 * 20
    assert syncs <= 64 * 20 / 8, f"{syncs} syncs for {64 * 20} appends"


def test_one_idempotency_key_in_many_threads_appends_once(log: topics.Log) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        log.create(durability, durability=durability)
        for key in range(20):
            done = together(
                [lambda d=durability, k=key: log.append(d, [{"data": k}], idempotency_key=str(k))] * 8  # type: ignore[misc]
            )
            assert sum(not answer.deduped for answer in done) == 1
            assert len({(answer.first_seq, answer.ts) for answer in done}) == 1
        assert [record.data for record in records(log, durability)] == list(range(20))


def test_racing_creates_make_one_topic(reopen: Opener) -> None:
    log = reopen()
    for n in range(20):
        made = together([lambda n=n: log.create(f"topic-{n}")] * 6)  # type: ignore[misc]
        assert sum(made) == 1
    epochs = {name: log.info(name).epoch for name in log.topics()}
    assert len(set(epochs.values())) == 20
    log = reopen()
    assert {name: log.info(name).epoch for name in log.topics()} == epochs


def test_racing_creates_drops_and_appends_leave_whole_topics(reopen: Opener) -> None:
    log = reopen(wal_shards=3, **TINY)
    stop = time.monotonic() + 1.5

    def work(thread: int) -> None:
        n = 0
        while time.monotonic() < stop:
            n += 1
            try:
                log.create("orders", durability=("disk", "fsync", "memory")[n % 3])
                done = log.append("orders", [{"data": [thread, n]}, {"data": [thread, n]}])
                assert done.count == 2
                if n % 5 == thread:
                    log.drop("orders")
                log.info("orders")
                assert all(isinstance(item, topics.Record) for item in log.read("orders"))
            except topics.TopicNotFound:
                continue

    together([lambda thread=thread: work(thread) for thread in range(4)])  # type: ignore[misc]
    log.create("orders")
    found = [(record.seq, record.data) for record in records(log, "orders")]
    assert [data for _, data in found[::2]] == [data for _, data in found[1::2]]
    log = reopen()
    assert [(record.seq, record.data) for record in records(log, "orders")] == found


def test_changes_of_different_config_fields_both_count(log: topics.Log) -> None:
    log.create("orders")
    for n in range(1, 40):
        together(
            [
                lambda n=n: log.configure("orders", cap_records=1000 + n),  # type: ignore[misc]
                lambda n=n: log.configure("orders", cap_bytes=100_000 + n),  # type: ignore[misc]
                lambda n=n: log.configure("orders", lease_ms=1000 + n),  # type: ignore[misc]
            ]
        )
        config = log.info("orders").config
        assert (config.cap_records, config.cap_bytes, config.lease_ms) == (1000 + n, 100_000 + n, 1000 + n)


def test_checkpoints_of_many_threads_do_not_meet(reopen: Opener) -> None:
    log = reopen(wal_shards=2, **TINY)
    log.create("a")
    log.create("b", durability="fsync")
    stop = time.monotonic() + 1.5

    def write(name: str, thread: int) -> int:
        n = 0
        while time.monotonic() < stop:
            log.append(name, [{"data": [thread, n + i]} for i in range(10)])
            n += 10
        return n

    def checkpoint() -> int:
        while time.monotonic() < stop:
            assert log.checkpoint()
        return 0

    written = together([lambda: write("a", 0), lambda: write("b", 1), *[checkpoint] * 4])
    for again in (False, True):
        current = reopen() if again else log
        for name, thread in (("a", 0), ("b", 1)):
            assert [record.data for record in records(current, name)] == [[thread, n] for n in range(written[thread])]


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
def test_readers_see_a_dense_log_while_files_change_under_them(reopen: Opener, durability: str) -> None:
    """Records move from the WAL to segments, WAL files are recycled and segments sealed while they are read."""
    log = reopen(wal_shards=1, **TINY)
    log.create("orders", durability=durability)
    stop = time.monotonic() + 2

    def write() -> int:
        n = 0
        while time.monotonic() < stop:
            log.append("orders", [{"data": n + i, "tag": "x" * 50} for i in range(20)])
            n += 20
        return n

    def read() -> int:
        rounds = 0
        while time.monotonic() < stop:
            seen = [record.data for record in records(log, "orders")]
            assert seen == list(range(len(seen)))
            rounds += 1
        return rounds

    def follow() -> int:
        cursor = 0
        while time.monotonic() < stop:
            for item in log.read("orders", cursor):
                assert isinstance(item, topics.Record), item
                assert item.data == item.seq - 1 == cursor
                cursor = item.seq
        return cursor

    def pick() -> int:
        n = 0
        while time.monotonic() < stop:
            head = log.info("orders").head_seq
            if head:
                n += 1
                seq = 1 + n * 7919 % head
                assert log.get("orders", seq).data == seq - 1
        return n

    def checkpoint() -> int:
        while time.monotonic() < stop:
            log.checkpoint()
        return 1

    answers = together([write, read, read, follow, pick, checkpoint])
    assert all(answers)
    assert log.info("orders").head_seq == answers[0]


def test_deletes_racing_appends_kill_exactly_what_was_there(reopen: Opener) -> None:
    """Every tag is written by one thread and deleted by the same one, while all others do the same."""
    log = reopen(wal_shards=2, **TINY)
    log.create("a")
    log.create("b", durability="fsync")
    stop = time.monotonic() + 2
    kept: dict[str, list[list[int]]] = {"a": [], "b": []}

    def work(thread: int) -> None:
        mine: dict[tuple[str, int], list[list[int]]] = {}
        n = 0
        while time.monotonic() < stop:
            n += 1
            name, tag = "ab"[n % 2], n % 3
            batch = [[thread, n, i] for i in range(5)]
            log.append(name, [{"data": data, "tag": f"t{thread}.{tag}"} for data in batch])
            mine.setdefault((name, tag), []).extend(batch)
            if n % 4 == 0:
                gone = mine.pop((name, tag), [])
                assert log.delete(name, tag=f"t{thread}.{tag}").deleted == len(gone)
            if n % 31 == 0:
                gone = [data for key in list(mine) if key[0] == name for data in mine.pop(key)]
                assert log.delete(name, tag=f"t{thread}.*").deleted == len(gone)
            if n % 17 == 0:
                log.checkpoint()
        for (name, _), left in mine.items():
            kept[name] += left

    together([lambda thread=thread: work(thread) for thread in range(4)])  # type: ignore[misc]
    for again in (False, True):
        current = reopen(wal_shards=3) if again else log
        for name, wanted in kept.items():
            assert sorted(record.data for record in records(current, name)) == sorted(wanted)
            assert current.info(name).count == len(wanted)


def test_readers_of_a_shrinking_topic_see_gaps_only_where_it_shrank(reopen: Opener) -> None:
    log = reopen(wal_shards=1, **TINY)
    log.create("orders", cap_records=100)
    stop = time.monotonic() + 1.5

    def write() -> None:
        n = 0
        while time.monotonic() < stop:
            log.append("orders", [{"data": n + i} for i in range(10)])
            n += 10

    def follow() -> None:
        cursor = 0
        while time.monotonic() < stop:
            for item in log.read("orders", cursor):
                if isinstance(item, topics.Gap):
                    assert (item.gap_from, item.reason) == (cursor + 1, "cap")
                    cursor = item.gap_to
                else:
                    assert item.data == item.seq - 1 == cursor
                    cursor = item.seq

    together([write, follow, follow, lambda: [log.checkpoint() for _ in range(20)]])
    assert log.info("orders").count == 100


def test_a_reader_of_a_dropped_topic_is_told_so(reopen: Opener) -> None:
    log = reopen(wal_shards=1, **TINY)
    log.create("orders")
    log.create("other")
    for n in range(40):
        log.append("orders", [{"data": n, "tag": "x" * 100}] * 10)
    reading = log.read_batches("orders", limit=5)
    next(reading)
    log.drop("orders")
    for _ in range(10):
        log.append("other", [{"data": "y" * 100}] * 50)
        log.checkpoint()
    with pytest.raises(topics.TopicNotFound):
        list(reading)


def test_closing_while_others_work_refuses_them_and_loses_nothing(reopen: Opener) -> None:
    """F-CT-WRITER-GONE, submit_racing_shutdown_never_strands_a_token."""
    for _ in range(5):
        log = reopen(wal_shards=2, **TINY)
        log.create("orders", durability="disk")
        base = log.info("orders").head_seq
        acked: list[int] = []

        def write(log: topics.Log = log, acked: list[int] = acked) -> None:
            while True:
                try:
                    done = log.append("orders", [{"data": 1}, {"data": 2}])
                except topics.StoreClosed:
                    return
                acked.extend((done.first_seq, done.last_seq))

        def other(log: topics.Log = log) -> None:
            while True:
                try:
                    list(log.read("orders"))
                    log.checkpoint()
                except topics.StoreClosed:
                    return

        def close(log: topics.Log = log) -> None:
            time.sleep(0.1)
            log.close()

        together([write, write, other, other, close, close])
        log = reopen(wal_shards=2)
        assert sorted(acked) == list(range(base + 1, log.info("orders").head_seq + 1))
        assert log.info("orders").count == log.info("orders").head_seq


class SlowFs(WrappedFs):
    """Writes of the WAL wait for `go`."""

    def __init__(self) -> None:
        super().__init__(OsFs())
        self.go = threading.Event()
        self.go.set()

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        return SlowFile(self.inner.open(path, write=write, create=create, exclusive=exclusive), self)


class SlowFile(WrappedFile):
    def __init__(self, inner: File, fs: SlowFs) -> None:
        super().__init__(inner)
        self.fs = fs

    def write_at(self, offset: int, buffers: Any, *, dsync: bool = False) -> int:
        self.fs.go.wait()
        return self.inner.write_at(offset, buffers, dsync=dsync)


def test_an_append_waits_while_the_queue_is_full(data: Path) -> None:
    fs = SlowFs()
    with topics.Log(fs, str(data), FakeClock(), FakeIds(1), wal_shards=1) as log:
        log.create("orders", durability="memory")
        shard = log._store.shards[0]
        large = b'"' + b"x" * 1_000_000 + b'"'
        fs.go.clear()
        threads = [threading.Thread(target=log.append, args=("orders", [{"data": large}] * 5)) for _ in range(20)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 120
        while shard.stats.submit_full < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert shard.stats.submit_full >= 5
        assert shard.queued_bytes <= 64 * 1024 * 1024
        assert all(thread.is_alive() for thread in threads)
        fs.go.set()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert log.info("orders").count == 100


@pytest.mark.parametrize("shards", [1, 2])
def test_class_changes_racing_appends_hand_no_seq_twice(reopen: Opener, shards: int) -> None:
    """Whatever is not there afterwards was RAM-only when its class was left, and is said to be lost."""
    log = reopen(wal_shards=shards, **TINY)
    log.create("orders", idempotency_window_ms=1_000_000)
    stop = time.monotonic() + 2
    acked: dict[int, list[int]] = {}

    def write(thread: int) -> int:
        n = 0
        while time.monotonic() < stop:
            n += 1
            key = f"{thread}.{n}" if n % 3 == 0 else None
            done = log.append("orders", [{"data": [thread, n, i], "tag": "x"} for i in range(3)], idempotency_key=key)
            for i in range(3):
                assert done.first_seq + i not in acked
                acked[done.first_seq + i] = [thread, n, i]
        return n

    def change() -> int:
        n = 0
        while time.monotonic() < stop:
            n += 1
            log.configure("orders", durability=("ephemeral", "disk", "memory", "fsync", "ephemeral", "fsync")[n % 6])
            if n % 7 == 0:
                log.checkpoint()
        return n

    def read() -> int:
        n = 0
        while time.monotonic() < stop:
            n += 1
            cursor = 0
            for item in log.read("orders"):
                if isinstance(item, topics.Gap):
                    assert (item.reason, item.gap_from > cursor) == ("restart", True)
                    cursor = item.gap_to
                else:
                    assert item.seq > cursor
                    cursor = item.seq
        return n

    assert all(together([lambda: write(0), lambda: write(1), lambda: write(2), change, read]))
    log.configure("orders", durability="fsync")
    for again in (False, True):
        current = reopen() if again else log
        lost: set[int] = set()
        found: dict[int, list[int]] = {}
        for item in current.read("orders"):
            if isinstance(item, topics.Gap):
                assert item.reason == "restart"
                lost.update(range(item.gap_from, item.gap_to + 1))
            else:
                found[item.seq] = item.data
        assert found == {seq: data for seq, data in acked.items() if seq not in lost}
        assert current.info("orders").count == len(found)


@pytest.mark.parametrize("begins", [False, True], ids=["it does not begin", "it begins"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_open_that_cannot_start_its_threads_lets_go_of_the_directory(
    data: Path, monkeypatch: pytest.MonkeyPatch, nth: int, error: type[BaseException], begins: bool
) -> None:
    """The system starts no further thread, or a signal comes meanwhile."""
    real, started = threading.Thread.start, 0

    def start(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started != nth or begins:
            real(thread)
        if started == nth:
            raise error

    topics.open(data).close()
    before = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(error) as caught:
            topics.open(data)
    assert set(threading.enumerate()) == before
    with topics.open(data) as log:
        log.create("orders")
    assert caught  # its traceback, as a debugger keeps it, holds all that was made so far


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_open_that_breaks_off_before_its_store_is_made_lets_go_of_the_directory(
    data: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.store.Handles", broken)
        with pytest.raises(error) as caught:
            topics.open(data)
    topics.open(data).close()
    assert caught


WAITERS: list[Callable[[topics.Log], object]] = [
    lambda log: log.append("t", [{"data": 1}]),
    lambda log: log.staging.commit("x", {"t": ["p"]}),
    lambda log: log.queue("q").claim("w"),
    lambda log: log.queue("q").extend("m", [1], 5000),
    lambda log: log.queue("q").nack("m", [1]),
    lambda log: log.queue("q").ack("m", [1]),
    lambda log: log.queue("dead").redrive(to="q"),
    lambda log: log.group("t", "h").create(),
    lambda log: log.group("t", "g").drop(),
    lambda log: log.group("t", "g").join("w"),
    lambda log: log.group("t", "g").fetch("w"),
    lambda log: log.group("t", "g").ack("m", [1]),
    lambda log: log.group("t", "g").seek("earliest", force=True),
]


@pytest.mark.parametrize("call", WAITERS)
def test_a_call_waits_for_room_in_a_full_queue(reopen: Opener, call: Callable[[topics.Log], object]) -> None:
    log = reopen(wal_shards=1, queue_submissions=1)
    log.create("t", durability="fsync")
    log.create("q", type="queue")
    log.create("dead", type="queue")
    log.append("t", [{"data": 1}, {"data": 2}])
    log.append("q", [{"data": 1}, {"data": 2}])
    log.append("dead", [{"data": 1, "meta": {"$dead_letter_from": "q"}}])
    log.staging.put("t", "x", "p", [{"data": 3}])
    log.queue("q").claim("m")
    log.group("t", "g").create()
    log.group("t", "g").fetch("m", 1)
    with log._lock:  # nobody waits for it, so the queue stays full until the next caller writes it
        log._store.append("t", prepare([{"data": "in the way"}]))
    call(log)
    assert log.info("t").head_seq >= 3


def test_a_reject_that_waits_for_room_ends_the_record_too(reopen: Opener) -> None:
    log = reopen(wal_shards=1, queue_submissions=1)
    log.create("t", durability="fsync")
    log.append("t", [{"data": 1}])
    group = log.group("t", "g")
    group.create(max_deliveries=3, dead_letter="dead")
    group.fetch("m")
    with log._lock:
        log._store.append("t", prepare([{"data": "in the way"}]))
    assert group.reject("m", [1]).done == 1
    assert [record.data for record in records(log, "dead")] == [1]
