"""Makes the store directories that later versions of the code must read.

    python -m tests.golden.make_store store-v2

writes `store-v2/`, as a process leaves it that is killed, and `store-v2.json`, what a reader of it finds. Look at the
JSON before it is committed: from then on it is what every version has to give. Make a new one when a format has changed
or grown; the older ones stay, for their directories are out there.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import topics
from topics.broker.broker import Broker
from topics.broker.group import Asked, Where
from topics.broker.reading import Query
from topics.broker.routing import RouterSpec
from topics.broker.staging import Staged, Work
from topics.format.control import RouterBits, Selector, SelectorOp
from topics.format.ops import prepare
from topics.host.fs import OsFs
from topics.model.config import make_config
from topics.model.group import GroupConfig
from topics.rules.lease import Leases
from topics.rules.lease_values import DELAYED, LEASED, PARKED, READY
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.routers import Router
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.driving import run_in_place
from topics.testing.ids import FakeIds
from topics.testing.view import view_topic

HERE = Path(__file__).parent
READ_AT_MS = 1_700_000_060_000
"""A minute after it was made: leases and keys are still good."""

OPTIONS: dict[str, Any] = {
    "wal_shards": 2,
    "wal_file_bytes": 4096,
    "segment_max_events": 5,
    "reserve_seqs": 8,
    "evidence_ms": 0,
    "ttl_grace_ms": 0,
}

T = TypeVar("T")


class Maker:
    def __init__(self) -> None:
        self.disk = FakeDisk(seed=1)
        self.clock = FakeClock()
        self.open()

    def open(self) -> None:
        options, nobody_else = StoreOptions(**OPTIONS), contextlib.nullcontext()
        self.store = open_store(self.disk, "/data", options, self.clock, FakeIds(1), nobody_else)
        self.broker = Broker(self.store, self.clock)
        self.staged = Staged(self.store)

    def run(self, work: Work[T]) -> T:
        return run_in_place(self.store, work)

    def create(self, name: str, **config: Any) -> None:
        self.run(self.broker.put_topic(name, make_config({"durability": "fsync", **config})))

    def append(
        self, name: str, *records: dict[str, Any], key: str | None = None, delays: list[int] | None = None
    ) -> None:
        prepared = prepare(records)
        prepared.delays = delays
        self.run(self.broker.append(name, prepared, key, None, False))
        self.clock.advance(7)

    def write(self, first: int, txn: str) -> None:
        """One of everything. It is done twice: once for the segments and the snapshot, once for the WAL."""
        run, broker = self.run, self.broker
        orders = [
            {"data": {"n": n}, "tag": f"eu:{n}" if n % 2 else "us", "key": f"order-{n}", "node": "till-1"}
            for n in range(first, first + 7)
        ]
        self.append("orders", *orders)
        self.append(
            "orders", {"data": "caf\xe9 \U0001f600", "meta": {"by": "tom", "n": 1.50}}, {"data": None, "tag": ""}
        )
        run(broker.delete("orders", None, Selector(SelectorOp.EQ, f"eu:{first + 2}"), None))
        self.append("capped", *({"data": n} for n in range(first, first + 4)))
        self.append("cut", *({"data": n} for n in range(first, first + 3)))
        run(broker.delete("cut", first + 1, None, None))
        self.append("keyed", {"data": first}, {"data": first + 1}, key=f"batch-{first}")
        self.append("lazy", {"data": first}, {"data": first + 1})
        self.append("jobs", *({"data": f"job {n}"} for n in range(first, first + 4)), delays=[0, 0, 0, 90_000])
        held = run(broker.queues.claim("jobs", "worker-1", 3, 600_000))
        seqs, tokens = [row[0] for row in held.rows], [row[1] for row in held.rows]
        run(broker.queues.ack("jobs", "worker-1", seqs[:1], tokens[:1]))
        run(broker.queues.nack("jobs", "worker-1", seqs[1:2], tokens[1:2], 120_000))
        who = Asked("orders", "billing", "m")
        got = run(broker.groups.fetch(who, 4, None, 0, None))
        run(broker.groups.ack(who, [got.rows[0][0]], [got.rows[0][1]], ()))
        run(broker.groups.nack(who, [got.rows[1][0]], [got.rows[1][1]], 120_000, True))
        run(broker.diff("europe", Query()))
        run(self.staged.put("staged", txn, "a", prepare([{"data": [first, 1]}, {"data": [first, 2]}])))
        run(self.staged.put("cut", txn, "b", prepare([{"data": "staged too"}])))
        run(self.staged.commit(txn, {"staged": ["a"], "cut": ["b"]}))
        run(self.staged.put("staged", f"{txn}-alone", "c", prepare([{"data": [first, 3]}])))
        run(self.staged.commit(f"{txn}-alone", {"staged": ["c"]}))

    def make(self) -> None:
        self.create("orders", leases_durable=True)
        self.create("capped", cap_records=3)
        self.create("cut")
        self.create("keyed", idempotency_window_ms=3_600_000)
        self.create("lazy", durability="disk")
        self.create("jobs", type="queue", leases_durable=True)
        self.create("again")
        self.append("again", {"data": "of the first life"})
        self.create("staged")
        self.run(self.broker.groups.put("orders", "billing", GroupConfig(visibility_ms=600_000), Where(to="earliest")))
        bits = RouterBits.PRESERVE_NODE | RouterBits.PRESERVE_TAG | RouterBits.CREATE_DEST
        spec = RouterSpec("orders", "europe", bits, Selector(SelectorOp.GLOB, "eu:"))
        self.run(self.broker.routing.put("to-europe", spec))
        self.write(1, "app-1")
        self.store.checkpoint()
        self.disk.power_cut()
        self.disk.restart()
        self.open()
        self.run(self.broker.routing.put("dropped", RouterSpec("orders", "again", bits, None)))
        self.run(self.broker.routing.drop("dropped"))
        self.run(self.broker.drop_topic("again", False))
        self.create("again", ttl_ms=86_400_000)
        self.append("again", {"data": "of the second life"})
        self.run(self.broker.patch_topic("capped", {"cap_records": 4}))
        self.write(101, "app-2")

    def save(self, path: Path) -> None:
        for name in self.disk.files():
            if name.endswith((".topics.lock", ".pre")):
                continue
            file = path / name.removeprefix("/data/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.disk.read(name))


def open_golden(path: Path, scratch: Path, shards: int = 2) -> topics.Log:
    """A copy of it, opened."""
    shutil.copytree(path, scratch / path.name)
    options = {**OPTIONS, "wal_shards": shards}
    return topics.Log(OsFs(), str(scratch / path.name), FakeClock(READ_AT_MS), FakeIds(2), **options)


def show(log: topics.Log) -> dict[str, Any]:
    """All that a reader of the store finds, as JSON values."""
    return {
        "store_id": log.store_id,
        "report": log.recovery_report,
        "topics": {n: _topic(log, n) for n in log.topics()},
    }


def _topic(log: topics.Log, name: str) -> dict[str, Any]:
    store = log._store
    topic = store.topic(name)
    view = view_topic(store, topic)
    shown: dict[str, Any] = {
        "id": view.id,
        "config": {k: v for k, v in msgspec.to_builtins(view.config).items() if v not in (None, 0, False)},
        "head": view.head,
        "earliest": view.earliest_seq,
        "evict_floor": view.evict_floor,
        "count": view.count,
        "bytes": view.bytes,
        "last_ts": view.last_ts,
        "items": [_item(item) for item in view.items],
    }
    if view.keys:
        shown["keys"] = view.keys
    if view.routers:
        shown["routers"] = {router.name: _router(router) for router in store.routers.into(topic.id)}
    if view.txns:
        shown["txns"] = view.txns
    if topic.queue is not None:
        shown["leases"] = _leases(topic.queue.leases, topic.queue.shift_ms)
    if topic.groups is not None:
        for group in topic.groups.by_name.values():
            leases = _leases(group.leases, topic.groups.shift_ms)
            shown[f"group {group.name}"] = {"position": group.leases.position, "leases": leases}
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(shown))
    return decoded


def _item(item: topics.Record | topics.Gap) -> dict[str, Any]:
    if isinstance(item, topics.Gap):
        return {"gap": [item.gap_from, item.gap_to, item.reason]}
    raw, meta = item.raw.decode(), None if item.meta_raw is None else item.meta_raw.decode()
    fields = {"tag": item.tag, "node": item.node, "key": item.key, "meta": meta}
    return {"seq": item.seq, "ts": item.ts, "data": raw, **{k: v for k, v in fields.items() if v is not None}}


def _leases(leases: Leases, shift_ms: int) -> dict[int, list[Any]]:
    """seq: what became of it, who has it, under which token, until when, how often it was handed out."""
    words = {READY: "ready", LEASED: "leased", DELAYED: "delayed", PARKED: "parked"}
    return {
        seq: [words[e.kind], e.holder, e.token_of(seq), e.until + shift_ms if e.until else 0, e.deliveries]
        for seq, e in sorted(leases.entries.items())
    }


def _router(router: Router) -> list[Any]:
    chosen = None if router.filter is None else [router.filter.op, router.filter.value]
    return [router.id, router.source, router.dest, router.bits, chosen, router.cursor, router.forwarded]


def main(name: str) -> None:
    if (HERE / name).exists():
        raise SystemExit(f"{name} is there already, and what is out there does not change: take the next number")
    maker = Maker()
    maker.make()
    maker.save(HERE / name)
    with tempfile.TemporaryDirectory() as scratch, open_golden(HERE / name, Path(scratch)) as log:
        text = msgspec.json.format(msgspec.json.encode(show(log)), indent=1)
    (HERE / f"{name}.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
