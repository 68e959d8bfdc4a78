"""Staged parts in trouble: what is unlinked when, what an undecided commit leaves, what damage is called."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.ledger import read_all
from tests.crash.life import Life
from tests.crash.staged_life import StagedLife
from topics.broker.staging import Staged
from topics.format.control import Selector, SelectorOp
from topics.format.ops import prepare
from topics.model.errors import CorruptFile, PartMissing, ReadOnly, StageFull, StorageError, WriteFailed
from topics.model.record import Gap, Record
from topics.rules.txns import parse_txn
from topics.storage.partfile import load_part
from topics.storage.stagecommit import Commit, Verdict, Wanted, find_parts, order_commit
from topics.storage.staging import begin_put, end_put, known_commit, stages_of
from topics.testing.disk import FakeDisk, PowerOff
from topics.testing.driving import run_in_place
from topics.testing.faults import Fault


def parts_on_disk(life: Life) -> list[str]:
    return [path.rpartition("/")[2] for path in life.disk.files() if path.endswith(".part")]


def raws(life: Life, name: str) -> list[bytes]:
    return [item.raw for item in read_all(life.store, name) if isinstance(item, Record)]


def staged(shards: int = 1, *names: str, txn: str = "t1", **options: Any) -> tuple[Life, StagedLife]:
    """A life whose topics each have a part of one record, on shards of their own where there are several."""
    life = Life(wal_shards=shards, **options)
    life.open()
    for name in names or ("a",):
        life.create(name, durability="fsync")
    users = StagedLife(life)
    for name in names or ("a",):
        users.put(name, txn, "p0", 1)
    return life, users


def order(life: Life, txn: str, *names: str) -> Commit:
    """Order a commit of the part of each topic, and write nothing."""
    store = life.store
    wanted = []
    for name in names:
        topic = store.topic(name)
        wanted.append(Wanted(topic, parse_txn(txn), "", find_parts(topic, parse_txn(txn), ["p0"])))
    loaded = {p.path: load_part(store.handles, p.path, p.number) for one in wanted for p in one.parts}
    for one in wanted:
        told = life.told(one.topic.name)
        told.send(one.topic.ordered.head + 1, [b'"%b p0 0"' % txn.encode()], None)
    return order_commit(store, wanted, loaded)


def settle(life: Life, commit: Commit) -> None:
    while not commit.settled:
        life.store.drive_once()


# -- files -------------------------------------------------------------------------------------------------------------


def test_part_goes_when_both_kept_snapshots_contain_its_commit() -> None:
    life, users = staged()
    users.commit("t1", {"a": [("p0", 1)]})
    life.store.checkpoint()
    assert parts_on_disk(life) == ["0000000000000001.part"], "the older snapshot still needs it"
    life.store.checkpoint()
    assert parts_on_disk(life) == []
    assert raws(life, "a") == [b'"t1 p0 0"']
    assert life.store.staging.spent == []


def test_idle_store_gets_its_second_checkpoint_for_the_sake_of_spent_parts() -> None:
    life, users = staged(checkpoint_ms=1000)
    users.commit("t1", {"a": [("p0", 1)]})
    for _ in range(3):
        life.clock.advance(6000)
        if life.store.checkpoint_due():
            life.store.checkpoint()
    assert parts_on_disk(life) == []
    life.clock.advance(6000)
    assert not life.store.checkpoint_due()


def test_commit_makes_a_checkpoint_due_by_the_bytes_it_has_to_copy() -> None:
    life = Life(checkpoint_bytes=4096, checkpoint_gap_ms=0, wal_file_bytes=1 << 16)
    life.open()
    life.create("a")
    users = StagedLife(life)
    life.store.checkpoint()
    users.put("a", "t1", "p0", 200)
    assert not life.store.checkpoint_due()
    users.commit("t1", {"a": [("p0", 200)]})
    assert life.store.checkpoint_due()


@pytest.mark.parametrize("seed", range(8))
def test_part_left_by_a_kill_lasts_before_a_commit_may_name_it(seed: int) -> None:
    """The process dies between the rename of a part and the sync of its folder; the next life sees the part."""
    life = Life(FakeDisk(seed, sector=64))
    life.open()
    life.create("a", durability="fsync")
    users = StagedLife(life)
    users.put("a", "t0", "p0", 1)
    calls = life.disk.calls
    users.put("a", "t0", "p1", 1)
    per_put = life.disk.calls - calls
    life.disk.crash_at(life.disk.calls + per_put, "kill")
    with pytest.raises(PowerOff):
        users.put("a", "t1", "p0", 1)
    life.kill()
    life.reopen()
    assert "t1" in stages_of(life.store.topic("a")).open
    users.commit("t1", {"a": [("p0", 1)]})
    life.power_cut()
    life.reopen()
    assert raws(life, "a") == [b'"t1 p0 0"']


def test_of_two_files_of_one_part_the_later_counts() -> None:
    """The first was never acknowledged: its name was not synced, and yet it survived."""
    life, _ = staged()
    store, topic = life.store, life.store.topic("a")
    cases = Staged(store)
    frames = prepare([{"data": b'"other"'}])
    del stages_of(topic).open["t1"]  # as if its writer had never heard of it
    store.staging.bytes = 0
    run_in_place(store, cases.put("a", "t1", "p0", frames))
    assert len(parts_on_disk(life)) == 2
    life.ledger.staged.parts.clear()
    life.kill()
    life.reopen()
    run_in_place(life.store, Staged(life.store).commit("t1", {"a": ["p0"]}))
    assert [item.raw for item in read_all(life.store, "a") if isinstance(item, Record)] == [b'"other"']


def test_parts_of_a_dropped_topic_go_with_it() -> None:
    life, users = staged()
    users.put("a", "t2", "p0")
    users.commit("t1", {"a": [("p0", 1)]})
    life.drop("a")
    assert life.store.staging.bytes == 0
    life.store.checkpoint()
    assert parts_on_disk(life) == []
    assert life.store.staging.spent == []


def test_topic_dropped_under_a_part_being_written_keeps_no_file() -> None:
    life, _ = staged()
    store = life.store
    topic = store.topic("a")
    head_frames = prepare([{"data": 1}])
    from topics.format.ops import stage_frames
    from topics.storage.partfile import head_for

    frames = stage_frames(head_frames.frames, head_frames.entries, 1)
    put = begin_put(store, topic, head_for("t9", "p0", 1, frames))
    life.drop("a")
    store.checkpoint()
    assert store.graveyard, "somebody writes there"
    put.run(store.fs, frames)  # type: ignore[union-attr]
    with pytest.raises(Exception, match="does not exist"):
        end_put(store, put)  # type: ignore[arg-type]
    store.checkpoint()
    assert not store.graveyard
    assert parts_on_disk(life) == []


def test_stage_is_full_by_parts_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    life, users = staged()
    monkeypatch.setattr("topics.model.limits.PARTS_PER_TXN", 2)
    users.put("a", "t1", "p1", 1)
    with pytest.raises(StageFull):
        users.put("a", "t1", "p2", 1)
    life.store.staging.bytes_max = life.store.staging.bytes + 10
    with pytest.raises(StageFull):
        users.put("a", "t2", "p0", 1)


def test_abort_that_cannot_unlink_says_so_and_can_be_repeated() -> None:
    life, users = staged()
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault("remove", 1, "EIO"))
    with pytest.raises(StorageError):
        run_in_place(life.store, users.cases.abort("a", "t1"))
    assert "t1" in stages_of(life.store.topic("a")).open
    assert users.abort("a", "t1") is True
    assert parts_on_disk(life) == []


def test_stages_expire_and_their_files_go() -> None:
    life, users = staged()
    users.put("a", "t2", "p0")
    staging = life.store.staging
    life.clock.advance(staging.ttl_ms)
    users.put("a", "t2", "p1")
    life.clock.advance(1)
    staging.tend(life.store)
    assert list(stages_of(life.store.topic("a")).open) == ["t2"]
    assert len(parts_on_disk(life)) == 2


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "rotten", "short", "another's"])
def test_damaged_part_of_a_commit_refuses_the_start_and_is_named(how: str) -> None:
    life, users = staged()
    life.append("a", 1)
    users.put("a", "t2", "p0", 1)
    users.commit("t1", {"a": [("p0", 1)]})
    path = "/data/topics/00000001/staged/0000000000000001.part"
    life.kill()
    if how == "missing":
        life.disk.remove(path)
    elif how == "rotten":
        life.disk.corrupt(path, len(life.disk.read(path)) - 12, 1)
    elif how == "short":
        life.disk.open(path, write=True).truncate(40)
    else:
        life.disk.rename("/data/topics/00000001/staged/0000000000000002.part", path)
    with pytest.raises(CorruptFile) as refused:
        life.open()
    assert refused.value.facts["path"] == path
    life.disk.restart()
    life.open(recovery="salvage")
    assert life.gaps("a") == [(2, 2, "corrupt")]
    assert life.seqs("a") == [1]
    assert any("salvaged" in line for line in life.store.report)
    life.kill()
    life.open(recovery="strict")
    assert life.seqs("a") == [1]


def test_damaged_open_part_is_reported_and_left_alone() -> None:
    life, users = staged()
    users.put("a", "t2", "p0", 1)
    path = "/data/topics/00000001/staged/0000000000000001.part"
    life.kill()
    life.disk.open(path, write=True).truncate(10)
    life.ledger.staged.parts.clear()
    store = life.open()
    assert any(path in line for line in store.report)
    assert list(stages_of(store.topic("a")).open) == ["t2"]
    assert len(parts_on_disk(life)) == 2


def test_part_that_rots_before_its_commit_refuses_the_commit() -> None:
    life, users = staged()
    path = "/data/topics/00000001/staged/0000000000000001.part"
    life.disk.corrupt(path, len(life.disk.read(path)) - 12, 1)
    with pytest.raises(CorruptFile):
        users.commit("t1", {"a": [("p0", 1)]})
    assert raws(life, "a") == []
    life.append("a", 1)


def test_record_that_rots_in_a_committed_part_is_a_gap_and_stops_no_reader() -> None:
    life, users = staged()
    users.put("a", "t2", "p0", 3)
    users.commit("t2", {"a": [("p0", 3)]})
    path = "/data/topics/00000001/staged/0000000000000002.part"
    data = life.disk.read(path)
    life.disk.corrupt(path, data.index(b"t2 p0 1"), 1)
    found = read_all(life.store, "a")
    assert [item.seq if isinstance(item, Record) else (item.gap_from, item.reason) for item in found] == [
        1, (2, "corrupt"), 3,
    ]  # fmt: skip
    assert isinstance(found[1], Gap)


# -- several topics ----------------------------------------------------------------------------------------------------


def test_later_records_wait_for_the_verdict() -> None:
    life, _ = staged(3, "a", "b")
    store = life.store
    commit = order(life, "t1", "a", "b")
    decision = commit.decision
    assert decision is not None
    later = store.append("a", prepare([{"data": b'"later"'}]))
    life.told("a").send(later.first_seq, [b'"later"'], None)
    shard = store.shard_for(store.topic("a"))
    other = store.shard_for(store.topic("b"))
    assert shard is not other
    store.step(shard)
    assert commit.decision is not None
    assert later.submission is not None
    assert not later.submission.settled, "what comes behind an undecided commit is ordered, not published"
    assert raws(life, "a") == []
    settle(life, commit)
    store.drive(later.submission)
    assert raws(life, "a") == [b'"t1 p0 0"', b'"later"']
    assert raws(life, "b") == [b'"t1 p0 0"']


def test_crash_before_the_verdict_leaves_silent_holes_and_open_parts() -> None:
    life, users = staged(3, "a", "b")
    store = life.store
    order(life, "t1", "a", "b")
    for name in ("a", "b"):
        store.step(store.shard_for(store.topic(name)))
    life.power_cut()
    life.reopen()
    for name in ("a", "b"):
        assert read_all(life.store, name) == []
        assert life.store.topic(name).head == 1, "the seq of a written Prepare is never given again"
        assert "t1" in stages_of(life.store.topic(name)).open
    users.commit("t1", {"a": [("p0", 1)], "b": [("p0", 1)]})
    for _ in range(2):
        assert life.seqs("a") == life.seqs("b") == [2]
        life.power_cut()
        life.reopen()


def test_failed_prepare_aborts_the_others_as_silent_holes() -> None:
    life, _ = staged(3, "a", "b", "c")
    life.kill()
    fs = life.open_faulty()
    store = life.store
    broken = store.shard_for(store.topic("b"))
    fs.add(Fault("write", 1, "EIO", forever=True, path=broken.key))
    commit = order(life, "t1", "a", "b", "c")
    settle(life, commit)
    assert commit.decision is not None
    assert commit.decision.verdict == Verdict.ABORTED
    with pytest.raises(WriteFailed):
        commit.check()
    fine = [name for name in ("a", "b", "c") if store.shard_for(store.topic(name)) is not broken]
    for name in fine:
        topic = store.topic(name)
        assert read_all(store, name) == []
        assert (topic.head, topic.ordered.head, topic.ordered.live) == (1, 1, 0)
        assert life.append(name) == 2
        store.checkpoint()
        assert life.seqs(name) == [2]
    life.power_cut()
    life.reopen()
    assert all(life.seqs(name) == [2] for name in fine)
    assert all(known_commit(life.store.topic(name), parse_txn("t1")) is None for name in ("a", "b", "c"))


def test_abort_that_comes_with_the_last_prepare_leaves_holes_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold behind it was refused for want of a next WAL file, and it waits itself for the commit in front of it."""
    life = Life(wal_shards=1)
    life.open()
    for name in ("a", "b"):
        life.create(name, durability="fsync")
    users = StagedLife(life)
    for name in ("a", "b"):
        users.put(name, "t1", "p0", 1)
        users.put(name, "t2", "p0", 1)
    life.kill()
    fs = life.open_faulty()
    store = life.store
    shard = store.shards[0]
    first, second = order(life, "t1", "a", "b"), order(life, "t2", "a", "b")
    monkeypatch.setattr("topics.model.limits.COMMIT_SUBMISSIONS", 5)  # the last of the first turn is a Prepare
    store.step(shard)
    assert shard.file is not None
    shard.file.capacity = shard.file.written
    fs.add(Fault("open", 1, "ENOSPC", forever=True, path=".pre"))
    settle(life, first)
    settle(life, second)
    fs.heal()
    for name in ("a", "b"):
        topic = store.topic(name)
        assert not topic.pending
        assert topic.head == topic.ordered.head
        assert "t2" in stages_of(topic).open
    spare = shard.plan_spare()
    shard.adopt_spare(spare.run())
    seqs = {name: life.append(name) for name in ("a", "b")}
    assert store.checkpoint()
    assert {name: life.seqs(name) for name in seqs} == {name: [seq] for name, seq in seqs.items()}


