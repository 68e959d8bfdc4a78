"""A store on a fake disk, and routers in it, driven by hand."""

from __future__ import annotations

import contextlib
from typing import Any

from topics.broker.router import forward, pull, swept
from topics.broker.routing import RouterSpec, Routing
from topics.broker.steps import Steps, T
from topics.format.control import RouterBits, Selector, SelectorOp
from topics.format.ops import prepare
from topics.host.fs import Fs
from topics.model.config import make_config
from topics.model.record import Gap, Record
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.routers import Router
from topics.storage.scan import scan
from topics.storage.store import Store
from topics.storage.submission import WaitFirst
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.driving import run_in_place
from topics.testing.ids import FakeIds

PLAIN = RouterBits.PRESERVE_NODE | RouterBits.PRESERVE_TAG | RouterBits.CREATE_DEST
TINY: dict[str, Any] = {
    "wal_file_bytes": 4096,
    "checkpoint_bytes": 1024,
    "reserve_seqs": 4,
    "segment_max_events": 4,
    "evidence_ms": 0,
    "ttl_grace_ms": 0,
}


class Routed:
    def __init__(self, disk: FakeDisk | None = None, **options: Any) -> None:
        self.disk = disk if disk is not None else FakeDisk(1, sector=64)
        self.clock = FakeClock()
        self.options = {**TINY, **options}
        self.store: Store
        self.open()

    def open(self, fs: Fs | None = None, **options: Any) -> None:
        self.options |= options
        lock = contextlib.nullcontext()
        chosen = StoreOptions(**self.options)
        self.store = open_store(fs or self.disk, "/data", chosen, self.clock, FakeIds(1), lock)

    def kill(self, **options: Any) -> None:
        self.disk.kill()
        self.disk.restart()
        self.open(**options)

    def power_cut(self, mode: Any = None, **options: Any) -> None:
        self.disk.power_cut(mode=mode)
        self.disk.restart()
        self.open(**options)

    def stop(self) -> None:
        """A clean stop."""
        self.store.closed = True
        while any(shard.queue or shard.waiting for shard in self.store.shards):
            self.store.drive_once()
        self.store.checkpoint(clean=True)
        self.store.release()

    def run(self, steps: Steps[T]) -> T:
        return run_in_place(self.store, steps)

    # -- topics --------------------------------------------------------------------------------------------------------

    def create(self, name: str, **config: Any) -> None:
        self.store.drive(self.store.create(name, make_config({"durability": "fsync", **config})))

    def on_shard(self, shard: int, name: str, **config: Any) -> None:
        """Make a topic that lives on this shard."""
        while True:
            self.create(name, **config)
            if self.store.topic(name).shard == shard:
                return
            self.store.drive(self.store.drop(name))

    def append(self, name: str, *data: int | bytes, **fields: Any) -> None:
        records = [{"data": number, **fields} for number in data]
        self.store.drive(self.store.append(name, prepare(records)).submission)

    def items(self, name: str) -> list[Record | Gap]:
        topic = self.store.topic(name)
        found: list[Record | Gap] = []
        for item in scan(self.store, topic, 0, topic.head + 1, 1000, 1 << 20):
            found += [item] if isinstance(item, Gap) else item.records()
        return found

    def records(self, name: str) -> list[Record]:
        return [item for item in self.items(name) if isinstance(item, Record)]

    def data(self, name: str) -> list[Any]:
        return [record.data for record in self.records(name)]

    def gaps(self, name: str) -> list[tuple[int, int, str]]:
        return [(gap.gap_from, gap.gap_to, gap.reason) for gap in self.items(name) if isinstance(gap, Gap)]

    # -- routers -------------------------------------------------------------------------------------------------------

    @property
    def routing(self) -> Routing:
        return Routing(self.store)

    def put(self, name: str, source: str, dest: str, bits: RouterBits = PLAIN, tag: str | None = None) -> bool:
        match = None
        if tag is not None:
            match = Selector(SelectorOp.GLOB if tag.endswith("*") else SelectorOp.EQ, tag.rstrip("*"))
        return self.run(self.routing.put(name, RouterSpec(source, dest, bits, match)))

    def router(self, name: str) -> Router:
        return self.store.routers.by_name[name]

    def drop(self, name: str) -> bool:
        return self.run(self.routing.drop(name))

    def step(self, name: str) -> bool:
        """One pass, driven to its end; True if it went on."""
        router = self.router(name)
        self.store.drive(swept(self.store, router))
        try:
            done = forward(self.store, router)
        except WaitFirst as first:
            self.store.drive(first.submission)
            return True
        self.store.drive(done.submission)
        return done.moved

    def pull(self, dest: str) -> None:
        self.run(pull(self.store, self.store.topic(dest)))
