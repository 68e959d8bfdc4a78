"""The numbered invariants that no other file asks for as a whole; docs/internals/invariants.md tells of the rest."""

from __future__ import annotations

from functools import cache

import pytest

from tests.crash.ledger import read_all
from tests.crash.life import Life
from topics.format.ops import prepare
from topics.model.record import Gap, Record
from topics.storage.wal import Shard


@cache
def _store() -> Life:
    """Every kind of loss and of deletion, in segments and in the WAL, over two shards."""
    life = Life(wal_shards=2, segment_max_events=3)
    life.open()
    life.create("capped", durability="fsync", cap_records=6)
    life.create("deleted", durability="fsync")
    life.create("disk", durability="disk")
    life.create("aged", durability="fsync", ttl_ms=1000)
    life.append("aged", 2)
    life.clock.advance(1500)
    for tag in ("a", "b", "a"):
        for name in ("capped", "deleted", "disk", "aged"):
            life.append(name, 3, tag)
    life.sweep("aged")
    life.store.checkpoint()
    life.delete("deleted", before_seq=3)
    life.delete("deleted", tag="b")
    life.append("capped", 2)
    life.sync()
    life.power_cut()
    life.open()
    life.append("disk", 2, "c")
    life.store.checkpoint()
    life.delete("deleted", tag="a")
    life.append("deleted", 2, "a")
    life.kill()
    return life


def content(life: Life) -> dict[str, list[tuple[object, ...]]]:
    """What readers are given and told of every topic."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for name in sorted(life.store.topics):
        found[name] = [
            (item.gap_from, item.gap_to, item.reason) if isinstance(item, Gap) else (item.seq, item.ts, item.raw)
            for item in read_all(life.store, name)
        ]
    return found


def floors(life: Life) -> dict[str, tuple[int, ...]]:
    return {
        name: (topic.evict_floor, topic.expiry_floor, topic.delete_below, topic.earliest_seq, topic.head)
        for name, topic in life.store.topics.items()
    }


@cache
def _whole() -> dict[str, list[tuple[object, ...]]]:
    life = _store().clone()
    life.open()
    return content(life)


def test_loss_of_any_one_derived_file_loses_nothing() -> None:
    """I8: each `.idx`, `.tags`, MANIFEST, CURRENT and BOOT, and the newest snapshot."""
    files = _store().disk.files()
    newest = max(path for path in files if "/meta/snapshot-" in path)
    derived = [path for path in files if path.endswith((".idx", ".tags", "/MANIFEST", "/CURRENT"))]
    assert len(derived) > 10
    for path in [*derived, newest]:
        life = _store().clone()
        life.disk.remove(path)
        life.open()
        assert content(life) == _whole(), path
        assert life.store.checkpoint()
        life.kill()
        life.open()
        assert content(life) == _whole(), path


def test_restarts_turn_no_loss_into_a_deletion_and_no_deletion_into_a_loss() -> None:
    """I5: what is said and what is silent stay so over kills, checkpoints, stops, other layouts and a fallback."""
    whole = _whole()
    reasons = {item[2] for items in whole.values() for item in items if isinstance(item[2], str)}
    assert reasons == {"cap", "crash", "ttl"}
    life = _store().clone()
    for shards in (2, 1, 3):
        life.open(wal_shards=shards)
        assert content(life) == whole
        assert life.store.checkpoint()
        life.kill()
        life.open()
        life.close()
        life.kill()
        life.open()
        assert content(life) == whole
        life.kill()
    life.disk.corrupt(max(path for path in life.disk.files() if "/meta/snapshot-" in path), 30)
    life.open()
    assert content(life) == whole


def test_no_floor_and_no_head_falls_over_restarts() -> None:
    """I3, I6."""
    life = _store().clone()
    life.open()
    before = floors(life)
    for step in range(4):
        for name in sorted(life.store.topics):
            life.append(name, 2, "a")
        life.delete("deleted", before_seq=step * 3)
        life.delete("deleted", tag="a")
        if step % 2:
            life.store.checkpoint()
        life.sync()
        now = floors(life)
        assert all(new >= old for name in now for new, old in zip(now[name], before[name], strict=True))
        life.power_cut()
        life.open()
        again = floors(life)
        for name, kept in again.items():
            assert kept[:3] == now[name][:3], name
            assert kept[4] >= now[name][4], name
        before = again


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_order_of_seqs_of_frames_and_of_publication_is_one_order(durability: str) -> None:
    """I3, I2: nothing is published before an earlier one of its topic, and nothing before its commit."""
    life = Life(wal_file_bytes=65536)
    life.open()
    life.create("a", durability=durability)
    life.sync()
    store = life.store
    shard: Shard = store.shards[0]
    done = [store.append("a", prepare([{"data": b"%d" % n}] * 2)) for n in range(5)]
    seen: list[int] = []
    while not all(append.submission is not None and append.submission.settled for append in done):
        records = [item.seq for item in read_all(store, "a") if isinstance(item, Record)]
        assert records[: len(seen)] == seen
        settled = [append for append in done if append.submission is not None and append.submission.settled]
        assert len(records) == 2 * len(settled)
        assert settled == done[: len(settled)]
        seen = records
        if not store.step(shard):
            life.sync()
    places = [(append.submission.offset, append.first_seq) for append in done if append.submission is not None]
    assert places == sorted(places)
    assert [seq for _, seq in places] == [1, 3, 5, 7, 9]
