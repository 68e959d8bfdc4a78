"""A broker on a fake disk, driven in place."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

from topics.broker.broker import Appended, Broker
from topics.broker.reading import Page, Query
from topics.broker.steps import Steps
from topics.format.ops import prepare
from topics.model.config import TopicConfig
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.store import Store
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.driving import run_in_place
from topics.testing.ids import FakeIds

T = TypeVar("T")


class Bench:
    def __init__(self, **options: Any) -> None:
        self.disk = FakeDisk(seed=1)
        self.clock = FakeClock()
        self.options = StoreOptions(ttl_grace_ms=0, wal_file_bytes=1 << 16, **options)
        self.store: Store
        self.broker: Broker
        self.open()

    def open(self) -> None:
        self.store = open_store(self.disk, "/data", self.options, self.clock, FakeIds(1), contextlib.nullcontext())
        self.broker = Broker(self.store, self.clock)

    def run(self, steps: Steps[T]) -> T:
        return run_in_place(self.store, steps)

    def append(self, topic: str, *data: Any, key: str | None = None, **config: Any) -> Appended:
        records = [item if isinstance(item, dict) and "data" in item else {"data": item} for item in data]
        wanted = TopicConfig(**config) if config else None
        return self.run(self.broker.append(topic, prepare(records), key, wanted, True))

    def diff(self, topic: str, **query: Any) -> Page:
        return self.run(self.broker.diff(topic, Query(**query)))
