"""A directory of the Rust program becomes a store of ours: what is taken over, what is said, what is refused."""

from __future__ import annotations

from tests.unit.storage.rust.directory import (
    Topic,
    append,
    create,
    delete,
    drop,
    evict,
    head_watermark,
    lease,
    record,
    route,
    segment_frame,
    snapshot,
    snapshot_router,
    unroute,
)
from tests.unit.storage.rust.engine import (
    ROOT,
    disk_of,
    findings,
    gaps,
    imported,
    opened,
    report_of,
    rust,
    values,
)
from topics.format.ops import prepare
from topics.model.config import make_config
from topics.rules.lease_values import LEASED

# -- snapshot and WAL together -----------------------------------------------------------------------------------------


def test_a_wal_without_a_snapshot_is_replayed_from_its_first_frame() -> None:
    made = rust()
    made.wal(create(1, "a", durability="fsync"), append(1, 1, "x", tag="t", node="n", meta={"k": 1}), append(1, 2, 2.5))
    store = imported(made)
    assert values(store, "a") == {1: b'"x"', 2: b"2.5"}
    assert store.topics["a"].config.durability == "fsync"
    assert report_of(made.fs).source == ""


def test_a_snapshot_without_a_wal_is_taken_whole() -> None:
    made = rust()
    records = [record(1, "one", tag="t", node="n", meta={"m": 1}), record(2, 2), record(5, 5)]
    made.snapshot(snapshot([Topic("a", 3, 7, records, config={"ttl_ms": 5, "priority": None})], next_id=9))
    store = imported(made)
    assert values(store, "a") == {1: b'"one"', 2: b"2", 5: b"5"}
    assert gaps(store, "a") == [], "what the snapshot does not hold was deleted on purpose"
    topic = store.topics["a"]
    assert (topic.id, topic.epoch, topic.head, topic.live, topic.config.ttl_ms) == (3, 3, 7, 3, 5)
    assert store.next_topic_id == 9


def test_the_wal_goes_on_where_the_snapshot_ends() -> None:
    made = rust()
    before = create(1, "a") + append(1, 1, 1) + append(1, 2, 2)
    made.wal(before, append(1, 2, 2), append(1, 3, 3), append(1, 4, 4))
    made.snapshot(snapshot([Topic("a", 1, 2, [record(1, 1), record(2, 2)])], first=(1, len(before))))
    store = imported(made)
    assert values(store, "a") == {seq: b"%d" % seq for seq in (1, 2, 3, 4)}
    assert findings(made, "out_of_order") == [], "what the snapshot has already is no surprise"


def test_an_import_can_be_written_to_at_once_and_survives_a_restart() -> None:
    made = rust()
    made.wal(create(1, "a", durability="fsync"), append(1, 1, 1))
    store = imported(made)
    assert any("imported" in line for line in store.report)
    done = store.append("a", prepare([{"data": 2}]))
    store.drive(done.submission)
    store.drive(store.create("b", make_config({})))
    assert (done.first_seq, store.topics["b"].id) == (2, 2)
    disk_of(made).power_cut()
    disk_of(made).restart()
    again = opened(made.fs)
    assert values(again, "a") == {1: b"1", 2: b"2"}
    assert not any("imported" in line for line in again.report)


def test_nothing_of_the_rust_program_is_left_behind_an_import() -> None:
    made = rust()
    for group in ("", "shard-00", "shard-01"):
        made.wal(group=group)
    made.wal(create(1, "a"), append(1, 1, 1), group="shard-01")
    made.snapshot(snapshot([]), file=4)
    made.segment(1, 1, segment_frame(1, 1))
    imported(made)
    left = [path for path in disk_of(made).files() if "/shard-0" in path or ".import" in path]
    assert left == []
    raw = [disk_of(made).read(path)[:4] for path in disk_of(made).files() if "/snapshot-" in path]
    assert raw == [b"PTM1", b"PTM1"]
    assert any(path.endswith("snapshot-0000000000000005.bin") for path in disk_of(made).files())


def test_numbers_of_wal_files_go_on_above_those_of_the_rust_program() -> None:
    made = rust()
    made.wal(create(1, "a"))
    made.wal(append(1, 1, 1), file=2)
    imported(made)
    wal = [path for path in disk_of(made).files() if path.endswith(".log")]
    assert wal == [f"{ROOT}/wal/wal-0000000000000003.log"]


def test_an_import_may_choose_another_number_of_shards() -> None:
    made = rust()
    made.wal(create(1, "a"), create(2, "b"), append(1, 1, 1), append(2, 1, 2))
    store = imported(made, wal_shards=3)
    assert (values(store, "a"), values(store, "b")) == ({1: b"1"}, {1: b"2"})
    assert len(store.shards) == 3


# -- which files count -------------------------------------------------------------------------------------------------


