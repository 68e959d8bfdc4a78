"""Queues on a disk that forgets: dead letters on their way, leases over clocks that were set."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import pytest

from topics.broker.broker import Broker
from topics.format.ops import prepare
from topics.model.config import TopicConfig
from topics.model.errors import WriteFailed
from topics.rules.lease_values import Kind
from topics.storage.leasing import queue_of
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.store import Store
from topics.testing.clock import FakeClock
from topics.testing.disk import CrashKind, FakeDisk, PowerOff
from topics.testing.driving import run_in_place
from topics.testing.faults import Fault, FaultFs
from topics.testing.ids import FakeIds

HOUR_MS = 3_600_000


class World:
    """A store whose two topics lie on different WAL shards."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = FakeDisk(seed, sector=64)
        self.clock = FakeClock()
        self.appended = False
        self.open()

    def open(self) -> None:
        options = StoreOptions(wal_shards=4, wal_file_bytes=4096, reserve_seqs=4)
        self.fs = FaultFs(self.disk)
        self.store: Store = open_store(self.fs, "/data", options, self.clock, FakeIds(1), contextlib.nullcontext())
        self.broker = Broker(self.store, self.clock)

    def reopen(self) -> None:
        self.disk.crash_at(None)
        self.disk.restart()
        self.open()

    def put(self, name: str, durability: Literal["memory", "fsync"] = "fsync", **config: Any) -> None:
        run_in_place(self.store, self.broker.put_topic(name, TopicConfig(durability=durability, **config)))

    def append(self, name: str, count: int = 1) -> None:
        records = prepare([{"data": number} for number in range(count)])
        run_in_place(self.store, self.broker.append(name, records, None, None, False))
        self.appended = True

    def claim(self, name: str, lease_ms: int = 1000) -> list[int]:
        return [row[0] for row in run_in_place(self.store, self.broker.queues.claim(name, "w", 9, lease_ms)).rows]

    def nack(self, name: str, seqs: list[int]) -> None:
        run_in_place(self.store, self.broker.queues.nack(name, "w", seqs, [None] * len(seqs), 0))

    def count(self, name: str) -> int:
        return self.store.topics[name].live if name in self.store.topics else 0


def tell(world: World) -> None:
    """A job dies."""
    world.put("dead", "memory")  # a class that promises nothing by itself
    world.put("q", type="queue", max_deliveries=1, dead_letter="dead")
    assert world.store.topics["q"].shard != world.store.topics["dead"].shard
    world.append("q")
    world.nack("q", world.claim("q"))
    assert world.claim("q") == []


def calls_of_the_story() -> int:
    world = World()
    tell(world)
    assert (world.count("q"), world.count("dead")) == (0, 1)
    return world.disk.calls


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_job_on_its_way_to_the_dead_letters_is_never_lost_nor_twice_there(kind: CrashKind) -> None:
    begun = World().disk.calls
    met = 0
    for stop in range(begun + 1, calls_of_the_story() + 2):
        world = World(stop)
        world.disk.crash_at(stop, kind)
        with contextlib.suppress(PowerOff):
            tell(world)
            if kind == "power":  # right behind the last call, with everything gone that was not synced
                world.disk.power_cut(mode="all_lost")
        world.reopen()
        if not world.appended:
            continue
        met += 1
        assert world.count("q") + world.count("dead") >= 1, f"lost at call {stop}"
        for _ in range(4):
            world.nack("q", world.claim("q"))
        assert (world.count("q"), world.count("dead")) == (0, 1), f"stopped at call {stop}"
        assert queue_of(world.store.topics["q"]).dead_lettered == 1
    assert met >= 5


def test_what_a_failed_snapshot_would_have_said_of_a_shard_that_then_stops_is_not_counted_twice() -> None:
    """The next snapshot has its part as of the last one that was written, topics and position alike."""
    world = World()
    tell(world)
    world.fs.add(Fault("open", error="ENOSPC", path="snapshot-"))
    assert not world.store.checkpoint()
    world.fs.add(Fault("write", path=world.store.shards[world.store.topics["q"].shard].directory))
    with pytest.raises(WriteFailed):
        world.append("q")
    assert world.store.checkpoint()
    world.disk.kill()
    world.reopen()
    assert (world.count("q"), world.count("dead")) == (0, 1)
    assert queue_of(world.store.topics["q"]).dead_lettered == 1


@pytest.mark.parametrize("step_ms", [-HOUR_MS, 0])
def test_an_expired_durable_lease_is_not_revived_by_a_clock_that_was_set_back(step_ms: int) -> None:
    world = World()
    world.put("q", type="queue", leases_durable=True)
    world.append("q")
    assert world.claim("q", 1000) == [1]
    world.clock.advance(1001)
    assert run_in_place(world.store, world.broker.state("q", False)).queue.ready == 1  # type: ignore[union-attr]
    world.append("q")  # whatever is written next carries the word of it
    world.disk.kill()
    world.clock.step_wall(step_ms)
    world.reopen()
    entry = queue_of(world.store.topics["q"]).leases.entries[1]
    assert (entry.kind, entry.deliveries) == (Kind.READY, 1)


@pytest.mark.parametrize("step_ms", [-HOUR_MS, 0])
def test_a_durable_lease_holds_over_a_crash_and_ends_in_time(step_ms: int) -> None:
    world = World()
    world.put("q", type="queue", leases_durable=True)
    world.append("q")
    assert world.claim("q", 60_000) == [1]
    world.disk.power_cut()
    world.clock.step_wall(step_ms)
    world.reopen()
    assert world.claim("q") == []
    world.clock.advance(60_001)
    assert world.claim("q") == [1]


def test_a_clock_set_ahead_ends_leases_early_and_never_late() -> None:
    world = World()
    world.put("q", type="queue", leases_durable=True)
    world.append("q")
    world.claim("q", 60_000)
    world.disk.kill()
    world.clock.step_wall(HOUR_MS)
    world.reopen()
    assert world.claim("q") == [1]


def test_jobs_whose_delete_was_lost_are_handed_out_again() -> None:
    """A snapshot says that a claim had passed them, and the delete that it passed them for is nowhere."""
    world = World()
    world.put("q", type="queue")
    world.append("q", 4)
    queue_of(world.store.topics["q"]).leases.position = 3
    assert world.store.checkpoint()
    world.disk.kill()
    world.reopen()
    assert world.claim("q") == [1, 2, 3, 4]
