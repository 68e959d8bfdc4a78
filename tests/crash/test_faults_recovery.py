"""The fault catalogue, recovery as a whole, idempotency, publication and the control plane, classes and shards."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.crash.life import ROOT, Life
from topics.format.ops import prepare
from topics.host.fs import parent
from topics.model.config import TopicConfig, make_config
from topics.model.errors import StorageError, TopicsError, WriteFailed
from topics.storage.submission import WaitFirst
from topics.testing.disk import CrashKind, FakeDisk, PowerOff
from topics.testing.faults import Fault


def busy(**options: Any) -> Life:
    """A store with a little of everything, killed."""
    life = Life(**options)
    life.open()
    life.create("a", durability="fsync")
    life.create("b")
    life.append("a", 4, "x")
    life.append("b", 3)
    life.store.checkpoint()
    life.append("a", 3, "y", "key-1")
    life.delete("a", tag="x")
    life.append("b", 2)
    life.kill()
    return life


def image(life: Life) -> dict[str, tuple[object, ...]]:
    topics = life.store.topics
    return {
        name: (
            topic.head, topic.live, topic.bytes, topic.evict_floor, topic.delete_below, topic.last_ts, topic.config,
            tuple(life.seqs(name)), tuple(life.gaps(name)), tuple(topic.dedupe.rows()),
        )
        for name, topic in topics.items()
    }  # fmt: skip


def test_recovering_twice_equals_recovering_once() -> None:
    """F-REC-RUN-TWICE-IDENTICAL, recovery_is_idempotent, I4: also on disk nothing grows but the file of each start."""
    life = busy()
    life.reopen()
    first = image(life)
    for _ in range(4):
        life.kill()
        life.reopen()
        assert {name: row[1:] for name, row in image(life).items()} == {n: row[1:] for n, row in first.items()}
    wal = [len(life.disk.read(path)) for path in life.disk.files() if path.endswith(".log")]
    assert sorted(wal)[-3] < 1024, "the file of a start that wrote nothing is cut to its first frames"


def test_a_clean_stop_and_start_changes_nothing() -> None:
    """durable_workload_recovers_to_model, multi_topic_..., disk_topic_clean_restart_preserves_seqs_no_reuse,
    disk_topic_survives_clean_restart: no seq is skipped, no gap is told."""
    life = busy()
    life.reopen()
    for _ in range(3):
        before = image(life)
        life.close()
        life.kill()
        life.reopen()
        assert image(life) == before
    assert life.append("b", 1) == before["b"][0] + 1  # type: ignore[operator]


def test_with_and_without_the_newest_snapshot_the_state_is_the_same() -> None:
    """F-REC-REBUILD-MATCHES-SCRATCH, F-REC-NO-SNAPSHOT-FULL-REPLAY, F-REC-PARTIAL-CHECKPOINT-OVERLAP: the older
    snapshot and its WAL give what the newest gives. Without any snapshot a start refuses here (section 6)."""
    life = busy()
    life.reopen()
    life.store.checkpoint()
    life.append("a", 1)
    life.kill()
    scratch = life.clone()
    newest = [path for path in scratch.disk.files() if "/snapshot-" in path][-1]
    scratch.disk.corrupt(newest, 30)
    life.reopen()
    scratch.reopen()
    assert {name: row[7] for name, row in image(scratch).items()} == {name: row[7] for name, row in image(life).items()}
    assert image(scratch)["a"] == image(life)["a"]


def test_a_torn_snapshot_and_a_torn_wal_together_lose_nothing() -> None:
    """F-COMPOUND-TORN-SNAP-AND-TORN-WAL: older snapshot, tail cut."""
    life = busy()
    life.reopen()
    life.store.checkpoint()
    life.append("a", 1)
    file = life.store.shards[0].file
    assert file is not None
    end = file.written
    life.kill()
    raw = life.disk.open(file.path, write=True)
    raw.write_at(end, [b"torn frame of a write that never ended"])
    raw.sync()
    life.disk.corrupt([path for path in life.disk.files() if "/snapshot-" in path][-1], 30)
    life.reopen()
    life.append("a", 1)
    life.power_cut()
    life.reopen()


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_cut_in_a_snapshot_and_one_in_the_replay_behind_it_lose_nothing(kind: CrashKind) -> None:
    """F-COMPOUND-CRASH-SNAP-THEN-WAL: every call of a checkpoint, each with cuts all over the start that follows."""
    base = busy()
    probe = base.clone()
    probe.open()
    before = probe.disk.calls
    probe.store.checkpoint()
    in_replay = 0
    for nth in range(1, probe.disk.calls - before + 1):
        halfway = base.clone()
        halfway.open()
        halfway.disk.crash_at(halfway.disk.calls + nth, kind)
        with pytest.raises(PowerOff):
            halfway.store.checkpoint()
        halfway.crash = kind
        for then in range(1 + nth % 9, 200, 9):
            life = halfway.clone()
            life.disk.crash_at(life.disk.calls + then, kind)
            cut = False
            try:
                life.open()
            except PowerOff:
                cut = True
            life.power_cut() if kind == "power" else life.kill()
            life.disk.crash_at(None)
            life.reopen()
            assert life.seqs("a") == [5, 6, 7]
            life.append("a", 1)
            in_replay += cut
            if not cut:
                break
    assert in_replay > 50, "the start was rarely cut"


def test_a_delete_whose_target_was_lost_is_harmless() -> None:
    """F-REC-DELETE-BEFORE-APPEND-ORDER: both are in one order, so the delete goes with its target."""
    for seed in range(20):
        life = Life(FakeDisk(seed, sector=64))
        life.open()
        life.create("b", durability="memory")
        life.append("b", 3, "x")
        life.delete("b", tag="x")
        life.append("b", 2, "x")
        life.power_cut()
        life.reopen()
        life.append("b", 1)


def test_an_idempotent_retry_after_a_crash_gets_the_first_answer() -> None:
    """F-IDEMP-RETRY-AFTER-CRASH, F-IDEMP-WINDOW-NOT-PERSISTED: the reference may run it again; here the key is the
    first frame of its own append and survives."""
    life = busy()
    for _ in range(2):
        life.power_cut()
        life.reopen()
        assert life.append("a", 3, "y", "key-1") == 5
        life.store.checkpoint()
    life.clock.advance(200_000)
    assert life.append("a", 3, "y", "key-1") > 7, "outside the window it is another append"


def test_two_appends_under_one_key_run_once() -> None:
    """F-IDEMP-CONCURRENT-RETRY: the second waits for the first."""
    life = busy()
    life.reopen()
    first = life.store.append("a", prepare([{"data": 1}]), "k")
    with pytest.raises(WaitFirst) as caught:
        life.store.append("a", prepare([{"data": 1}]), "k")
    assert caught.value.submission is first.submission
    life.store.drive(first.submission)
    again = life.store.append("a", prepare([{"data": 1}]), "k")
    assert again.deduped
    assert again.first_seq == first.first_seq


def test_nothing_is_visible_before_its_commit_point() -> None:
    """F-PUB-READER-OBSERVES-PARTIAL, F-PUB-ROLLBACK-INVISIBLE, reader_never_observes_pre_fsync_record, I2."""
    life = busy()
    fs = life.open_faulty()
    before = life.seqs("a")
    shard = life.store.shards[0]
    done = life.store.append("a", prepare([{"data": 1}, {"data": 2}]))
    assert life.seqs("a") == before
    write = shard.take()
    assert write is not None
    assert life.seqs("a") == before
    fs.add(Fault("sync", 1, "EIO"))
    shard.run(write)
    assert life.seqs("a") == before, "written, and not synced"
    shard.finish(write)
    assert life.seqs("a") == before, "failed, and invisible"
    assert done.submission is not None
    assert isinstance(done.submission.error, WriteFailed)


def test_failed_batches_leave_no_trace_among_acked_ones() -> None:
    """fail_injected_batch_no_trace_no_gap, F-CT-BATCH-PARTIAL-FAIL: all tokens of a failed turn fail."""
    life = busy()
    fs = life.open_faulty()
    appends = [life.store.append("a", prepare([{"data": n}])) for n in range(4)]
    fs.add(Fault("sync", 1, "EIO"))
    life.store.step(life.store.shards[0])
    for append in appends:
        assert append.submission is not None
        assert append.submission.error is not None
    life.power_cut()
    life.open()
    assert {seq for seq in life.seqs("a") if seq > 7} in (set(), {8, 9, 10, 11})


def test_a_config_update_that_fails_keeps_the_old_config() -> None:
    """put_topic_update_wal_fail_rolls_back_and_converges, put_topic_update_success_is_durable."""
    life = busy()
    fs = life.open_faulty()
    fs.add(Fault("write", 1, "ENOSPC"))
    with pytest.raises(TopicsError):
        life.configure("a", durability="fsync", cap_records=1)
    assert life.store.topic("a").config.cap_records == 0
    life.power_cut()
    life.reopen()
    assert life.store.topic("a").config.cap_records == 0
    life.configure("a", durability="fsync", cap_records=2)
    life.power_cut()
    life.reopen()
    assert life.store.topic("a").config.cap_records == 2


def test_a_create_that_fails_leaves_no_topic() -> None:
    """put_topic_create_wal_fail_leaves_no_orphan_topic, put_topic_create_success_is_durable."""
    life = busy()
    fs = life.open_faulty()
    fs.add(Fault("write", 1, "ENOSPC"))
    with pytest.raises(TopicsError):
        life.create("new", durability="fsync")
    assert "new" not in life.store.topics
    assert not life.store.creating
    life.power_cut()
    life.reopen()
    life.create("new", durability="fsync")
    life.power_cut()
    life.reopen()
    assert "new" in life.store.topics


def test_racing_creates_log_one_id() -> None:
    """concurrent_same_name_create_leaves_no_orphan."""
    life = busy()
    life.reopen()
    config: TopicConfig = make_config({})
    first = life.store.create("new", config)
    with pytest.raises(WaitFirst):
        life.store.create("new", config)
    life.store.drive(first)
    assert life.store.create("new", config) is None


def test_the_classes_keep_what_they_promise_over_a_clean_stop_and_a_kill() -> None:
    """ephemeral_topic_records_are_ram_only, memory_topic_best_effort_across_clean_restart,
    fsync_topic_acked_writes_survive_kill9: RAM-only records are a gap of reason restart where a snapshot knew them."""
    life = Life()
    life.open()
    for cls in ("ephemeral", "memory", "disk", "fsync"):
        life.create(cls, durability=cls)
        life.append(cls, 3)
    life.close()
    life.kill()
    life.reopen()
    for cls in ("memory", "disk", "fsync"):
        assert life.seqs(cls) == [1, 2, 3]
    assert life.seqs("ephemeral") == []
    assert life.gaps("ephemeral") == [(1, 3, "restart")]
    for cls in ("memory", "disk", "fsync"):
        life.append(cls, 2)
    life.kill()
    life.reopen()
    for cls in ("memory", "disk", "fsync"):
        assert len(life.seqs(cls)) == 5
        assert life.gaps(cls) == [], "a mere kill loses nothing and says nothing"


@pytest.mark.parametrize("seed", range(25))
def test_a_disk_topic_loses_a_reported_tail_at_most_and_reuses_no_seq(seed: int) -> None:
    """disk_topic_crash_loses_only_unfsynced_tail, disk_topic_does_not_reuse_acked_seq_after_crash,
    memory_topic_crash_mid_write_best_effort, F-PROP-DURABILITY-CLASS-MIX, acked_durable_survives_power_loss,
    fsync_topic_acked_writes_survive_kill9: of class fsync every acked record is there, however the cut tears."""
    life = Life(FakeDisk(seed, sector=64))
    life.open()
    for cls in ("memory", "disk", "fsync"):
        life.create(cls, durability=cls)
    for turn in range(4):
        for cls in ("memory", "disk", "fsync"):
            life.append(cls, 1 + (seed + turn) % 3)
        if turn % 2:
            life.power_cut()
            life.reopen()


@pytest.mark.parametrize("counts", [(1, 2, 1), (3, 2, 4), (2, 8, 1, 3)], ids=str)
def test_any_shard_count_reopens_what_another_wrote(counts: tuple[int, ...]) -> None:
    """sharding (round trip, any count reopens, flat for one), control_frames_survive_shard_count_reconfigure,
    flat_group_not_skipped_by_stale_shard_checkpoint, D-7: with crashes, deletes and no checkpoint in between."""
    life = Life(wal_shards=counts[0])
    life.open()
    for name in "abcde":
        life.create(name, durability="fsync")
    for turn, count in enumerate(counts):
        for name in "abcde":
            life.append(name, 2, f"t{turn}")
        life.delete("c", tag=f"t{turn}")
        life.configure("d", durability="fsync", cap_records=100 + turn)
        life.power_cut()
        life.reopen(wal_shards=count)
        for name in "abcde":
            life.append(name, 1)
        life.power_cut()
        life.reopen()
    assert life.store.topic("d").config.cap_records == 99 + len(counts)


def test_a_reshard_cut_between_its_two_snapshots_keeps_the_new_groups_on_both() -> None:
    """D-7: falling back to the older snapshot must not set the new layout's WAL aside."""
    base = busy()
    probe = base.clone()
    probe.open(wal_shards=2)
    for nth in range(1, probe.disk.calls - base.disk.calls + 1):
        life = base.clone()
        life.disk.crash_at(life.disk.calls + nth, "kill")
        with contextlib.suppress(PowerOff):
            life.open(wal_shards=2)
        life.kill()
        life.reopen(wal_shards=2)
        life.append("a", 1)
        life.append("b", 1)
        life.kill()
        newest = [path for path in life.disk.files() if "/meta/snapshot-" in path][-1]
        life.disk.corrupt(newest, 30)
        life.reopen()


