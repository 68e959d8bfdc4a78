"""The fault catalogue, floors, deletes, reclaim, clocks, and topics that go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.life import ROOT, Life
from topics.format.control import EvictWatermark, Selector, SelectorOp
from topics.format.frame import Kind, encode_frame
from topics.format.ops import prepare
from topics.model.errors import TopicFull
from topics.testing.faults import Fault


def capped(**config: Any) -> Life:
    life = Life()
    life.open()
    life.create("a", durability="fsync", **config)
    return life


@pytest.mark.parametrize("config", [{"cap_records": 3}, {"cap_bytes": 24}], ids=str)
def test_what_a_cap_evicted_stays_gone_and_is_said(config: dict[str, int]) -> None:
    """F-EVICT-FLOOR-CRASH, byte_cap_evicted_record_does_not_resurrect_after_crash,
    cap_evict_floor_survives_crash_with_tombstone, 3.2 m: the floor rides in the append's own submission."""
    life = capped(**config)
    for _ in range(6):
        life.append("a", 1)
    assert life.gaps("a") == [(1, 3, "cap")]
    life.configure("a", durability="fsync", cap_records=1000)
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [4, 5, 6], "a raised cap revives nothing"
    assert life.gaps("a") == [(1, 3, "cap")]
    life.store.checkpoint()
    life.power_cut()
    life.reopen()
    assert life.gaps("a") == [(1, 3, "cap")]


def test_what_the_ttl_evicted_stays_gone_and_keeps_its_reason() -> None:
    """ttl_evicted_record_does_not_resurrect_after_crash."""
    life = capped(ttl_ms=1000)
    life.append("a", 2)
    life.clock.advance(2000)
    life.append("a", 1)
    life.sweep("a")
    life.append("a", 1)
    assert life.seqs("a") == [3, 4]
    life.configure("a", durability="fsync", ttl_ms=0)
    life.power_cut()
    life.reopen()
    assert life.gaps("a") == [(1, 2, "ttl")]
    assert life.seqs("a") == [3, 4]


def test_a_clock_far_ahead_at_restart_expires_nothing_at_once_and_revives_nothing() -> None:
    """F-CLOCK-FORWARD-TTL, 3.3 clock: TTL evicts nothing in the first minute after open (section 14)."""
    life = Life(ttl_grace_ms=60_000)
    life.open()
    life.create("a", durability="fsync", ttl_ms=1000)
    life.append("a", 3)
    life.kill()
    life.clock.step_wall(1 << 40)
    life.reopen()
    life.sweep("a")
    assert life.seqs("a") == [1, 2, 3]
    life.clock.advance(60_000)
    life.sweep("a")
    assert life.seqs("a") == []
    life.clock.step_wall(-(1 << 40))
    life.sync()
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == []


def test_records_of_this_process_expire_in_its_first_minute_too() -> None:
    """The grace is for times that another clock gave: what this process wrote is judged by its own clock."""
    life = Life(ttl_grace_ms=60_000)
    life.open()
    for name in ("old", "emptied"):
        life.create(name, durability="fsync", ttl_ms=1000)
        life.append(name, 2)
    life.kill()
    life.reopen()
    life.create("new", durability="fsync", ttl_ms=1000)
    life.delete("emptied", 3)
    for name in ("old", "emptied", "new"):
        life.append(name, 1)
    life.clock.advance(2000)
    for name in ("old", "emptied", "new"):
        life.sweep(name)
    assert [life.seqs(name) for name in ("old", "emptied", "new")] == [[1, 2, 3], [], []]


def test_times_never_fall_when_the_clock_goes_back_or_stands_still() -> None:
    """3.2 q, 3.3 clock back, frozen: ts is the largest seen, so the search by age stays right (D-9)."""
    life = capped()
    life.append("a", 1)
    life.clock.step_wall(-3_600_000)
    life.append("a", 1)
    life.append("a", 1)
    life.kill()
    life.clock.step_wall(-3_600_000)
    life.reopen()
    life.append("a", 2)
    life.store.checkpoint()
    life.power_cut()
    life.reopen()
    life.append("a", 1)
    assert life.seqs("a") == [1, 2, 3, 4, 5, 6]
    topic = life.store.topic("a")
    assert topic.last_ts == 1_700_000_000_000