def test_unknown_verdict_freezes_its_topics_until_the_store_is_reopened() -> None:
    life, users = staged(3, "a", "b", "c")
    life.kill()
    fs = life.open_faulty()
    store = life.store
    names = [name for name in ("a", "b", "c") if store.topic(name).shard != 0][:2]
    bystander = next(
        (name for name in ("a", "b", "c") if name not in names and store.topic(name).shard != 0), None
    )  # fmt: skip
    commit = order(life, "t1", *names)
    assert commit.decision is not None
    for name in names:
        store.step(store.shard_for(store.topic(name)))
    fs.add(Fault("sync", 1, "EIO", path=store.shards[0].key))
    fs.add(Fault("dsync", 1, "EIO", path=store.shards[0].key))
    settle(life, commit)
    assert commit.decision.verdict == Verdict.UNKNOWN
    with pytest.raises(WriteFailed):
        commit.check()
    for name in names:
        with pytest.raises(ReadOnly):
            life.append(name)
        with pytest.raises((ReadOnly, WriteFailed)):
            run_in_place(store, users.cases.abort(name, "t1"))
        assert raws(life, name) == []
    assert store.checkpoint(), "the others go on, and no position passes the Prepare"
    if bystander is not None:
        life.append(bystander)
    life.power_cut()
    life.reopen()
    known = {known_commit(life.store.topic(name), parse_txn("t1")) is not None for name in names}
    assert len(known) == 1, "all or none"
    for name in names:
        life.append(name)


