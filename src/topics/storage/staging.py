"""Open stages: parts that wait for their commit, and the files of those that wait to be unlinked.

A part is stored in three steps: `begin_put` decides under the store's lock, `Put.run` writes without it, `end_put`
makes the part known. Its file goes when its stage is aborted, expires or loses to a commit; the file of a committed
part goes when its records are in segments and both kept snapshots know it (`Staging.release`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topics.format.snapshot import Position, VerdictRow
from topics.format.staged import PartHead
from topics.host.fs import Fs, parent
from topics.model import limits
from topics.model.config import Durability
from topics.model.errors import InvalidRequest, PartExists, StageFull, StorageError, TopicNotFound
from topics.rules.txns import Committed, Txn, TxnMemory, parse_txn
from topics.storage.partfile import Part, folder_of, make_folder, write_part
from topics.storage.paths import part_name
from topics.storage.submission import WaitFirst
from topics.storage.walfile import discard

if TYPE_CHECKING:
    from topics.storage.store import Store
    from topics.storage.submission import Submission
    from topics.storage.topic import Topic


_UNLINK_MAX = 1000
_TEND_NS = 5_000_000_000
"""How often stages are looked at: they live for hours."""


@dataclass(slots=True)
class Stage:
    """One open transaction in one topic."""

    parts: dict[str, Part] = field(default_factory=dict)
    touched_ns: int = 0
    """Monotonic time of its last part; of parts found at start, that of the start."""

    @property
    def bytes(self) -> int:
        return sum(part.size for part in self.parts.values())


class TopicStages:
    """What one topic knows of transactions."""

    __slots__ = ("gates", "has_folder", "memory", "next_number", "open")

    def __init__(self) -> None:
        self.open: dict[str, Stage] = {}
        self.memory = TxnMemory()
        self.gates: dict[str, Submission] = {}
        """Commits under way, by id or app."""
        self.next_number = 1
        self.has_folder = False
        """The folder of parts is durable."""

    def check_gate(self, txn: Txn) -> None:
        """Raise WaitFirst while a commit of the transaction, or of another version of its app, is under way."""
        if txn.app in self.gates:
            raise WaitFirst(self.gates[txn.app])


def stages_of(topic: Topic) -> TopicStages:
    if topic.stages is None:
        topic.stages = TopicStages()
    return topic.stages


def known_commit(topic: Topic, txn: Txn) -> Committed | None:
    return topic.stages.memory.find(txn) if topic.stages is not None else None


@dataclass(slots=True)
class Spent:
    """The file of a committed part."""

    topic_id: int
    path: str
    needs: dict[str, Position]
    """By WAL group: the older kept snapshot must have come so far before the file may go."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """The file of a part that nobody needs any more. As long as it is there, a start takes it for an open one."""

    topic_id: int
    txn: str
    path: str


@dataclass(slots=True)
class Staging:
    """All stages of a store. Under the store's lock, but for the unlinking itself."""

    bytes_max: int = 10 << 30
    """Of the files of all open stages together; 0 = no limit."""
    ttl_ms: int = 86_400_000
    """An open stage goes so long after its last part."""
    memory_ms: int = 7 * 86_400_000
    """A commit without a version is remembered so long."""
    bytes: int = 0
    """Of open stages, with the parts being written."""
    spent: list[Spent] = field(default_factory=list)
    doomed: list[Doomed] = field(default_factory=list)
    busy: Counter[int] = field(default_factory=Counter)
    """Topic ids whose folder is being written to: it stays where it is meanwhile."""
    tended_ns: int = 0
    verdicts: list[VerdictRow] = field(default_factory=list)
    """Decisions over several topics whose Prepares may still be met in the WAL."""
    verdict_rows: list[VerdictRow] = field(default_factory=list)
    """As the last snapshot has them."""

    @property
    def has_leftovers(self) -> bool:
        return bool(self.spent or self.doomed)

    def forget_topic(self, topic: Topic) -> None:
        """The topic is dropped, and its folder goes with it."""
        if topic.stages is not None:
            self.bytes -= sum(stage.bytes for stage in topic.stages.open.values())
            topic.stages.open.clear()
        self.spent = [item for item in self.spent if item.topic_id != topic.id]
        self.doomed = [item for item in self.doomed if item.topic_id != topic.id]

    def doom(self, topic: Topic, parts: Iterable[Part]) -> None:
        self.doomed += [Doomed(topic.id, part.head.txn, part.path) for part in parts]

    def close_stage(self, topic: Topic, name: str) -> list[Part]:
        """Take an open stage out; its parts."""
        stage = stages_of(topic).open.pop(name, None)
        if stage is None:
            return []
        self.bytes -= stage.bytes
        return list(stage.parts.values())

    def forget_verdicts(self, older: dict[str, Position] | None) -> None:
        """A decision is needed as long as a WAL file that is kept holds a Prepare of it. Under the lock."""
        if older is not None:
            self.verdicts = [row for row in self.verdicts if _may_be_met(row, older)]

    def release(self, store: Store) -> None:
        """Unlink what nobody needs, without the lock but for short moments: so many at a time that checkpoints are not
        kept waiting. What will not go is tried again."""
        older = store.snapshots.older
        with store.lock:
            doomed = [item.path for item in self.doomed]
            spent = [item for item in self.spent if older is not None and covered(item.needs, older)]
        if not doomed and not spent:
            return
        paths = doomed + [item.path for item in spent]
        gone = unlink(store.fs, store, paths[:_UNLINK_MAX])
        with store.lock:
            self.doomed = [item for item in self.doomed if item.path not in gone]
            self.spent = [item for item in self.spent if item.path not in gone]

    def tend(self, store: Store) -> None:
        """Now and then, without the lock: what is too old goes, and the files that nobody needs."""
        now_ns = store.clock.monotonic_ns()
        if now_ns - self.tended_ns >= _TEND_NS:
            self.tended_ns = now_ns
            with store.lock:
                topics = list(store.all_topics())
            topics = [topic for topic in topics if topic.stages is not None]
            with store.lock:
                self.expire(store, topics)
        if self.has_leftovers:
            self.release(store)

    def expire(self, store: Store, topics: Iterable[Topic] | None = None) -> int:
        """Take out the stages that nobody added to for too long, and forget old ids; how many stages. Under the lock:
        the files go with the next `release`."""
        now_ns, now_ms = store.clock.monotonic_ns(), store.clock.now_ms()
        found = 0
        for topic in store.all_topics() if topics is None else topics:
            stages = topic.stages
            if stages is None:
                continue
            if stages.memory.expire(now_ms, self.memory_ms):
                topic.dirty = True
            old = [
                name
                for name, stage in stages.open.items()
                if now_ns - stage.touched_ns > self.ttl_ms * 1_000_000 and parse_txn(name).app not in stages.gates
            ]
            for name in old:
                self.doom(topic, self.close_stage(topic, name))
            found += len(old)
        return found


