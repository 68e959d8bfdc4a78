"""Mistakes that could be made with staged parts; see `mutants.py`."""

from __future__ import annotations

from typing import Any

from tests.crash import staging as users
from tests.crash.mistakes import Patches
from topics.model.errors import PartExists
from topics.rules.txns import Committed, Txn, TxnMemory, parse_txn
from topics.storage import partfile, stagecommit, stagereplay, staging, wal
from topics.storage.effect import Effect
from topics.storage.snapshots import Snapshots
from topics.storage.submission import Submission


def put_refused_after_commit(patches: Patches) -> None:
    """A replayed batch does not pass."""
    real = TxnMemory.find
    real_begin_put = staging.begin_put

    def begin_put(store: Any, topic: Any, head: Any) -> Any:
        if topic.stages is not None and real(topic.stages.memory, parse_txn(head.txn)) is not None:
            raise PartExists("the transaction is over")
        return real_begin_put(store, topic, head)

    patches.set(users, "begin_put", begin_put)


def abort_forgets_a_commit(patches: Patches) -> None:
    real = staging.begin_abort

    def begin_abort(store: Any, topic: Any, txn: Txn) -> Any:
        found = real(store, topic, txn)
        if isinstance(found, Committed) and topic.stages is not None:
            topic.stages.memory._plain.pop(txn.app, None)
            topic.stages.memory._apps.pop(txn.app, None)
        return found

    patches.set(users, "begin_abort", begin_abort)


def abort_leaves_what_earlier_attempts_left(patches: Patches) -> None:
    """Only the files of the open stage go before the answer."""
    real = staging.end_abort

    def end_abort(store: Any, topic: Any, txn: Txn, parts: Any) -> None:
        doomed, store.staging.doomed = store.staging.doomed, []
        try:
            real(store, topic, txn, parts)
        finally:
            store.staging.doomed += doomed

    patches.set(users, "end_abort", end_abort)


def prepare_without_first_seq_match(patches: Patches) -> None:
    """A Prepare counts as soon as a verdict names its topic, wherever its records were to be."""
    real = stagereplay.StageReplay.apply

    def apply(self: Any, key: str, read: Any, topic: Any, frame: Any, body: Any) -> None:
        for (txn, topic_id, _, _), verdict in list(self._decided.items()):
            if txn == body.txn and topic_id == topic.id:
                self._decided[txn, topic_id, body.first_seq, body.count] = verdict
        real(self, key, read, topic, frame, body)

    patches.set(stagereplay.StageReplay, "apply", apply)


def part_unlinked_when_the_newest_snapshot_covers_it(patches: Patches) -> None:
    real = staging.Staging.release

    def release(self: Any, store: Any) -> None:
        older = Snapshots.older
        Snapshots.older = property(lambda snapshots: snapshots.kept[-1][1])  # type: ignore[assignment]
        try:
            real(self, store)
        finally:
            Snapshots.older = older  # type: ignore[method-assign]

    patches.set(staging.Staging, "release", release)


def commit_answered_before_its_sync(patches: Patches) -> None:
    def submission(*args: Any, needs_sync: bool, **options: Any) -> Submission:
        return Submission(*args, needs_sync=False, **options)

    patches.set(stagecommit, "Submission", submission)


def verdict_before_the_prepares_are_synced(patches: Patches) -> None:
    def submission(lane: int, *args: Any, needs_sync: bool, **options: Any) -> Submission:
        return Submission(lane, *args, needs_sync=needs_sync and lane == 0, **options)

    patches.set(stagecommit, "Submission", submission)


def mark_passes_an_undecided_prepare(patches: Patches) -> None:
    """A snapshot's position lies behind a Prepare whose verdict is not known yet."""
    real = wal.Shard._complete_once

    def complete_once(self: wal.Shard) -> None:
        held = [one for one in self.waiting if one.ceiling is not None and not one.frames and not one.ceiling()]
        marks = [one for one in self.waiting if one.barrier]
        if held and marks and list(self.waiting).index(marks[0]) == len(held):
            for one in held:
                self.waiting.remove(one)
                self.waiting.append(one)
        real(self)

    patches.set(wal.Shard, "_complete_once", complete_once)


def part_not_synced_before_its_answer(patches: Patches) -> None:
    """The bytes are there, the name is not durable."""
    real = partfile.write_part

    def write_part(fs: Any, part: Any, frames: bytes) -> None:
        class Hasty:
            def __getattr__(self, name: str) -> Any:
                return getattr(fs, name)

            def sync_dir(self, path: str) -> None:
                return

        real(Hasty(), part, frames)

    patches.set(staging, "write_part", write_part)


def lost_verdict_taken_for_none(patches: Patches) -> None:
    """Where damage took it, the records of its commit are silent holes."""
    real = stagereplay.StageReplay.apply

    def apply(self: Any, key: str, read: Any, topic: Any, frame: Any, body: Any) -> None:
        self._may_be_decided = False
        real(self, key, read, topic, frame, body)

    patches.set(stagereplay.StageReplay, "apply", apply)


def aborted_records_counted_on(patches: Patches) -> None:
    """What is ordered behind a commit goes on as if its records had come."""
    patches.set(Effect, "miss", lambda *_: None)
