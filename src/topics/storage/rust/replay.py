"""From the Rust program's snapshot and WAL to topics of ours, through the same `apply` methods as live writes.

What differs from our own replay: a jump in seqs is usual there and is noted, a delete names a selector that has to be
evaluated again, TopicCreate also changes a topic, routers have names but no ids, and times may fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import msgspec
import numpy as np

from topics.format.control import (
    BadBody,
    Delete,
    EvictWatermark,
    HeadWatermark,
    Lease,
    LostReason,
    RouterCreate,
    RouterDelete,
    TopicCreate,
    TopicDelete,
)
from topics.format.frame import Frame, Kind, decode_frame
from topics.format.rustsnapshot import SEQ_MAX, RustRouter, RustSnapshot, RustTopic
from topics.format.segment import ENTRY_DTYPE
from topics.model.config import Durability, TopicConfig
from topics.model.errors import CorruptFile
from topics.storage.alive import runs_of
from topics.storage.columns import live_sizes
from topics.storage.delete import join_ranges
from topics.storage.handles import Handles
from topics.storage.names import find_tagged
from topics.storage.paths import Paths
from topics.storage.replay import apply_lease_frame
from topics.storage.routers import Router
from topics.storage.rust.blocks import Cache, MovedBlock, moved_entries, never_falling, snapshot_blocks
from topics.storage.rust.groups import OURS, RustGroup
from topics.storage.rust.order import Item, in_order
from topics.storage.rust.report import Finding, FindingKind, ImportReport
from topics.storage.rust.tangle import Tangle, find_tangled
from topics.storage.tail import ENTRY_SIZE
from topics.storage.topic import Topic
from topics.storage.walread import FileRead

SPAN_MAX: Final = 1 << 32
"""Seqs of one topic between its floor and its head, and in one jump. The Rust program keeps a slot in memory for each,
so it has never come near; hostile bytes would make us mark them one by one."""

Body = TypeVar("Body", bound=msgspec.Struct)
Tell = Callable[[float], None]


@dataclass(slots=True)
class SnapshotFile:
    """The snapshot that the import begins with; empty where there is none."""

    path: str = ""
    view: memoryview = field(default_factory=lambda: memoryview(b""))
    snapshot: RustSnapshot = field(default_factory=RustSnapshot)


class RustReplay:
    """`topics` and `routers` are the outcome. The topics' directories are those of `paths`; none is touched."""

    def __init__(self, source: SnapshotFile, paths: Paths, handles: Handles, report: ImportReport) -> None:
        self.source = source
        self.paths = paths
        self.handles = handles
        self.report = report
        self.topics: dict[int, Topic] = {}
        self.routers: list[Router] = []
        self.next_topic_id = max(source.snapshot.next_topic_id, 1)
        self.suspect: set[str] = set()
        """WAL files with something in them that was not taken over."""
        self._cache = Cache()
        self._ended: set[int] = set()
        self._heads: dict[int, int] = {}
        """As of the snapshot: an Append at or below is contained in it."""
        self._tangles: dict[int, Tangle] = {}
        self._by_name: dict[str, RustRouter] = {router.name: router for router in source.snapshot.routers}

    def run(self, groups: list[RustGroup], tell: Tell) -> None:
        items = list(in_order(groups))
        self._find_ended(items)
        self._tangles = find_tangled(items, {row.id: row.head for row in self.source.snapshot.topics})
        for number, row in enumerate(self.source.snapshot.topics):
            self.next_topic_id = max(self.next_topic_id, row.id + 1)
            if row.id not in self._ended:
                self.topics[row.id] = self._load(row)
            tell(0.5 * (number + 1) / len(self.source.snapshot.topics))
        for number, (read, item) in enumerate(items):
            self._apply(read, item)
            if not number % 1024:
                tell(0.5 + 0.5 * number / len(items))
        self._close()

    # -- the snapshot --------------------------------------------------------------------------------------------------

    def _load(self, row: RustTopic) -> Topic:
        source = self.source
        config = self._config(row.config, source.path, 0, row.name)
        topic = Topic(row.id, row.name, config, self.paths.topic(row.id), self.handles)
        topic.evict_floor, topic.expiry_floor, topic.trim_floor = row.evict_floor, row.expiry_floor, row.trim_floor
        # What was popped from the front was deleted on purpose, unless an involuntary floor says otherwise.
        topic.delete_below = max(row.delete_below, row.delete_floor + 1, row.base)
        floor = max(topic.involuntary_floor, topic.delete_below - 1)
        topic.head = max(row.head, floor)
        if topic.head - floor > SPAN_MAX:
            raise CorruptFile(source.path, 0, f"topic {row.name!r} spans {topic.head - floor} seqs")
        topic.dead.raise_floor(floor)
        times = never_falling(row.times, 0)
        self._note_moved(row.name, row.seqs, np.asarray(row.times, dtype=np.uint64), times)
        last = floor
        for first, count, entries, block in snapshot_blocks(row, source.path, source.view, self._cache, times, floor):
            topic.dead.mark(last + 1, first - 1)
            topic.tail.add(first, entries, count).place(first, block)
            topic.live += count
            topic.bytes += int(live_sizes(memoryview(entries), None).sum(dtype=np.uint64))
            last = first + count - 1
        topic.dead.mark(last + 1, topic.head)
        topic.last_ts = int(times[-1]) if len(times) else 0
        topic.created_ts = int(times[0]) if len(times) else source.snapshot.ts
        if topic.durability == Durability.EPHEMERAL and row.head:
            topic.lost.add(1, row.head, LostReason.RESTART)
            self.report.add(Finding("ephemeral", row.name, 1, row.head))
        for seq in row.broken:
            self.report.add(Finding("broken_json", row.name, seq, seq, path=source.path))
        self._heads[row.id] = row.head
        topic.ordered = topic.published()
        return topic

    # -- which topics there are ----------------------------------------------------------------------------------------

    def _find_ended(self, items: list[tuple[FileRead, Item]]) -> None:
        """By id, as in our own replay: the name may live on under a higher one."""
        names = {row.id: row.name for row in self.source.snapshot.topics}
        newest = {name: topic_id for topic_id, name in sorted(names.items())}
        for read, item in items:
            if item[0] not in (Kind.TOPIC_CREATE, Kind.TOPIC_DELETE):
                continue
            frame = self._frame(read, item)
            if item[0] == Kind.TOPIC_CREATE:
                name = names[frame.topic_id] = self._body(read, frame, TopicCreate).name
            else:
                name = self._body(read, frame, TopicDelete).name
                self._ended.add(frame.topic_id)
            newest[name] = max(newest.get(name, 0), frame.topic_id)
        self._ended.update(topic_id for topic_id, name in names.items() if topic_id < newest[name])

    # -- frames --------------------------------------------------------------------------------------------------------

    def _apply(self, read: FileRead, item: Item) -> None:
        kind, topic_id = item[0], item[1]
        self.report.frames += item[3] if kind == Kind.APPEND else 1
        if kind >= OURS:
            raise CorruptFile(read.wal.path, item[-2], f"a frame of kind {kind} is none of the Rust program")
        if kind in (Kind.ROUTER_CREATE, Kind.ROUTER_DELETE):
            self._router(read, self._frame(read, item))
            return
        if kind == Kind.CHECKPOINT_MARK or topic_id in self._ended:
            return
        if topic_id >= SEQ_MAX:
            raise CorruptFile(read.wal.path, item[5], f"the topic id {topic_id} is out of all bounds")
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)
        if kind == Kind.TOPIC_CREATE:
            self._create(read, self._frame(read, item))
            return
        topic = self.topics.get(topic_id)
        if topic is None:
            self.suspect.add(read.wal.path)
            why = f"a frame of kind {kind} for topic id {topic_id}"
            self.report.add(Finding("unknown_topic", path=read.wal.path, offset=item[5], why=why))
        elif kind == Kind.APPEND:
            self._append(read, topic, item)
        else:
            self._control(read, topic, self._frame(read, item))

    def _create(self, read: FileRead, frame: Frame) -> None:
        body = self._body(read, frame, TopicCreate)
        config = self._config(body.config_json, read.wal.path, frame.offset, body.name)
        topic = self.topics.get(frame.topic_id)
        if topic is not None:
            topic.apply_config(config)
            return
        topic = Topic(frame.topic_id, body.name, config, self.paths.topic(frame.topic_id), self.handles)
        topic.created_ts = frame.ts
        self.topics[frame.topic_id] = topic

    def _append(self, read: FileRead, topic: Topic, item: Item) -> None:
        first, count, index = item[2], item[3], item[4]
        entries = bytes(memoryview(read.entries)[index * ENTRY_SIZE : (index + count) * ENTRY_SIZE])
        column = np.frombuffer(entries, dtype=ENTRY_DTYPE)
        absorbed = int(np.searchsorted(column["offset"].astype(np.int64) + column["length"], read.start, side="right"))
        contained = max(self._heads.get(topic.id, 0) + 1 - first, 0)
        skip = min(max(absorbed, contained), count)
        if skip == count:
            return
        first, entries, offset = first + skip, entries[skip * ENTRY_SIZE :], int(column["offset"][skip])
        tangle = self._tangles.get(topic.id)
        if tangle is None:
            self._take(read, topic, first, entries, offset)
            return
        again = min(tangle.highest + 1 - first, count - skip)
        if again > 0:
            self.suspect.add(read.wal.path)
            why = f"the log was at {tangle.highest} already"
            finding = Finding("out_of_order", topic.name, first, first + again - 1, read.wal.path, offset, why)
            self.report.add(finding, again)
        tangle.add(read, first, entries)

    def _untangle(self, topic: Topic, tangle: Tangle) -> None:
        """All is read: put the records in order. What was deleted nobody misses; what else is not there is told."""
        if topic.queue is not None:
            topic.queue.forget_all(sorted(tangle.deleted))
        for read, first, entries in tangle.runs(topic.head):
            self._pass(topic, tangle, first - 1)
            self._take(read, topic, first, entries, int.from_bytes(entries[:4], "little"))
        self._pass(topic, tangle, tangle.highest)

    def _pass(self, topic: Topic, tangle: Tangle, through: int) -> None:
        for low, high in tangle.silent(topic.head + 1, through):
            if low > topic.head + 1:
                self._lose(topic, topic.head + 1, low - 1, "hole", "", 0)
            topic.apply_lost(low, high, LostReason.SKIPPED)

    def _take(self, read: FileRead, topic: Topic, first: int, entries: bytes, offset: int) -> None:
        if first > topic.head + 1:
            self._lose(topic, topic.head + 1, first - 1, "hole", read.wal.path, offset)
        count = len(entries) // ENTRY_SIZE
        stated = np.frombuffer(entries, dtype=ENTRY_DTYPE)["ts"]
        times = never_falling(stated, topic.last_ts)
        if (times == stated).all():
            topic.tail.add(first, entries, count).place(first, read.wal)
        else:
            self._note_moved(topic.name, range(first, first + count), stated, times)
            block = MovedBlock(read.wal.path, self._cache, read.view, entries, times)
            entries = moved_entries(entries, times)
            topic.tail.add(first, entries, count).place(first, block)
        accounted = int(live_sizes(memoryview(entries), None).sum(dtype=np.uint64))
        topic.apply_append(first, count, accounted, int(times[-1]))
        topic.ordered = topic.published()

    def _lose(self, topic: Topic, first: int, last: int, kind: FindingKind, path: str, offset: int) -> None:
        """Whether somebody had them nobody can tell, so readers hear of it."""
        if last - first >= SPAN_MAX or last >= SEQ_MAX:
            raise CorruptFile(path, offset, f"topic {topic.name!r} goes on behind {last} where {first} was expected")
        topic.apply_lost(first, last, LostReason.CRASH)
        self.report.add(Finding(kind, topic.name, first, last, path, offset))

    def _control(self, read: FileRead, topic: Topic, frame: Frame) -> None:
        if frame.kind == Kind.DELETE:
            self._delete(topic, self._body(read, frame, Delete))
        elif frame.kind == Kind.EVICT_WATERMARK:
            floors = self._body(read, frame, EvictWatermark)
            self._check_seq(read, frame, max(floors.evict_floor, floors.expiry_floor))
            topic.apply_evict(floors.evict_floor, floors.expiry_floor)
        elif frame.kind == Kind.HEAD_WATERMARK:
            ceiling = self._body(read, frame, HeadWatermark).ceiling
            self._check_seq(read, frame, ceiling)
            topic.apply_ceiling(ceiling)
        elif frame.kind == Kind.LEASE:
            apply_lease_frame(topic, frame, self._body(read, frame, Lease))
        else:
            config = self._body(read, frame, TopicCreate)
            topic.apply_config(self._config(config.config_json, read.wal.path, frame.offset, config.name))
        topic.ordered = topic.published()

    def _delete(self, topic: Topic, delete: Delete) -> None:
        """A selector reaches what was there when it was asked for: seqs below the bound."""
        if not delete.seqs and delete.match is None and delete.before_seq is None:
            return
        bound = delete.bound if delete.bound is not None else SEQ_MAX
        if delete.before_seq is not None:
            bound = min(bound, delete.before_seq)
        if topic.id in self._tangles:
            self._tangles[topic.id].delete(bound, delete.match, delete.seqs)
        bound = min(bound, topic.head + 1)
        if delete.seqs:
            topic.apply_delete(0, tuple(runs_of(sorted(set(delete.seqs)))))
        elif delete.match is not None:
            topic.apply_delete(0, join_ranges(find_tagged(self.handles, topic, delete.match, bound)))
        else:
            topic.apply_delete(bound, ())

    def _router(self, read: FileRead, frame: Frame) -> None:
        if frame.kind == Kind.ROUTER_DELETE:
            self._by_name.pop(self._body(read, frame, RouterDelete).name, None)
            return
        made = self._body(read, frame, RouterCreate)
        router = RustRouter(made.name, made.source, made.dest, made.bits, made.filter, made.cursor)
        known = self._by_name.get(made.name)
        if known is not None and (known.source, known.dest) == (made.source, made.dest):
            router = replace(router, cursor=max(known.cursor, made.cursor), forwarded=known.forwarded)
        self._by_name[made.name] = router

    # -- the end -------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Reserved seqs that were not found, and routers by the ids of the topics that are there."""
        self.topics = dict(sorted(self.topics.items()))
        for topic in self.topics.values():
            if topic.id in self._tangles:
                self._untangle(topic, self._tangles[topic.id])
            if topic.durability == Durability.DISK and topic.ceiling > topic.head:
                self._lose(topic, topic.head + 1, topic.ceiling, "reserved", "", 0)
            topic.ceiling = topic.ceiling_asked = topic.head
            topic.ordered = topic.published()
        named = {topic.name: topic for topic in self.topics.values()}
        for made in sorted(self._by_name.values(), key=lambda router: router.name):
            source, dest = named.get(made.source), named.get(made.dest)
            if source is None or dest is None:
                why = f"router {made.name!r} from {made.source!r} to {made.dest!r}"
                self.report.add(Finding("router_dropped", why=why))
                continue
            cursor = min(made.cursor, source.head)
            router_id, self.next_topic_id = self.next_topic_id, self.next_topic_id + 1
            self.routers.append(
                Router(
                    router_id, made.name, made.source, made.dest, source.id, dest.id, made.bits, made.filter, cursor,
                    cursor, made.forwarded,
                )
            )  # fmt: skip

    # -- small parts ---------------------------------------------------------------------------------------------------

    def _note_moved(self, name: str, seqs: object, stated: np.ndarray, times: np.ndarray) -> None:
        places = np.flatnonzero(times != stated)
        if len(places):
            first, last = (int(seqs[int(places[at])]) for at in (0, -1))  # type: ignore[index]
            self.report.add(Finding("time_moved", name, first, last), len(places))

    @staticmethod
    def _check_seq(read: FileRead, frame: Frame, seq: int) -> None:
        if seq >= SEQ_MAX:
            raise CorruptFile(read.wal.path, frame.offset, f"the seq {seq} is out of all bounds")

    @staticmethod
    def _config(text: bytes, path: str, offset: int, name: str) -> TopicConfig:
        try:
            return msgspec.json.decode(text, type=TopicConfig).resolved()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptFile(path, offset, f"the config of {name!r} is not valid: {error}") from None

    @staticmethod
    def _frame(read: FileRead, item: Item) -> Frame:
        return decode_frame(read.view, item[-2], item[-1])

    @staticmethod
    def _body(read: FileRead, frame: Frame, kind: type[Body]) -> Body:
        try:
            return kind.decode(frame.body)  # type: ignore[attr-defined, no-any-return]
        except BadBody as error:
            raise CorruptFile(read.wal.path, frame.offset, f"its body is not valid: {error}") from None