def _may_be_met(row: VerdictRow, older: dict[str, Position]) -> bool:
    return any(key in older and file >= older[key].file for key, file in row.places)


def covered(needs: dict[str, Position], older: dict[str, Position]) -> bool:
    """A group that the snapshot does not list any more was removed because all of it had been contained."""
    return all(
        key not in older or (older[key].file, older[key].offset) >= (need.file, need.offset)
        for key, need in needs.items()
    )


def unlink(fs: Fs, store: Store, paths: list[str]) -> set[str]:
    """Remove the files and make that durable; those that are gone."""
    gone: set[str] = set()
    store.handles.forget_paths(*paths)
    for path in paths:
        try:
            fs.remove(path)
        except FileNotFoundError:
            pass
        except OSError:
            continue
        gone.add(path)
    for folder in sorted({parent(path) for path in gone}):
        try:
            fs.sync_dir(folder)
        except FileNotFoundError:  # its topic was dropped meanwhile
            continue
        except OSError:
            gone = {path for path in gone if parent(path) != folder}
    return gone


# -- storing a part ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Put:
    """A part on its way to the disk."""

    topic: Topic
    part: Part
    has_folder: bool
    stored: bool = False
    error: BaseException | None = None

    def run(self, fs: Fs, frames: bytes) -> None:
        """Without the lock. What goes wrong is told by `end_put`, which is to be called whatever happens: else whoever
        waits for the folder would wait for ever."""
        try:
            if not self.has_folder:
                make_folder(fs, self.topic.directory)
            write_part(fs, self.part, frames)
            self.stored = True
        except BaseException as error:
            self.error = error
            with suppress(Exception):
                discard(fs, self.part.path)


def check_stageable(topic: Topic) -> None:
    if topic.ordered.config.commit_class == Durability.EPHEMERAL:
        raise InvalidRequest(f"topic {topic.name!r} is ephemeral: it keeps nothing on disk, so nothing can be staged")


