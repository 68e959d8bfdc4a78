"""Queues over a store whose log has stopped."""

from __future__ import annotations

import pytest

from tests.unit.broker.engine import Bench
from topics.model.config import TopicConfig
from topics.model.errors import ReadOnly


def test_job_on_disk_is_not_acked_in_a_stopped_shard_though_its_queue_lives_in_ram_by_now() -> None:
    bench = Bench(wal_shards=1)
    bench.append("jobs", 1, 2, type="queue", durability="fsync")
    bench.run(bench.broker.put_topic("jobs", TopicConfig(type="queue", durability="ephemeral")))
    hand = bench.run(bench.broker.queues.claim("jobs", "w", 1, None))
    assert [row[0] for row in hand.rows] == [1]
    bench.store.shards[0].abandon(OSError(5, "the device is gone"))
    with pytest.raises(ReadOnly):
        bench.run(bench.broker.queues.ack("jobs", "w", [1], [None]))
    topic = bench.store.topic("jobs")
    assert (topic.live, topic.ordered.live) == (2, 2)
    assert topic.queue is not None
    assert topic.queue.leases.under_way(1) is None
