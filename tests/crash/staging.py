"""Users of staged parts: storing, committing in one topic or several, aborting; each told to the oracle.

What a commit does to a topic is an operation like any other. A commit over several topics is one in each of them that
all share its fate: `StageBook` looks at what a recovery made of it, before the oracle judges each topic by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.crash.records import sent
from topics.format.ops import SEGMENT_LAYOUT, make_records, prepare, stage_frames
from topics.format.staged import PartHead
from topics.model.errors import InvalidRequest, PartExists, PartMissing, RecordTooLarge, TopicFull
from topics.model.record import Record
from topics.rules.txns import Committed, Txn, parse_txn
from topics.storage.partfile import LoadedPart, head_for, load_part, read_staged
from topics.storage.stagecommit import Commit, Decision, Member, Verdict, Wanted, find_commit, find_parts, order_commit
from topics.storage.staging import Put, begin_abort, begin_put, end_abort, end_put, known_commit, stages_of
from topics.storage.store import Store
from topics.storage.submission import State as TokenState
from topics.storage.walfile import WalFile
from topics.testing.oracle import Instance, Step, Violation
from topics.testing.plain import Staged

if TYPE_CHECKING:
    from tests.crash.client import Client

Batch = list[dict[str, Any]]
PartKey = tuple[int, str, str]
"""Topic id, transaction, part."""


@dataclass(slots=True, eq=False)
class Fate:
    """What became of a commit over several topics."""

    decision: Decision
    rows: dict[int, int]
    """Topic id -> first seq."""
    known: bool | None = None

    def verdict(self) -> bool | None:
        if self.known is None and self.decision.verdict in (Verdict.COMMITTED, Verdict.ABORTED):
            return self.decision.verdict == Verdict.COMMITTED
        return self.known


class MemberToken:
    """One topic's part of such a commit, as the oracle sees a submission."""

    def __init__(self, decision: Decision, member: Member) -> None:
        self._decision = decision
        self._member = member

    @property
    def settled(self) -> bool:
        return self.state in (TokenState.DONE, TokenState.FAILED)

    @property
    def state(self) -> TokenState:
        member, decision = self._member, self._decision
        if member.prepare.state == TokenState.FAILED or decision.verdict == Verdict.UNKNOWN:
            return TokenState.FAILED
        if member.is_over:
            return TokenState.DONE
        return TokenState.WRITTEN if decision.submission is not None else TokenState.QUEUED

    @property
    def file(self) -> WalFile | None:
        if self._member.prepare.state == TokenState.FAILED or self._decision.submission is None:
            return self._member.prepare.file
        return self._decision.submission.file

    @property
    def end(self) -> int:
        submission = self._decision.submission
        return submission.end if submission is not None else 1 << 62


