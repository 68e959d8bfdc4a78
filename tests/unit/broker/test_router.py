"""Passes of a router: what is copied, what is passed over, what stops it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.broker.routed import PLAIN, Routed
from topics.broker.router import HOPS_MAX, PASS_RECORDS, forward
from topics.format.control import RouterBits
from topics.format.ops import prepare
from topics.format.segment import HOPS
from topics.model.config import make_config
from topics.model.errors import ReadOnly, Throttled
from topics.storage.submission import WaitFirst
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs


@pytest.fixture
def routed() -> Routed:
    return Routed()


def pair(routed: Routed, bits: RouterBits = PLAIN, tag: str | None = None, **dest: Any) -> None:
    """A router `r` from `a` to `b`."""
    routed.create("a")
    routed.create("b", **dest)
    routed.put("r", "a", "b", bits, tag)


def test_a_router_copies_what_comes_after_it_was_made(routed: Routed) -> None:
    routed.create("a")
    routed.append("a", 1, 2)
    routed.put("r", "a", "b")
    routed.append("a", 3, 4)
    routed.pull("b")
    assert routed.data("b") == [3, 4]
    assert (routed.router("r").cursor, routed.router("r").forwarded) == (4, 2)
    routed.pull("b")
    assert routed.data("b") == [3, 4]


def test_everything_of_a_record_is_copied(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 1, tag="t", node="n", key="k", meta={"m": 1.0})
    routed.pull("b")
    (copy,) = routed.records("b")
    assert (copy.tag, copy.node, copy.key, copy.meta_raw, copy.raw) == ("t", "n", "k", b'{"m":1.0}', b"1")


def test_node_and_tag_are_cleared_where_they_are_not_preserved(routed: Routed) -> None:
    pair(routed, RouterBits.PRESERVE_NODE)
    routed.put("s", "a", "c", RouterBits.CREATE_DEST | RouterBits.PRESERVE_TAG)
    routed.append("a", 1, tag="t", node="n")
    routed.pull("b")
    routed.pull("c")
    assert [(copy.tag, copy.node) for copy in routed.records("b")] == [(None, "n")]
    assert [(copy.tag, copy.node) for copy in routed.records("c")] == [("t", None)]


def test_a_filter_chooses_by_tag_and_the_cursor_passes_the_rest(routed: Routed) -> None:
    pair(routed, tag="eu:*")
    routed.append("a", 1, tag="eu:1")
    routed.append("a", 2, tag="us:1")
    routed.append("a", 3)
    routed.pull("b")
    assert routed.data("b") == [1]
    assert (routed.router("r").cursor, routed.router("r").forwarded) == (3, 1)


def test_deleted_records_are_passed_over_silently(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 1, 2, 3)
    routed.store.drive(routed.store.delete("a", 3, None)[0])
    routed.pull("b")
    assert routed.data("b") == [3]
    routed.append("a", 4)
    routed.store.drive(routed.store.delete("a", 5, None)[0])
    routed.pull("b")
    assert routed.data("b") == [3]
    assert routed.gaps("b") == []
    assert routed.router("r").cursor == 4


def test_what_the_source_evicted_becomes_holes_in_the_dest(routed: Routed) -> None:
    routed.create("a", cap_records=2)
    routed.put("r", "a", "b")
    routed.put("s", "b", "c")
    routed.append("a", 1, 2, 3, 4, 5)
    routed.pull("b")
    routed.pull("c")
    assert routed.data("b") == routed.data("c") == [4, 5]
    assert routed.gaps("b") == routed.gaps("c") == [(1, 3, "source_trim")]
    assert routed.router("r").forwarded == 5
    assert routed.store.topic("b").live == 2


def test_expired_records_become_holes_even_before_anyone_swept_them(routed: Routed) -> None:
    routed.create("a", ttl_ms=1000)
    routed.put("r", "a", "b")
    routed.append("a", 1, 2)
    routed.clock.advance(1001)
    routed.append("a", 3)
    routed.pull("b")
    assert routed.data("b") == [3]
    assert routed.gaps("b") == [(1, 2, "source_trim")]


def test_deletes_between_the_cursor_and_a_hole_are_no_loss(routed: Routed) -> None:
    """A chain: the holes of `b` lie behind records that were deleted from it."""
    routed.create("a", cap_records=1)
    routed.put("r", "a", "b")
    routed.put("s", "b", "c")
    routed.append("a", 1)
    routed.pull("b")
    routed.append("a", 2, 3)
    routed.pull("b")
    routed.store.drive(routed.store.delete("b", 2, None)[0])
    routed.pull("c")
    assert routed.data("c") == [3]
    assert routed.gaps("c") == [(1, 1, "source_trim")]


def test_holes_go_into_a_full_dest_that_rejects(routed: Routed) -> None:
    routed.create("a", cap_records=1)
    routed.create("b", cap_records=1, discard="reject")
    routed.put("r", "a", "b")
    routed.append("b", 0)
    routed.append("a", 1, 2, 3)
    routed.pull("b")
    assert routed.data("b") == [0]
    assert routed.gaps("b") == [(2, 3, "source_trim")]
    routed.store.drive(routed.store.delete("b", 4, None)[0])
    routed.pull("b")
    assert routed.data("b") == [3]


@pytest.mark.parametrize("cap", ["cap_records", "cap_bytes"])
def test_a_full_dest_stops_the_router_before_the_record_that_has_no_room(routed: Routed, cap: str) -> None:
    config: dict[str, Any] = {"discard": "reject", cap: 3}
    pair(routed, **config)
    routed.append("a", 1, 2, 3, 4, 5)
    routed.pull("b")
    assert routed.data("b") == [1, 2, 3]
    assert routed.router("r").cursor == 3
    assert not routed.step("r")
    routed.store.drive(routed.store.delete("b", 3, None)[0])
    routed.pull("b")
    assert routed.data("b") == [3, 4, 5]
    assert routed.router("r").forwarded == 5


def test_a_filtered_router_passes_what_it_can_in_front_of_a_full_dest(routed: Routed) -> None:
    pair(routed, tag="x", discard="reject", cap_records=1)
    routed.append("a", 1, tag="x")
    routed.append("a", 2)
    routed.append("a", 3, tag="x")
    routed.pull("b")
    assert routed.data("b") == [1]
    routed.store.drive(routed.store.delete("b", 2, None)[0])
    routed.pull("b")
    assert routed.data("b") == [3]


def test_a_dest_that_discards_the_old_evicts_as_ever(routed: Routed) -> None:
    pair(routed, cap_records=2)
    routed.append("a", 1, 2, 3, 4, 5)
    routed.pull("b")
    assert routed.data("b") == [4, 5]
    assert routed.gaps("b") == [(1, 3, "cap")]


def test_the_quota_of_the_store_covers_copies(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 11, 22)
    routed.store.ledger.bytes_max = 6
    with pytest.raises(Throttled):
        forward(routed.store, routed.router("r"))
    routed.pull("b")
    assert routed.data("b") == []
    routed.store.ledger.bytes_max = 8
    routed.pull("b")
    assert routed.data("b") == [11, 22]


@pytest.mark.parametrize("restart", [False, True])
def test_a_loop_of_two_topics_ends_by_the_count_of_hops(routed: Routed, restart: bool) -> None:
    routed.create("a")
    routed.put("r", "a", "b")
    routed.put("back", "b", "a", PLAIN | RouterBits.ALLOW_CYCLE)
    routed.append("a", 1)
    for _ in range(HOPS_MAX + 3):
        routed.step("r")
        routed.step("back")
        if restart:
            # The count is in the frames of the WAL and of segments alike.
            routed.store.checkpoint()
            routed.kill()
    assert (len(routed.records("a")), len(routed.records("b"))) == (5, 4)


def test_the_count_of_hops_leaves_tag_and_node_alone(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 1, tag="t")
    routed.append("a", 2, node="n")
    routed.pull("b")
    for _ in range(2):
        assert [(copy.tag, copy.node) for copy in routed.records("b")] == [("t", None), (None, "n")]
        topic = routed.store.topic("b")
        flags = [topic.tail.chunks[0].buffer[at * 20 + 16] for at in range(2)] if topic.tail.chunks else []
        assert all(flag & HOPS == 1 << 4 for flag in flags)
        routed.store.checkpoint()


def test_two_routers_of_the_same_topics_double_the_copies(routed: Routed) -> None:
    pair(routed)
    routed.put("again", "a", "b")
    routed.append("a", 1, 2)
    routed.pull("b")
    assert sorted(routed.data("b")) == [1, 1, 2, 2]


def test_a_long_backlog_is_copied_in_several_passes(routed: Routed) -> None:
    pair(routed, durability="disk")
    count = PASS_RECORDS * 2 + 5
    routed.append("a", *range(count))
    router = routed.router("r")
    assert routed.step("r")
    assert router.cursor == PASS_RECORDS
    routed.pull("b")
    assert routed.data("b") == list(range(count))


def test_one_pass_is_under_way_at_a_time(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 1)
    first = forward(routed.store, routed.router("r"))
    again = forward(routed.store, routed.router("r"))
    assert first.submission is again.submission
    assert routed.router("r").cursor == 0
    routed.store.drive(first.submission)
    assert routed.data("b") == [1]
    assert not forward(routed.store, routed.router("r")).moved


def test_a_dropped_router_copies_no_more_even_where_one_of_its_name_follows(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 1)
    old = routed.router("r")
    assert routed.drop("r")
    assert not forward(routed.store, old).moved
    routed.put("r", "a", "b")
    assert not forward(routed.store, old).moved
    routed.append("a", 2)
    routed.pull("b")
    assert routed.data("b") == [2]


def test_a_dest_on_its_way_out_takes_no_copies(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 1)
    ending = routed.store.drop("b")
    assert not forward(routed.store, routed.router("r")).moved
    routed.store.drive(ending)
    assert routed.store.routers.by_name == {}


def test_a_dest_in_memory_alone_is_fed_without_a_frame(routed: Routed) -> None:
    routed.create("a", durability="ephemeral")
    routed.create("b", durability="ephemeral", cap_records=3)
    routed.put("r", "a", "b")
    before = [shard.stats.frames for shard in routed.store.shards]
    routed.append("a", 1, 2)
    routed.pull("b")
    assert routed.data("b") == [1, 2]
    assert [shard.stats.frames for shard in routed.store.shards] == before


def test_holes_reach_a_dest_in_memory(routed: Routed) -> None:
    routed.create("a", cap_records=1)
    routed.create("b", durability="ephemeral")
    routed.put("r", "a", "b")
    routed.append("a", 1, 2)
    routed.pull("b")
    assert routed.data("b") == [2]
    assert routed.gaps("b") == [(1, 1, "source_trim")]


def test_what_was_copied_in_memory_is_not_copied_again_after_the_dest_left_it(routed: Routed) -> None:
    routed.create("a", cap_records=2)
    routed.create("b", durability="ephemeral")
    routed.put("r", "a", "b")
    routed.append("a", 1, 2, 3)
    routed.pull("b")
    assert routed.data("b") == [2, 3]
    routed.store.drive(routed.store.configure("b", make_config({"durability": "fsync"})))
    gaps = routed.gaps("b")
    routed.kill()
    assert (routed.router("r").cursor, routed.router("r").forwarded) == (3, 3)
    routed.pull("b")
    assert (routed.data("b"), routed.gaps("b")) == ([], gaps)
    routed.append("a", 4)
    routed.pull("b")
    assert routed.data("b") == [4]


def test_a_dest_in_memory_waits_for_what_is_under_way_on_disk(routed: Routed) -> None:
    pair(routed)
    routed.append("a", 1)
    waiting = routed.store.append("b", prepare([{"data": 0}])).submission
    routed.store.configure("b", routed.store.topic("b").config.__class__(durability="ephemeral"))
    with pytest.raises(WaitFirst):
        forward(routed.store, routed.router("r"))
    routed.store.drive(waiting)
    routed.pull("b")
    assert routed.data("b") == [0, 1]


def test_a_dest_in_memory_is_fed_though_its_shard_is_read_only() -> None:
    disk = FakeDisk(1)
    routed = Routed(disk)
    faults = FaultFs(disk)
    routed.disk.kill()
    routed.disk.restart()
    routed.open(faults)
    routed.create("a", durability="ephemeral")
    routed.create("b", durability="ephemeral")
    routed.create("c")
    routed.put("r", "a", "b")
    routed.put("s", "a", "c")
    faults.add(Fault("write", 1, "EIO"))
    with pytest.raises(Exception, match="failed"):
        routed.append("c", 1)
    routed.append("a", 1)
    routed.pull("b")
    assert routed.data("b") == [1]
    with pytest.raises(ReadOnly):
        forward(routed.store, routed.router("s"))
    routed.pull("c")


def test_a_copy_that_found_no_room_on_the_disk_is_made_later() -> None:
    disk = FakeDisk(1)
    routed = Routed(disk)
    disk.kill()
    disk.restart()
    faults = FaultFs(disk)
    routed.open(faults)
    pair(routed)
    routed.append("a", *range(20))
    shard = routed.store.shards[0]
    assert shard.file is not None
    shard.file.capacity = shard.file.written
    faults.add(Fault("open", 1, "ENOSPC", forever=True))
    routed.pull("b")
    router = routed.router("r")
    assert (router.cursor, router.forwarded, router.under_way) == (0, 0, None)
    assert routed.store.topic("b").ordered.head == 0
    faults.heal()
    shard.adopt_spare(shard.plan_spare().run())
    routed.pull("b")
    assert routed.data("b") == list(range(20))


def test_damage_in_the_source_is_said_in_the_dest() -> None:
    routed = Routed()
    pair(routed)
    routed.append("a", 1, 2, 3)
    chunk = routed.store.topic("a").tail.chunks[0]
    source, _ = chunk.source_of(2)
    at = int.from_bytes(chunk.buffer[20:24], "little")
    routed.disk.corrupt(source.path, at + 40)
    routed.pull("b")
    assert routed.data("b") == [1, 3]
    assert routed.gaps("b") == [(2, 2, "source_trim")]


# -- exactly once ------------------------------------------------------------------------------------------------------


def key_of(routed: Routed, meta: bytes | None) -> dict[str, object]:
    assert meta is not None
    found = json.loads(meta)["_topics_router"]
    assert isinstance(found, dict)
    return found


def test_exactly_once_says_where_a_copy_came_from(routed: Routed) -> None:
    pair(routed, PLAIN | RouterBits.EXACTLY_ONCE)
    routed.append("a", 1)
    routed.append("a", 2, meta={"x": 1.50, "_topics_router": "mine"})
    routed.pull("b")
    first, second = routed.records("b")
    source = routed.store.topic("a").id
    assert key_of(routed, first.meta_raw) == {
        "idempotency_key": f"router:r:{source}:{source}:1",
        "router": "r",
        "source_topic": "a",
        "source_topic_id": source,
        "source_epoch": source,
        "source_seq": 1,
    }
    assert second.meta["x"] == 1.5
    assert key_of(routed, second.meta_raw)["source_seq"] == 2


def test_numbers_beyond_a_float_stop_no_router(routed: Routed) -> None:
    routed.create("a")
    routed.put("r", "a", "b", PLAIN | RouterBits.EXACTLY_ONCE)
    routed.append("a", b"1e999", meta=b'{"x":1e400}')
    routed.append("a", 2)
    routed.pull("b")
    first, _ = routed.records("b")
    assert (first.raw, first.data) == (b"1e999", float("inf"))
    assert b'"x":1e400' in (first.meta_raw or b"")


def test_a_meta_that_cannot_take_the_key_moves_aside(routed: Routed) -> None:
    pair(routed, PLAIN | RouterBits.EXACTLY_ONCE)
    full = {f"k{number}": number for number in range(64)}
    routed.append("a", 1, meta=[1, 2])
    routed.append("a", 2, meta=full)
    routed.pull("b")
    first, second = routed.records("b")
    assert first.meta["_topics_original_meta"] == [1, 2]
    assert second.meta["_topics_original_meta"] == full
    assert set(first.meta) == set(second.meta) == {"_topics_original_meta", "_topics_router"}


def test_a_record_that_would_outgrow_a_limit_goes_without_the_key(routed: Routed) -> None:
    pair(routed, PLAIN | RouterBits.EXACTLY_ONCE, durability="disk")
    meta = {"m": "x" * 16_300}
    routed.append("a", 1, meta=meta)
    routed.append("a", 2)
    routed.pull("b")
    first, second = routed.records("b")
    assert first.meta == meta
    assert routed.store.routers.unmarked == 1
    assert key_of(routed, second.meta_raw)["source_seq"] == 2