def test_leftovers_of_a_crash_of_the_rust_program_are_ignored() -> None:
    made = rust()
    made.wal(create(1, "a"), append(1, 1, 1))
    made.put("topics/00000001/seg-0000000000000001.data", b"half a segment")
    made.put("topics/00000001/seg-0000000000000001.data.tmp", b"half")
    made.put("topics/00000001/seg-0000000000000001.idx.tmp", b"half")
    made.put("meta/snapshot-0000000000000001.bin.tmp", b"SNP1 half")
    store = imported(made)
    assert values(store, "a") == {1: b"1"}
    assert not [path for path in disk_of(made).files() if path.endswith(".tmp")]


def test_records_of_segments_are_not_imported() -> None:
    made = rust()
    made.wal(create(1, "a"), append(1, 1, "from the log"))
    made.segment(1, 1, segment_frame(1, "from a segment"), segment_frame(2, "from a segment"))
    assert values(imported(made), "a") == {1: b'"from the log"'}


def test_lower_files_and_frames_up_to_the_offset_are_absorbed() -> None:
    made = rust()
    held = append(1, 3, 3)
    made.wal(create(1, "a"), append(1, 1, "gone"), append(1, 2, "gone"))
    made.wal(held, append(1, 4, 4), file=2)
    made.wal(append(1, 5, 5), file=3)
    made.snapshot(snapshot([Topic("a", 1, 3, [record(3, 3)], base=3)], first=(2, len(held))))
    assert values(imported(made), "a") == {3: b"3", 4: b"4", 5: b"5"}


def test_a_control_frame_in_front_of_the_offset_is_absorbed() -> None:
    made = rust()
    held = create(1, "a") + append(1, 1, 1) + delete(1, before=2, bound=2)
    made.wal(held, append(1, 2, 2))
    made.snapshot(snapshot([Topic("a", 1, 1, [record(1, 1)])], first=(1, len(held))))
    assert values(imported(made), "a") == {1: b"1", 2: b"2"}


def test_a_group_that_the_snapshot_does_not_list_is_replayed_from_its_start() -> None:
    made = rust()
    made.wal(append(1, 2, 2), group="shard-01")
    made.wal(create(2, "b"), append(2, 1, "b"), group="shard-00")
    made.snapshot(snapshot([Topic("a", 1, 1, [record(1, 1)])], positions=[(1, 0)], keys=["shard-00"]))
    store = imported(made)
    assert (values(store, "a"), values(store, "b")) == ({1: b"1", 2: b"2"}, {1: b'"b"'})


def test_a_position_past_the_end_of_its_file_imports_only_what_lies_beyond() -> None:
    made = rust()
    made.wal(append(1, 2, "absorbed"), zeros=0)
    made.wal(append(1, 3, 3), file=2)
    made.snapshot(snapshot([Topic("a", 1, 2, [record(1, 1), record(2, 2)])], first=(1, 100_000)))
    assert values(imported(made), "a") == {1: b"1", 2: b"2", 3: b"3"}


def test_a_position_in_the_middle_of_a_frame_imports_that_frame() -> None:
    made = rust()
    first = append(1, 2, "absorbed")
    made.wal(first, append(1, 3, 3), append(1, 4, 4))
    made.snapshot(snapshot([Topic("a", 1, 2, [record(2, 2)])], first=(1, len(first) + 5)))
    assert values(imported(made), "a") == {2: b"2", 3: b"3", 4: b"4"}


def test_damage_in_front_of_the_position_is_not_judged() -> None:
    made = rust()
    held = append(1, 1, 1) + append(1, 2, 2)
    path = made.wal(held, append(1, 3, 3))
    made.snapshot(snapshot([Topic("a", 1, 2, [record(1, 1), record(2, 2)])], first=(1, len(held))))
    disk_of(made).corrupt(path, 20)
    assert values(imported(made), "a") == {1: b"1", 2: b"2", 3: b"3"}


def test_a_group_that_was_removed_and_begun_again_is_replayed_whole() -> None:
    made = rust()
    made.wal(append(1, 2, 2))
    made.snapshot(snapshot([Topic("a", 1, 1, [record(1, 1)])], first=(7, 500)))
    assert values(imported(made), "a") == {1: b"1", 2: b"2"}
    assert len(findings(made, "group_restarted")) == 1


# -- several groups ----------------------------------------------------------------------------------------------------


def test_a_topic_that_changed_groups_is_replayed_in_the_order_of_its_seqs() -> None:
    """The group of the later life sorts first by name, and its delete hits only what was there."""
    made = rust()
    made.wal(
        append(1, 3, 3, tag="x", ts=3000),
        delete(1, match=(0, "x"), bound=4, ts=3001),
        append(1, 4, 4, tag="x", ts=3002),
    )
    made.wal(create(1, "a"), append(1, 1, 1, tag="x"), append(1, 2, 2), group="shard-05")
    store = imported(made)
    assert values(store, "a") == {2: b"2", 4: b"4"}
    assert report_of(made.fs).counts == {}


