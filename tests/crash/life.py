"""One store on a fake disk, with a ledger that writes down what was asked and what was answered."""

from __future__ import annotations

import contextlib
import copy
import itertools
from typing import Any

from tests.crash.ledger import Crash, Ledger, TopicLedger, read_all
from topics.format.control import Selector, SelectorOp
from topics.format.manifest import decode_manifest
from topics.format.ops import prepare
from topics.host.fs import Fs
from topics.model.config import make_config
from topics.model.errors import TopicsError
from topics.model.record import Gap, Record
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.store import Store
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs
from topics.testing.ids import FakeIds
from topics.testing.order import OrderFs

ROOT = "/data"
TINY: dict[str, Any] = {
    "wal_file_bytes": 2048,
    "checkpoint_bytes": 1024,
    "reserve_seqs": 4,
    "segment_max_events": 3,
    "evidence_ms": 0,
    "ttl_grace_ms": 0,
}


def listed(manifest: bytes) -> set[int]:
    return {entry.first for entry in decode_manifest(manifest).segments}


class Life:
    """A disk, a clock, a ledger and, while one is open, a store."""

    def __init__(self, disk: FakeDisk | None = None, **options: Any) -> None:
        self.disk = disk if disk is not None else FakeDisk(1, sector=64)
        self.clock = FakeClock()
        self.ledger = Ledger()
        self.options = {**TINY, **options}
        self.crash: Crash = "kill"
        self.order: OrderFs | None = None
        self._store: Store | None = None
        self._numbers = itertools.count(1)

    def clone(self) -> Life:
        """The same life once more, its store closed as by a kill."""
        other = Life(self.disk.clone(), **self.options)
        other.disk.restart()
        other.clock = copy.copy(self.clock)
        other.ledger = copy.deepcopy(self.ledger)
        other.crash = self.crash
        other._numbers = itertools.count(next(self._numbers))
        return other

    # -- opening and crashing ------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        assert self._store is not None, "no store is open"
        return self._store

    @property
    def is_open(self) -> bool:
        return self._store is not None and not self._store.closed

    def ordered(self) -> OrderFs:
        """The disk under the rules of write order; a new one for every process that opens it."""
        self.order = OrderFs(self.disk, listed)
        return self.order

    def open(self, fs: Fs | None = None, **options: Any) -> Store:
        self.options |= options
        self._store = None
        chosen = StoreOptions(**self.options)
        inner = fs if fs is not None else self.ordered()
        self._store = open_store(inner, ROOT, chosen, self.clock, FakeIds(1), contextlib.nullcontext())
        return self._store

    def open_faulty(self, *faults: Fault, **options: Any) -> FaultFs:
        """Open on a disk whose calls fail as planned; plan more with `add`."""
        fs = FaultFs(self.ordered(), faults)
        self.open(fs, **options)
        return fs

    def power_cut(self) -> None:
        if not self.disk.off:
            self.disk.power_cut()
        self.crash = "power"
        self.disk.restart()

    def kill(self) -> None:
        if not self.disk.off:
            self.disk.kill()
        self.disk.restart()

    def reopen(self, **options: Any) -> Store:
        """Open what the crash left and hold it against the ledger."""
        store = self.open(**options)
        self.ledger.check(store, self.crash)
        assert self.order is None or not self.order.violations, self.order.violations
        self.crash = "kill"
        return store

    def close(self) -> None:
        """A clean stop, as the embedded log does it."""
        store = self.store
        store.closed = True
        for shard in store.shards:
            while shard.queue or shard.waiting or shard.take_sync() is not None:
                shard.syncing = False
                store.drive_once()
        store.checkpoint(clean=True)
        store.release()

    # -- operations ----------------------------------------------------------------------------------------------------

    def told(self, name: str) -> TopicLedger:
        return self.ledger.topics[self.store.topic(name).id]

    def create(self, name: str, **config: Any) -> None:
        store = self.store
        topic_id = store.next_topic_id
        submission = store.create(name, make_config(config))
        if submission is None:
            return
        told = self.ledger.topics[topic_id] = TopicLedger(name, topic_id)
        store.drive(submission)
        told.state = "there"

    def payload(self) -> bytes:
        return b'"%06d"' % next(self._numbers)

    def append(self, name: str, count: int = 1, tag: str | None = None, key: str | None = None) -> int:
        """Append `count` records; the first seq."""
        store, told = self.store, self.told(name)
        payloads = [self.payload() for _ in range(count)]
        records = [{"data": payload, **({"tag": tag} if tag else {})} for payload in payloads]
        done = store.append(name, prepare(records), key)
        if done.deduped:
            assert key is not None
            assert done.first_seq == told.keys[key].first, f"key {key}: another answer than the first time"
            return done.first_seq
        cls = done.topic.ordered.config.commit_class
        batch = told.send(done.first_seq, payloads, tag)
        store.drive(done.submission)
        told.ack(batch, cls)
        if key is not None:
            told.keys[key] = batch
        return done.first_seq

    def delete(self, name: str, before_seq: int | None = None, tag: str | None = None) -> None:
        store, told = self.store, self.told(name)
        match = None
        if tag is not None:
            glob = tag.endswith("*")
            match = Selector(SelectorOp.GLOB if glob else SelectorOp.EQ, tag.rstrip("*"))
        cls = store.topic(name).ordered.config.commit_class
        seqs = told.matching(before_seq, tag)
        told.ask_delete(seqs)
        submission, _ = store.delete(name, before_seq, match)
        store.drive(submission)
        told.ack_delete(seqs, cls)

    def configure(self, name: str, **config: Any) -> None:
        self.store.drive(self.store.configure(name, make_config(config)))

    def sweep(self, name: str) -> None:
        self.store.drive(self.store.sweep(self.store.topic(name)))

    def drop(self, name: str) -> None:
        store, told = self.store, self.told(name)
        submission = store.drop(name)
        told.state = "ending"
        store.drive(submission)
        told.state = "ended"

    def seqs(self, name: str) -> list[int]:
        """Seqs that a reader gets."""
        return [item.seq for item in read_all(self.store, name) if isinstance(item, Record)]

    def gaps(self, name: str) -> list[tuple[int, int, str]]:
        """What a reader is told to have missed."""
        found = [item for item in read_all(self.store, name) if isinstance(item, Gap)]
        return [(gap.gap_from, gap.gap_to, gap.reason) for gap in found]

    def sync(self) -> None:
        """What the timer does: every un-synced byte of every shard."""
        for shard in self.store.shards:
            sync = shard.take_sync()
            if sync is not None:
                sync.run()
                shard.finish_sync(sync)

    def more(self, *, strict: bool) -> None:
        """A few appends and deletes on every topic. Where a fault is about, errors of ours are expected."""
        for name in sorted(self.store.topics):
            for operation in (
                lambda name=name: self.append(name, 2, "more"),
                lambda name=name: self.append(name, 1),
                lambda name=name: self.delete(name, tag="mo*"),
                lambda name=name: self.append(name, 1, "last"),
            ):
                try:
                    operation()
                except TopicsError:
                    if strict:
                        raise
