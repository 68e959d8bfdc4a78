"""The topics of a directory at rest: the newest snapshot, and what the WAL behind it changed.

The rules are those of recovery (docs/internals/recovery.md), without its second half: nothing is repaired, and whatever
is in doubt is refused. Only what a reader of records needs is kept: which seqs exist, which of them are gone and why,
and where the rest lies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from topics.format.checksum import xxh3_64
from topics.format.container import BadContainer
from topics.format.control import (
    BadBody,
    Delete,
    EvictWatermark,
    HeadWatermark,
    LostRange,
    LostReason,
    TopicCreate,
    TopicDelete,
)
from topics.format.frame import MORE, Frame, Kind, decode_frame
from topics.format.ops import index_staged
from topics.format.segment import ENTRY_SIZE
from topics.format.snapshot import SegmentRow, Snapshot, TopicRow, decode_snapshot
from topics.format.staged import HEADER_MAX, StageCommit, StageVerdict, decode_head
from topics.host.fs import Fs, read_file
from topics.model.config import Durability, TopicConfig
from topics.model.errors import CorruptFile, UnknownVersion
from topics.model.record import GapReason
from topics.spark.rest_names import FORMAT_LINE, group_directory, part_path, snapshot_paths
from topics.spark.rest_wal import WalPart, read_group

_WORDS: Final[dict[int, GapReason]] = {
    LostReason.CRASH: "crash",
    LostReason.CORRUPT: "corrupt",
    LostReason.RESTART: "restart",
    LostReason.SOURCE_TRIM: "source_trim",
}

_SILENT: Final = frozenset(
    {
        Kind.CHECKPOINT_MARK, Kind.DEDUPE, Kind.GROUP, Kind.LEASE, Kind.ROUTER_CREATE, Kind.ROUTER_DELETE,
        Kind.ROUTER_CURSOR, Kind.STAGE_VERDICT, Kind.TOKEN_WATERMARK,
    }
)  # fmt: skip
"""Frames that change nothing for a reader of records."""


@dataclass(slots=True)
class TailPiece:
    """Records that only a WAL file or a staged part holds: consecutive seqs from `first_seq`, one entry each."""

    path: str
    first_seq: int
    entries: bytearray
    staged: bool = False

    @property
    def end_seq(self) -> int:
        return self.first_seq + len(self.entries) // ENTRY_SIZE


@dataclass(slots=True)
class RestTopic:
    id: int
    name: str
    config: TopicConfig
    head: int = 0
    ckpt_seq: int = 0
    ceiling: int = 0
    evict_floor: int = 0
    expiry_floor: int = 0
    trim_floor: int = 0
    delete_below: int = 0
    segments: list[SegmentRow] = field(default_factory=list)
    tail: list[TailPiece] = field(default_factory=list)
    dead: list[tuple[int, int]] = field(default_factory=list)
    """Inclusive ranges that no reader gets; ascending and disjoint once `settle` ran."""
    lost: list[tuple[int, int, GapReason]] = field(default_factory=list)
    """Those of them that were lost against anyone's will, above the involuntary floors."""

    @property
    def involuntary_floor(self) -> int:
        return max(self.evict_floor, self.expiry_floor, self.trim_floor)

    @property
    def floor(self) -> int:
        """Every seq at or below it is gone."""
        return max(self.involuntary_floor, self.delete_below - 1)

    @property
    def earliest_seq(self) -> int:
        """The first live seq, or head + 1."""
        seq = self.floor + 1
        for first, last in self.dead_between(seq, self.head + 1):
            if first > seq:
                break
            seq = max(seq, last + 1)
        return min(seq, self.head + 1)

    def dead_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """The gone ranges that touch start..end, the floor's among them."""
        at = bisect_right(self.dead, start, key=lambda row: row[1] + 1)
        found = [(1, self.floor)] if self.floor >= start else []
        while at < len(self.dead) and self.dead[at][0] < end:
            found.append(self.dead[at])
            at += 1
        return found

    def lose(self, first: int, last: int, reason: int) -> None:
        self.dead.append((first, last))
        if reason != LostReason.SKIPPED:
            self.lost.append((first, last, _WORDS[reason]))
        self.head = max(self.head, last)

    def settle(self) -> None:
        """Put the ranges in order; the first word about a seq stays."""
        self.dead = union(self.dead)
        kept: list[tuple[int, int, GapReason]] = []
        for first, last, reason in sorted(self.lost):
            first = max(first, self.involuntary_floor + 1, kept[-1][1] + 1 if kept else 0)
            if first > last:
                continue
            if kept and kept[-1][1] + 1 == first and kept[-1][2] == reason:
                kept[-1] = (kept[-1][0], last, reason)
            else:
                kept.append((first, last, reason))
        self.lost = kept


