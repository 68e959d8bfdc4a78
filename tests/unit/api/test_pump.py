"""The pump: what runs in place, what is collected, and who is woken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from topics.api.http import Later, Response
from topics.api.pace import TRUST_NS, Pace
from topics.api.pump import Pump
from topics.broker.broker import Appended, Broker
from topics.broker.reading import Query
from topics.format.ops import prepare
from topics.host.clock import SystemClock
from topics.host.fs import Buffer, File, Fs, OsFs
from topics.host.ids import SystemIds
from topics.model.config import TopicConfig
from topics.rules.catchup import FROM_BURSTS, NS_PER_BYTE
from topics.storage.commit import Bell
from topics.storage.durable import durable_seq
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions


def with_pump(
    path: Path, body: Callable[[Pump, Broker], Coroutine[Any, Any, None]], fs: Fs | None = None, **options: Any
) -> None:
    async def main() -> None:
        lock = threading.Lock()
        store = open_store(fs or OsFs(), str(path), StoreOptions(**options), SystemClock(), SystemIds(), lock)
        pump = Pump(store, lock, asyncio.get_running_loop())
        try:
            await asyncio.wait_for(body(pump, Broker(store, SystemClock())), 120)
        finally:
            pump.stop_waiting()
            await asyncio.to_thread(pump.close)

    asyncio.run(main())


def append(pump: Pump, broker: Broker, topic: str, durability: Any, count: int = 1) -> Any:
    batch = prepare([{"data": number} for number in range(count)])
    return pump.run(broker.append(topic, batch, None, TopicConfig(durability=durability), True))


async def result_of(answer: Any) -> Any:
    return await answer if isinstance(answer, asyncio.Future) else answer


def test_lone_write_without_sync_is_answered_in_place(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "memory"))
        await asyncio.sleep(0.01)
        assert isinstance(append(pump, broker, "a", "memory"), Appended)

    with_pump(tmp_path / "s", body)


class AlwaysQuick(Pace):
    """However slow the disk of this machine is."""

    def is_quick(self, now_ns: int) -> bool:
        return True


def test_lone_sync_takes_no_thread_while_the_disk_is_quick(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        pump.pace_synced = AlwaysQuick(0)
        await result_of(append(pump, broker, "a", "fsync"))  # makes the first file
        writer = pump._writers[pump.store.topics["a"].shard]
        writer.put = None  # type: ignore[method-assign,assignment]
        for _ in range(5):
            done = await result_of(append(pump, broker, "a", "fsync"))
            assert done.synced

    with_pump(tmp_path / "s", body)


class StuckFs(OsFs):
    """Writes to the WAL wait for a gate, as they do behind the backlog of another program."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        return StuckFile(self, file) if write and "/wal" in path else file


class StuckFile:
    def __init__(self, fs: StuckFs, file: File) -> None:
        self._fs = fs
        self._file = file

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        if not self._fs.gate.is_set():
            self._fs.reached.set()
            assert self._fs.gate.wait(20), "the loop stands still"
        return self._file.write_at(offset, buffers, dsync=dsync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_loop_goes_on_answering_while_a_write_hangs(tmp_path: Path, durability: str) -> None:
    fs = StuckFs()

    async def body(pump: Pump, broker: Broker) -> None:
        for name in ("a", "b"):
            await result_of(append(pump, broker, name, durability))
        for pace in (pump.pace_synced, pump.pace_unsynced):
            pace.took(pump.store.clock.monotonic_ns() - 2 * TRUST_NS, 0)  # all was quick when anything was last written
        fs.gate.clear()
        stuck = append(pump, broker, "a", durability)
        assert isinstance(stuck, asyncio.Future)
        assert await asyncio.to_thread(fs.reached.wait, 20)
        page = await result_of(pump.run(broker.diff("b", Query())))
        assert page.head_seq == 1
        assert not stuck.done()
        fs.gate.set()
        assert (await stuck).first_seq == 2

    with_pump(tmp_path / "s", body, fs)


def test_writers_of_one_turn_share_a_sync(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "fsync"))
        before = pump.store.shards[0].stats.batches
        pending = [append(pump, broker, "a", "fsync") for _ in range(50)]
        done = await asyncio.gather(*pending)
        assert [one.first_seq for one in done] == list(range(2, 52))
        assert pump.store.shards[0].stats.batches - before <= 2

    with_pump(tmp_path / "s", body)


