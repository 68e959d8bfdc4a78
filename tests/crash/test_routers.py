"""Routers over crashes: copies are neither repeated nor lost, and what happened in the dest stays."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.crash.copies import STORY, begin, tell
from tests.unit.broker.routed import PLAIN, Routed
from topics.broker.routing import RouterSpec
from topics.format.control import RouterBits
from topics.model.errors import TopicsError
from topics.testing.disk import CrashKind, FakeDisk, PowerOff
from topics.testing.faults import Fault, FaultFs


@cache
def count_calls(shards: int) -> int:
    story = begin(shards)
    before = story.routed.disk.calls
    tell(story)
    story.check()
    return story.routed.disk.calls - before


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("shards", [1, 3])
def test_copies_are_neither_repeated_nor_lost_wherever_a_crash_comes(shards: int, kind: CrashKind) -> None:
    for nth in range(1, count_calls(shards) + 1):
        story = begin(shards)
        routed = story.routed
        routed.disk.rng.seed(nth)
        routed.disk.crash_at(routed.disk.calls + nth, kind)
        with pytest.raises(PowerOff):
            tell(story)
        routed.disk.restart()
        routed.open()
        try:
            story.check()
            tell(story, STORY[:7])
            routed.power_cut()
            story.check()
        except (AssertionError, TopicsError) as error:
            pytest.fail(f"{kind} in call {nth} on {shards} shards: {error}")


@pytest.mark.parametrize("call", ["write", "sync"])
def test_copies_are_neither_repeated_nor_lost_whichever_call_fails(call: str) -> None:
    nth = 0
    while True:
        nth += 1
        story = begin(3)
        routed = story.routed
        routed.disk.kill()
        routed.disk.restart()
        faults = FaultFs(routed.disk)
        routed.open(faults)
        faults.add(Fault(call, nth, "EIO"))
        for step in STORY:
            try:
                step(story)
            except TopicsError:
                continue
        if not faults.fired:
            break
        routed.power_cut()
        try:
            story.check()
        except AssertionError as error:
            pytest.fail(f"{call} {nth}: {error}")
    assert nth > 20


@pytest.mark.parametrize("shards", [1, 3])
def test_the_older_snapshot_leads_to_the_same_place(shards: int) -> None:
    for steps in range(8, len(STORY) + 1):  # from the first checkpoint on there are two
        story = begin(shards)
        tell(story, STORY[:steps])
        routed = story.routed
        progress = (routed.router("r").cursor, routed.router("r").forwarded)
        routed.disk.kill()
        newest = max(path for path in routed.disk.files() if "/snapshot-" in path)
        routed.disk.corrupt(newest, 100)
        routed.disk.restart()
        routed.open()
        assert (routed.router("r").cursor, routed.router("r").forwarded) == progress
        story.check()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (3, 1)])
def test_another_number_of_shards_keeps_the_progress(before: int, after: int) -> None:
    for nth in range(1, 200):
        story = begin(before)
        tell(story, STORY[:5])
        routed = story.routed
        progress = (routed.router("r").cursor, routed.router("r").forwarded)
        routed.disk.kill()
        routed.disk.restart()
        routed.disk.rng.seed(nth)
        routed.disk.crash_at(routed.disk.calls + nth, "power")
        try:
            routed.open(wal_shards=after)
            routed.disk.crash_at(None)
            over = True
        except PowerOff:
            over = False
            routed.disk.restart()
            routed.open()
        assert (routed.router("r").cursor, routed.router("r").forwarded) == progress
        tell(story, STORY[5:])
        routed.power_cut()
        story.check()
        if over:
            return
    raise AssertionError("the opening never ended")


def test_a_clean_stop_keeps_the_list_and_the_progress() -> None:
    story = begin(3)
    tell(story)
    story.routed.stop()
    story.routed.open()
    story.check()
    assert story.routed.router("r").bits == PLAIN


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_copies_and_their_cursor_are_lost_together(durability: str) -> None:
    """Whatever the class of the dest, a cut leaves each copy once after the router went on."""
    for seed in range(30):
        routed = Routed(FakeDisk(seed, sector=64), wal_shards=3)
        routed.on_shard(1, "a")
        routed.on_shard(2, "b", durability=durability)
        routed.put("r", "a", "b")
        for number in range(6):
            routed.append("a", 2 * number, 2 * number + 1)
            routed.step("r")
            if number == 2:
                routed.store.checkpoint()
        routed.power_cut()
        routed.pull("b")
        assert routed.data("b") == list(range(12))
        assert routed.router("r").forwarded == 12


# -- the cut of a checkpoint -------------------------------------------------------------------------------------------


def settle(routed: Routed, shard: int, mark: Any) -> None:
    while not mark.settled:
        routed.store.step(routed.store.shards[shard])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("change", ["create", "update", "drop", "again", "drop_topic", "nothing"])
def test_a_checkpoint_cuts_each_shard_exactly_whatever_happens_between_its_marks(
    order: tuple[int, ...], change: str
) -> None:
    """After every mark the list changes, or records are copied; then the process dies, once with the new snapshot and
    once with the WAL it needs read a second time."""
    routed = Routed(wal_shards=3)
    routed.on_shard(1, "a")
    routed.on_shard(2, "b")
    if change != "create":
        routed.put("r", "a", "b")
    routed.append("a", 1)
    routed.pull("b")
    checkpoint = routed.store.begin_checkpoint()
    for at, shard in enumerate(order):
        settle(routed, shard, checkpoint.marks[shard])
        if at == 0:
            if change == "create":
                routed.put("r", "a", "b")
            elif change == "update":
                routed.put("r", "a", "b", RouterBits.CREATE_DEST)
            elif change == "drop":
                routed.drop("r")
            elif change == "again":
                routed.drop("r")
                routed.put("r", "a", "b")
            elif change == "drop_topic":
                routed.store.drive(routed.store.drop("b"))
                routed.put("r", "a", "b")
        routed.append("a", 10 + at)
        routed.pull("b")
    assert checkpoint.captured
    assert checkpoint.run()
    expected = routed.data("b")
    routers = {name: (r.id, r.bits, r.cursor, r.forwarded) for name, r in routed.store.routers.by_name.items()}
    for _ in range(3):
        routed.kill()
        found = {name: (r.id, r.bits, r.cursor, r.forwarded) for name, r in routed.store.routers.by_name.items()}
        assert found == routers
        routed.pull("b")
        assert routed.data("b") == expected
        routed.store.checkpoint()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_read_only_shard_keeps_its_part_of_the_list_and_the_progress(failing: int) -> None:
    routed = Routed(wal_shards=3)
    routed.on_shard(1, "a")
    for name in ("b", "c"):
        routed.on_shard(2, name)
    routed.on_shard(failing, "broken")
    routed.put("kept", "a", "b")
    routed.append("a", 1)
    routed.pull("b")
    routed.store.checkpoint()
    routed.disk.kill()
    routed.disk.restart()
    faults = FaultFs(routed.disk)
    routed.open(faults)
    # A name that is used twice: only the second one is there, and what it copied is in the dest already.
    routed.put("again", "a", "c")
    routed.drop("again")
    routed.put("again", "a", "c")
    routed.append("a", 2)
    for dest in ("b", "c"):
        routed.pull(dest)
    faults.add(Fault("write", 1, "EIO", path=f"shard-{failing:02}"))
    with pytest.raises(TopicsError):
        routed.append("broken", 0)
    if failing != 1:
        routed.append("a", 3)
    for dest in ("b", "c"):
        routed.pull(dest)
    for _ in range(2):
        assert routed.store.checkpoint()
    everything = routed.data("a")
    for _ in range(2):
        routed.kill()
        assert sorted(routed.store.routers.by_name) == ["again", "kept"]
        for dest in ("b", "c"):
            routed.pull(dest)
        assert routed.data("a") == everything
        assert routed.data("b") == everything
        assert routed.data("c") == everything[1:]


@pytest.mark.parametrize("new", [False, True])
def test_a_snapshot_holds_no_progress_of_copies_behind_its_mark(new: bool) -> None:
    """They may go with a power cut; a cursor ahead of them would lose them."""
    routed = Routed(wal_shards=3)
    routed.on_shard(1, "a")
    routed.on_shard(2, "b", durability="disk")
    making = routed.routing.put("r", RouterSpec("a", "b", PLAIN, None))
    if not new:
        routed.run(making)
        routed.append("a", 1)
        routed.pull("b")
    else:
        next(making)
    checkpoint = routed.store.begin_checkpoint()
    for shard in (2, 1, 0):
        settle(routed, shard, checkpoint.marks[shard])
    routed.append("a", 2, 3)
    routed.pull("b")
    assert checkpoint.run()
    routed.power_cut("all_lost")
    kept = [] if new else [1]
    assert routed.data("b") == kept
    routed.pull("b")
    assert routed.data("b") == [*kept, 2, 3]


# -- sources that fall back --------------------------------------------------------------------------------------------


def test_a_cursor_ahead_of_its_source_is_cut_back_for_good() -> None:
    """A `memory` source loses its tail and hands the same seqs out again: what gets them then is copied too."""
    routed = Routed(wal_shards=3)
    routed.on_shard(1, "a", durability="memory")
    routed.on_shard(2, "b")
    routed.put("r", "a", "b")
    routed.append("a", 1, 2, 3)
    routed.pull("b")
    routed.power_cut("all_lost")
    assert routed.data("b") == [1, 2, 3]
    head = routed.store.topic("a").head
    assert (routed.router("r").cursor, head) == (0, 0)
    routed.append("a", 4)
    routed.kill()
    routed.pull("b")
    assert routed.data("b") == [1, 2, 3, 4]
    routed.append("a", 5, 6, 7)
    routed.pull("b")
    routed.kill()
    routed.pull("b")
    assert routed.data("b") == [1, 2, 3, 4, 5, 6, 7]
    assert routed.router("r").forwarded == 7


@pytest.mark.parametrize("shards", [1, 2])
def test_a_cut_back_cursor_outlives_a_change_of_the_layout(shards: int) -> None:
    routed = Routed(wal_shards=3)
    routed.on_shard(1, "a", durability="memory")
    routed.on_shard(2, "b")
    routed.put("r", "a", "b")
    routed.append("a", 1, 2, 3)
    routed.pull("b")
    routed.power_cut("all_lost", wal_shards=shards)
    routed.append("a", 4)
    routed.kill()
    routed.pull("b")
    assert routed.data("b") == [1, 2, 3, 4]


def test_a_disk_source_that_lost_its_tail_goes_on_behind_it() -> None:
    routed = Routed(wal_shards=3)
    routed.on_shard(1, "a", durability="disk")
    routed.on_shard(2, "b")
    routed.put("r", "a", "b")
    routed.append("a", 1, 2)
    routed.pull("b")
    routed.append("a", 3)
    routed.power_cut("all_lost")
    routed.append("a", 4)
    routed.pull("b")
    # The copy of 3 was not made, and what a crash skipped is no trim of the source.
    assert routed.data("b") == [1, 2, 4]
    assert routed.gaps("b") == []


def test_copies_in_memory_are_made_again_as_far_as_the_snapshot_knew() -> None:
    routed = Routed()
    routed.create("a")
    routed.create("b", durability="ephemeral")
    routed.put("r", "a", "b")
    routed.append("a", 1)
    routed.pull("b")
    routed.store.checkpoint()
    routed.append("a", 2)
    routed.pull("b")
    routed.kill()
    routed.pull("b")
    assert routed.data("b") == [2]


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_trims_of_the_source_are_said_in_the_dest_after_every_crash(durability: str) -> None:
    for nth in range(1, 60):
        routed = Routed(FakeDisk(nth, sector=64), wal_shards=2)
        routed.on_shard(0, "a", cap_records=2)
        routed.on_shard(1, "b", durability=durability)
        routed.put("r", "a", "b")
        routed.disk.crash_at(routed.disk.calls + nth, "power")
        try:
            routed.append("a", 1, 2, 3, 4)
            routed.pull("b")
            routed.store.checkpoint()
            routed.disk.crash_at(None)
            over = True
        except PowerOff:
            over = False
        routed.disk.power_cut()
        routed.disk.restart()
        routed.open()
        sent = bool(routed.data("a"))
        routed.pull("b")
        router = routed.router("r")
        assert routed.data("b") == ([3, 4] if sent else [])
        assert router.forwarded == (4 if sent else 0)
        lost = [gap for gap in routed.gaps("b") if gap[2] == "source_trim"]
        assert sum(last - first + 1 for first, last, _ in lost) == (2 if sent else 0)
        if over:
            return
    raise AssertionError("the story never ended")


def test_a_router_being_made_when_the_process_died_is_whole_or_absent() -> None:
    for nth in range(1, 30):
        routed = Routed(FakeDisk(nth, sector=64), wal_shards=2)
        routed.on_shard(0, "a")
        routed.disk.crash_at(routed.disk.calls + nth, "power")
        try:
            routed.run(routed.routing.put("r", RouterSpec("a", "b", PLAIN, None)))
            routed.disk.crash_at(None)
            over = True
        except PowerOff:
            over = False
        routed.disk.restart()
        routed.open()
        if over:
            assert "r" in routed.store.routers.by_name
        routed.put("r", "a", "b")
        routed.append("a", 1)
        routed.pull("b")
        assert routed.data("b") == [1]
        if over:
            return
    raise AssertionError("the router was never made")