def test_the_newest_config_wins_whichever_group_holds_it() -> None:
    made = rust()
    made.wal(create(1, "a", ts=5000, cap_records=2), append(1, 3, 3, ts=5001))
    made.wal(create(1, "a", ts=1000, cap_records=9), append(1, 1, 1), append(1, 2, 2), group="shard-00")
    assert imported(made).topics["a"].config.cap_records == 2


def test_a_group_that_was_used_again_later_is_woven_in() -> None:
    made = rust()
    made.wal(
        create(1, "a", cap_records=1), append(1, 1, 1, ts=1000), create(1, "a", ts=9000, cap_records=3),
        append(1, 4, 4, ts=9001),
    )  # fmt: skip
    made.wal(
        append(1, 2, 2, ts=2000), create(1, "a", ts=2001, cap_records=2), append(1, 3, 3, ts=2002), group="shard-00"
    )
    store = imported(made)
    assert values(store, "a") == {1: b"1", 2: b"2", 3: b"3", 4: b"4"}
    assert store.topics["a"].config.cap_records == 3


def test_a_clock_that_was_set_back_between_two_lives_misleads_no_delete() -> None:
    made = rust()
    made.wal(delete(1, match=(0, "x"), bound=3, ts=100), append(1, 3, 3, tag="x", ts=101))
    made.wal(create(1, "a", ts=9000), append(1, 1, 1, tag="x", ts=9001), append(1, 2, 2, ts=9002), group="shard-00")
    assert values(imported(made), "a") == {2: b"2", 3: b"3"}


def test_a_name_that_was_dropped_and_made_again_lives_on_under_its_new_id() -> None:
    made = rust()
    made.wal(create(2, "a"), append(2, 1, "new"))
    made.wal(create(1, "a"), append(1, 1, "old"), drop(1, "a"), append(1, 2, "stray"), group="shard-03")
    made.snapshot(snapshot([Topic("a", 1, 0)], first=(1, 0), positions=[(1, 0), (1, 0)], keys=["", "shard-03"]))
    store = imported(made)
    assert (values(store, "a"), store.topics["a"].id) == ({1: b'"new"'}, 2)
    assert store.next_topic_id == 100


# -- what frames do ----------------------------------------------------------------------------------------------------


def test_a_create_of_a_known_topic_changes_its_config() -> None:
    made = rust()
    made.wal(create(1, "a", cap_records=5), create(1, "a", cap_records=7, durable=True), append(1, 1, 1))
    topic = imported(made).topics["a"]
    assert (topic.config.cap_records, topic.config.durability, topic.head) == (7, "fsync", 1)


def test_a_selector_deletes_only_what_lies_below_its_bound() -> None:
    made = rust()
    made.wal(
        create(1, "a"), append(1, 1, 1, tag="t:1"), append(1, 2, 2, tag="u"), append(1, 3, 3, tag="t:2"),
        append(1, 4, 4, tag="t:3"), delete(1, match=(1, "t:"), bound=4), delete(1, match=(0, "u"), before=2, bound=5),
    )  # fmt: skip
    assert values(imported(made), "a") == {2: b"2", 4: b"4"}


def test_a_selector_reaches_records_of_the_snapshot() -> None:
    made = rust()
    made.wal(delete(1, match=(0, "x"), bound=4), append(1, 4, 4, tag="x"))
    records = [record(1, 1, tag="x"), record(2, 2, tag="y"), record(3, 3, tag="x")]
    made.snapshot(snapshot([Topic("a", 1, 3, records)]))
    store = imported(made)
    assert values(store, "a") == {2: b"2", 4: b"4"}
    assert gaps(store, "a") == []


def test_a_delete_below_a_seq_and_a_delete_of_single_seqs_are_replayed() -> None:
    made = rust()
    appends = [append(1, seq, seq) for seq in range(1, 8)]
    made.wal(
        create(1, "a"), *appends, delete(1, before=3, bound=8), delete(1, seqs=[6, 4]), delete(1, before=99, bound=2)
    )
    store = imported(made)
    assert values(store, "a") == {3: b"3", 5: b"5", 7: b"7"}
    assert store.topics["a"].delete_below == 3


def test_floors_are_last_lost_seqs_and_only_rise() -> None:
    made = rust()
    made.wal(evict(1, 4, 5, 0), evict(1, 3, 4, 2), append(1, 7, 7))
    records = [record(seq, seq) for seq in range(3, 7)]
    made.snapshot(snapshot([Topic("a", 1, 6, records, base=3, evict=2, trim=1)]))
    store = imported(made)
    topic = store.topics["a"]
    assert (topic.evict_floor, topic.expiry_floor, topic.trim_floor) == (4, 2, 1)
    assert values(store, "a") == {5: b"5", 6: b"6", 7: b"7"}
    assert [gap[:2] for gap in gaps(store, "a")] == [(1, 4)]