def test_checkpoint_waits_for_the_verdict_and_the_verdict_not_for_it() -> None:
    """Marks stand between the Prepares and the verdict in every shard."""
    life, _ = staged(3, "a", "b", "c")
    store = life.store
    commit = order(life, "t1", "a", "b", "c")
    checkpoint = store.begin_checkpoint()
    settle(life, commit)
    while not checkpoint.captured:
        store.drive_once()
    assert checkpoint.run()
    assert store.snapshots.kept
    assert raws(life, "a") == raws(life, "b") == [b'"t1 p0 0"']
    life.power_cut()
    life.reopen()
    assert raws(life, "a") == raws(life, "c") == [b'"t1 p0 0"']


def test_verdict_outlives_its_file_while_a_prepare_may_be_met() -> None:
    """The shard of a Prepare stops; the others check on and let the file of the verdict go."""
    life, _ = staged(3, "a", "b", "c", wal_file_bytes=1024)
    life.kill()
    fs = life.open_faulty()
    store = life.store
    names = sorted("abc", key=lambda name: store.topic(name).shard)
    last = names[-1]
    assert store.topic(last).shard != 0
    order_of = order(life, "t1", *names)
    settle(life, order_of)
    order_of.check()
    stopped = store.shard_for(store.topic(last))
    fs.add(Fault("write", 1, "EIO", forever=True, path=stopped.key))
    with pytest.raises((WriteFailed, ReadOnly)):
        life.append(last)
    first = store.shards[0]
    begun = {number for number, _ in first.sealed} | {first.file.number if first.file else 0}
    on_zero = next((name for name in names if store.topic(name).shard == 0), None)
    for _ in range(4):
        for _ in range(8):
            if on_zero is not None:
                life.append(on_zero, 3)
        assert store.checkpoint()
    if on_zero is not None:
        assert not begun & {number for number, _ in first.sealed}, "the file of the verdict is gone"
    assert [row.txn for row in store.staging.verdict_rows] == ["t1"]
    life.power_cut()
    life.reopen()
    assert raws(life, last)[:1] == [b'"t1 p0 0"']
    assert known_commit(life.store.topic(last), parse_txn("t1")) is not None
    for _ in range(3):
        life.store.checkpoint()
    assert life.store.staging.verdict_rows == []


