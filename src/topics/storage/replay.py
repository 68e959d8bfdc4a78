"""Applying what the WAL says to the topics of a snapshot, through the same `apply` methods as live writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from topics.format.checksum import shard_of
from topics.format.control import (
    BadBody,
    Dedupe,
    Delete,
    EvictWatermark,
    HeadWatermark,
    Lease,
    LostRange,
    LostReason,
    RouterCreate,
    RouterCursor,
    RouterDelete,
    TokenWatermark,
    TopicCreate,
    TopicDelete,
)
from topics.format.frame import MORE, Frame, Kind, decode_frame, encode_frame
from topics.format.group import GroupEvent, GroupOp
from topics.format.snapshot import Snapshot, TopicRow, VerdictRow
from topics.format.staged import StageCommit
from topics.model.config import Durability, TopicConfig
from topics.model.errors import CorruptFile
from topics.rules.txns import Committed
from topics.storage.alive import runs_of
from topics.storage.columns import live_sizes
from topics.storage.group import load_groups
from topics.storage.handles import Handles
from topics.storage.lost import LostRanges
from topics.storage.partfile import Part
from topics.storage.paths import Paths, group_key
from topics.storage.queue import load_queue
from topics.storage.routers import Router, router_of
from topics.storage.segment import Segment
from topics.storage.stagereplay import StageReplay
from topics.storage.staging import Spent
from topics.storage.tail import ENTRY_SIZE
from topics.storage.topic import Topic
from topics.storage.walread import FileRead, GroupRead

_TELL_EVERY = 1024
"""Things applied between two words about progress."""
_IGNORED = frozenset({Kind.CHECKPOINT_MARK, Kind.STAGE_VERDICT})
_ROUTERS = frozenset({Kind.ROUTER_CREATE, Kind.ROUTER_DELETE, Kind.ROUTER_CURSOR})
_FIRM = frozenset({Kind.APPEND, Kind.TOPIC_CREATE, Kind.LOST_RANGE})
"""Frames that say how far the seqs of their topic are."""
_APPEND_BYTES_MIN = len(encode_frame(Kind.APPEND, 1, b'{"d":0}', seq=1, ts=1))
Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(slots=True)
class Recovered:
    topics: dict[int, Topic] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    """Ids whose TopicDelete is in the log, or that a later topic of the same name replaced."""
    next_topic_id: int = 1
    announce: dict[int, list[tuple[int, int, LostReason]]] = field(default_factory=dict)
    """Ranges found missing now: to be logged before the first write."""
    frames: int = 0
    routers: dict[int, Router] = field(default_factory=dict)
    cut_back: list[Router] = field(default_factory=list)
    """Routers that were ahead of their source: their cursors are to be logged before the first write."""
    ran_out: list[tuple[Topic, bytes]] = field(default_factory=list)
    """Frames about leases that ended while nobody was there: to be logged before the first write."""
    unknown: list[str] = field(default_factory=list)
    """Frames of topics nobody knows, for the report."""
    spent: list[Spent] = field(default_factory=list)
    """Parts whose commits were replayed."""
    verdicts: list[VerdictRow] = field(default_factory=list)
    damage: list[CorruptFile] = field(default_factory=list)
    """Parts that salvage went on without."""


def load_topic(row: TopicRow, paths: Paths, handles: Handles) -> Topic:
    config = msgspec.json.decode(row.config, type=TopicConfig)
    topic = Topic(row.id, row.name, config, paths.topic(row.id), handles)
    topic.created_ts = row.created_ts
    topic.head = row.head
    topic.last_ts = row.last_ts
    topic.live, topic.bytes = row.live, row.bytes
    topic.evict_floor, topic.expiry_floor, topic.trim_floor = row.evict_floor, row.expiry_floor, row.trim_floor
    topic.delete_below = row.delete_below
    topic.dead.raise_floor(max(topic.involuntary_floor, topic.delete_below - 1))
    for first, last in row.dead:
        topic.dead.mark(first, last)
    topic.lost = LostRanges(row.lost)
    topic.ceiling = topic.ceiling_asked = row.ceiling
    topic.copied = topic.ckpt_seq = row.ckpt_seq
    topic.unflagged = list(row.unflagged)
    for key, first, count, ts in row.dedupe:
        topic.apply_dedupe(key, first, count, ts)
    for txn in row.txns:
        topic.apply_txn(Committed(*txn))
    topic.segments = [
        Segment(
            topic.directory,
            s.first,
            s.count,
            s.data_len,
            sealed=s.sealed,
            idx_xxh3=s.idx_xxh3,
            generation=s.generation,
            tags=s.tags,
            keys=s.keys,
            foreign=not s.sealed,
        )
        for s in row.segments
    ]
    topic.tokens.next, topic.tokens.ceiling = row.tokens
    if row.queue is not None:
        topic.queue = load_queue(row.queue)
    if row.groups:
        topic.groups = load_groups(row.groups)
    topic.dirty = False
    return topic


def apply_lease_frame(topic: Topic, frame: Frame, lease: Lease) -> None:
    if topic.queue is None:
        return
    rows = lease.rows(frame.seq)
    topic.queue.seen_ms = max(topic.queue.seen_ms, frame.ts)
    topic.apply_tokens(max(row[1] for row in rows))
    topic.apply_lease(lease.event, lease.node, rows, frame.ts)


class Replay:
    def __init__(
        self, snapshot: Snapshot, groups: list[GroupRead], paths: Paths, handles: Handles, lenient: bool = False
    ) -> None:
        self.groups = groups
        self.paths = paths
        self.handles = handles
        self.result = Recovered(next_topic_id=snapshot.next_topic_id)
        self.snapshot = snapshot
        self.salvage = any(group.damage for group in groups)
        self._after_config: int | None = None
        self._group = ""
        self._stages = StageReplay(self, snapshot, groups, lenient)
        # The snapshot may know how far a router is that the WAL has yet to make: see Checkpoint._router_rows.
        self._cursors = {row.id: RouterCursor(row.id, row.cursor, row.forwarded) for row in snapshot.routers}
        self.result.routers = {row.id: router_of(row) for row in snapshot.routers}

    def run(self, tell: Callable[[float], None] = lambda _: None) -> Recovered:
        """`tell` hears how far it is, from 0 to 1."""
        names = {row.id: row.name for row in self.snapshot.topics}
        self.result.ended.update(self.snapshot.dropped)
        self._find_ended(names)
        for row in self.snapshot.topics:
            if row.id not in self.result.ended:
                self.result.topics[row.id] = load_topic(row, self.paths, self.handles)
        total = sum(len(scan.items) for group in self.groups for read in group.files for scan in read.scans)
        done = 0
        self._stages.find_verdicts()
        for group in self.groups:
            self._group = group.key
            for read in group.files:
                for scan in read.scans:
                    self.result.frames += scan.frames
                    for item in scan.items:
                        self._apply(read, item)
                        done += 1
                        if not done % _TELL_EVERY:
                            tell(done / total)
        self.result.verdicts = self._stages.verdicts()
        return self.result

    # -- which topics there are --------------------------------------------------------------------------------------

    def _find_ended(self, names: dict[int, str]) -> None:
        """By id alone: a re-created name may live on another shard, so the groups' order says nothing about it. A topic
        of the snapshot ends lower ids too: the create of one may have failed and lie in a shard that stopped there."""
        result = self.result
        newest = {name: topic_id for topic_id, name in sorted(names.items())}
        for group in self.groups:
            for read in group.files:
                for scan in read.scans:
                    for item in scan.items:
                        if item[0] in (Kind.TOPIC_CREATE, Kind.TOPIC_DELETE):
                            frame = self.frame(read, item)
                            if item[0] == Kind.TOPIC_CREATE:
                                name = self.body(read, frame, TopicCreate).name
                                names[frame.topic_id] = name
                            else:
                                name = self.body(read, frame, TopicDelete).name
                                result.ended.add(frame.topic_id)
                            newest[name] = max(newest.get(name, 0), frame.topic_id)
                            result.next_topic_id = max(result.next_topic_id, frame.topic_id + 1)
        result.ended.update(topic_id for topic_id, name in names.items() if topic_id < newest[name])

    # -- frames ------------------------------------------------------------------------------------------------------

    def _apply(self, read: FileRead, item: tuple[int, ...]) -> None:
        kind, topic_id = item[0], item[1]
        if kind in _ROUTERS:
            self._router(read, self.frame(read, item))
            return
        if kind in _IGNORED or topic_id in self.result.ended:
            return
        if kind == Kind.TOPIC_CREATE:
            self._create(read, self.frame(read, item))
            return
        topic = self.result.topics.get(topic_id)
        if topic is None:
            self.result.unknown.append(f"{read.wal.path}: a frame of kind {kind} for the unknown topic {topic_id}")
            # Damage took its create: whoever knew it by its id must never take another topic for it.
            self.result.next_topic_id = max(self.result.next_topic_id, topic_id + 1)
            return
        if kind == Kind.APPEND:
            self._append(read, topic, item)
            return
        frame = self.frame(read, item)
        if kind in (Kind.STAGE_COMMIT, Kind.STAGE_PREPARE):
            self._stages.apply(self._group, read, topic, frame, self.body(read, frame, StageCommit))
            return
        self._control(read, topic, frame)

    def _router(self, read: FileRead, frame: Frame) -> None:
        routers = self.result.routers
        if frame.kind == Kind.ROUTER_CREATE:
            made = self.body(read, frame, RouterCreate)
            known = routers.get(made.router_id)
            if known is not None:
                known.bits, known.filter = made.bits, made.filter
            else:
                self._end_routers(made.name)
                routers[made.router_id] = Router(
                    made.router_id, made.name, made.source, made.dest, made.source_id, made.dest_id, made.bits,
                    made.filter, made.cursor, made.cursor,
                )  # fmt: skip
            self.result.next_topic_id = max(self.result.next_topic_id, made.router_id + 1)
        elif frame.kind == Kind.ROUTER_DELETE:
            self._end_routers(self.body(read, frame, RouterDelete).name)
        else:
            cursor = self.body(read, frame, RouterCursor)
            self._cursors[cursor.router_id] = cursor
            self.result.next_topic_id = max(self.result.next_topic_id, cursor.router_id + 1)

    def _end_routers(self, name: str) -> None:
        """One whose topic was dropped has no frame that says so: it ends when its name is used again."""
        routers = self.result.routers
        for router_id in [router.id for router in routers.values() if router.name == name]:
            del routers[router_id]

    def _close_routers(self) -> None:
        """Progress counts once all groups were read: a router and its copies may be logged on different shards. All
        of one router's progress lies in one group, so the last frame is the newest."""
        result = self.result
        for found in self._cursors.values():
            if found.router_id in result.routers:
                router = result.routers[found.router_id]
                router.cursor, router.forwarded = found.cursor, found.forwarded_total
        for router in list(result.routers.values()):
            source, dest = result.topics.get(router.source_id), result.topics.get(router.dest_id)
            if source is None or dest is None:
                del result.routers[router.id]
            elif router.cursor > source.head:
                # The source will hand these seqs out again, and what gets them then has to be copied.
                router.cursor = source.head
                result.cut_back.append(router)

    def _create(self, read: FileRead, frame: Frame) -> None:
        if frame.topic_id in self.result.topics:
            return
        body = self.body(read, frame, TopicCreate)
        config = self._config(read, frame, body)
        topic = Topic(frame.topic_id, body.name, config, self.paths.topic(frame.topic_id), self.handles)
        topic.created_ts = frame.ts
        self.result.topics[frame.topic_id] = topic

    def _append(self, read: FileRead, topic: Topic, item: tuple[int, ...]) -> None:
        _kind, _id, first, count, index, start, _end, _first_ts, last_ts, accounted = item
        last = first + count - 1
        if last <= topic.ckpt_seq:
            return
        skip = max(topic.ckpt_seq + 1 - first, 0)
        expected = topic.head + 1
        first += skip
        count -= skip
        if first != expected:
            self.jump(read, topic, expected, first, start)
            if first < expected:
                return
        at = (index + skip) * ENTRY_SIZE
        entries = memoryview(read.entries)[at : at + count * ENTRY_SIZE]
        if skip:
            accounted = int(live_sizes(entries, None).sum())
        chunk = topic.tail.add(first, entries, count)
        chunk.place(first, read.wal)
        topic.apply_append(first, count, accounted, last_ts)

    def jump(self, read: FileRead, topic: Topic, expected: int, found: int, offset: int) -> None:
        """Seqs that nobody announced as skipped are missing: records were here."""
        if not self.salvage:
            why = f"topic {topic.name!r} goes on with record {found} where {expected} was expected"
            raise CorruptFile(read.wal.path, offset, why)
        if found > expected:
            self.lose(topic, expected, found - 1, LostReason.CORRUPT)

    def lose(self, topic: Topic, first: int, last: int, reason: LostReason) -> None:
        topic.apply_lost(first, last, reason)
        self.result.announce.setdefault(topic.id, []).append((first, last, reason))

    def _control(self, read: FileRead, topic: Topic, frame: Frame) -> None:
        after_config, self._after_config = self._after_config, None
        if frame.kind == Kind.DELETE:
            delete = self.body(read, frame, Delete)
            below = delete.before_seq or 0 if delete.match is None else 0
            topic.apply_delete(below, (*delete.ranges, *runs_of(sorted(delete.seqs))))
        elif frame.kind == Kind.EVICT_WATERMARK:
            floors = self.body(read, frame, EvictWatermark)
            topic.apply_evict(floors.evict_floor, floors.expiry_floor)
        elif frame.kind == Kind.HEAD_WATERMARK:
            ceiling = self.body(read, frame, HeadWatermark).ceiling
            if after_config == topic.id and ceiling > topic.head:
                topic.apply_lost(topic.head + 1, ceiling, LostReason.SKIPPED)
            topic.apply_ceiling(ceiling)
        elif frame.kind == Kind.DEDUPE:
            dedupe = self.body(read, frame, Dedupe)
            if dedupe.first_seq > topic.ckpt_seq:
                topic.apply_dedupe(dedupe.key, dedupe.first_seq, dedupe.count, frame.ts)
        elif frame.kind == Kind.LEASE:
            apply_lease_frame(topic, frame, self.body(read, frame, Lease))
        elif frame.kind == Kind.GROUP:
            self._group_op(topic, frame, self.body(read, frame, GroupOp))
        elif frame.kind == Kind.TOKEN_WATERMARK:
            topic.apply_tokens(self.body(read, frame, TokenWatermark).ceiling)
        elif frame.kind == Kind.LOST_RANGE:
            lost = self.body(read, frame, LostRange)
            if lost.first > topic.head + 1:
                self.jump(read, topic, topic.head + 1, lost.first, frame.offset)
            topic.apply_lost(lost.first, lost.last, LostReason(lost.reason))
        elif frame.kind == Kind.CONFIG_UPDATE:
            topic.apply_config(self._config(read, frame, self.body(read, frame, TopicCreate)))
            if frame.flags & MORE:
                self._after_config = topic.id
        else:
            why = f"a frame of kind {frame.kind} is not known to this version"
            raise CorruptFile(read.wal.path, frame.offset, why)

    @staticmethod
    def _group_op(topic: Topic, frame: Frame, op: GroupOp) -> None:
        generation = op.number if op.event == GroupEvent.JOINED else 0
        topic.apply_tokens(max([row[1] for row in op.rows], default=generation))
        topic.apply_group(op, frame.ts)
        assert topic.groups is not None
        topic.groups.seen_ms = max(topic.groups.seen_ms, frame.ts)

    def _config(self, read: FileRead, frame: Frame, body: TopicCreate) -> TopicConfig:
        try:
            return msgspec.json.decode(body.config_json, type=TopicConfig)
        except msgspec.DecodeError as error:
            raise CorruptFile(
                read.wal.path, frame.offset, f"the config of {body.name!r} is not valid: {error}"
            ) from None

    @staticmethod
    def frame(read: FileRead, item: tuple[int, ...]) -> Frame:
        return decode_frame(read.view, item[-2], item[-1])

    @staticmethod
    def body(read: FileRead, frame: Frame, kind: type[Body]) -> Body:
        try:
            return kind.decode(frame.body)  # type: ignore[attr-defined, no-any-return]
        except BadBody as error:
            raise CorruptFile(read.wal.path, frame.offset, f"its body is not valid: {error}") from None

    # -- what is missing at the end ------------------------------------------------------------------------------------

    def close_tails(self, clean: bool, same_boot: bool, staged: dict[int, list[Part]]) -> None:
        """Seqs of `disk` topics that were reserved and not found may have been handed out: nobody gets them again."""
        if not clean:
            for group in self.groups:
                if group.lost_bytes:
                    self._lose_tails(group, staged)
        for topic in self.result.topics.values():
            if not clean and topic.durability == Durability.DISK and topic.ceiling > topic.head:
                reason = LostReason.SKIPPED if same_boot else LostReason.CRASH
                self.lose(topic, topic.head + 1, topic.ceiling, reason)
            topic.ordered = topic.published()
        self._close_routers()

    def _lose_tails(self, group: GroupRead, staged: dict[int, list[Part]]) -> None:
        """Damage took frames that nobody can name, perhaps the last records of a topic. Unless some of it were found
        behind all damage, as many seqs as can have been there are told as lost, and handed to nobody again. One frame
        of a commit stands for the records of its parts, which are still there."""
        behind = {
            item[1]
            for read in group.files
            for scan in read.scans
            for item in scan.items
            if item[0] in _FIRM and (read.wal.number, item[5]) >= group.lost_before
        }
        shards = self.snapshot.shards
        layout = {group_key(index, shards) for index in range(shards)}
        for topic in self.result.topics.values():
            elsewhere = group.key in layout and group.key != group_key(shard_of(topic.id, shards), shards)
            if elsewhere or topic.id in behind or topic.durability == Durability.EPHEMERAL:
                continue
            most = group.lost_bytes // _APPEND_BYTES_MIN + 1 + sum(part.head.count for part in staged.get(topic.id, ()))
            self.lose(topic, topic.head + 1, max(topic.head, topic.ceiling) + most, LostReason.CORRUPT)
