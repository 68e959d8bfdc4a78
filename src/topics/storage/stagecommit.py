"""Committing staged parts: their records get seqs, all at once, in one topic or in several.

One topic: a StageCommit frame names the parts; its sync is the commit. Several topics: a StagePrepare frame in each
topic's shard, and when all of them are synced, a StageVerdict on shard 0, whose sync is the commit. Behind a Prepare
follows an empty submission, the hold: it keeps everything later of its topic from being published until the verdict
is known. Without a verdict the seqs of a Prepare stay empty, live and in replay alike, and its parts stay open.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from topics.format.control import LostReason
from topics.format.frame import DURABLE, Kind, encode_frame
from topics.format.prepared import Prepared
from topics.format.segment import ENTRY_DTYPE, HOLE
from topics.format.snapshot import Position, VerdictRow
from topics.format.staged import StageCommit, StageVerdict
from topics.model.errors import PartMissing, ReadOnly, TxnForeign, WriteFailed
from topics.rules.txns import Committed, Txn, parse_txn
from topics.storage.append import check_room, check_seqs
from topics.storage.columns import entry_sizes
from topics.storage.effect import Effect, StagedRun
from topics.storage.partfile import LoadedPart, NoSource, Part, PartSource
from topics.storage.staging import Spent, check_stageable, stages_of
from topics.storage.submission import Submission, fresh_error
from topics.storage.tail import ENTRY_SIZE, Chunk
from topics.storage.topic import Topic

if TYPE_CHECKING:
    from topics.storage.store import Store
    from topics.storage.wal import Shard

_NOWHERE = NoSource()
_VERDICTS = -1
"""The lane of verdicts: they wait for nobody, and nobody waits for them but their holds."""


@dataclass(slots=True)
class Wanted:
    """What a commit names in one topic."""

    topic: Topic
    txn: Txn
    query: str
    parts: list[Part]


@dataclass(slots=True)
class StagedAppend:
    """The records of a commit in one topic, ordered and not published yet."""

    topic: Topic
    shard: Shard
    body: StageCommit
    effect: Effect
    chunks: list[Chunk]
    accounted: int
    parts: list[Part]

    @property
    def first_seq(self) -> int:
        return self.body.first_seq

    @property
    def count(self) -> int:
        return self.body.count

    @property
    def gate(self) -> str:
        return parse_txn(self.body.txn).app


# -- deciding ----------------------------------------------------------------------------------------------------------


def find_commit(topic: Topic, txn: Txn, query: str) -> Committed | None:
    """What an earlier commit of this transaction came to. Raises WaitFirst while one is under way."""
    stages = stages_of(topic)
    stages.check_gate(txn)
    if stages.memory.is_foreign(txn, query):
        raise TxnForeign(
            f"the app {txn.app!r} was last used in topic {topic.name!r} by another query; use another app name, or "
            "none",
            topic=topic.name,
            txn=txn.name,
        )
    return stages.memory.find(txn)


def find_parts(topic: Topic, txn: Txn, names: Iterable[str]) -> list[Part]:
    """The named parts of an open stage, in this order."""
    stage = stages_of(topic).open.get(txn.name)
    found: list[Part] = []
    for name in names:
        part = stage.parts.get(name) if stage is not None else None
        if part is None:
            raise PartMissing(
                f"transaction {txn.name!r} has no part {name!r} in topic {topic.name!r}; nothing was appended",
                topic=topic.name,
                txn=txn.name,
                part=name,
            )
        found.append(part)
    return found


def check_commit(store: Store, wanted: list[Wanted], loaded: dict[str, LoadedPart]) -> None:
    """Everything that can refuse a commit is looked at before its first frame."""
    for one in wanted:
        check_stageable(one.topic)
        store.writer_of(one.topic, 64 * len(one.parts))
        store.sweep(one.topic)
        batch = _as_batch([loaded[part.path] for part in one.parts])
        check_room(one.topic, batch)
        check_seqs(one.topic, batch.count)
    if len(wanted) > 1:
        store.shards[0].check()
    store.check_quota(_as_batch([loaded[part.path] for one in wanted for part in one.parts]))


def _as_batch(loaded: list[LoadedPart]) -> Prepared:
    """Their counts, as the checks of an append see them."""
    count = sum(item.part.head.count for item in loaded)
    accounted = sum(item.accounted for item in loaded)
    return Prepared(bytearray(), bytearray(), count, accounted, any(item.has_tags for item in loaded))


# -- ordering ----------------------------------------------------------------------------------------------------------


def _order(store: Store, wanted: Wanted, loaded: list[LoadedPart], now_ms: int) -> StagedAppend:
    """Give the records their seqs and put their entries behind everything ordered before."""
    topic = wanted.topic
    ordered = topic.ordered
    first, ts = ordered.head + 1, max(now_ms, ordered.ts)
    body = StageCommit(
        wanted.txn.name, wanted.query, first, ts, tuple((item.part.number, item.part.head.count) for item in loaded)
    )
    runs: list[StagedRun] = []
    chunks: list[Chunk] = []
    seq = first
    for item in loaded:
        count = item.part.head.count
        if not count:
            continue
        np.frombuffer(item.entries, dtype=ENTRY_DTYPE)["ts"] = ts
        chunks.append(topic.tail.add(seq, item.entries, count))
        source = PartSource(item.part.path, topic.handles)
        runs.append(StagedRun(seq, count, item.entries, source, item.has_tags))
        seq += count
    accounted = sum(item.accounted for item in loaded)
    effect = Effect(head=seq - 1, ts=ts, live=body.count, bytes=accounted, staged=tuple(runs))
    topic.ledger.ordered += accounted
    topic.order(effect)
    parts = [item.part for item in loaded]
    return StagedAppend(topic, store.shard_for(topic), body, effect, chunks, accounted, parts)


def _order_alone(store: Store, append: StagedAppend) -> Submission:
    """Commit in one topic."""
    topic, shard = append.topic, append.shard

    def done(submission: Submission) -> None:
        assert submission.file is not None
        _publish(store, append, {shard.key: Position(submission.file.number, submission.end)})

    def fail(failed: Submission) -> None:
        _let_go(append, is_known=failed.file is None)
        if failed.file is None:
            topic.withdraw(append.effect)

    frame = encode_frame(Kind.STAGE_COMMIT, topic.id, append.body.encode(), ts=append.body.ts, flags=DURABLE)
    submission = Submission(topic.id, [frame], done, needs_sync=True, on_fail=fail)
    append.effect.submission = stages_of(topic).gates[append.gate] = submission
    return shard.submit(submission)


def _let_go(append: StagedAppend, is_known: bool = True) -> None:
    """The commit is over. Where its outcome is unknown the gate stays: its parts must neither be committed again nor
    be removed."""
    append.topic.ledger.ordered -= append.accounted
    if is_known:
        stages_of(append.topic).gates.pop(append.gate, None)


def _publish(store: Store, append: StagedAppend, needs: dict[str, Position]) -> None:
    """The records become readable, the transaction is remembered, and its stage is over."""
    topic, body, staging = append.topic, append.body, store.staging
    for run, chunk in zip(append.effect.staged, append.chunks, strict=True):
        topic.tail.settle(chunk, run.first_seq, run.count, run.source, 0)
    if body.count:
        topic.apply_append(body.first_seq, body.count, append.accounted, body.ts)
    topic.apply_txn(Committed(body.txn, body.query, body.first_seq if body.count else 0, body.count, body.ts))
    _let_go(append)
    named = {part.number for part in append.parts}
    left = [part for part in staging.close_stage(topic, body.txn) if part.number not in named]
    staging.doom(topic, left)
    drop_older(store, topic, parse_txn(body.txn))
    staging.spent += [Spent(topic.id, part.path, needs) for part in append.parts]
    append.shard.wal_bytes += sum(part.size for part in append.parts)  # a checkpoint has them to copy, too
    topic.settled(append.effect)
    append.effect.submission = None
    topic.wake()


def drop_older(store: Store, topic: Topic, txn: Txn) -> None:
    """A committed version ends every open stage of its app at or below it."""
    if txn.version is None:
        return
    for name in list(stages_of(topic).open):
        other = parse_txn(name)
        if other.app == txn.app and other.version is not None and other.version <= txn.version:
            store.staging.doom(topic, store.staging.close_stage(topic, name))


def _publish_holes(append: StagedAppend) -> None:
    """No verdict: the seqs stay empty and nobody is told; the parts are open as before."""
    topic, body = append.topic, append.body
    for run, chunk in zip(append.effect.staged, append.chunks, strict=True):
        start = (run.first_seq - chunk.first_seq) * ENTRY_SIZE
        column = np.frombuffer(chunk.buffer, dtype=ENTRY_DTYPE, count=run.count, offset=start)
        seqs, sizes = np.arange(run.first_seq, run.first_seq + run.count), entry_sizes(column)
        left = np.ones(run.count, dtype=bool)
        for effect in topic.pending:
            effect.miss(seqs, sizes, left)
        for field_name, value in (("offset", 0), ("length", 0), ("flags", HOLE), ("accounted", 0)):
            column[field_name] = value
        chunk.place(run.first_seq, _NOWHERE)
    if body.count:
        topic.apply_lost(body.first_seq, body.first_seq + body.count - 1, LostReason.SKIPPED)
    _let_go(append)
    topic.withdraw(append.effect)  # what is ordered behind it counts from what there really is now
    append.effect.submission = None
    topic.wake()


# -- several topics ----------------------------------------------------------------------------------------------------


class Verdict(enum.Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Its frame may or may not be on disk: only reopening the store tells."""


