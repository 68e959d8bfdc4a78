"""A topic whose seqs come to their end (seq near 2^64): refused at the edge, nothing wraps, nothing is left behind."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from topics.broker.staging import Staged
from topics.format.control import Selector, SelectorOp
from topics.format.ops import prepare
from topics.model import limits
from topics.model.config import make_config
from topics.model.errors import TopicFull
from topics.model.record import Gap
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.routers import Router, order_holes
from topics.storage.scan import scan
from topics.storage.store import Store
from topics.storage.topic import Topic
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.driving import run_in_place
from topics.testing.ids import FakeIds

CLASSES = ["fsync", "disk", "memory", "ephemeral"]


class Bench:
    def __init__(self, durability: str, left: int, **config: Any) -> None:
        self.disk = FakeDisk(1)
        self.store: Store
        self.open()
        for name in ("t", "other"):
            wanted = make_config({"durability": durability, **config})
            self.store.drive(self.store.create(name, wanted))
        self.topic.apply_delete(limits.SEQ - left + 1, ())  # as if all below had been given, and deleted
        self.topic.ordered = self.topic.published()
        assert self.store.checkpoint()

    @property
    def topic(self) -> Topic:
        return self.store.topic("t")

    def open(self) -> None:
        options = StoreOptions(wal_file_bytes=1 << 16)
        self.store = open_store(self.disk, "/data", options, FakeClock(), FakeIds(1), contextlib.nullcontext())

    def append(self, count: int, topic: str = "t", **fields: Any) -> int:
        append = self.store.append(topic, prepare([{"data": n, **fields} for n in range(count)]))
        self.store.drive(append.submission)
        return append.last_seq

    def seqs(self) -> list[int]:
        found = []
        for item in scan(self.store, self.topic, 0, self.topic.head + 1, 1000, 1 << 20):
            found += [] if isinstance(item, Gap) else [record.seq for record in item.records()]
        return found

    def state(self) -> tuple[Any, ...]:
        topic = self.topic
        return topic.head, topic.live, topic.bytes, topic.ordered.head, topic.ceiling, len(topic.pending), self.seqs()


@pytest.mark.parametrize("cap", [0, 3])
@pytest.mark.parametrize("durability", CLASSES)
def test_batch_beyond_the_last_seq_is_refused_and_changes_nothing(durability: str, cap: int) -> None:
    bench = Bench(durability, left=10, **({"cap_records": cap} if cap else {}))
    bench.append(4)
    before = bench.state()
    for _ in range(2):
        with pytest.raises(TopicFull, match=r"has 6 seqs left, and 7 are wanted"):
            bench.append(7)
        assert bench.state() == before
    assert bench.append(6, tag="last") == limits.SEQ
    with pytest.raises(TopicFull, match=r"has 0 seqs left"):
        bench.append(1)
    assert bench.append(1, "other") == 1
    assert bench.seqs() == list(range(limits.SEQ + 1 - (cap or 10), limits.SEQ + 1))


@pytest.mark.parametrize("how", ["clean", "kill", "power"])
@pytest.mark.parametrize("durability", CLASSES)
def test_topic_at_its_last_seq_is_read_deleted_from_and_opened_again(durability: str, how: str) -> None:
    bench = Bench(durability, left=2)
    bench.append(2)
    if how == "clean":
        assert bench.store.checkpoint(clean=True)
        bench.store.release()
    else:
        assert how == "power" or bench.store.checkpoint()
        bench.disk.power_cut() if how == "power" else bench.disk.kill()
        bench.disk.restart()
    bench.open()
    if durability == "fsync":
        assert bench.seqs() == [limits.SEQ - 1, limits.SEQ]
    if durability in ("fsync", "disk"):
        with pytest.raises(TopicFull):
            bench.append(1)
        submission, _ = bench.store.delete("t", bench.topic.head + 1, None)
        bench.store.drive(submission)
        assert (bench.seqs(), bench.topic.live) == ([], 0)
        assert bench.store.checkpoint()


def test_staged_commit_beyond_the_last_seq_is_refused_and_may_be_aborted() -> None:
    bench = Bench("fsync", left=1)
    staged = Staged(bench.store)
    run_in_place(bench.store, staged.put("t", "txn", "a", prepare([{"data": 1}, {"data": 2}])))
    run_in_place(bench.store, staged.put("other", "txn", "a", prepare([{"data": 1}])))
    before = bench.state()
    with pytest.raises(TopicFull):
        run_in_place(bench.store, staged.commit("txn", {"other": ["a"], "t": ["a"]}))
    assert bench.state() == before
    assert bench.store.topic("other").head == 0
    run_in_place(bench.store, staged.abort("t", "txn"))


def test_holes_of_a_router_beyond_the_last_seq_are_refused() -> None:
    bench = Bench("fsync", left=1)
    source, dest = bench.store.topic("other"), bench.topic
    router = Router(9, "r", "other", "t", source.id, dest.id, 0, None, 0, 0)
    before = bench.state()
    with pytest.raises(TopicFull):
        order_holes(router, dest, bench.store.shard_for(dest), 2, 5, 0)
    assert (bench.state(), router.under_way) == (before, None)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_scattered_deletes_near_the_last_seq_are_kept_and_survive(durability: str) -> None:
    bench = Bench(durability, left=700)
    records = [{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(600)]
    bench.store.drive(bench.store.append("t", prepare(records)).submission)
    assert bench.store.checkpoint()
    submission, died = bench.store.delete("t", None, Selector(SelectorOp.EQ, "odd"))
    bench.store.drive(submission)
    assert died() == 300
    left = [limits.SEQ - 699 + n for n in range(0, 600, 2)]
    assert bench.seqs() == left
    for clean in (False, True):
        bench.store.checkpoint(clean=clean)
        bench.store.release() if clean else bench.disk.kill()
        bench.disk.restart()
        bench.open()
        assert bench.seqs() == left