def test_a_read_only_directory_refuses_to_open() -> None:
    """3.3 name and path tricks, read-only dir: refused, nothing half-made."""
    life = busy()
    for call in ("open", "lock"):
        with pytest.raises(TopicsError):
            life.open_faulty(Fault(call, 1, "EROFS", forever=True))
        life.kill()
    life.reopen()


def append_many(life: Life) -> None:
    for _ in range(60):
        life.append("a", 4)


@pytest.mark.parametrize("whole", [False, True], ids=["files", "directories"])
def test_a_directory_removed_under_us_is_an_error_and_no_escape(whole: bool) -> None:
    """3.3 name and path tricks, removed dir: a checkpoint fails and says so, as does the next file of the log where its
    directory is gone; nothing is written elsewhere, and files without their FORMAT are refused."""
    life = busy(wal_file_bytes=1024)
    life.reopen()
    directories = {parent(path) for path in life.disk.files()} | {f"{ROOT}/topics", f"{ROOT}/wal", f"{ROOT}/meta", ROOT}
    for path in life.disk.files():
        life.disk.remove(path)
    if whole:
        for path in sorted(filter(life.disk.is_dir, directories), key=len, reverse=True):
            for name in life.disk.list(path):
                life.disk.rmdir(f"{path}/{name}")
            life.disk.rmdir(path)
    life.append("a", 1)
    assert not life.store.checkpoint()
    assert isinstance(life.store.trouble, FileNotFoundError)
    if whole:
        with pytest.raises(TopicsError):
            append_many(life)
        assert not life.disk.files()
        return
    append_many(life)
    assert life.disk.files()
    assert all(path.startswith(f"{ROOT}/wal/") for path in life.disk.files())
    life.kill()
    left = life.disk.files()
    with pytest.raises(StorageError):
        life.open()
    assert [path for path in life.disk.files() if not path.endswith(".lock")] == left