@dataclass(slots=True, eq=False)
class Member:
    """One topic of a commit over several."""

    append: StagedAppend
    prepare: Submission
    hold: Submission
    is_over: bool = False
    """Its records, or the holes in their place, are published."""


@dataclass(slots=True, eq=False)
class Decision:
    """A commit over several topics under way. It goes on by itself, whether or not anybody waits for it."""

    store: Store
    txn: str
    members: list[Member] = field(default_factory=list)
    verdict: Verdict = Verdict.OPEN
    submission: Submission | None = None
    """The verdict's frame, once it is written."""
    preparing: int = 0
    spoiled: bool = False
    """A Prepare failed, or its shard did before the verdict was asked for."""

    @property
    def decided(self) -> bool:
        return self.verdict in (Verdict.COMMITTED, Verdict.ABORTED)

    # Prepares.

    def add(self, append: StagedAppend) -> None:
        topic = append.topic
        frame = encode_frame(Kind.STAGE_PREPARE, topic.id, append.body.encode(), ts=append.body.ts, flags=DURABLE)
        prepare = Submission(topic.id, [frame], self._prepared, needs_sync=True, on_fail=self._not_prepared)
        hold = Submission(
            topic.id, [], self._released, needs_sync=False, ceiling=lambda: self.decided, on_fail=self._orphaned
        )
        self.members.append(Member(append, prepare, hold))
        self.preparing += 1
        append.effect.submission = stages_of(topic).gates[append.gate] = hold
        append.shard.submit(prepare)
        append.shard.submit(hold)

    def _prepared(self, _: Submission) -> None:
        self.preparing -= 1
        self._judge()

    def _not_prepared(self, failed: Submission) -> None:
        self.preparing -= 1
        self.spoiled = True
        member = next(member for member in self.members if member.prepare is failed)
        member.is_over = True
        _let_go(member.append)  # written or not: no verdict will follow it
        if failed.file is None:
            member.append.topic.withdraw(member.append.effect)
        self._judge()

    # The verdict.

    def _judge(self) -> None:
        if self.preparing or self.submission is not None or self.decided:
            return
        first = self.store.shards[0]
        if self.spoiled or first.failed is not None or first.refusing is not None:
            self._end(Verdict.ABORTED)
            return
        rows = tuple((m.append.topic.id, m.append.first_seq, m.append.count) for m in self.members)
        body = StageVerdict(self.txn, rows).encode()
        frame = encode_frame(Kind.STAGE_VERDICT, 0, body, ts=self.members[0].append.body.ts, flags=DURABLE)
        self.submission = Submission(
            _VERDICTS, [frame], self._judged, needs_sync=True, passes=True, on_fail=self._not_judged
        )
        first.submit(self.submission)

    def _judged(self, _: Submission) -> None:
        rows = [(m.append.topic.id, m.append.first_seq, m.append.count) for m in self.members]
        places = [(m.append.shard.key, m.prepare.file.number) for m in self.members if m.prepare.file is not None]
        self.store.staging.verdicts.append(VerdictRow(self.txn, rows, places))
        self._end(Verdict.COMMITTED)

    def _not_judged(self, failed: Submission) -> None:
        self._end(Verdict.ABORTED if failed.file is None else Verdict.UNKNOWN)

    def _end(self, verdict: Verdict) -> None:
        self.verdict = verdict
        for member in self.members:
            if member.hold.settled:  # it failed; each Prepare is on disk by now, or its member is over
                self._finish(member)
        if verdict == Verdict.UNKNOWN:
            self._freeze()
        for shard in {member.append.shard.index: member.append.shard for member in self.members}.values():
            shard.recheck()

    def _freeze(self) -> None:
        """Nobody may build on what is not known: these topics are read-only until the store is reopened."""
        for member in self.members:
            topic = member.append.topic
            topic.frozen = ReadOnly(
                f"topic {topic.name!r} is read-only: whether a commit over several topics came about is known when "
                "the store is reopened",
                shard=0,
                since=self.store.clock.now_ms(),
            )
            member.append.shard.frozen.add(topic.id)

    # Holds.

    def _released(self, hold: Submission) -> None:
        self._finish(self._member(hold))

    def _orphaned(self, hold: Submission) -> None:
        """The shard failed behind the Prepare. With the verdict under way the records are published all the same: the
        Prepare is on disk, and so will be what decides it."""
        member = self._member(hold)
        if self.submission is None:
            self.spoiled = True
        else:
            gates = stages_of(member.append.topic).gates
            if member.append.gate in gates:
                gates[member.append.gate] = self.submission

    def _member(self, hold: Submission) -> Member:
        return next(member for member in self.members if member.hold is hold)

    def _finish(self, member: Member) -> None:
        if member.is_over or not self.decided:
            return
        member.is_over = True
        if self.verdict == Verdict.ABORTED:
            _publish_holes(member.append)
            return
        needs: dict[str, Position] = {}
        for submission in (member.prepare, self.submission):
            assert submission is not None
            assert submission.file is not None
            assert submission.shard is not None
            end = Position(submission.file.number, submission.end)
            key = submission.shard.key
            if key not in needs or (needs[key].file, needs[key].offset) < (end.file, end.offset):
                needs[key] = end
        _publish(self.store, member.append, needs)


