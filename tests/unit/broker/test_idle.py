"""Retention of topics that nobody looks at."""

from __future__ import annotations

import pytest

from tests.unit.broker.engine import Bench
from topics.broker.group import Asked, Where
from topics.model.group import GroupConfig

MINUTE_MS = 60_000


def tend(bench: Bench) -> None:
    bench.store.tend()
    bench.store.drive_once()


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_what_is_too_old_goes_also_where_nobody_looks(durability: str) -> None:
    bench = Bench(segment_max_events=2)
    bench.append("t", *range(6), ttl_ms=1000, durability=durability)
    bench.append("kept", 1)
    assert bench.store.checkpoint()
    topic = bench.store.topic("t")
    bench.clock.advance(MINUTE_MS)
    tend(bench)
    assert (topic.live, topic.expiry_floor, bench.store.topic("kept").live) == (0, 6, 1)
    assert bench.store.checkpoint()
    assert not topic.segments


def test_what_a_group_held_back_goes_when_it_was_given_up() -> None:
    bench = Bench()
    bench.append("t", 1, cap_records=2)
    groups = bench.broker.groups
    bench.run(groups.put("t", "g", GroupConfig(group_ttl_ms=MINUTE_MS // 2).resolved(), Where(to="earliest")))
    bench.run(groups.fetch(Asked("t", "g", "m"), 1, None, 0, None))
    bench.append("t", 2, 3, 4, 5)
    topic = bench.store.topic("t")
    assert topic.live == 5
    bench.clock.advance(MINUTE_MS)
    tend(bench)
    assert (topic.live, topic.evict_floor) == (2, 3)
