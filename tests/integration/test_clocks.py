"""A machine whose wall clock stands where no clock should: before 1970, or beyond what 64 bits hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import topics
from topics.host.fs import OsFs
from topics.testing.clock import FakeClock
from topics.testing.ids import FakeIds

SENSIBLE_MS = 1_700_000_000_000
FAR_OFF = [-5, -(1 << 63), 1 << 63, (1 << 64) + 5]
CLASSES = ["fsync", "disk", "memory", "ephemeral"]


def opened(data: Path, now_ms: int) -> topics.Log:
    return topics.Log(OsFs(), str(data), FakeClock(now_ms), FakeIds(1), ttl_grace_ms=0)


@pytest.mark.parametrize("now_ms", FAR_OFF)
@pytest.mark.parametrize("durability", CLASSES)
def test_a_wall_clock_at_an_extreme_stops_no_write_and_loses_nothing(data: Path, durability: str, now_ms: int) -> None:
    """clock back, far forward, 2^63, at every now() of a write, a checkpoint and a stop."""
    with opened(data, SENSIBLE_MS) as log:
        log.create("old", durability=durability)
        log.append("old", [{"data": 1}])
    kept = durability != "ephemeral"
    with opened(data, now_ms) as log:
        log.append("old", [{"data": 2}])
        log.create("new", durability=durability, ttl_ms=1000)
        log.append("new", [{"data": 1}], idempotency_key="once")
        assert log.append("new", [{"data": 1}], idempotency_key="once").deduped
        assert log.checkpoint()
        log.append("old", [{"data": 3}])
        assert (log.trouble, log.info("new").read_only) == ([], False)
        times = [record.ts for record in _records(log, "old")]
        assert times == sorted(times)
    with opened(data, now_ms) as log:
        assert [record.data for record in _records(log, "old")] == ([1, 2, 3] if kept else [])
        assert [record.data for record in _records(log, "new")] == ([1] if kept else [])


@pytest.mark.parametrize("now_ms", FAR_OFF)
def test_a_wall_clock_at_an_extreme_holds_leases_and_lets_them_end(data: Path, now_ms: int) -> None:
    clock = FakeClock(now_ms)
    with topics.Log(OsFs(), str(data), clock, FakeIds(1)) as log:
        log.create("jobs", type="queue", leases_durable=True, durability="fsync")
        log.append("jobs", [{"data": 1}, {"data": 2}, {"data": 3, "delay_ms": 60_000}])
        queue, group = log.queue("jobs"), log.group("jobs", "g")
        first, second = queue.claim("w", max=3, lease_ms=5000)
        queue.nack("w", [second], delay_ms=5000)
        queue.extend("w", [first], 10_000)
        group.create()
        assert len(group.fetch("m").records) == 3
        group.nack("m", [2], delay_ms=5000)
        log.checkpoint()
    with topics.Log(OsFs(), str(data), clock, FakeIds(1)) as log:
        assert log.queue("jobs").claim("x", max=3) == []
        clock.advance(10_001)
        assert [job.seq for job in log.queue("jobs").claim("x", max=3)] == [1, 2]


def _records(log: topics.Log, topic: str) -> list[Any]:
    return [item for item in log.read(topic) if isinstance(item, topics.Record)]