@dataclass(slots=True)
class RestState:
    store: str
    topics: dict[str, RestTopic]


def union(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def gone_mask(ranges: Iterable[tuple[int, int]], first: int, count: int) -> bytes | None:
    """One byte per seq from `first`, nonzero where one of the inclusive ranges has it; None where none does."""
    mask = None
    for low, high in ranges:
        low, high = max(low, first), min(high, first + count - 1)
        if low <= high:
            if mask is None:
                mask = np.zeros(count, dtype=np.uint8)
            mask[low - first : high - first + 1] = 1
    return None if mask is None else mask.tobytes()


def store_id(fs: Fs, root: str) -> str:
    """The id of the store in this directory; UnknownVersion if there is none that we can read."""
    try:
        lines = read_file(fs, f"{root}/meta/FORMAT").decode("utf-8", "replace").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownVersion(f"{root} is not a data directory of topics: it has no meta/FORMAT", path=root) from None
    if lines[0] != FORMAT_LINE or len(lines) < 2 or not lines[1]:
        raise UnknownVersion(f"{root}/meta/FORMAT says {lines[:1]!r}; this version reads {FORMAT_LINE!r}", path=root)
    return lines[1]


def newest_snapshot(fs: Fs, root: str) -> tuple[Snapshot, bool]:
    """The newest valid snapshot, and whether a newer one is damaged."""
    damaged = False
    for path in snapshot_paths(fs, root):
        try:
            return decode_snapshot(read_file(fs, path)), damaged
        except BadContainer:
            damaged = True
    raise CorruptFile(f"{root}/meta", 0, "there is no valid snapshot; restore the directory from a backup")


def topic_of(row: TopicRow) -> RestTopic:
    return RestTopic(
        row.id, row.name, msgspec.json.decode(row.config, type=TopicConfig), row.head, row.ckpt_seq, row.ceiling,
        row.evict_floor, row.expiry_floor, row.trim_floor, row.delete_below, list(row.segments), [], list(row.dead),
        [(first, last, _WORDS[reason]) for first, last, reason in row.lost],
    )  # fmt: skip


def read_state(fs: Fs, root: str) -> RestState:
    """Everything up to the last whole submission. The directory must not change meanwhile."""
    store = store_id(fs, root)
    snapshot, damaged = newest_snapshot(fs, root)
    groups = [read_group(fs, group_directory(root, key), at) for key, at in sorted(snapshot.positions.items())]
    replay = _Replay(fs, root, snapshot, [part for group in groups for part in group])
    topics = replay.run()
    clean = snapshot.clean and not damaged and not replay.frames
    same_boot = _same_boot(fs, root)
    for topic in topics.values():
        if not clean and topic.config.commit_class == Durability.DISK and topic.ceiling > topic.head:
            # Reserved and not found: handed out perhaps. With the page cache of that life still there, nothing is lost.
            topic.lose(topic.head + 1, topic.ceiling, LostReason.SKIPPED if same_boot else LostReason.CRASH)
        topic.settle()
    return RestState(store, {topic.name: topic for topic in topics.values()})


def _same_boot(fs: Fs, root: str) -> bool:
    try:
        return read_file(fs, f"{root}/meta/BOOT").decode("utf-8", "replace") == fs.identity(root)
    except FileNotFoundError:
        return False


class _Replay:
    def __init__(self, fs: Fs, root: str, snapshot: Snapshot, parts: list[WalPart]) -> None:
        self._fs = fs
        self._root = root
        self.snapshot = snapshot
        self.parts = parts
        self.frames = 0
        self._topics: dict[int, RestTopic] = {}
        self._ended: set[int] = set(snapshot.dropped)
        self._after_config: int | None = None
        self._follows_config: int | None = None
        """The topic whose new config the frame before this one brought, in the same submission."""
        self._apply: dict[int, Callable[[WalPart, Frame, RestTopic], None]] = {
            Kind.DELETE: self._delete,
            Kind.EVICT_WATERMARK: self._evict,
            Kind.HEAD_WATERMARK: self._reserve,
            Kind.LOST_RANGE: self._lost,
            Kind.CONFIG_UPDATE: self._configure,
            Kind.STAGE_COMMIT: self._commit,
            Kind.STAGE_PREPARE: self._commit,
        }
        self._decided: set[tuple[str, int, int, int]] = set()
        """(txn, topic id, first seq, count) of the Prepares that count."""

    def run(self) -> dict[int, RestTopic]:
        self._find_ended()
        self._find_decided()
        self._topics = {row.id: topic_of(row) for row in self.snapshot.topics if row.id not in self._ended}
        for part, item in self._items():
            self._take(part, item)
        return self._topics

    def _items(self) -> Iterator[tuple[WalPart, tuple[int, ...]]]:
        for part in self.parts:
            if part.scan is not None:
                for item in part.scan.items:
                    yield part, item

    def _find_ended(self) -> None:
        """By id alone: a name that was created again may live on another shard, so order says nothing about it."""
        names = {row.id: row.name for row in self.snapshot.topics}
        newest = {name: topic_id for topic_id, name in sorted(names.items())}
        for part, item in self._items():
            if item[0] in (Kind.TOPIC_CREATE, Kind.TOPIC_DELETE):
                frame = _frame(part, item)
                if item[0] == Kind.TOPIC_CREATE:
                    name = names[frame.topic_id] = _body(part, frame, TopicCreate).name
                else:
                    name = _body(part, frame, TopicDelete).name
                    self._ended.add(frame.topic_id)
                newest[name] = max(newest.get(name, 0), frame.topic_id)
        self._ended.update(topic_id for topic_id, name in names.items() if topic_id < newest[name])

    def _find_decided(self) -> None:
        """Verdicts lie on shard 0, their Prepares anywhere: they are collected first."""
        for kept in self.snapshot.verdicts:
            self._decided.update((kept.txn, *row) for row in kept.rows)
        for part, item in self._items():
            if item[0] == Kind.STAGE_VERDICT:
                verdict = _body(part, _frame(part, item), StageVerdict)
                self._decided.update((verdict.txn, *row) for row in verdict.rows)

    def _take(self, part: WalPart, item: tuple[int, ...]) -> None:
        kind, topic_id = item[0], item[1]
        self.frames += 1
        if kind in _SILENT or topic_id in self._ended:
            return
        if kind == Kind.TOPIC_CREATE:
            frame = _frame(part, item)
            if topic_id not in self._topics:
                body = _body(part, frame, TopicCreate)
                self._topics[topic_id] = RestTopic(topic_id, body.name, _config(part, frame, body))
            return
        topic = self._topics.get(topic_id)
        if topic is None:
            return  # recovery reports such frames and leaves them out, too
        if kind == Kind.APPEND:
            self._append(part, topic, item)
            return
        apply = self._apply.get(kind)
        if apply is None:
            raise UnknownVersion(
                f"{part.path} holds a frame of kind {kind} that a reader of a directory at rest does not know: "
                "start `topics serve` on it and read through url",
                path=part.path,
            )
        self._follows_config, self._after_config = self._after_config, None
        apply(part, _frame(part, item), topic)

    def _append(self, part: WalPart, topic: RestTopic, item: tuple[int, ...]) -> None:
        _kind, _id, first, count, index, start = item[:6]
        skip = max(topic.ckpt_seq + 1 - first, 0)
        if skip >= count:
            return
        first += skip
        if first != topic.head + 1:
            why = f"topic {topic.name!r} goes on with record {first} where {topic.head + 1} was expected"
            raise CorruptFile(part.path, start, why)
        low, high = (index + skip) * ENTRY_SIZE, (index + count) * ENTRY_SIZE
        piece = topic.tail[-1] if topic.tail else None
        if piece is not None and not piece.staged and piece.path == part.path and piece.end_seq == first:
            piece.entries += part.entries[low:high]
        else:
            topic.tail.append(TailPiece(part.path, first, part.entries[low:high]))
        topic.head = first + count - skip - 1

    def _commit(self, part: WalPart, frame: Frame, topic: RestTopic) -> None:
        """Staged parts become records; a Prepare that nobody decided leaves its seqs as holes."""
        commit = _body(part, frame, StageCommit)
        first, last = commit.first_seq, commit.first_seq + commit.count - 1
        if last <= topic.ckpt_seq or last < first:
            return
        if first != topic.head + 1:
            why = f"topic {topic.name!r} goes on with record {first} where {topic.head + 1} was expected"
            raise CorruptFile(part.path, frame.offset, why)
        if frame.kind == Kind.STAGE_PREPARE and (commit.txn, topic.id, first, commit.count) not in self._decided:
            topic.lose(first, last, LostReason.SKIPPED)
            return
        for number, count in commit.parts:
            if count:
                path = part_path(self._root, topic.id, number)
                topic.tail.append(TailPiece(path, first, read_part(self._fs, path, count, commit.ts), True))
                first += count
        topic.head = last

    def _delete(self, part: WalPart, frame: Frame, topic: RestTopic) -> None:
        delete = _body(part, frame, Delete)
        if delete.match is None and delete.before_seq:
            topic.delete_below = max(topic.delete_below, delete.before_seq)
            topic.head = max(topic.head, delete.before_seq - 1)
        for first, last in (*delete.ranges, *((seq, seq) for seq in delete.seqs)):
            if first <= topic.head:
                topic.dead.append((first, min(last, topic.head)))

    def _evict(self, part: WalPart, frame: Frame, topic: RestTopic) -> None:
        floors = _body(part, frame, EvictWatermark)
        topic.evict_floor = max(topic.evict_floor, floors.evict_floor)
        topic.expiry_floor = max(topic.expiry_floor, floors.expiry_floor)
        topic.head = max(topic.head, topic.floor)

    def _reserve(self, part: WalPart, frame: Frame, topic: RestTopic) -> None:
        ceiling = _body(part, frame, HeadWatermark).ceiling
        if self._follows_config == topic.id and ceiling > topic.head:
            topic.lose(topic.head + 1, ceiling, LostReason.SKIPPED)
        topic.ceiling = max(topic.ceiling, ceiling)

    def _lost(self, part: WalPart, frame: Frame, topic: RestTopic) -> None:
        lost = _body(part, frame, LostRange)
        if lost.first > topic.head + 1:
            why = f"topic {topic.name!r} loses records from {lost.first} on where {topic.head + 1} was expected"
            raise CorruptFile(part.path, frame.offset, why)
        topic.lose(lost.first, lost.last, lost.reason)

    def _configure(self, part: WalPart, frame: Frame, topic: RestTopic) -> None:
        topic.config = _config(part, frame, _body(part, frame, TopicCreate))
        self._after_config = topic.id if frame.flags & MORE else None


def read_part(fs: Fs, path: str, count: int, ts: int) -> bytearray:
    """An entry for every record of a staged part, each with the time of the commit; the whole file is proven."""
    try:
        view = fs.open(path).map()
        head = decode_head(bytes(view[:HEADER_MAX]))
    except FileNotFoundError:
        raise CorruptFile(path, 0, "the file is missing, and its records were committed") from None
    except (BadBody, ValueError) as error:
        raise CorruptFile(path, 0, f"its head is not valid: {error}") from None
    entries = bytearray()
    end, _ = index_staged(view, min(head.size, len(view)), len(view), ts, entries)
    if end < len(view) or head.count != count or len(entries) != count * ENTRY_SIZE:
        raise CorruptFile(path, end, f"it does not hold {count} whole records")
    if not head.matches(xxh3_64(view[head.size :])):
        raise CorruptFile(path, 0, "its frames are not those that its head was made for")
    return entries


def _frame(part: WalPart, item: tuple[int, ...]) -> Frame:
    return decode_frame(part.view, item[-2], item[-1])


def _body(part: WalPart, frame: Frame, kind: Any) -> Any:
    try:
        return kind.decode(frame.body)
    except BadBody as error:
        raise CorruptFile(part.path, frame.offset, f"its body is not valid: {error}") from None


def _config(part: WalPart, frame: Frame, body: TopicCreate) -> TopicConfig:
    try:
        return msgspec.json.decode(body.config_json, type=TopicConfig)
    except msgspec.DecodeError as error:
        raise CorruptFile(part.path, frame.offset, f"the config of {body.name!r} is not valid: {error}") from None
