"""Rows of a snapshot that are kept for the next one, and what an idle store holds in memory."""

from __future__ import annotations

import contextlib
import gc
import random
import tracemalloc

import msgspec
import pytest

from topics.format.control import Selector, SelectorOp
from topics.format.ops import prepare
from topics.format.snapshot import TopicRow, encode_row
from topics.model.config import make_config
from topics.storage.keptrow import keep_row, text_of
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.store import Store
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.ids import FakeIds

RECORDS = 200_000


def row_with(dead: list[tuple[int, int]]) -> TopicRow:
    return TopicRow(
        id=7, name="t", config=msgspec.Raw(b'{"dead":[]}'), created_ts=1, head=1 << 20, ckpt_seq=1 << 20, ceiling=0,
        evict_floor=3, expiry_floor=0, trim_floor=0, delete_below=0, lost=[(5, 9, 1)], live=1, bytes=1, last_ts=1,
        segments=[], dead=dead, unflagged=[(3, 4)], dedupe=[("dead", 1, 2, 3)],
    )  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 20_000])
def test_kept_row_has_the_text_it_was_made_of(count: int) -> None:
    rng = random.Random(count)
    firsts = sorted(rng.sample(range(1, 1 << 16), count))
    row = row_with([(first * 16, first * 16 + rng.randrange(15)) for first in firsts])
    assert text_of(keep_row(row)) == encode_row(row)


def opened(disk: FakeDisk) -> Store:
    options = StoreOptions(wal_file_bytes=1 << 24)
    return open_store(disk, "/data", options, FakeClock(), FakeIds(1), contextlib.nullcontext())


@pytest.mark.parametrize("deleted", [False, True])
def test_idle_store_holds_less_than_a_byte_for_each_record(deleted: bool) -> None:
    disk = FakeDisk(1)
    store = opened(disk)
    store.drive(store.create("t", make_config({})))
    for start in range(0, RECORDS, 10_000):
        batch = [{"data": n, "tag": f"tag-{n % 3}"} for n in range(start, start + 10_000)]
        store.drive(store.append("t", prepare(batch)).submission)
    assert store.checkpoint()
    if deleted:
        submission, died = store.delete("t", None, Selector(SelectorOp.EQ, "tag-1"))
        store.drive(submission)
        assert died() == RECORDS // 3 + 1
    assert store.checkpoint(clean=True)
    store.release()
    del store
    opened(disk).release()  # what is imported and made once
    gc.collect()
    tracemalloc.start()
    try:
        store = opened(disk)
        store.checkpoint()
        gc.collect()
        held = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = held.filter_traces([tracemalloc.Filter(False, "*/testing/*")])  # the disk is memory, too
    size = sum(stat.size for stat in ours.statistics("filename"))
    live = RECORDS - (RECORDS // 3 + 1) * deleted
    assert store.topic("t").live == live
    assert size / RECORDS < 1, [str(stat) for stat in ours.statistics("lineno")[:8]]
    store.release()