@dataclass(slots=True)
class StageBook:
    """What was staged, over all lives."""

    stored: dict[PartKey, Batch] = field(default_factory=dict)
    """Acknowledged, and nobody asked to remove them."""
    doubtful: dict[PartKey, list[Batch]] = field(default_factory=dict)
    """Parts that may be there or not, one of them for each attempt."""
    fates: list[Fate] = field(default_factory=list)
    serial: int = 0

    def resolve(self, store: Store, counts: Counter[str], damaged: frozenset[int]) -> None:
        """All topics of a commit know it, or none does; and what was decided stays so. Damaged topics are not asked."""
        for fate in self.fates:
            known = {
                topic_id: row is not None and row.first_seq in (first, 0)
                for topic_id, first in fate.rows.items()
                if topic_id in store.by_id and topic_id not in damaged
                for row in [known_commit(store.by_id[topic_id], parse_txn(fate.decision.txn))]
            }
            before = fate.verdict()
            if before is None:
                if len(set(known.values())) > 1:
                    raise Violation(f"the commit of {fate.decision.txn!r} came about in some topics only: {known}")
                fate.known = any(known.values())
                prepared = any(member.prepare.file is not None for member in fate.decision.members)
                counts["crash between Prepare and Verdict"] += prepared and not fate.known and bool(known)
                counts["commit decided by a verdict that nobody heard of"] += fate.known
            elif before and not all(known.values()):
                raise Violation(f"the commit of {fate.decision.txn!r} was decided and is gone: {known}")
            else:
                fate.known = before
        self.fates = []

    def check_recovered(self, store: Store, damaged: frozenset[int]) -> None:
        """Every part that was acknowledged is open, unless its transaction is committed; no other one is."""
        seen: dict[PartKey, Batch] = {}
        total = 0
        for topic in store.all_topics():
            stages = stages_of(topic)
            for txn, stage in stages.open.items():
                total += stage.bytes
                for part in stage.parts.values():
                    key = (topic.id, txn, part.head.part)
                    loaded = load_part(store.handles, part.path, part.number)
                    # A commit that was lost to damage leaves its parts open.
                    seen[key] = _read(store, loaded) if topic.id in damaged else self.batch(key, part.head)
        for topic_id, txn, name in self.stored:
            known = store.by_id.get(topic_id)
            if known is None or topic_id in damaged or (topic_id, txn, name) in seen:
                continue
            if known_commit(known, parse_txn(txn)) is None:
                raise Violation(f"the staged part {name!r} of {txn!r} in topic {topic_id} is gone")
        if total != store.staging.bytes:
            raise Violation(f"open stages hold {total} bytes, counted are {store.staging.bytes}")
        # The name of a part that expired goes when its folder is next synced: until then a cut may bring it back.
        self.stored = seen
        self.doubtful = {key: batches for key, batches in self.doubtful.items() if key not in seen}

    def batch(self, key: PartKey, head: PartHead) -> Batch:
        """What was staged as the part with this head."""
        candidates: list[Batch] = list(self.doubtful.get(key, ()))
        if key in self.stored:
            candidates.append(self.stored[key])
        found = next((batch for batch in candidates if _encoded(key, batch)[0] == head), None)
        if found is None:
            raise Violation(f"part {key} is open, and nobody staged it")
        return found

    def leave(self, key: PartKey) -> None:
        """Somebody asked to remove it."""
        batch = self.stored.pop(key, None)
        if batch is not None:
            self.doubtful.setdefault(key, []).append(batch)


def _read(store: Store, loaded: LoadedPart) -> Batch:
    view = store.handles.mapped(loaded.part.path)
    data, idx, count = read_staged(view, bytes(loaded.entries), 0, loaded.part.head.count, 1, 0)
    found: list[Record] = make_records(data, idx, 0, count, 1, SEGMENT_LAYOUT, 0, None, Record)
    fields = ({"data": r.raw, "tag": r.tag, "node": r.node, "key": r.key, "meta": r.meta} for r in found)
    return [{name: value for name, value in one.items() if value is not None} for one in fields]


def _encoded(key: PartKey, batch: Batch) -> tuple[PartHead, bytes]:
    prepared = prepare(batch)
    frames = stage_frames(prepared.frames, prepared.entries, prepared.count)
    return head_for(key[1], key[2], len(batch), frames), frames


