"""What the simulation found in the engine, each as the shortest story that shows it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import NoReturn

import pytest

from tests.crash.life import Life
from tests.crash.staged_life import StagedLife
from tests.unit.broker.routed import Routed
from topics.format.control import Selector, SelectorOp
from topics.format.frame import BadFrame, Kind, decode_frame
from topics.format.ops import prepare
from topics.model.config import make_config
from topics.model.errors import CorruptFile, DiskFull, ReadOnly, TopicsError
from topics.storage.leasing import Now, reserve_tokens
from topics.storage.staging import stages_of
from topics.storage.submission import WaitFirst
from topics.storage.tail import ENTRY_SIZE
from topics.testing.disk import FakeDisk, PowerOff
from topics.testing.faults import Fault


def fill(life: Life, name: str, count: int, tag: str = "x", key: str | None = None) -> None:
    """One batch, waiting for what must come first."""
    store = life.store
    while True:
        try:
            done = store.append(name, prepare([{"data": life.payload(), "tag": tag} for _ in range(count)]), key)
            break
        except WaitFirst as first:
            store.drive(first.submission)
    store.drive(done.submission)


def forever(act: Callable[[], object]) -> NoReturn:
    while True:
        act()


def test_key_of_a_record_lost_with_the_process_answers_no_retry() -> None:
    life = Life()
    life.open()
    life.create("t", durability="ephemeral")
    fill(life, "t", 2, key="once")
    life.store.checkpoint()
    life.kill()
    life.open()
    assert life.gaps("t") == [(1, 2, "restart")]
    fill(life, "t", 1, key="once")
    assert life.seqs("t") == [3]


def test_ephemeral_append_that_evicts_records_on_disk_logs_it() -> None:
    life = Life()
    life.open()
    life.create("t", durability="fsync")
    fill(life, "t", 4)
    life.configure("t", durability="ephemeral", cap_records=4)
    fill(life, "t", 3)
    assert life.seqs("t") == [4, 5, 6, 7]
    life.kill()
    life.open()
    assert life.seqs("t") == [4]
    assert life.gaps("t") == [(1, 3, "cap")]


def test_record_behind_a_floor_that_outlived_its_seqs_is_readable() -> None:
    life = Life()
    life.open()
    life.create("t", durability="fsync")
    fill(life, "t", 1)
    life.configure("t", durability="ephemeral", cap_records=2)
    fill(life, "t", 1)
    fill(life, "t", 2)
    life.kill()
    life.open()
    fill(life, "t", 1)
    head = life.store.topic("t").head
    assert life.seqs("t") == [head]


def test_records_left_behind_in_ram_push_nobody_over_a_cap() -> None:
    life = Life()
    life.open()
    life.create("t", durability="fsync", cap_records=5)
    fill(life, "t", 2)
    life.configure("t", durability="ephemeral", cap_records=5)
    fill(life, "t", 3)
    store = life.store
    change = store.configure("t", make_config({"durability": "fsync", "cap_records": 5}))
    done = store.append("t", prepare([{"data": b"1"}]))
    store.drive(done.submission)
    assert change is not None
    assert change.settled
    assert life.seqs("t") == [1, 2, 6]


def test_record_deleted_in_ram_is_not_reported_when_the_topic_leaves_ram() -> None:
    life = Life()
    life.open()
    life.create("t", durability="ephemeral")
    fill(life, "t", 1, "keep")
    fill(life, "t", 1, "gone")
    fill(life, "t", 1, "keep")
    life.delete("t", tag="gone")
    life.store.checkpoint()
    life.configure("t", durability="disk")
    assert life.gaps("t") == [(1, 1, "restart"), (3, 3, "restart")]
    life.kill()
    life.open()
    assert life.gaps("t") == [(1, 1, "restart"), (3, 3, "restart")]


def test_create_that_failed_does_not_come_back_beside_its_successor() -> None:
    life = Life(wal_shards=4)
    fs = life.open_faulty()
    store = life.store
    fs.add(Fault("sync", 1, "EIO"))
    with pytest.raises(TopicsError):
        store.drive(store.create("t", make_config({"durability": "fsync"})))
    fs.heal()
    for _ in range(20):  # until an id falls on a shard that still writes
        try:
            store.drive(store.create("t", make_config({"durability": "fsync"})))
            break
        except TopicsError:
            store.next_topic_id += 1
    fill(life, "t", 3)
    assert store.checkpoint()
    life.kill()
    life.open()
    assert len(list(life.store.all_topics())) == 1
    assert life.seqs("t") == [1, 2, 3]


def test_smaller_layout_interrupted_between_its_snapshots_survives_a_rotten_one() -> None:
    """At every file call of the start that changes the layout."""
    first = Life(wal_shards=3)
    first.open()
    first.create("t", durability="fsync")
    fill(first, "t", 4)
    first.close()
    call = first.disk.calls
    while True:
        call += 1
        life = first.clone()
        life.disk.crash_at(call, "kill")
        try:
            life.open(wal_shards=2)
        except PowerOff:
            life.disk.restart()
            life.open(wal_shards=2)
        else:
            break
        fill(life, "t", 2)
        life.kill()
        snapshots = [path for path in life.disk.files() if "/meta/snapshot-" in path and path.endswith(".bin")]
        life.disk.corrupt(snapshots[-1], 40)
        life.open()
        assert life.seqs("t") == [1, 2, 3, 4, 5, 6]


def test_ephemeral_append_that_fails_to_plan_its_eviction_leaves_nothing_behind() -> None:
    life = Life(segment_max_events=2)
    fs = life.open_faulty()
    life.create("t", durability="fsync")
    fill(life, "t", 4)
    assert life.store.checkpoint()
    life.configure("t", durability="ephemeral", cap_records=4)
    life.kill()
    fs = life.open_faulty()
    for fault in (Fault("map", 1, "EIO", True), Fault("read", 1, "EIO", True)):
        fs.add(fault)
    with pytest.raises(TopicsError):
        fill(life, "t", 1)
    fs.heal()
    fill(life, "t", 2)
    assert life.seqs("t") == [3, 4, 5, 6]


def test_append_that_fails_to_plan_its_eviction_reserves_no_seqs_that_others_wait_for() -> None:
    life = Life(segment_max_events=2)
    life.open()
    life.create("t", durability="disk", cap_records=4)
    fill(life, "t", 4)
    assert life.store.checkpoint()
    life.kill()
    fs = life.open_faulty()
    topic = life.store.topic("t")
    asked = topic.ceiling_asked
    for fault in (Fault("map", 1, "EIO", True), Fault("read", 1, "EIO", True)):
        fs.add(fault)
    with pytest.raises(TopicsError):
        fill(life, "t", 40)
    fs.heal()
    assert topic.ceiling_asked == asked
    fill(life, "t", 2)
    assert life.seqs("t") == [3, 4, 21, 22]  # the ceiling on disk is where a life after a kill goes on


def test_expiry_behind_a_delete_that_is_still_on_its_way_counts_nothing_twice() -> None:
    life = Life(segment_max_events=20)
    life.open()
    life.create("t", durability="fsync", ttl_ms=1000)
    fill(life, "t", 3)
    life.clock.advance(900)
    fill(life, "t", 9)
    life.store.checkpoint()
    store = life.store
    deleted, died = store.delete("t", 3, None)
    assert deleted is not None
    life.clock.advance(200)
    expired = store.sweep(store.topic("t"))
    assert expired is not None
    store.drive(expired)
    assert died() == 2
    assert life.seqs("t") == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    topic = store.topic("t")
    assert (topic.live, topic.expiry_floor) == (9, 3)
    assert topic.bytes == topic.measure(1, topic.head)[1]


def test_trim_that_only_ram_knew_of_is_still_said_once_the_topic_has_left_ram() -> None:
    routed = Routed()
    routed.create("a", cap_records=1)
    routed.create("b", durability="ephemeral")
    routed.put("r", "a", "b")
    routed.append("a", 1, 2, 3)
    routed.pull("b")
    assert routed.gaps("b") == [(1, 2, "source_trim")]
    store = routed.store
    store.drive(store.configure("b", make_config({"durability": "fsync"})))
    told = routed.gaps("b")
    assert told == [(1, 2, "source_trim"), (3, 3, "restart")]
    routed.kill()
    assert routed.gaps("b") == told


def test_salvage_interrupted_between_its_snapshots_meets_no_damage_in_a_fallback() -> None:
    """At every file call of the salvage."""
    first = Life()
    first.open()
    first.create("t", durability="fsync")
    fill(first, "t", 2)
    assert first.store.checkpoint()
    fill(first, "t", 1)
    path = max(path for path in first.disk.files() if path.endswith(".log"))
    fill(first, "t", 2)
    first.kill()
    assert first.disk.read(path).count(b'"d"') > 2
    offset = first.disk.read(path).index(b'"000003"')
    first.disk.corrupt(path, offset)
    call = first.disk.calls
    while True:
        call += 1
        life = first.clone()
        life.disk.crash_at(call, "kill")
        try:
            life.open(recovery="salvage")
        except PowerOff:
            life.disk.restart()
            life.open()
        else:
            break
        assert life.gaps("t") == [(3, 3, "corrupt")]
        fill(life, "t", 1)
        life.kill()
        snapshots = [path for path in life.disk.files() if "/meta/snapshot-" in path and path.endswith(".bin")]
        life.disk.corrupt(snapshots[-1], 40)
        life.open(recovery="strict")
        assert life.seqs("t") == [1, 2, 4, 5, 6]


def test_salvage_says_what_it_lost_in_front_of_seqs_that_a_crash_had_skipped() -> None:
    life = Life()
    life.open()
    life.create("t", durability="disk")
    fill(life, "t", 2)
    fill(life, "t", 1)
    life.sync()
    path = max(path for path in life.disk.files() if path.endswith(".log"))
    life.power_cut()
    life.open()
    assert life.seqs("t") == [1, 2, 3]
    skipped = life.gaps("t")
    life.kill()
    for payload in (b'"000001"', b'"000002"', b'"000003"'):
        life.disk.corrupt(path, life.disk.read(path).index(payload))
    with pytest.raises(CorruptFile):
        life.open()
    life.open(recovery="salvage")
    assert life.seqs("t") == []
    assert life.gaps("t") == [(1, 3, "corrupt"), *skipped]


def test_short_index_beside_a_damaged_segment_costs_no_record_whose_frame_is_whole() -> None:
    life = Life(segment_max_events=20)
    life.open()
    life.create("t", durability="fsync")
    fill(life, "t", 4)
    assert life.store.checkpoint()
    life.kill()
    data = next(path for path in life.disk.files() if path.endswith(".data"))
    life.disk.corrupt(data, life.disk.read(data).index(b'"000002"'))
    index = life.disk.open(data.replace(".data", ".idx"), write=True)
    index.truncate(ENTRY_SIZE * 3 + 5)
    index.sync()
    life.open()
    assert life.seqs("t") == [1, 3, 4]
    assert life.gaps("t") == [(2, 2, "corrupt")]


def broken_create(life: Life, name: str) -> int:
    """Ask for a topic whose shard then fails behind the write; its id."""
    topic_id = life.store.next_topic_id
    fs = life.open_faulty()
    fs.add(Fault("sync", 1, "EIO"))
    with pytest.raises(TopicsError):
        life.store.drive(life.store.create(name, make_config({"durability": "fsync"})))
    fs.heal()
    return topic_id


def make_elsewhere(life: Life, name: str) -> None:
    """Until an id falls on a shard that still writes."""
    for _ in range(20):
        try:
            life.store.drive(life.store.create(name, make_config({"durability": "fsync"})))
            return
        except TopicsError:
            life.store.next_topic_id += 1
    raise AssertionError("no shard writes")


@pytest.mark.parametrize("lives", [1, 2])
def test_create_that_failed_does_not_come_back_once_its_successor_is_dropped(lives: int) -> None:
    life = Life(wal_shards=4)
    life.open()
    life.close()
    failed = broken_create(life, "t")
    stopped = next(shard.index for shard in life.store.shards if shard.failed is not None)
    make_elsewhere(life, "t")
    life.store.drive(life.store.drop("t"))
    if lives == 2:
        # The shard fails once more before it takes part in a checkpoint.
        life.kill()
        fs = life.open_faulty()
        assert not list(life.store.all_topics())
        fs.add(Fault("sync", 1, "EIO", path=f"/shard-{stopped:02d}/"))
        while life.store.shards[stopped].failed is None:
            with contextlib.suppress(TopicsError):
                life.store.drive(life.store.create("other", make_config({"durability": "fsync"})))
                life.store.drive(life.store.drop("other"))
        fs.heal()
    for _ in range(2):
        assert life.store.checkpoint()
        life.kill()
        life.open()
        assert failed not in life.store.by_id
        assert "t" not in life.store.topics


def test_options_of_a_router_are_kept_where_the_shard_of_its_dest_takes_no_part() -> None:
    routed = Routed(wal_shards=3)
    routed.on_shard(1, "a")
    routed.on_shard(2, "b")
    routed.put("r", "a", "b")
    assert routed.store.checkpoint()
    routed.put("r", "a", "b", tag="only*")
    routed.store.shards[2].abandon(OSError("the disk is gone"))
    for _ in range(2):
        assert routed.store.checkpoint()
    routed.kill()
    assert routed.router("r").filter == Selector(SelectorOp.GLOB, "only")


def test_lease_ids_asked_of_a_shard_that_has_stopped_are_refused_at_once() -> None:
    life = Life()
    life.open()
    life.create("jobs", type="queue", durability="ephemeral")
    shard = life.store.shards[0]
    shard.abandon(OSError("the disk is gone"))
    with pytest.raises(ReadOnly):
        reserve_tokens(life.store.topic("jobs"), shard, Now(1, 1), 1_000_000)
    assert not shard.queue


@pytest.mark.parametrize("lives", [1, 2])
def test_part_that_expired_does_not_come_back_behind_the_abort_of_its_successor(lives: int) -> None:
    life = Life()
    life.open()
    life.create("t", durability="fsync")
    users = StagedLife(life)
    users.put("t", "x", "p", 1)
    life.clock.advance(life.store.staging.ttl_ms + 1)
    assert life.store.staging.expire(life.store) == 1
    users.put("t", "x", "p", 2)
    if lives == 2:  # the new life has a file of each attempt
        life.kill()
        life.open()
        assert stages_of(life.store.topic("t")).open["x"].parts["p"].head.count == 2
    assert users.abort("t", "x")
    life.kill()
    life.open()
    assert not stages_of(life.store.topic("t")).open


@pytest.mark.parametrize("failing", ["put", "abort"])
def test_abort_behind_a_failed_call_lasts_whatever_a_power_cut_takes(failing: str) -> None:
    """The name of the part was made, or removed, and the sync of its folder failed."""
    for seed in range(20):
        life = Life(FakeDisk(seed, sector=64))
        fs = life.open_faulty()
        life.create("t", durability="fsync")
        users = StagedLife(life)
        users.put("t", "other", "p", 1)
        if failing == "abort":
            users.put("t", "x", "p", 1)
        fs.add(Fault("sync_dir", 1, "EIO", path="staged"))
        with pytest.raises(TopicsError):
            users.put("t", "x", "p", 1) if failing == "put" else users.abort("t", "x")
        fs.heal()
        assert users.abort("t", "x")
        life.power_cut()
        life.open()
        assert list(stages_of(life.store.topic("t")).open) == ["other"]


def test_router_whose_progress_rots_goes_on_from_where_it_was_before() -> None:
    routed = Routed()
    routed.create("a")
    routed.create("b")
    routed.put("r", "a", "b", tag="copy")
    routed.append("a", 1, tag="copy")
    routed.pull("b")
    routed.append("a", 2, tag="leave")
    routed.pull("b")
    for number in (3, 4, 5):  # a later submission proves that the frame was synced
        routed.append("a", number, tag="leave")
    routed.disk.kill()
    routed.disk.restart()
    path = max(path for path in routed.disk.files() if path.endswith(".log"))
    data, cursors, at = routed.disk.read(path), [], 0
    with contextlib.suppress(BadFrame):
        while True:
            frame = decode_frame(data, at, len(data))
            at = frame.end
            if frame.kind == Kind.ROUTER_CURSOR:
                cursors.append(frame.offset)
    routed.disk.corrupt(path, cursors[-1])
    with pytest.raises(CorruptFile):
        routed.open()
    routed.open(recovery="salvage")
    router = routed.router("r")
    assert (router.cursor, router.forwarded) == (1, 1)
    routed.pull("b")
    assert (router.cursor, router.forwarded) == (routed.store.topic("a").head, 1)
    assert routed.data("b") == [1]


def test_topic_whose_create_rots_leaves_its_id_to_nobody() -> None:
    life = Life()
    life.open()
    life.create("t", durability="fsync")
    for _ in range(3):
        fill(life, "t", 1)
    lost = life.store.topic("t").id
    life.kill()
    path = max(path for path in life.disk.files() if path.endswith(".log"))
    life.disk.corrupt(path, life.disk.read(path).index(b'"durability"'))
    life.open(recovery="salvage")
    assert "t" not in life.store.topics
    life.create("t", durability="fsync")
    assert life.store.topic("t").id > lost


def test_directory_that_nobody_explains_is_no_new_topics_home() -> None:
    life = Life()
    life.open()
    life.close()
    strange = f"{life.store.paths.topics}/{9:08d}"
    life.disk.mkdir(strange)
    life.disk.sync_dir(life.store.paths.topics)
    life.open()
    assert any(strange in line for line in life.store.report)
    life.create("t", durability="fsync")
    assert life.store.topic("t").id == 10


def test_topic_without_records_counts_no_bytes_whatever_rotted_before_its_delete() -> None:
    life = Life(segment_max_events=20)
    life.open()
    life.create("t", durability="fsync")
    fill(life, "t", 4)
    assert life.store.checkpoint()
    life.kill()
    path = next(path for path in life.disk.files() if path.endswith(".data"))
    life.disk.corrupt(path, life.disk.read(path).index(b'"000002"'))
    store = life.open()
    store.drive(store.delete("t", 5, None)[0])
    topic = store.topic("t")
    assert (topic.live, topic.bytes, topic.ordered.bytes, store.ledger.bytes) == (0, 0, 0, 0)


def test_lease_ids_do_not_repeat_behind_a_clean_stop_of_a_life_that_gave_out_none() -> None:
    life = Life()
    life.open()
    life.create("jobs", type="queue", durability="ephemeral")
    assert life.store.checkpoint()
    first = life.store.topic("jobs").tokens.take(1)
    life.kill()
    life.open()
    life.close()
    life.open()
    assert life.store.topic("jobs").tokens.next > first


def test_lease_ids_that_a_full_disk_refuses_are_not_asked_for_again_and_again() -> None:
    life = Life(wal_file_bytes=4096)
    life.open()
    life.create("jobs", type="queue", durability="fsync")
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("open", 1, "ENOSPC", forever=True, path=".pre"))
    topic, shard = life.store.topic("jobs"), life.store.shards[0]

    def reserve() -> None:
        with pytest.raises(WaitFirst) as first:
            reserve_tokens(topic, shard, Now(1, 1), topic.tokens.ceiling + 1)
        life.store.drive(first.value.submission)

    with pytest.raises(DiskFull):
        forever(lambda: fill(life, "jobs", 1))
    with pytest.raises(DiskFull):
        forever(reserve)
    with pytest.raises(DiskFull):  # what its caller meets, who asks again
        reserve_tokens(topic, shard, Now(1, 1), topic.tokens.ceiling + 1)
    fs.heal()
    reserve()
    assert topic.tokens.ceiling > 65_536


def test_pair_that_an_interrupted_salvage_removed_does_not_come_back_damaged() -> None:
    """At every file call of the first salvage; the second finds the pair gone, and nothing to salvage."""
    first = Life(segment_max_events=100)
    first.open()
    first.create("t", durability="fsync")
    fill(first, "t", 3)
    assert first.store.checkpoint()
    first.delete("t", before_seq=4)
    first.kill()
    (path,) = [path for path in first.disk.files() if path.endswith(".data")]
    rotten = first.disk.open(path, write=True)
    rotten.truncate(rotten.size() - 20)
    rotten.sync()
    call, salvages = first.disk.calls, 0
    while True:
        call += 1
        life = first.clone()
        life.disk.crash_at(call, "kill")
        try:
            life.open(recovery="salvage")
        except PowerOff:
            life.disk.restart()
        else:
            break
        life.open(recovery="salvage")
        life.kill()
        life.disk.power_cut()
        life.disk.restart()
        life.open(recovery="strict")
        assert life.seqs("t") == []
        fill(life, "t", 1)
        assert life.seqs("t") == [4]
        salvages += 1
    assert salvages > 20


def test_first_start_that_was_killed_and_then_cut_off_begins_again() -> None:
    """At every file call of the first start a kill, and at every one of the second a power cut."""
    kills = cuts = 0
    for seed in range(3):
        for kill in itertools.count(1):
            first = Life(FakeDisk(seed, sector=64))
            first.disk.crash_at(kill, "kill")
            with contextlib.suppress(PowerOff):
                first.open()
            if not first.disk.off:
                break
            kills += 1
            first.kill()
            for cut in itertools.count(1):
                life = first.clone()
                life.disk.crash_at(life.disk.calls + cut, "power")
                with contextlib.suppress(PowerOff):
                    life.open()
                if not life.disk.off:
                    break
                cuts += 1
                life.power_cut()
                life.reopen()
    assert kills > 60
    assert cuts > 1000
