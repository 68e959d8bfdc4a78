"""What a start tells while it recovers."""

from __future__ import annotations

from contextlib import nullcontext

from topics.format.ops import prepare
from topics.model.config import TopicConfig
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.ids import FakeIds


def test_recovery_says_how_far_it_is() -> None:
    disk, options = FakeDisk(1), StoreOptions(wal_shards=2, wal_file_bytes=1 << 18, checkpoint_bytes=1 << 30)
    store = open_store(disk, "/data", options, FakeClock(), FakeIds(1), nullcontext())
    names = ("a", "b", "c", "d")
    for name in names:
        store.drive(store.create(name, TopicConfig().resolved()))
    for number in range(5000):
        store.drive(store.append(names[number % 4], prepare([{"data": number}]), None).submission)
    disk.restart()
    heard: list[float] = []
    store = open_store(disk, "/data", options, FakeClock(), FakeIds(2), nullcontext(), heard.append)
    assert [store.topics[name].live for name in names] == [1250] * 4
    assert heard == sorted(heard)
    assert len(set(heard)) > 3
    assert 0 < heard[0] < 0.5 < heard[-1] <= 1