class Stages:
    def __init__(self, client: Client, book: StageBook) -> None:
        self.client = client
        self.book = book
        self.store = client.store
        self.counts = client.counts

    # -- what to do next -----------------------------------------------------------------------------------------------

    def draw(self) -> Callable[[], Any]:
        rng, profile = self.client.rng, self.client.profile
        roll = rng.random()
        names = [f"t{index}" for index in range(profile.topics)]
        if profile.stages_everywhere:
            return self._draw_everywhere(names)
        txn = self._draw_txn()
        if roll < 0.5:
            name, part = rng.choice(names), f"p{rng.randrange(3)}"
            batch = [self.client.draw_record() for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, 4))]
            return lambda: self.put(name, txn, part, batch)
        if roll < 0.62:
            return lambda: self.commit(txn, [rng.choice(names)])
        if roll < 0.85:
            chosen = rng.sample(names, rng.randint(1, len(names)))
            return lambda: self.commit(txn, chosen)
        if roll < 0.95:
            name = rng.choice(names)
            return lambda: self.abort(name, txn)
        return self.expire

    def _draw_everywhere(self, names: list[str]) -> Callable[[], Any]:
        topics = [self.store.topics[name] for name in names if name in self.store.topics]
        txn = f"id{self.book.serial}"
        if topics and all(known_commit(topic, parse_txn(txn)) is not None for topic in topics):
            self.book.serial += 1
            txn = f"id{self.book.serial}"
        waiting = [topic.name for topic in topics if txn not in stages_of(topic).open]
        if waiting:
            return lambda: self.put(self.client.rng.choice(waiting), txn, "p0", [self.client.draw_record()])
        return lambda: self.commit(txn, names)

    def _draw_txn(self) -> str:
        rng, book = self.client.rng, self.book
        if rng.random() < 0.2:
            book.serial += 1
        number = max(book.serial - rng.choice((0, 0, 0, 1)), 0)
        return f"app@{number}" if number % 2 else f"id{number}"

    # -- calls ---------------------------------------------------------------------------------------------------------

    def put(self, name: str, txn: str, part: str, batch: Batch) -> None:
        client, store, book = self.client, self.store, self.book
        instance = client.instance(name)
        if instance is None or instance.ordered is None:
            return
        topic = store.topic(name)
        key = (topic.id, txn, part)
        head, frames = _encoded(key, batch)
        stage = stages_of(topic).open.get(txn)
        there = stage.parts.get(part) if stage is not None else None
        known = book.batch(key, there.head) if there is not None else None
        try:
            found = begin_put(store, topic, head)
        except InvalidRequest:
            if instance.ordered.durability.name != "EPHEMERAL":
                raise
            return
        except PartExists:
            if known is None or known == batch:
                raise Violation(f"part {key} is refused, and no other one is there") from None
            self.counts["staged part refused"] += 1
            return
        if isinstance(found, Committed):
            self._check_known(instance, txn)
            self.counts["staged part after its commit"] += 1
            return
        if not isinstance(found, Put):
            if known != batch:
                raise Violation(f"part {key} is taken for the same, and it is another")
            return
        book.doubtful.setdefault(key, []).append(batch)
        found.run(store.fs, frames)
        stored = end_put(store, found)
        if isinstance(stored, Committed):
            raise Violation(f"part {key} was stored while its commit came about, and nobody else was there")
        book.stored[key] = batch
        self.counts["staged part"] += 1

    def _check_known(self, instance: Instance, txn: str) -> Committed:
        """The engine says that the transaction is committed: so it must be."""
        row = known_commit(self.store.by_id[instance.id], parse_txn(txn))
        assert row is not None
        published = instance.published
        assert published is not None
        mine = published.txns.get(txn)
        if row.first_seq or row.records:
            if mine != (row.first_seq, row.records):
                raise Violation(f"{instance}: the commit of {txn!r} is {row}, expected {mine}")
        elif mine is None and not _is_passed(published.txns, parse_txn(txn)):
            raise Violation(f"{instance}: {txn!r} counts as committed, and it is not: {published.txns}")
        return row

    def commit(self, txn: str, names: list[str]) -> Commit | None:
        client, store = self.client, self.store
        parsed = parse_txn(txn)
        wanted: list[Wanted] = []
        for name in names:
            client.sweep(name)
            instance = client.instance(name)
            if instance is None:
                continue
            topic = store.topic(name)
            if find_commit(topic, parsed, "") is not None:
                self._check_known(instance, txn)
                self.counts["repeated commit"] += 1
                continue
            stage = stages_of(topic).open.get(txn)
            if stage is None:
                try:
                    find_parts(topic, parsed, ["p0"])
                except PartMissing:
                    continue
                raise Violation(f"{instance} finds a part of {txn!r}, which is not open")
            parts = sorted(stage.parts)
            client.rng.shuffle(parts)
            chosen = parts[: client.rng.randint(0 if client.rng.random() < 0.1 else 1, len(parts))]
            wanted.append(Wanted(topic, parsed, "", find_parts(topic, parsed, chosen)))
        wanted = [one for one in wanted if one.topic.ordered.config.commit_class.name != "EPHEMERAL"]
        if not wanted:
            return None
        loaded = {p.path: load_part(store.handles, p.path, p.number) for one in wanted for p in one.parts}
        try:
            commit = order_commit(store, wanted, loaded)
        except (TopicFull, RecordTooLarge):
            self._check_full(wanted)
            return None
        self._note(commit, txn, wanted)
        return commit

    def _note(self, commit: Commit, txn: str, wanted: list[Wanted]) -> None:
        client, book, decision = self.client, self.book, commit.decision
        fate = None
        if decision is not None:
            fate = Fate(decision, {append.topic.id: append.first_seq for append in commit.appends})
            book.fates.append(fate)
        for index, append in enumerate(commit.appends):
            instance = client.oracle.instances[append.topic.id]
            state = client.present(instance, "commit")
            if append.first_seq != state.head + 1 or append.first_seq <= instance.handed:
                raise Violation(f"{instance}: a commit got the seq {append.first_seq} behind {state.head}")
            records: list[Record] = []
            for part in wanted[index].parts:
                for record in book.batch((append.topic.id, txn, part.head.part), part.head):
                    records.append(sent(record, append.first_seq + len(records), append.body.ts))
            for key in list(book.stored):
                if key[0] == append.topic.id and _ends(parse_txn(txn), parse_txn(key[1])):
                    book.leave(key)
            change = Staged(append.first_seq, records, txn)
            token: Any = commit.alone
            if decision is not None and fate is not None:
                change.verdict = fate.verdict
                token = MemberToken(decision, decision.members[index])
            client.oracle.memory.append(instance.id, records)
            instance.add(Step(change, token))
        self.counts["commit of staged parts" if decision is None else "commit over several topics"] += 1

    def _check_full(self, wanted: list[Wanted]) -> None:
        for one in wanted:
            instance = self.client.oracle.instances[one.topic.id]
            batch = [
                record
                for part in one.parts
                for record in self.book.batch((one.topic.id, one.txn.name, part.head.part), part.head)
            ]
            if self.client.rejects(self.client.present(instance, "commit"), batch):
                self.counts["reject of a commit"] += 1
                return
        raise Violation(f"a commit was refused, and there is room: {[one.topic.name for one in wanted]}")

    def abort(self, name: str, txn: str) -> None:
        client, store, book = self.client, self.store, self.book
        instance = client.instance(name)
        if instance is None:
            return
        topic = store.topic(name)
        found = begin_abort(store, topic, parse_txn(txn))
        if isinstance(found, Committed):
            self._check_known(instance, txn)
            self.counts["abort of a committed transaction"] += 1
            return
        keys = [(topic.id, txn, part.head.part) for part in found]
        for key in keys:
            book.leave(key)
        end_abort(store, topic, parse_txn(txn), found)
        # Whatever was attempted before, too: a part that expired, or whose put failed, does not come back any more.
        book.doubtful = {key: batches for key, batches in book.doubtful.items() if key[:2] != (topic.id, txn)}
        self.counts["abort"] += bool(keys)

    def expire(self) -> None:
        store, now = self.store, self.store.clock.monotonic_ns()
        before = {
            (topic.id, txn): stage
            for topic in store.all_topics()
            if topic.stages is not None
            for txn, stage in topic.stages.open.items()
        }
        store.staging.expire(store)
        for (topic_id, txn), stage in before.items():
            stages = stages_of(store.by_id[topic_id])
            if txn in stages.open:
                continue
            if now - stage.touched_ns <= store.staging.ttl_ms * 1_000_000:
                raise Violation(f"the stage {txn!r} of topic {topic_id} expired too early")
            for part in stage.parts:
                self.book.leave((topic_id, txn, part))
            self.counts["stage expired"] += 1


def _ends(committed: Txn, other: Txn) -> bool:
    """Whether a commit of one ends the stage of the other."""
    if committed.app != other.app:
        return False
    return committed == other or (
        committed.version is not None and other.version is not None and other.version <= committed.version
    )


def _is_passed(txns: dict[str, tuple[int, int]], txn: Txn) -> bool:
    versions = [known.version or 0 for known in map(parse_txn, txns) if known.app == txn.app]
    return txn.version is not None and max(versions, default=-1) > txn.version
