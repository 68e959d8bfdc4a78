"""Commits over several topics without a verdict: what stands behind them, and verdicts that damage took."""

from __future__ import annotations

import pytest

from tests.crash.life import Life
from tests.crash.staged_life import StagedLife
from tests.crash.test_staging import order, staged
from topics.format.control import Selector, SelectorOp
from topics.format.frame import Frame, Kind, decode_frame
from topics.format.ops import prepare
from topics.model.errors import CorruptFile
from topics.storage.stagecommit import Verdict
from topics.storage.staging import stages_of
from topics.testing.faults import Fault


def place_of(life: Life, kind: Kind) -> tuple[str, int]:
    """Where the only frame of this kind lies."""
    (found,) = (
        (path, frame.offset)
        for path in life.disk.files()
        if path.endswith(".log")
        for frame in frames_of(life.disk.read(path))
        if frame.kind == kind
    )
    return found


def frames_of(data: bytes) -> list[Frame]:
    frames, at = [], 0
    while data[at : at + 4].strip(b"\0"):
        frames.append(decode_frame(data, at, len(data)))
        at = frames[-1].end
    return frames


def committed() -> tuple[Life, StagedLife]:
    """A commit over two topics, and marks behind its verdict that prove it."""
    life, users = staged(3, "a", "b", evidence_ms=0)
    users.commit("t1", {"a": [("p0", 1)], "b": [("p0", 1)]})
    while life.store.topic(other := "abcdefgh"[len(life.store.topics) - 1]).shard != 0:
        life.create("abcdefgh"[len(life.store.topics)], durability="fsync")
    for _ in range(3):
        for name in ("a", "b", other):
            life.append(name)
    life.kill()
    return life, users


def test_records_of_a_commit_whose_verdict_rots_are_told_as_lost() -> None:
    life, users = committed()
    path, offset = place_of(life, Kind.STAGE_VERDICT)
    life.disk.corrupt(path, offset + 12)
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert caught.value.path == path
    life.open(recovery="salvage")
    for name in ("a", "b"):
        assert life.seqs(name)[:3] == [2, 3, 4]
        assert life.gaps(name)[0] == (1, 1, "corrupt")
        assert "t1" in stages_of(life.store.topic(name)).open, "its parts are there for whoever commits once more"
    life.kill()
    life.open(recovery="strict")
    assert [life.gaps(name)[0] for name in ("a", "b")] == [(1, 1, "corrupt")] * 2
    users.commit("t1", {"a": [("p0", 1)], "b": [("p0", 1)]})


def test_a_commit_that_nobody_decided_stays_a_silent_hole_where_damage_took_no_verdict() -> None:
    """Damage in another shard than that of the verdicts says nothing of them."""
    life, _ = staged(3, "a", "b", "c", evidence_ms=0)
    store = life.store
    order(life, "t1", "a", "b")
    for name in ("a", "b"):
        store.step(store.shard_for(store.topic(name)))
    life.kill()
    life.reopen()
    spoilt = next(name for name in ("a", "b", "c") if life.store.shard_for(life.store.topic(name)).index != 0)
    for _ in range(3):
        life.append(spoilt)
    path = life.store.shard_for(life.store.topic(spoilt)).file
    assert path is not None
    life.kill()
    data = life.disk.read(path.path)
    life.disk.corrupt(path.path, next(frame.offset for frame in frames_of(data) if frame.kind == Kind.APPEND) + 12)
    life.open(recovery="salvage")
    assert all(1 not in [gap[0] for gap in life.gaps(name)] for name in ("a", "b") if name != spoilt)


@pytest.mark.parametrize("by", ["cap", "before", "tag"])
def test_what_is_ordered_behind_an_aborted_commit_counts_it_no_more(by: str) -> None:
    """What was to end its records along with others ends fewer; else a cap would leave too many of later ones."""
    life = Life(wal_shards=3)
    life.open()
    for name in ("a", "b"):
        life.create(name, durability="fsync", **({"cap_records": 3} if by == "cap" else {}))
    users = StagedLife(life)
    for name in ("a", "b"):
        users.put(name, "t1", "p0", 2, tag="t")
    life.append("a", 3, tag="t")
    life.kill()
    fs = life.open_faulty()
    store = life.store
    topic, other = store.topic("a"), store.topic("b")
    assert topic.shard != other.shard
    fs.add(Fault("write", 1, "EIO", forever=True, path=store.shard_for(other).key))
    commit = order(life, "t1", "a", "b")
    store.step(store.shard_for(topic))
    if by == "cap":
        store.append("a", prepare([{"data": 1}] * 3))
        assert topic.pending[-1].evict_floor == 5
    else:
        match = Selector(SelectorOp.EQ, "t") if by == "tag" else None
        store.delete("a", 6 if by == "before" else None, match)
    for _ in range(2):
        store.step(store.shard_for(other))
    assert commit.decision is not None
    assert commit.decision.verdict == Verdict.ABORTED
    assert topic.head == 5, "its holes are there"
    expected = 3 if by == "cap" else 0
    assert (topic.live, len(topic.pending), topic.ordered.live) == (3, 1, expected)
    assert topic.ordered.bytes == (3 if by == "cap" else 0)
    store.step(store.shard_for(topic))
    assert (topic.live, topic.bytes) == (topic.ordered.live, topic.ordered.bytes) == (expected, expected)
