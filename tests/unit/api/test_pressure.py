"""Whose turn it is on the loop, and what pressure does to the parts of the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from topics.api.agenda import ByPriority
from topics.api.channel import Channel
from topics.api.hub import Hub
from topics.api.live import Live, LiveOptions
from topics.api.pump import Pump
from topics.broker.broker import Appended, Broker
from topics.format.ops import prepare
from topics.host.clock import Clock, SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.model.config import TopicConfig
from topics.model.errors import Throttled
from topics.rules.pressure import Relief
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.testing.clock import FakeClock


class Parts:
    def __init__(self, pump: Pump, clock: Clock) -> None:
        self.pump = pump
        self.broker = Broker(pump.store, clock)
        self.live = Live(self.broker, pump, LiveOptions())

    def append(self, name: str, insist: bool = False, **config: Any) -> Appended | asyncio.Future[Appended]:
        wanted = TopicConfig(**config)
        return self.pump.run(self.broker.append(name, prepare([{"data": 1}]), None, wanted, True, insist))

    def channel(self, name: str) -> Channel:
        return Channel(self.pump.store.topics[name], self.live.hub.heard)


def with_parts(
    path: Path, body: Callable[[Parts], Coroutine[Any, Any, None]], clock: Clock | None = None, **options: Any
) -> None:
    async def main() -> None:
        lock = threading.Lock()
        time = clock or SystemClock()
        store = open_store(OsFs(), str(path), StoreOptions(**options), time, SystemIds(), lock)
        pump = Pump(store, lock, asyncio.get_running_loop())
        try:
            await asyncio.wait_for(body(Parts(pump, time)), 120)
        finally:
            pump.stop_waiting()
            await asyncio.to_thread(pump.close)

    asyncio.run(main())


async def result_of(answer: Any) -> Any:
    return await answer if isinstance(answer, asyncio.Future) else answer


def taken(agenda: ByPriority) -> list[str]:
    return [channel.topic.name for channel in iter(agenda.take, None)]


def test_urgent_topic_overtakes_those_that_wait(tmp_path: Path) -> None:
    async def body(parts: Parts) -> None:
        for name, priority in (("low", -500), ("plain", 0), ("high", 1000)):
            await result_of(parts.append(name, priority=priority))
        agenda = parts.live.agenda
        for name in ("low", "plain", "high"):
            agenda.add(parts.channel(name))
        assert (len(agenda), agenda.waiting) == (3, 3)
        assert taken(agenda) == ["high", "plain", "low"]
        assert (len(agenda), agenda.waiting) == (0, 0)

    with_parts(tmp_path / "s", body)


def test_channel_waits_once_and_its_wait_is_told(tmp_path: Path) -> None:
    clock = FakeClock()

    async def body(parts: Parts) -> None:
        await result_of(parts.append("a"))
        await result_of(parts.append("b"))
        agenda = ByPriority(parts.broker.clocks, clock)
        first, second = parts.channel("a"), parts.channel("b")
        agenda.add(first)
        clock.advance(4)
        agenda.add(first)
        agenda.add(second)
        clock.advance(2)
        assert taken(agenda) == ["a", "b"]
        assert agenda.turns.take() == pytest.approx(4.0)
        assert agenda.turns.take() == 0.0

    with_parts(tmp_path / "s", body, clock)


def test_shed_topics_neither_run_nor_spin_and_come_back(tmp_path: Path) -> None:
    async def body(parts: Parts) -> None:
        await result_of(parts.append("low", priority=-1))
        await result_of(parts.append("plain"))
        agenda = parts.live.agenda
        agenda.add(parts.channel("low"))
        agenda.shed(True)
        assert (len(agenda), agenda.waiting) == (0, 1)
        agenda.add(parts.channel("plain"))
        assert taken(agenda) == ["plain"]
        agenda.shed(False)
        assert taken(agenda) == ["low"]

    with_parts(tmp_path / "s", body)


def test_sustained_pressure_sheds_and_its_end_serves_again(tmp_path: Path) -> None:
    async def body(parts: Parts) -> None:
        await result_of(parts.append("low", priority=-1))
        live, low = parts.live, parts.channel("low")
        for _ in range(60):
            live.agenda.turns.add(50_000_000)
            live.pressure.step()
        assert live.pressure.relief.shed
        assert live.pressure.relief.pressure == 1.0
        assert parts.pump.forwarder.lower
        assert parts.pump.relief.window_ms == pytest.approx(10)
        assert live.hub.coalesce_s == pytest.approx(0.02)
        live.agenda.add(low)
        assert len(live.agenda) == 0
        for _ in range(30):
            live.pressure.step()
        assert live.pressure.relief.shed is False
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert live.agenda.waiting == 0
        assert live.hub.coalesce_s == parts.pump.relief.window_ms == 0

    with_parts(tmp_path / "s", body)


def test_writes_of_a_wide_window_share_one_batch(tmp_path: Path) -> None:
    async def body(parts: Parts) -> None:
        await result_of(parts.append("a", durability="fsync"))
        shard = parts.pump.store.shards[0]
        parts.pump.relief = Relief(pressure=0.5, window_ms=20)
        before = shard.stats.batches
        answers = []
        for _ in range(5):
            answers.append(parts.append("a"))
            await asyncio.sleep(0)
        assert all(isinstance(answer, asyncio.Future) for answer in answers)
        for answer in answers:
            await result_of(answer)
        assert shard.stats.batches == before + 1

    with_parts(tmp_path / "s", body)


def test_full_queue_makes_writers_wait_and_at_full_pressure_refuses_them(tmp_path: Path) -> None:
    async def body(parts: Parts) -> None:
        await result_of(parts.append("a", durability="fsync"))
        parts.pump.relief = Relief(pressure=0.5, window_ms=5)
        answers = [parts.append("a") for _ in range(6)]
        done = [await result_of(answer) for answer in answers]
        assert sorted(one.first_seq for one in done) == list(range(2, 8))
        assert max(one.throttled_ns for one in done) > 0
        assert done[0].throttled_ns == 0
        for _ in range(60):
            parts.live.agenda.turns.add(50_000_000)
            parts.live.pressure.step()
        waiting = [parts.append("a") for _ in range(2)]
        with pytest.raises(Throttled):
            await result_of(parts.append("a"))
        assert parts.pump.refused == 1
        insisting = parts.append("a", insist=True)
        for answer in (*waiting, insisting):
            assert (await result_of(answer)).first_seq
        assert parts.pump.store.topics["a"].head == 10

    with_parts(tmp_path / "s", body, queue_submissions=2)


def test_hub_gathers_wakeups_under_pressure(tmp_path: Path) -> None:
    async def body(parts: Parts) -> None:
        await result_of(parts.append("a"))
        hub: Hub = parts.live.hub
        hub.coalesce_s = 0.005
        channel = parts.channel("a")
        hub._heard(channel)
        assert parts.live.agenda.waiting == 0
        while not parts.live.agenda.turns.count:
            await asyncio.sleep(0.001)
        assert parts.live.agenda.waiting == 0

    with_parts(tmp_path / "s", body)