def test_crowd_without_sync_is_written_together(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "memory"))
        await asyncio.sleep(0.01)
        before = pump.store.shards[0].stats.batches
        answers = [append(pump, broker, "a", "memory") for _ in range(50)]
        done = [await result_of(answer) for answer in answers]
        assert [one.first_seq for one in done] == list(range(2, 52))
        assert pump.store.shards[0].stats.batches - before <= 3
        await asyncio.sleep(0.01)
        await result_of(append(pump, broker, "a", "memory"))
        await asyncio.sleep(0.01)
        assert isinstance(append(pump, broker, "a", "memory"), Appended), "a crowd that left is forgotten"

    with_pump(tmp_path / "s", body)


def test_mixed_load_over_shards_and_rotations_settles(tmp_path: Path) -> None:
    async def writer(pump: Pump, broker: Broker, name: str, durability: str) -> None:
        for _ in range(30):
            await result_of(append(pump, broker, name, durability, 20))

    async def body(pump: Pump, broker: Broker) -> None:
        classes = ("memory", "disk", "fsync", "ephemeral")
        checkpoint = asyncio.to_thread(pump.checkpoint)
        await asyncio.gather(checkpoint, *(writer(pump, broker, f"t{i}", classes[i % 4]) for i in range(12)))
        for number in range(12):
            page = await result_of(pump.run(broker.diff(f"t{number}", Query(limit=1000))))
            assert (page.head_seq, page.count) == (600, 600)

    with_pump(tmp_path / "s", body, wal_shards=2, wal_file_bytes=16_384, reserve_seqs=8, checkpoint_bytes=4096)


def test_nap_is_left_when_its_caller_leaves(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "memory"))
        topic = pump.store.topics["a"]
        before = len(pump._naps)
        waiting = pump.run(broker.diff("a", Query(from_seq=1), 30_000))
        assert isinstance(waiting, asyncio.Future)
        assert (len(topic.waiters), len(pump._naps)) == (1, before + 1)
        waiting.cancel()
        await asyncio.sleep(0.01)
        assert (len(topic.waiters), len(pump._naps)) == (0, before)

    with_pump(tmp_path / "s", body)


def test_stop_ends_every_nap(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "memory"))
        waiting: list[Any] = [pump.run(broker.diff("a", Query(from_seq=1), 30_000)) for _ in range(5)]
        waiting.append(pump.run(broker.heads({"a": 9}, "", False, lambda _: True, 30_000)))
        pump.stop_waiting()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert not isinstance(pump.run(broker.diff("a", Query(from_seq=1), 30_000)), asyncio.Future)

    with_pump(tmp_path / "s", body)


def test_failed_write_reaches_everybody_who_waits(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "fsync"))
        file = pump.store.shards[0].file
        assert file is not None
        file.file.close()
        answers = await asyncio.gather(*(append(pump, broker, "a", "fsync") for _ in range(10)), return_exceptions=True)
        assert {type(answer).__name__ for answer in answers} == {"WriteFailed"}
        assert len({id(answer) for answer in answers}) == 10, "each caller raises its own"

    with_pump(tmp_path / "s", body)


def ordered_append(pump: Pump, broker: Broker, topic: str) -> Any:
    ordered = broker.append_now(topic, prepare([{"data": 1}]), None)
    assert ordered is not None
    submission = ordered.submission
    assert submission is not None

    def answer() -> Response:
        assert submission.settled, "an answer is made when its class is satisfied"
        return Response(200, b"%d" % ordered.first_seq)

    return pump.after(submission, answer)


def keep_body(told: list[Any], answer: Any) -> None:
    told.append(answer.body)