def begin_put(store: Store, topic: Topic, head: PartHead) -> Put | Part | Committed:
    """Decide about a part. A Put is to be run and ended; a Part is the same one, stored before."""
    check_stageable(topic)
    txn = parse_txn(head.txn)
    stages, staging = stages_of(topic), store.staging
    known = stages.memory.find(txn)
    if known is not None:
        return known
    same = _stored(stages, head)
    if same is not None:
        return same
    stage = stages.open.get(head.txn)
    if stage is not None and len(stage.parts) >= limits.PARTS_PER_TXN:
        raise StageFull(f"transaction {head.txn!r} has {limits.PARTS_PER_TXN} parts, the most one may have")
    part = Part(stages.next_number, f"{folder_of(topic.directory)}/{part_name(stages.next_number)}", head)
    if staging.bytes_max and staging.bytes + part.size > staging.bytes_max:
        raise StageFull(
            f"open stages may hold {staging.bytes_max} bytes; commit or abort some, or raise staged_max_bytes",
            limit="staged_max_bytes",
            max=staging.bytes_max,
        )
    put = Put(topic, part, stages.has_folder)
    stages.next_number += 1
    staging.busy[topic.id] += 1
    staging.bytes += part.size
    return put


def _stored(stages: TopicStages, head: PartHead) -> Part | None:
    stage = stages.open.get(head.txn)
    known = stage.parts.get(head.part) if stage is not None else None
    if known is not None and known.head != head:
        raise PartExists(
            f"part {head.part!r} of transaction {head.txn!r} is there with other bytes", txn=head.txn, part=head.part
        )
    return known


def end_put(store: Store, put: Put) -> Part | Committed:
    """Make the part known; where its transaction came to an end meanwhile, what that was."""
    topic, part, staging = put.topic, put.part, store.staging
    staging.busy[topic.id] -= 1
    if not staging.busy[topic.id]:
        del staging.busy[topic.id]
    if not put.stored:
        staging.bytes -= part.size
        if store.by_id.get(topic.id) is topic:
            staging.doom(topic, [part])  # its name may be there, or come back with a power cut
        if put.error is not None and not isinstance(put.error, OSError):
            raise put.error
        raise StorageError(f"{part.path} cannot be written: {put.error}", path=part.path) from put.error
    if store.by_id.get(topic.id) is not topic:
        staging.bytes -= part.size
        raise TopicNotFound(topic.name)
    stages = stages_of(topic)
    stages.has_folder = True
    try:
        known = stages.memory.find(parse_txn(part.head.txn)) or _stored(stages, part.head)
    except PartExists:
        known = None
        staging.bytes -= part.size
        staging.doom(topic, [part])
        raise
    if known is not None:  # another attempt was faster
        staging.bytes -= part.size
        staging.doom(topic, [part])
        return known
    stage = stages.open.setdefault(part.head.txn, Stage())
    stage.parts[part.head.part] = part
    stage.touched_ns = store.clock.monotonic_ns()
    return part


# -- aborting ----------------------------------------------------------------------------------------------------------


def begin_abort(store: Store, topic: Topic, txn: Txn) -> list[Part] | Committed:
    """Take the stage out. Its files are to be unlinked before anybody hears of it."""
    stages = stages_of(topic)
    stages.check_gate(txn)
    known = stages.memory.find(txn)
    if known is not None:
        return known
    return store.staging.close_stage(topic, txn.name)


def end_abort(store: Store, topic: Topic, txn: Txn, parts: list[Part]) -> None:
    """Without the lock: remove the files durably. Those that will not go are open again. With them goes what earlier
    attempts left behind (a stage that expired, a put that failed): else the next start would find that open."""
    staging = store.staging
    with store.lock:
        behind = [item.path for item in staging.doomed if item.topic_id == topic.id and item.txn == txn.name]
    gone = unlink(store.fs, store, [*(part.path for part in parts), *behind])
    with store.lock:
        staging.doomed = [item for item in staging.doomed if item.path not in gone]
    left = [part for part in parts if part.path not in gone]
    stuck = [path for path in (*(part.path for part in left), *behind) if path not in gone]
    if not stuck:
        return
    there = {part.number for part in left if store.fs.exists(part.path)}
    with store.lock:
        if store.by_id.get(topic.id) is topic:
            stage = stages_of(topic).open.setdefault(txn.name, Stage()) if there else Stage()
            stage.touched_ns = store.clock.monotonic_ns()
            for part in left:
                if part.number in there and part.head.part not in stage.parts:
                    stage.parts[part.head.part] = part
                    staging.bytes += part.size
                else:  # put anew meanwhile; or removed, and not durably so
                    staging.doom(topic, [part])
    raise StorageError(f"{stuck[0]} cannot be removed durably; abort the transaction again", path=stuck[0])