def test_an_older_watermark_behind_a_newer_one_lowers_no_floor() -> None:
    """F-EVICT-FLOOR-MONOTONE-REPLAY: floors only rise."""
    life = capped(cap_records=2)
    life.append("a", 6)
    file = life.store.shards[0].file
    assert file is not None
    end = file.written
    life.kill()
    raw = life.disk.open(file.path, write=True)
    raw.write_at(end, [encode_frame(Kind.EVICT_WATERMARK, 1, EvictWatermark(1, 2, 0).encode(), ts=1)])
    raw.sync()
    life.reopen()
    assert life.gaps("a") == [(1, 4, "cap")]


def test_a_delete_never_comes_back_and_is_silent() -> None:
    """F-RECLAIM-DELETE-NEVER-RESURRECTS, F-RECLAIM-FRONT-PREFIX: gone after one crash and after two, without a gap."""
    life = capped()
    life.append("a", 6, "x")
    life.delete("a", before_seq=3)
    for _ in range(2):
        life.power_cut()
        life.reopen()
        assert life.seqs("a") == [3, 4, 5, 6]
        assert life.gaps("a") == []
    life.store.checkpoint()
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [3, 4, 5, 6]


def test_a_newer_record_of_the_same_tag_survives_the_delete_before_it() -> None:
    """delete_race_newer_same_tag_append_survives_crash, replay_honors_logged_delete_bound: replay uses the logged
    ranges, never the selector."""
    life = capped()
    life.append("a", 2, "x")
    life.delete("a", tag="x")
    life.append("a", 2, "x")
    for _ in range(2):
        life.power_cut()
        life.reopen()
        assert life.seqs("a") == [3, 4]


def test_a_delete_by_tag_hits_appends_that_are_ordered_and_none_after_it() -> None:
    """delete_race_concurrent_appends_no_overdelete_on_crash: decided on what is ordered, not on what is published."""
    life = capped()
    store = life.store
    told = life.told("a")
    first = store.append("a", prepare([{"data": b'"1"', "tag": "x"}]))
    delete, _ = store.delete("a", None, Selector(SelectorOp.EQ, "x"))
    second = store.append("a", prepare([{"data": b'"2"', "tag": "x"}]))
    told.send(1, [b'"1"'], "x")
    told.send(2, [b'"2"'], "x")
    for submission in (first.submission, delete, second.submission):
        store.drive(submission)
    assert life.seqs("a") == [2]
    life.power_cut()
    life.open()
    assert life.seqs("a") == [2]


def test_a_crash_between_the_unlinks_leaves_nothing_behind() -> None:
    """F-RECLAIM-CRASH-BETWEEN-UNLINKS, F-RECLAIM-ORPHAN-BELOW-FLOOR, F-RECLAIM-EIO-UNLINK."""
    life = Life(segment_max_events=2)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 6)
    life.store.checkpoint()
    life.kill()
    fs = life.open_faulty()
    life.delete("a", before_seq=5)
    fs.add(Fault("remove", 2, "EIO", forever=True))
    life.store.checkpoint()
    assert life.seqs("a") == [5, 6]
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [5, 6]
    left = [path for path in life.disk.files() if "/seg-" in path]
    assert all("seg-0000000000000005" in path for path in left), left


def test_the_files_of_a_deleted_topic_go() -> None:
    """3.2 p: the reference keeps them for ever."""
    life = Life(segment_max_events=2)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 5)
    life.store.checkpoint()
    life.drop("a")
    assert any("/topics/00000001/" in path for path in life.disk.files())
    life.store.checkpoint()
    assert not any("/topics/" in path for path in life.disk.files())
    life.power_cut()
    life.reopen()
    assert "a" not in life.store.topics


def test_files_that_will_not_go_keep_the_log_that_tells_of_the_drop() -> None:
    """F-RECLAIM-EIO-UNLINK, a topic: retried, at the latest by the next start; never resurrected."""
    life = Life(segment_max_events=2, wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    life.create("b", durability="fsync")
    life.append("a", 5)
    life.store.checkpoint()
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("rename", 1, "EIO", forever=True, path=".deleted"))
    life.drop("a")
    for _ in range(4):
        life.append("b", 5)
        life.store.checkpoint()
    assert life.store.graveyard
    life.power_cut()
    life.reopen()
    assert not any("/topics/00000001" in path for path in life.disk.files())