# -- what else knows of them -------------------------------------------------------------------------------------------


def test_delete_by_tag_reaches_a_commit_that_is_only_ordered() -> None:
    life, users = staged()
    store = life.store
    users.put("a", "t2", "p0", 2, tag="x")
    topic = store.topic("a")
    parts = find_parts(topic, parse_txn("t2"), ["p0"])
    loaded = {part.path: load_part(store.handles, part.path, part.number) for part in parts}
    life.told("a").send(1, [b'"t2 p0 0"', b'"t2 p0 1"'], "x")
    commit = order_commit(store, [Wanted(topic, parse_txn("t2"), "", parts)], loaded)
    gone, died = store.delete("a", None, Selector(SelectorOp.EQ, "x"))
    life.told("a").ask_delete([1, 2])
    settle(life, commit)
    store.drive(gone)
    assert died() == 2
    assert raws(life, "a") == []
    life.power_cut()
    life.reopen()
    assert raws(life, "a") == []


def test_change_of_layout_takes_commits_and_open_parts_along() -> None:
    life, users = staged(1, "a", "b")
    users.commit("t1", {"a": [("p0", 1)], "b": [("p0", 1)]})
    users.put("a", "t2", "p0", 1)
    for shards in (3, 2, 1):
        life.kill()
        life.reopen(wal_shards=shards)
        assert raws(life, "a") == raws(life, "b") == [b'"t1 p0 0"']
    life.store.checkpoint()
    assert len(parts_on_disk(life)) == 1
    users.commit("t2", {"a": [("p0", 1)]})
    with pytest.raises(PartMissing):
        users.commit("t3", {"a": [("p0", 1)]})