def test_answers_to_a_crowd_come_after_their_submissions_are_settled(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        for durability in ("memory", "disk", "fsync"):
            await result_of(append(pump, broker, durability, durability))
            told: list[Any] = []
            waiting = 0
            for _ in range(20):
                answer = ordered_append(pump, broker, durability)
                if isinstance(answer, Later):
                    answer.then(partial(keep_body, told), told.append)
                    waiting += 1
                else:
                    told.append(answer.body)
            assert waiting
            while len(told) < 20:
                await asyncio.sleep(0.001)
            assert told == [b"%d" % seq for seq in range(2, 22)]

    with_pump(tmp_path / "s", body)


def test_append_to_an_unknown_topic_cannot_be_ordered_at_once(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        assert broker.append_now("unknown", prepare([{"data": 1}]), None) is None

    with_pump(tmp_path / "s", body)


def test_client_that_left_is_told_nothing_and_its_record_stays(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "fsync"))
        told: list[Any] = []
        first, second = ordered_append(pump, broker, "a"), ordered_append(pump, broker, "a")
        assert isinstance(first, Later)
        assert isinstance(second, Later)
        first.then(told.append, told.append)
        first.cancel()
        answer = await second
        assert isinstance(answer, Response)
        assert answer.body == b"3"
        assert told == []
        assert broker.store.topics["a"].head == 3

    with_pump(tmp_path / "s", body)


def test_answer_that_cannot_be_delivered_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        await result_of(append(pump, broker, "a", "fsync"))
        troubles: list[Any] = []
        pump.loop.set_exception_handler(lambda _, context: troubles.append(context["exception"]))
        first, second = ordered_append(pump, broker, "a"), ordered_append(pump, broker, "a")

        def broken(_: Any) -> None:
            raise RuntimeError("the connection broke")

        first.then(broken, broken)
        assert (await second).body == b"3"
        assert [str(trouble) for trouble in troubles] == ["the connection broke"]

    with_pump(tmp_path / "s", body)


def test_what_was_written_in_place_is_synced_though_nobody_writes_more(tmp_path: Path) -> None:
    async def body(pump: Pump, broker: Broker) -> None:
        for _ in range(3):
            await result_of(append(pump, broker, "a", "disk"))
            topic = pump.store.topics["a"]
            while durable_seq(topic, pump.store.shard_for(topic)) != topic.head:
                await asyncio.sleep(0.001)

    with_pump(tmp_path / "s", body)


class NotedSleeps(Bell):
    def __init__(self) -> None:
        super().__init__()
        self.slept: list[tuple[int, float]] = []

    def wait(self, timeout_s: float) -> None:
        self.slept.append((threading.get_ident(), timeout_s))


def test_writes_behind_bursts_of_wal_are_held_back_and_the_loop_is_not(tmp_path: Path) -> None:
    burst = 1 << 28

    async def body(pump: Pump, broker: Broker) -> None:
        pump.committer._silent = sleeps = NotedSleeps()
        pump.pace_unsynced = AlwaysQuick(0)
        await result_of(append(pump, broker, "a", "memory"))
        shard = pump.store.shards[0]
        await result_of(append(pump, broker, "a", "memory", 1000))
        assert sleeps.slept == []
        shard.wal_bytes = (FROM_BURSTS + 1) * burst
        before = shard.stats.bytes_written
        for _ in range(5):
            await result_of(append(pump, broker, "a", "memory", 1000))
        await asyncio.to_thread(pump._writers[0].stop)
        assert len(sleeps.slept) >= 2
        assert pump.thread_id not in {thread for thread, _ in sleeps.slept}
        held_back_ns = sum(slept for _, slept in sleeps.slept) * 1e9 + pump.committer.held_back_ns
        assert held_back_ns == pytest.approx((shard.stats.bytes_written - before) * NS_PER_BYTE)

    with_pump(tmp_path / "s", body, checkpoint_gap_ms=1 << 40, checkpoint_burst_bytes=burst)


def test_a_loop_whose_checkpoints_keep_up_again_writes_in_place_again(tmp_path: Path) -> None:
    burst = 1 << 28

    async def body(pump: Pump, broker: Broker) -> None:
        pump.pace_unsynced = AlwaysQuick(0)
        await result_of(append(pump, broker, "a", "memory"))
        shard = pump.store.shards[0]
        shard.wal_bytes = (FROM_BURSTS + 1) * burst
        await result_of(append(pump, broker, "a", "memory", 1000))
        shard.wal_bytes = 0
        await asyncio.sleep(0.02)
        assert isinstance(append(pump, broker, "a", "memory"), Appended)

    with_pump(tmp_path / "s", body, checkpoint_gap_ms=1 << 40, checkpoint_burst_bytes=burst)