def test_what_was_deleted_at_the_front_is_passed_over_in_silence() -> None:
    made = rust()
    made.snapshot(snapshot([Topic("a", 1, 6, [record(5, 5)], base=4, delete_floor=3, delete_below=4)]))
    store = imported(made)
    assert (values(store, "a"), gaps(store, "a"), store.topics["a"].delete_below) == ({5: b"5"}, [], 4)


def test_reserved_seqs_that_were_not_found_are_never_handed_out() -> None:
    made = rust()
    made.wal(
        create(1, "a"), head_watermark(1, 256), append(1, 1, 1), create(2, "b", durable=True), head_watermark(2, 9)
    )
    store = imported(made)
    assert gaps(store, "a") == [(2, 256, "crash")]
    assert [(one.topic, one.first, one.last) for one in findings(made, "reserved")] == [("a", 2, 256)]
    done = store.append("a", prepare([{"data": 2}]))
    store.drive(done.submission)
    assert done.first_seq == 257
    assert store.topics["b"].head == 0, "a class that syncs every write reserves nothing"


def test_an_ephemeral_topic_keeps_its_head_and_says_that_its_records_are_gone() -> None:
    made = rust()
    made.snapshot(snapshot([Topic("a", 1, 40, base=41, config={"durability": "ephemeral"})]))
    store = imported(made)
    assert (store.topics["a"].head, gaps(store, "a")) == (40, [(1, 40, "restart")])
    assert len(findings(made, "ephemeral")) == 1
    assert store.append("a", prepare([{"data": 1}])).first_seq == 41


def test_leases_that_were_logged_hold_and_their_ids_never_repeat() -> None:
    made = rust()
    made.wal(
        create(1, "q", type="queue", leases_durable=True), append(1, 1, 1), append(1, 2, 2), append(1, 3, 3),
        lease(1, 1, 0, 41, 1 << 50, 1, "w"), lease(1, 2, 0, 42, 1 << 50, 3, "w"), delete(1, seqs=[1]),
        lease(1, 1, 3, 41, 0, 1, "w"),
    )  # fmt: skip
    topic = imported(made).topics["q"]
    assert topic.queue is not None
    assert {seq: (one.token_of(seq), one.deliveries) for seq, one in topic.queue.leases.entries.items()} == {2: (42, 3)}
    assert topic.tokens.next > 42


def test_a_queue_without_durable_leases_hands_every_job_out_again() -> None:
    made = rust()
    made.wal(create(1, "q", type="queue"), append(1, 1, 1), lease(1, 1, 0, 5, 1 << 50, 2, "w"))
    topic = imported(made).topics["q"]
    assert topic.queue is not None
    assert [one.kind for one in topic.queue.leases.entries.values()] != [LEASED]
    assert topic.queue.leases.entries[1].deliveries == 2


# -- routers -----------------------------------------------------------------------------------------------------------


def test_routers_go_on_from_the_cursor_of_the_snapshot() -> None:
    made = rust()
    made.wal(route("r", "a", "b", cursor=1), route("new", "b", "c", cursor=0), append(1, 5, 5))
    topics = [Topic("a", 1, 4, [record(4, 4)]), Topic("b", 2, 2), Topic("c", 3, 0)]
    router = snapshot_router("r", "a", "b", cursor=4, total=2, match=(0, "x"))
    made.snapshot(snapshot(topics, [router], next_id=4))
    store = imported(made)
    routers = store.routers.by_name
    assert {name: (one.source_id, one.dest_id, one.cursor) for name, one in routers.items()} == {
        "new": (2, 3, 0),
        "r": (1, 2, 4),
    }
    assert {one.id for one in routers.values()} == {4, 5}
    assert store.next_topic_id == 6


def test_routers_that_were_deleted_or_lost_a_topic_are_not_imported() -> None:
    made = rust()
    made.wal(create(1, "a"), create(2, "b"), route("gone", "a", "b"), unroute("gone"), route("lame", "a", "nowhere"))
    store = imported(made)
    assert not store.routers.by_name
    assert ["'lame'" in one.why for one in findings(made, "router_dropped")] == [True]


def test_a_router_ahead_of_its_source_is_cut_back_to_it() -> None:
    made = rust()
    made.snapshot(snapshot([Topic("a", 1, 3), Topic("b", 2, 0)], [snapshot_router("r", "a", "b", cursor=9)]))
    assert imported(made).routers.by_name["r"].cursor == 3