# -- as its caller sees it ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Commit:
    """A commit under way."""

    appends: list[StagedAppend]
    alone: Submission | None = None
    decision: Decision | None = None

    def waits(self) -> Iterator[Submission]:
        """What is to be waited for, one after the other."""
        if self.alone is not None:
            yield self.alone
        if self.decision is not None:
            yield from [member.prepare for member in self.decision.members]
            if self.decision.submission is not None:
                yield self.decision.submission
            yield from [member.hold for member in self.decision.members]

    @property
    def settled(self) -> bool:
        return all(submission.settled for submission in self.waits())

    def check(self) -> None:
        """Raise if it did not come about."""
        decision = self.decision
        if decision is None or decision.verdict == Verdict.COMMITTED:
            failed = self.alone
        else:
            prepares = [member.prepare for member in decision.members]
            failed = next((one for one in (*prepares, decision.submission) if one is not None and one.error), None)
            if failed is None:
                raise fresh_error(decision.store.shards[0].failed or WriteFailed("shard 0 takes no verdict now"))
        if failed is not None and failed.error is not None:
            raise fresh_error(failed.error)


def order_commit(store: Store, wanted: list[Wanted], loaded: dict[str, LoadedPart]) -> Commit:
    """Commit in one topic, or in several: all or none. `loaded` are the parts, by path."""
    check_commit(store, wanted, loaded)
    now_ms = store.clock.now_ms()
    appends = [_order(store, one, [loaded[part.path] for part in one.parts], now_ms) for one in wanted]
    if len(appends) == 1:
        return Commit(appends, alone=_order_alone(store, appends[0]))
    decision = Decision(store, wanted[0].txn.name)
    for append in appends:
        decision.add(append)
    return Commit(appends, decision=decision)
