"""The last life of some seeds ends on a device that breaks its word: a power cut may damage bytes that were synced.

Then a store may have lost anything. What is left to ask: it says so and names the file, or it serves nothing but what
was sent; and once it is open again, it keeps its promises from there on.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from tests.crash.probe import ROOT, contents, manifest_firsts
from topics.format.ops import prepare
from topics.host.clock import Clock
from topics.model.config import make_config
from topics.model.errors import StorageError
from topics.model.record import Record
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.store import Store
from topics.testing.disk import FakeDisk
from topics.testing.honest import Memory, dishonest
from topics.testing.ids import FakeIds
from topics.testing.oracle import Violation
from topics.testing.order import OrderFs
from topics.testing.view import View, view_store


def check_broken(disk: FakeDisk, options: StoreOptions, clock: Clock, memory: Memory, counts: Counter[str]) -> None:
    store = _open(disk, options, clock, counts)
    _check(view_store(store).values(), memory)
    told = _write(store, memory)
    if not store.checkpoint():
        raise Violation(f"a checkpoint failed on a healthy disk: {store.trouble!r}") from store.trouble
    told |= _write(store, memory)
    disk.power_cut()
    disk.restart()
    store = open_store(OrderFs(disk, manifest_firsts), ROOT, options, clock, FakeIds(0), contextlib.nullcontext())
    views = view_store(store)
    _check(views.values(), memory)
    for (topic_id, seq), record in told.items():
        if topic_id not in views or views[topic_id].records.get(seq) != record:
            raise Violation(f"record {seq} of topic {topic_id}, written behind the damage, is gone")


def _open(disk: FakeDisk, options: StoreOptions, clock: Clock, counts: Counter[str]) -> Store:
    before = contents(disk)
    try:
        fs = OrderFs(disk, manifest_firsts)
        store = open_store(fs, ROOT, options, clock, FakeIds(0), contextlib.nullcontext())
        counts["broken device: opened"] += 1
        return store
    except StorageError as error:
        if not str(error.facts.get("path", "")).startswith(ROOT):
            raise Violation(f"a refusal names no file: {error}") from error
        if contents(disk) != before:
            raise Violation("a start that was refused changed files") from error
        counts["broken device: refused"] += 1
    disk.restart()
    fs = OrderFs(disk, manifest_firsts)
    salvage = replace(options, recovery="salvage")
    return open_store(fs, ROOT, salvage, clock, FakeIds(0), contextlib.nullcontext())


def _check(views: Iterable[View], memory: Memory) -> None:
    for view in views:
        why = dishonest(view, memory, rotten=True)
        if why is not None:
            raise Violation(f"topic {view.name!r} (id {view.id}), on a broken device: {why}")


def _write(store: Store, memory: Memory) -> dict[tuple[int, int], Record]:
    """A record for every topic, synced; what was told to be there."""
    told: dict[tuple[int, int], Record] = {}
    for name in sorted(store.topics):
        kind = store.topics[name].config.type
        store.drive(store.configure(name, make_config({"durability": "fsync", "type": kind})))
        done = store.append(name, prepare([{"data": b'"behind"'}]))
        record = Record(done.first_seq, done.ts, None, None, None, None, b'"behind"')
        memory.append(done.topic.id, [record])
        store.drive(done.submission)
        told[done.topic.id, record.seq] = record
    return told