def test_a_re_created_topic_is_another_one() -> None:
    """3.2 o: the reference keeps epoch 1, so an old cursor reads on in another topic; here the epoch is new (D-6)."""
    life = Life(wal_shards=3)
    life.open()
    epochs = []
    for _ in range(4):
        life.create("a", durability="fsync")
        epochs.append(life.store.topic("a").epoch)
        life.append("a", 3)
        life.drop("a")
    life.create("a", durability="fsync")
    life.append("a", 1)
    life.power_cut()
    life.reopen()
    assert life.seqs("a") == [1]
    assert life.store.topic("a").epoch > max(epochs)
    assert epochs == sorted(set(epochs))


def test_a_reject_topic_evicts_nothing_over_a_crash() -> None:
    """limit races, caps of discard reject: refused before any seq exists."""
    life = capped(cap_records=3, discard="reject")
    life.append("a", 3)
    with pytest.raises(TopicFull):
        life.append("a", 1)
    life.power_cut()
    life.reopen()
    with pytest.raises(TopicFull):
        life.append("a", 1)
    life.delete("a", before_seq=2)
    assert life.append("a", 1) == 4
    assert life.gaps("a") == []
    assert life.disk.exists(f"{ROOT}/meta/FORMAT")


@pytest.mark.parametrize("sealed", [False, True])
def test_what_was_deleted_is_never_told_as_expired(sealed: bool) -> None:
    """I5: a floor by age stands at a record that age took; what was deleted around it stays silent."""
    life = Life(segment_max_events=3)
    life.open()
    life.create("a", durability="fsync", ttl_ms=1000)
    life.append("a", 2, "x")
    life.append("a", 2, "y")
    life.clock.advance(600)
    life.append("a", 3)
    if sealed:
        life.store.checkpoint()
    life.delete("a", before_seq=2)
    life.sweep("a")
    assert life.gaps("a") == []
    life.delete("a", tag="y")
    life.clock.advance(600)
    life.sweep("a")
    assert life.gaps("a") == [(1, 2, "ttl")]
    life.clock.advance(100)
    life.sweep("a")
    assert life.store.topic("a").expiry_floor == 2
    life.delete("a", before_seq=8)
    life.clock.advance(5000)
    life.sweep("a")
    assert life.gaps("a") == [(1, 2, "ttl")]
    life.kill()
    life.open()
    assert life.gaps("a") == [(1, 2, "ttl")]


def test_delete_on_its_way_keeps_its_records_from_being_told_as_expired() -> None:
    life = Life()
    life.open()
    life.create("a", durability="fsync", ttl_ms=1000)
    life.append("a", 4)
    deleted, died = life.store.delete("a", 5, None)
    assert deleted is not None
    life.clock.advance(1500)
    assert life.store.sweep(life.store.topic("a")) is None
    life.store.drive(deleted)
    assert died() == 4
    assert life.gaps("a") == []


@pytest.mark.parametrize("sealed", [False, True])
def test_what_was_deleted_behind_an_evicted_record_is_not_told_as_evicted(sealed: bool) -> None:
    """I5: also where a whole segment goes."""
    life = Life(segment_max_events=4)
    life.open()
    life.create("a", durability="fsync", cap_records=6)
    life.append("a", 2)
    life.append("a", 2, "gone")
    life.append("a", 4)
    if sealed:
        life.store.checkpoint()
    life.delete("a", tag="gone")
    life.append("a", 2)
    assert life.gaps("a") == [(1, 2, "cap")]
    assert life.store.topic("a").evict_floor == 2
    assert life.seqs("a") == [5, 6, 7, 8, 9, 10]


def test_a_cap_alone_is_not_told_as_age_too() -> None:
    life = Life()
    life.open()
    life.create("a", durability="fsync", ttl_ms=60_000, cap_records=2)
    life.append("a", 5)
    life.sweep("a")
    life.append("a", 1)
    assert life.gaps("a") == [(1, 4, "cap")]
