"""Chosen losses: caps, TTL, refusal, class changes, and how each is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import topics
from tests.integration.conftest import Opener
from topics.host.fs import OsFs
from topics.storage.scan import gaps_between
from topics.testing.clock import FakeClock
from topics.testing.ids import FakeIds

Gap = topics.Gap


def view(log: topics.Log, topic: str = "orders", from_seq: int = 0) -> list[object]:
    """Seqs of records, and gaps as they are."""
    return [item if isinstance(item, Gap) else item.seq for item in log.read(topic, from_seq)]


def fill(log: topics.Log, count: int, topic: str = "orders", size: int = 8) -> None:
    log.append(topic, [{"data": "x" * (size - 2)} for _ in range(count)])


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_cap_of_records_evicts_the_oldest_and_says_so(log: topics.Log, durability: str) -> None:
    log.create("orders", cap_records=3, durability=durability)
    fill(log, 5)
    assert view(log) == [Gap(1, 2, "cap"), 3, 4, 5]
    fill(log, 1)
    assert view(log) == [Gap(1, 3, "cap"), 4, 5, 6]
    assert view(log, from_seq=2) == [Gap(3, 3, "cap"), 4, 5, 6]
    assert view(log, from_seq=3) == [4, 5, 6]
    info = log.info("orders")
    assert (info.evict_floor, info.earliest_seq, info.count) == (4, 4, 3)


def test_what_a_cap_takes_behind_the_end_of_a_reading_is_no_loss_of_it(log: topics.Log) -> None:
    log.create("orders", cap_records=3)
    fill(log, 5)
    reading = log.read("orders")  # up to seq 5
    fill(log, 5)
    assert next(reading) == Gap(1, 7, "cap")
    fill(log, 5)
    assert list(reading) == []
    assert view(log) == [Gap(1, 12, "cap"), 13, 14, 15]
    found = log._store.topics["orders"]
    assert (gaps_between(found, 0, 6), gaps_between(found, 7, 6)) == ([Gap(1, 12, "cap")], [])


def test_a_cap_of_bytes_evicts_until_the_rest_fits(log: topics.Log) -> None:
    log.create("orders", cap_bytes=25)
    fill(log, 5, size=8)
    assert view(log) == [Gap(1, 2, "cap"), 3, 4, 5]
    assert log.info("orders").bytes == 24
    fill(log, 1, size=20)
    assert view(log) == [Gap(1, 5, "cap"), 6]


def test_evictions_survive_a_reopen_and_a_raised_cap(reopen: Opener) -> None:
    log = reopen(segment_max_events=2)
    log.create("orders", cap_records=3)
    fill(log, 5)
    log.checkpoint()
    log.configure("orders", cap_records=100)
    fill(log, 1)
    wanted = [Gap(1, 2, "cap"), 3, 4, 5, 6]
    assert view(log) == wanted
    assert view(reopen()) == wanted


def test_a_tighter_cap_bites_at_once(log: topics.Log) -> None:
    log.create("orders")
    fill(log, 5)
    log.configure("orders", cap_records=2)
    assert view(log) == [Gap(1, 3, "cap"), 4, 5]


def test_deleted_records_do_not_count_for_a_cap(log: topics.Log) -> None:
    log.create("orders", cap_records=3)
    log.append("orders", [{"data": n, "tag": "x" if n < 2 else "y"} for n in range(3)])
    log.delete("orders", tag="x")
    fill(log, 2)
    assert view(log) == [3, 4, 5]
    fill(log, 1)
    assert view(log) == [Gap(1, 3, "cap"), 4, 5, 6]


def test_a_topic_that_rejects_keeps_what_it_has(log: topics.Log) -> None:
    log.create("orders", cap_records=3, discard="reject")
    fill(log, 2)
    with pytest.raises(topics.TopicFull, match="topic 'orders' is full; delete records or raise its caps"):
        fill(log, 2)
    with pytest.raises(topics.RecordTooLarge, match="the batch alone exceeds a cap of topic 'orders'"):
        fill(log, 4)
    fill(log, 1)
    assert view(log) == [1, 2, 3]
    log.delete("orders", before_seq=2)
    assert log.append("orders", [{"data": 1}]).first_seq == 4
    with pytest.raises(topics.TopicFull) as caught:
        fill(log, 1)
    assert (caught.value.cap_records, caught.value.head_seq, caught.value.earliest_seq) == (3, 4, 2)


def test_ttl_expires_by_age_and_says_so(timed: topics.Log, clock: FakeClock) -> None:
    timed.create("orders", ttl_ms=1000)
    fill(timed, 2)
    clock.advance(600)
    fill(timed, 1)
    assert view(timed) == [1, 2, 3]
    clock.advance(401)
    assert view(timed) == [Gap(1, 2, "ttl"), 3]
    assert timed.info("orders").evict_floor == 3
    clock.advance(10_000)
    assert view(timed) == [Gap(1, 3, "ttl")]
    assert timed.info("orders").count == 0
    assert timed.append("orders", [{"data": 1}]).first_seq == 4
    assert view(timed, from_seq=3) == [4]


def test_expiry_stays_after_a_longer_ttl_and_a_reopen(data: Path, clock: FakeClock) -> None:
    with topics.Log(OsFs(), str(data), clock, FakeIds(1), ttl_grace_ms=0) as log:
        log.create("orders", ttl_ms=1000)
        fill(log, 2)
        log.checkpoint()
        clock.advance(2000)
        fill(log, 1)
        log.configure("orders", ttl_ms=0)
    with topics.Log(OsFs(), str(data), clock, FakeIds(2), ttl_grace_ms=0) as log:
        assert view(log) == [Gap(1, 2, "ttl"), 3]


def test_cap_and_age_together_are_said_as_mixed(timed: topics.Log, clock: FakeClock) -> None:
    timed.create("orders", ttl_ms=1000, cap_records=3)
    fill(timed, 5)
    clock.advance(2000)
    fill(timed, 1)
    assert view(timed) == [Gap(1, 5, "mixed"), 6]


def test_nothing_expires_right_after_open(data: Path, clock: FakeClock) -> None:
    with topics.Log(OsFs(), str(data), clock, FakeIds(1)) as log:
        log.create("orders", ttl_ms=1000)
        fill(log, 1)
    with topics.Log(OsFs(), str(data), clock, FakeIds(2)) as log:
        clock.advance(30_000)
        assert view(log) == [1]
        clock.advance(30_001)
        assert view(log) == [Gap(1, 1, "ttl")]


def test_one_bad_reading_of_the_clock_expires_nothing(timed: topics.Log, clock: FakeClock) -> None:
    timed.create("orders", ttl_ms=1000)
    fill(timed, 1)
    clock.step_wall(10_000_000)
    fill(timed, 1)
    assert view(timed) == [1, 2]
    clock.step_wall(-10_000_000)
    assert view(timed) == [1, 2]


def test_keys_are_forgotten_after_their_window(timed: topics.Log, clock: FakeClock) -> None:
    timed.create("orders", idempotency_window_ms=1000)
    assert timed.append("orders", [{"data": 1}], idempotency_key="k").deduped is False
    clock.advance(1000)
    assert timed.append("orders", [{"data": 1}], idempotency_key="k").deduped is True
    clock.advance(1)
    assert timed.append("orders", [{"data": 1}], idempotency_key="k").deduped is False


# -- classes -----------------------------------------------------------------------------------------------------------


def test_ephemeral_records_go_with_the_process_and_this_is_said(reopen: Opener) -> None:
    log = reopen()
    log.create("orders", durability="ephemeral")
    fill(log, 3)
    log = reopen()
    assert log.info("orders").config.durability == "ephemeral"
    assert [item for item in view(log) if not isinstance(item, Gap)] == []
    first = log.append("orders", [{"data": 1}]).first_seq
    assert first == 4


def test_leaving_the_ephemeral_class_says_what_stays_behind(reopen: Opener) -> None:
    log = reopen()
    log.create("orders", durability="ephemeral")
    fill(log, 3)
    log.configure("orders", durability="disk")
    fill(log, 2)
    wanted = [Gap(1, 3, "restart"), 4, 5]
    assert view(log) == wanted
    assert view(reopen()) == wanted


def test_what_was_evicted_in_memory_is_told_after_a_crash_that_follows_the_ephemeral_class(
    timed: topics.Log, data: Path, clock: FakeClock, tmp_path: Path
) -> None:
    for name, options in (("capped", {"cap_records": 3}), ("aging", {"ttl_ms": 1000})):
        timed.create(name, durability="ephemeral", **options)
        fill(timed, 2, name)
        clock.advance(1001)
        fill(timed, 3, name)
        assert timed.delete(name, before_seq=4).deleted == 1
        timed.configure(name, durability="disk", **options)
        fill(timed, 1, name)
    wanted = {
        "capped": [Gap(1, 2, "cap"), Gap(4, 5, "restart"), 6],
        "aging": [Gap(1, 2, "ttl"), Gap(4, 5, "restart"), 6],
    }
    assert {name: view(timed, name) for name in wanted} == wanted
    killed = shutil.copytree(data, tmp_path / "killed")
    with topics.Log(OsFs(), str(killed), clock, FakeIds(1), ttl_grace_ms=0) as again:
        assert {name: view(again, name) for name in wanted} == wanted


@pytest.mark.parametrize("first", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("second", ["ephemeral", "memory", "disk", "fsync"])
def test_any_class_may_become_any_other(reopen: Opener, first: str, second: str) -> None:
    log = reopen()
    log.create("orders", durability=first)
    fill(log, 3)
    log.configure("orders", durability=second)
    fill(log, 3)
    log.checkpoint()
    log.configure("orders", durability="fsync")
    fill(log, 3)
    left = [seq for seq, cls in zip((1, 2, 3, 4, 5, 6), [first] * 3 + [second] * 3, strict=True) if cls != "ephemeral"]
    for again in (False, True):
        current = reopen() if again else log
        assert [seq for seq in view(current) if not isinstance(seq, Gap)] == [*left, 7, 8, 9]
        assert {item.reason for item in view(current) if isinstance(item, Gap)} <= {"restart"}
        assert current.info("orders").count == len(left) + 3
