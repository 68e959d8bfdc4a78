"""Staged parts at start: commits are replayed by the same `apply` as live, everything else is open again.

A Prepare counts only if a verdict names its topic and its first seq. Verdicts lie on shard 0 and are collected first,
from the WAL and from the snapshot, which keeps those whose Prepares may outlive them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import proxy

import numpy as np

from topics.format.control import LostReason
from topics.format.frame import Frame, Kind
from topics.format.segment import ENTRY_DTYPE
from topics.format.snapshot import Position, Snapshot, VerdictRow
from topics.format.staged import StageCommit, StageVerdict
from topics.host.fs import Fs
from topics.model.errors import CorruptFile
from topics.rules.txns import Committed, parse_txn
from topics.storage.partfile import LoadedPart, Part, PartSource, folder_of, list_parts, load_part
from topics.storage.paths import group_key, part_name
from topics.storage.staging import Spent, Stage, known_commit, stages_of
from topics.storage.walread import FileRead, GroupRead

if TYPE_CHECKING:
    from topics.storage.recovery import Found
    from topics.storage.replay import Replay
    from topics.storage.store import Store
    from topics.storage.topic import Topic


@dataclass(slots=True)
class _Verdict:
    row: StageVerdict
    needs: dict[str, Position]
    """Where its frame ends, or, of one that only the snapshot tells of, what that snapshot contains."""
    places: list[tuple[str, int]] = field(default_factory=list)
    """Where its Prepares were met."""


class StageReplay:
    def __init__(self, replay: Replay, snapshot: Snapshot, groups: list[GroupRead], lenient: bool) -> None:
        # Each would hold the other, and with them the WAL files: such a ring waits for the collector.
        self._replay: Replay = proxy(replay)
        self._snapshot = snapshot
        self._groups = groups
        self._lenient = lenient
        self._verdicts: list[_Verdict] = []
        self._decided: dict[tuple[str, int, int, int], _Verdict] = {}
        """By (txn, topic id, first seq, count)."""
        first = group_key(0, snapshot.shards)
        self._may_be_decided = any(group.damage for group in groups if group.key == first)
        """Damage may have taken verdicts, so a Prepare without one is no proof that nobody was told of its commit."""

    def find_verdicts(self) -> None:
        first = group_key(0, self._snapshot.shards)
        contained = {first: self._snapshot.positions[first]} if first in self._snapshot.positions else {}
        for kept in self._snapshot.verdicts:
            verdict = StageVerdict(kept.txn, tuple(tuple(row) for row in kept.rows))  # type: ignore[misc]
            self._add(_Verdict(verdict, contained))
        for group in self._groups:
            for read in group.files:
                for scan in read.scans:
                    for item in scan.items:
                        if item[0] == Kind.STAGE_VERDICT:
                            frame = self._replay.frame(read, item)
                            body = self._replay.body(read, frame, StageVerdict)
                            self._add(_Verdict(body, {group.key: Position(read.wal.number, frame.end)}))

    def _add(self, verdict: _Verdict) -> None:
        self._verdicts.append(verdict)
        for row in verdict.row.rows:
            self._decided[verdict.row.txn, *row] = verdict

    def verdicts(self) -> list[VerdictRow]:
        """Those whose Prepares were met: a snapshot has to list them as long as those may be met again."""
        return [VerdictRow(v.row.txn, list(v.row.rows), v.places) for v in self._verdicts if v.places]

    # -- frames --------------------------------------------------------------------------------------------------------

    def apply(self, key: str, read: FileRead, topic: Topic, frame: Frame, body: StageCommit) -> None:
        needs = {key: Position(read.wal.number, frame.end)}
        first, last = body.first_seq, body.first_seq + body.count - 1
        verdict = None
        if frame.kind == Kind.STAGE_PREPARE:
            verdict = self._decided.get((body.txn, topic.id, first, body.count))
            if verdict is not None:
                verdict.places.append((key, read.wal.number))
                needs = _later(needs, verdict.needs)
        if body.count:
            if last <= topic.ckpt_seq:
                return
            if first != topic.head + 1:
                self._replay.jump(read, topic, topic.head + 1, first, frame.offset)
                if first < topic.head + 1:
                    return
        if frame.kind == Kind.STAGE_PREPARE and verdict is None:
            if body.count and self._may_be_decided:
                self._replay.lose(topic, first, last, LostReason.CORRUPT)
            elif body.count:
                topic.apply_lost(first, last, LostReason.SKIPPED)
            return
        try:
            loaded = [self._load(topic, body.txn, number, count) for number, count in body.parts]
        except CorruptFile as error:
            if not self._lenient:
                raise
            self._replay.result.damage.append(error)
            self._replay.lose(topic, first, last, LostReason.CORRUPT)
            return
        seq, accounted = first, 0
        for item in loaded:
            count = item.part.head.count
            if count:
                np.frombuffer(item.entries, dtype=ENTRY_DTYPE)["ts"] = body.ts
                chunk = topic.tail.add(seq, item.entries, count)
                chunk.place(seq, PartSource(item.part.path, topic.handles))
            self._replay.result.spent.append(Spent(topic.id, item.part.path, needs))
            seq, accounted = seq + count, accounted + item.accounted
        if body.count:
            topic.apply_append(first, body.count, accounted, body.ts)
        topic.apply_txn(Committed(body.txn, body.query, first if body.count else 0, body.count, body.ts))

    @staticmethod
    def _load(topic: Topic, txn: str, number: int, count: int) -> LoadedPart:
        path = f"{folder_of(topic.directory)}/{part_name(number)}"
        try:
            loaded = load_part(topic.handles, path, number)
        except (FileNotFoundError, ValueError):
            raise CorruptFile(path, 0, f"it is missing or empty, and the commit of {txn!r} names it") from None
        if loaded.part.head.txn != txn or loaded.part.head.count != count:
            raise CorruptFile(path, 0, f"it is not the part of {count} records that the commit of {txn!r} names")
        return loaded


def _later(needs: dict[str, Position], others: dict[str, Position]) -> dict[str, Position]:
    joined = dict(needs)
    for key, end in others.items():
        if key not in joined or (joined[key].file, joined[key].offset) < (end.file, end.offset):
            joined[key] = end
    return joined


# -- what is open ------------------------------------------------------------------------------------------------------


def find_staged(fs: Fs, topics: Iterable[Topic], report: list[str]) -> dict[int, list[Part]]:
    """Every part that is there, by topic. A damaged file that no commit names is reported and left alone."""
    found: dict[int, list[Part]] = {}
    for topic in topics:
        for item in list_parts(fs, topic.directory):
            if isinstance(item, CorruptFile):
                report.append(f"{item.message}; the part was left out")
            else:
                found.setdefault(topic.id, []).append(item)
    return found


def adopt_staged(store: Store, found: Found) -> None:
    """Tell the parts of commits from open ones. Of two files of one part the later counts: the writer of the first
    never heard of it."""
    staging = store.staging
    staging.verdicts = list(found.recovered.verdicts)
    staging.verdict_rows = list(found.snapshot.verdicts)
    staging.spent = list(found.recovered.spent)
    named = {item.path for item in staging.spent}
    # What was committed before the snapshot was made: the older one may still need it.
    shards = store.options.wal_shards
    next_life = {group_key(index, shards): Position(found.next_wal, 0) for index in range(shards)}
    now = store.clock.monotonic_ns()
    for topic_id, parts in found.staged.items():
        topic = store.by_id[topic_id]
        stages = stages_of(topic)
        stages.next_number = max(part.number for part in parts) + 1
        for part in parts:
            if part.path in named:
                continue
            if known_commit(topic, parse_txn(part.head.txn)) is not None:
                staging.spent.append(Spent(topic_id, part.path, next_life))
                continue
            stage = stages.open.setdefault(part.head.txn, Stage(touched_ns=now))
            twin = stage.parts.get(part.head.part)
            if twin is not None:
                staging.bytes -= twin.size
                staging.doom(topic, [twin])
            stage.parts[part.head.part] = part
            staging.bytes += part.size
