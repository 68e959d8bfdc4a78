"""A data directory that no store has open, read without a server.

Readers share the directory's lock, so no store starts while they read; whoever finds it held by a store is sent to
`url`. A plan is good while the directory stays as it was: each task looks again, and plans its seqs anew if a store
ran in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import numpy as np

from topics.format.ops import WAL_LAYOUT, restamp_staged
from topics.format.segment import ENTRY, ENTRY_DTYPE, ENTRY_SIZE
from topics.format.snapshot import SegmentRow
from topics.host.fs import Fs, OsFs
from topics.host.sharing import share_directory
from topics.model.config import Durability
from topics.model.errors import CorruptFile, StorageError, StoreLocked, TopicNotFound, UnknownVersion
from topics.rules.gap import floor_reason
from topics.spark.frames import Frames, Wanted, read_rows, slices
from topics.spark.places import Damage, Head, Loss, Plan, SegmentPlace, Span, WalPlace
from topics.spark.ranges import clipped, without
from topics.spark.rest_names import LOCK, segment_path
from topics.spark.rest_state import RestState, RestTopic, newest_snapshot, read_state, store_id, topic_of
from topics.spark.rows import Rows
from topics.spark.segment_files import REMEDIES, SegmentFiles
from topics.spark.words import OPTIONS, Words

log = logging.getLogger("topics.spark")

_T = TypeVar("_T")

_LIVE_TRIES: Final = 100
_LIVE_WAIT_S: Final = 0.05
"""A running store removes files before it writes the snapshot that does not list them, which is some milliseconds on a
disk that is not busy: so often, and so long in between, such a snapshot is looked for."""
_CHANGING: Final = re.compile(r"(snapshot-\d+\.bin|wal-\d+\.log|CURRENT|FORMAT)")


class RestOrigin:
    def __init__(self, root: str, live: bool = False, fs: Fs | None = None, words: Words = OPTIONS) -> None:
        self.root = os.path.abspath(root)
        self.live = live
        self._words = words
        self._fs: Fs = fs or OsFs()
        self._state: RestState | None = None
        self.mark = ""
        """Stands for the directory as it was when its state was read."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A task gets the directory's name and what it looked like, not what was read of it."""
        return _remade, (self.root, self.live, self.mark, self._words)

    # -- what there is -------------------------------------------------------------------------------------------------

    def load(self) -> RestState:
        if self._state is None:
            with self._held():
                self._state = self._read()
        return self._state

    def _read(self) -> RestState:
        return self._tried(self._read_once)

    def _tried(self, do: Callable[[], _T]) -> _T:
        """Again, where a running store has removed a file, and the snapshot without it is still to come."""
        for tries_left in reversed(range(_LIVE_TRIES if self.live else 1)):
            try:
                return do()
            except FileNotFoundError as error:
                if not tries_left:
                    raise _missing(error, self.root) from error
                self._state = None
                time.sleep(_LIVE_WAIT_S)
        raise AssertionError("the last try returns or raises")

    def _read_once(self) -> RestState:
        self.mark = fingerprint(self.root)
        state = sealed_state(self._fs, self.root) if self.live else read_state(self._fs, self.root)
        now_ms = time.time_ns() // 1_000_000
        for topic in state.topics.values():
            if topic.config.ttl_ms:
                topic.expiry_floor = max(topic.expiry_floor, self._first_at(topic, now_ms - topic.config.ttl_ms) - 1)
        return state

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """The directory, kept from changing; in live mode it changes all the time, and that is known."""
        if not os.path.isdir(self.root):
            raise UnknownVersion(
                f"{self.root} is not a directory on this machine: name the data directory of a stopped store, or its "
                f"server with {self._words.url}",
                path=self.root,
            )
        if self.live:
            yield
            return
        try:
            lock = share_directory(self.root, LOCK)
        except BlockingIOError:
            told = f"{self.root} is open in a running process: read through its server with {self._words.url}"
            live = self._words.live
            more = " or stop it" if live is None else f", stop it, or set {live} to read the sealed segments alone"
            raise StoreLocked(f"{told}{more}", path=self.root) from None
        except OSError as error:
            raise StorageError(f"{self.root} cannot be read: {error}", path=self.root) from error
        try:
            yield
        finally:
            lock.release()

    def topic_names(self) -> list[str]:
        return sorted(self.load().topics)

    def heads(self, asked: dict[str, int], wait_ms: int = 0) -> dict[str, Head]:
        """Those of the asked topics that exist. Nothing comes while a directory is at rest; a stream that waits here
        sees what a store wrote that ran in between."""
        if self._state is not None and fingerprint(self.root) != self.mark:
            self._state = None
        state = self.load()
        for name in asked if self.live else ():
            if name in state.topics:
                log.warning(
                    "allowLive: of topic %r the records up to seq %d are read; those behind it, and deletes since the "
                    "last checkpoint, are left out",
                    name,
                    state.topics[name].head,
                )
        heads = {
            name: Head(f"{state.store}-{topic.id}", topic.id, topic.head, _durable_seq(topic), topic.earliest_seq)
            for name in asked
            if (topic := state.topics.get(name)) is not None
        }
        if wait_ms and all(head.head_seq < asked[name] for name, head in heads.items()):
            time.sleep(wait_ms / 1000)
        return heads

    def seq_at(self, name: str, ts: int) -> int:
        """The first seq whose time is `ts` or later, or head + 1."""
        with self._held():
            return self._tried(lambda: self._first_at(self._topic(name), ts))

    def _topic(self, name: str) -> RestTopic:
        topic = self.load().topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def _first_at(self, topic: RestTopic, ts: int) -> int:
        """Times never go back within a topic, so every layer is searched by halves."""
        start = topic.floor + 1
        segments: list[tuple[SegmentRow, int]] = []
        """And where each begins, with what is gone before it."""
        gone: int | None = None
        for row in topic.segments:
            if row.first + row.count <= start or not row.count:
                continue
            if self._is_gone(topic, row):
                gone = row.first if gone is None else gone
            else:
                segments.append((row, max(row.first if gone is None else gone, start)))
                gone = None

        def times(row: SegmentRow) -> np.ndarray:
            found: np.ndarray = np.frombuffer(self._files(topic, row).entries, dtype=ENTRY_DTYPE)["ts"]
            return found

        at = bisect_left(segments, True, key=lambda one: int(times(one[0])[-1]) >= ts)
        if at < len(segments):
            row, begin = segments[at]
            low = max(start - row.first, 0)
            position = int(np.searchsorted(times(row)[low:], ts))
            return row.first + low + position if position else begin
        for piece in topic.tail:
            column = np.frombuffer(bytes(piece.entries), dtype=ENTRY_DTYPE)["ts"]
            position = int(np.searchsorted(column, ts))
            if position < len(column):
                return piece.first_seq + position if position or gone is None else max(gone, start)
            gone = None
        return topic.head + 1

    def _is_gone(self, topic: RestTopic, row: SegmentRow) -> bool:
        """Whether nothing lives there and its files went; a store that is killed then has it in its snapshot still."""
        end = row.first + row.count
        if without(row.first, end, topic.dead_between(row.first, end)):
            return False
        return not self._fs.exists(segment_path(self.root, topic.id, row.first, "data"))

    def _files(self, topic: RestTopic, row: SegmentRow) -> SegmentFiles:
        return SegmentFiles(self._fs, self._segment(topic, row, ()))

    def _segment(self, topic: RestTopic, row: SegmentRow, dead: tuple[tuple[int, int], ...]) -> SegmentPlace:
        path = segment_path(self.root, topic.id, row.first, "data")
        return SegmentPlace(
            row.first, row.first + row.count, row.data_len, row.generation, row.sealed, path, row.idx_xxh3, dead
        )

    # -- planning ------------------------------------------------------------------------------------------------------

    def plan(self, name: str, topic_id: int, start: int, end: int) -> Plan:
        """Where the seqs start..end of a topic are; what is lost of them; `end` is at most head + 1."""
        topic = self._topic(name)
        losses: list[Loss] = []
        floor = topic.involuntary_floor
        if start <= floor and start < end:
            reason = floor_reason(start, topic.evict_floor, topic.expiry_floor)
            losses.append(Loss(name, start, min(floor, end - 1), reason))
        for first, last, why in topic.lost:
            if last >= start and first < end:
                losses.append(Loss(name, max(first, start), min(last, end - 1), why))
        told = [(loss.gap_from, loss.gap_to) for loss in losses]
        spans: list[Span] = []
        at = max(start, topic.floor + 1)
        for low, high in without(at, end, told):
            spans += self._spans(topic, low, high)
        return Plan(spans, losses)

    def _spans(self, topic: RestTopic, start: int, end: int) -> list[Span]:
        spans: list[Span] = []
        for row in topic.segments:
            low, high = max(start, row.first), min(end, row.first + row.count)
            if low < high:
                dead = clipped(topic.dead_between(low, high), low, high)
                if not without(low, high, dead):
                    continue  # nothing lives there; the files may be gone
                size = row.data_len * (high - low) // row.count
                spans.append(Span(topic.name, topic.id, low, high, size, self._segment(topic, row, dead)))
        for piece in topic.tail:
            low, high = max(start, piece.first_seq, topic.ckpt_seq + 1), min(end, piece.end_seq)
            if low < high:
                entries = bytes(piece.entries[(low - piece.first_seq) * 20 : (high - piece.first_seq) * 20])
                size = int(np.frombuffer(entries, dtype=ENTRY_DTYPE)["length"].sum(dtype=np.int64))
                dead = clipped(topic.dead_between(low, high), low, high)
                place = WalPlace(piece.path, entries, dead, piece.staged)
                spans.append(Span(topic.name, topic.id, low, high, size, place))
        self._check_whole(topic, start, end, spans)
        return spans

    def _check_whole(self, topic: RestTopic, start: int, end: int, spans: list[Span]) -> None:
        """Every live seq is somewhere."""
        covered = [(span.start_seq, span.end_seq - 1) for span in spans]
        for low, high in without(start, end, sorted(covered)):
            for first, _ in without(low, high, topic.dead_between(low, high)):
                directory = segment_path(self.root, topic.id, 0, "data").rsplit("/", 1)[0]
                why = f"record {first} of topic {topic.name!r} is in no segment and not in the WAL"
                raise CorruptFile(directory, 0, why)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, spans: list[Span], wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        with self._held():
            same = fingerprint(self.root) == self.mark
            if not same:
                self._state = self._read()
            for span in spans:
                if same:
                    try:
                        yield from self._read_span(span, wanted)
                        continue
                    except FileNotFoundError as error:
                        if not self.live:
                            raise _missing(error, self.root) from error
                        self._state = self._read()
                yield from self._read_anew(span, wanted)

    def _read_anew(self, span: Span, wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        """The directory is another than the plan knew."""
        at, head = span.start_seq, 0
        for tries_left in reversed(range(_LIVE_TRIES if self.live else 1)):
            topic = self.load().topics.get(span.topic)
            if topic is None or topic.id != span.topic_id:
                yield Loss(span.topic, at, span.end_seq - 1, "recreated")
                return
            head = topic.head
            try:
                for item in self._planned(span, at, min(span.end_seq, head + 1)):
                    yield from [item] if isinstance(item, Loss) else self._read_span(item, wanted)
                    at = item.gap_to + 1 if isinstance(item, Loss) else item.end_seq
                break
            except FileNotFoundError as error:
                if not tries_left:
                    raise _missing(error, self.root) from error
                time.sleep(_LIVE_WAIT_S)
                self._state = self._read()
        if span.end_seq > head + 1:  # the directory of an older state, such as a backup that was put back
            yield Loss(span.topic, max(span.start_seq, head + 1), span.end_seq - 1, "recreated")

    def _planned(self, span: Span, start: int, end: int) -> list[Span | Loss]:
        """The seqs start..end of the span as they are planned now, in their order."""
        plan = self.plan(span.topic, span.topic_id, start, end)
        return sorted(
            [*plan.spans, *plan.losses], key=lambda one: one.gap_from if isinstance(one, Loss) else one.start_seq
        )

    def _read_span(self, span: Span, wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        place = span.place
        if isinstance(place, SegmentPlace):
            yield from SegmentFiles(self._fs, place).read(span, place.dead, wanted)
            return
        assert isinstance(place, WalPlace)
        view = self._fs.open(place.path).map()
        if place.staged:
            yield from _read_staged(span, place, view, wanted)
            return
        frames = Frames(
            span.topic, span.topic_id, place.path, span.start_seq, view, place.entries, 0, WAL_LAYOUT
        )  # fmt: skip
        yield from read_rows(frames, place.dead, wanted)


def _durable_seq(topic: RestTopic) -> int | None:
    """What is at rest is on the disk, but an ephemeral topic never promised that anything would be."""
    return None if topic.config.commit_class == Durability.EPHEMERAL else topic.head


def _read_staged(span: Span, place: WalPlace, view: memoryview, wanted: Wanted) -> Iterator[Rows | Damage]:
    """Staged frames as a segment would hold them, a slice at a time: each is proven while its seq is put in."""
    for start, stop in slices(place.entries):
        while start < stop:
            data, index = bytearray(), bytearray()
            first = span.start_seq + start
            done = restamp_staged(view, place.entries, start, stop - start, first, None, data, index)
            frames = Frames(span.topic, span.topic_id, place.path, first, data, index, 0)
            yield from read_rows(frames, place.dead, wanted)
            start += done
            if start < stop:
                offset = ENTRY.unpack_from(place.entries, start * ENTRY_SIZE)[0]
                yield Damage(span.topic, span.start_seq + start, place.path, offset)
                start += 1


def _remade(root: str, live: bool, mark: str, words: Words) -> RestOrigin:
    origin = RestOrigin(root, live, words=words)
    origin.mark = mark
    return origin


def _missing(error: FileNotFoundError, root: str) -> CorruptFile:
    return CorruptFile(error.filename or root, 0, f"the file is missing, and it holds live records: {REMEDIES}")


def sealed_state(fs: Fs, root: str) -> RestState:
    """The sealed segments that the newest snapshot lists: all that can be read beside a running store."""
    snapshot, _ = newest_snapshot(fs, root)
    topics: dict[str, RestTopic] = {}
    for row in snapshot.topics:
        topic = topic_of(row)
        topic.segments = [segment for segment in topic.segments if segment.sealed]
        last = topic.segments[-1].first + topic.segments[-1].count - 1 if topic.segments else topic.floor
        topic.head = topic.ckpt_seq = last
        topic.settle()
        topics[topic.name] = topic
    return RestState(store_id(fs, root), topics)


def fingerprint(root: str) -> str:
    """Changes whenever a store has had the directory open: it writes a new WAL file at every start."""
    seen = hashlib.sha256()
    for directory, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in ("topics", "quarantine"))
        for name in sorted(names):
            if _CHANGING.fullmatch(name):
                try:
                    found = os.stat(f"{directory}/{name}")
                except FileNotFoundError:  # a running store has removed it since
                    continue
                seen.update(f"{directory}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return seen.hexdigest()
