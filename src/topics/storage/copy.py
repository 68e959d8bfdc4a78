"""Copying one topic's records from the WAL into its segments, and what a checkpoint changes in those files.

Nothing here is believed before its sync: the topic's segment list moves on only when `.data` (and, of a sealed pair,
`.idx`) was synced and MANIFEST says so. After a failure the list is as before, so the next checkpoint writes the same
bytes again before it syncs again.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace

import numpy as np

from topics.format.checksum import xxh3_64
from topics.format.manifest import Manifest, encode_manifest
from topics.format.mending import has_lost_place
from topics.format.ops import SEGMENT_LAYOUT, find_blank, is_keyless
from topics.format.segment import DELETED, ENTRY, ENTRY_DTYPE, HOLE
from topics.host.clock import Clock
from topics.host.files import FILES_USUAL
from topics.host.fs import File, Fs, parent, read_exact, replace_file, write_all
from topics.model import limits
from topics.storage.cut import Piece, TopicCut
from topics.storage.handles import Handles
from topics.storage.leftovers import discard_unlisted, remove_pair
from topics.storage.options import StoreOptions
from topics.storage.partfile import PartSource
from topics.storage.restamping import fill_holes, restamp_piece
from topics.storage.segment import Segment
from topics.storage.sidecars import build_sidecars, has_tags
from topics.storage.tail import ENTRY_SIZE, MadeSource, Source
from topics.storage.topic import Topic
from topics.storage.whole import WholePairs

_BLOCK_BYTES = 4 * 1024 * 1024
_BLOCK_RECORDS = 16_384
_ALL_LIVE = b""
"""The mask of a piece in which nothing is dead."""
_SHARE = 32
"""Small topics that one turn in the pool does: a turn for each would cost as much as its copying."""


@dataclass(slots=True)
class CopyTools:
    fs: Fs
    clock: Clock
    options: StoreOptions
    handles: Handles
    lock: AbstractContextManager[object]
    maps: dict[str, memoryview] = field(default_factory=dict)
    """WAL files mapped for this checkpoint: the records of one topic may lie far apart in them."""

    pool: Executor | None = None
    """Where syncs run beside the copying; None = in place."""
    files_max: int = FILES_USUAL
    """How many files the process may have open, those of others included."""

    def mapped(self, source: Source) -> memoryview:
        if isinstance(source, PartSource | MadeSource):
            # Read once, and there may be more of them than a process may keep open, or in memory.
            return source.map()
        view = self.maps.get(source.path)
        if view is None:
            view = self.maps[source.path] = source.map()
        return view

    def copy_all(self, cuts: list[TopicCut]) -> list[list[Segment]]:
        """Do the part of every topic in `cuts`; their segments, in the same order. Raises the first failure, when no
        other part is under way any more.

        Topics with little to copy run in the pool, some side by side: each spends its time waiting for a handful of
        syncs of its own files, which no other topic touches. Without a pool they run in order, so that a simulation
        repeats.
        """
        make_topic_directories(self.fs, cuts)
        if self.pool is None:
            return [TopicCopy(self, cut).run() for cut in cuts]
        inside = replace(self, pool=None)  # what runs in the pool must not wait for anything behind it in the pool
        large = self.options.segment_max_events
        small = [cut for cut in cuts if sum(piece.count for piece in cut.pieces) < large]
        found: dict[int, list[Segment]] = {}
        stop = threading.Event()
        parts: list[Future[None]] = []
        try:
            for at in range(0, len(small), _SHARE):
                parts.append(self.pool.submit(inside.copy_share, small[at : at + _SHARE], found, stop))
            alone = {cut.topic.id for cut in small}
            for cut in cuts:
                if cut.topic.id not in alone:
                    found[cut.topic.id] = TopicCopy(self, cut).run()
            wait(parts, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            for part in parts:
                part.cancel()
            wait(parts)
        for part in parts:
            if not part.cancelled():
                part.result()
        return [found[cut.topic.id] for cut in cuts]

    def copy_share(self, share: list[TopicCut], found: dict[int, list[Segment]], stop: threading.Event) -> None:
        """The parts of some topics, one after the other, unless it all stops."""
        for cut in share:
            if stop.is_set():
                return
            try:
                found[cut.topic.id] = TopicCopy(self, cut).run()
            except BaseException:
                stop.set()
                raise


def make_topic_directories(fs: Fs, cuts: list[TopicCut]) -> None:
    """The directories of topics that get their first pair: one sync for all of them.

    Synced also where one is there already: an attempt before this one may have failed, or been killed, between making
    the directory and syncing its name.
    """
    directories = [cut.topic.directory for cut in cuts if cut.pieces and not cut.topic.segments]
    for directory in directories:
        if not fs.exists(directory):
            with suppress(FileExistsError):  # made meanwhile by the first staged part
                fs.mkdir(directory)
    if directories:
        fs.sync_dir(parent(directories[0]))


class TopicCopy:
    """One topic's part of one checkpoint."""

    def __init__(self, tools: CopyTools, cut: TopicCut) -> None:
        self.tools = tools
        self.cut = cut
        self.topic: Topic = cut.topic
        self.segments = list(self.topic.segments)
        """As they will be. The topic's own change only in `_advance`: those that have to before are copies."""
        self.copies: dict[int, Segment | None] = {}
        """First seqs of the copies: what each was made of, None where the pair is new."""
        if self.segments and not self.segments[-1].sealed:
            self._own(len(self.segments) - 1)
        self.touched: set[int] = set()
        """First seqs of pairs whose `.data` has bytes that are not synced."""
        self.list_changed = False
        self.new_names = False
        self.dropped: list[Segment] = []
        self.syncs: list[Future[None]] = []
        self.begun: list[Segment] = []
        """New pairs, from before their first file is made."""
        self.whole = WholePairs(tools, cut, self.begun)

    def run(self) -> list[Segment]:
        """Do it all; returns the topic's segments as the snapshot should list them."""
        tools = self.tools
        try:
            try:
                self._drop_dead()
                self._set_flags()
                self._copy_pieces()
                if self.segments and not self.segments[-1].sealed and self._is_due(self.segments[-1]):
                    self._seal()
                self._sync()
            finally:
                self._settle()
            self._write_manifest()
        except Exception:
            discard_unlisted(tools.fs, tools.handles, self.topic, self.begun)
            raise
        self._advance()
        for segment in self.dropped:
            remove_pair(tools.fs, tools.handles, segment)
        return self.segments

    def _own(self, index: int) -> Segment:
        """The segment at `index` as a copy, to be changed."""
        segment = self.segments[index]
        if segment.first_seq not in self.copies:
            self.copies[segment.first_seq] = segment
            segment = self.segments[index] = segment.twin()
        return segment

    # -- deletes ----------------------------------------------------------------------------------------------------

    def _drop_dead(self) -> None:
        """Sealed pairs with nothing live leave the list; their files go once MANIFEST does not name them."""
        kept: list[Segment] = []
        dead = self.cut.dead
        for segment in self.segments:
            last = segment.end_seq - 1
            gone = last <= dead.floor or dead.count(segment.first_seq, last) == segment.count
            if segment.sealed and gone:
                self.dropped.append(segment)
            else:
                kept.append(segment)
        if self.dropped:
            self.segments = kept
            self.list_changed = True

    def _set_flags(self) -> None:
        """The delete byte of every frame in the deleted ranges; one write each, because no other byte may change."""
        if not self.cut.unflagged:
            return
        for index, segment in enumerate(self.segments):
            flagged = False
            for first, last in self.cut.unflagged:
                low, high = max(first, segment.first_seq), min(last + 1, segment.end_seq)
                if low >= high:
                    continue
                entries = self.tools.handles.entries(segment, low - segment.first_seq, high - low)
                column = np.frombuffer(entries, dtype=ENTRY_DTYPE)
                ends = (column["offset"].astype(np.int64) + column["length"])[column["length"] > 0]
                file = self.tools.handles.file(segment.path("data"))
                for end in ends.tolist():
                    if end <= segment.data_len:
                        write_all(file, end - 1, [bytes([DELETED])])
                        flagged = True
            if flagged:
                self.touched.add(segment.first_seq)
                if segment.sealed:
                    self._own(index).generation += 1
                    self.list_changed = True

    # -- records ----------------------------------------------------------------------------------------------------

    def _copy_pieces(self) -> None:
        pieces = self.cut.pieces
        index = at = 0
        mask: bytes | None = None
        while index < len(pieces):
            piece = pieces[index]
            if at >= piece.count:  # by more than nothing where a whole pair reached into the next
                index, at, mask = index + 1, at - piece.count, None
                continue
            if mask is None:
                mask = self.cut.dead.mask(piece.first_seq, piece.count) or _ALL_LIVE
            if not self._has_room(piece.first_seq + at):
                # A segment begins with a live record: dead ones in front of it need no place anywhere.
                at = _first_live(mask, at, piece.count)
                if at == piece.count:
                    continue
                whole = self.whole.plan(index, at)
                if whole is not None:
                    self._take(whole)
                    at += whole.count
                    continue
                self._open_pair(piece.first_seq + at)
            at += self._copy_block(piece, mask, at)

    def _has_room(self, seq: int) -> bool:
        """True if `seq` may go into the active pair; otherwise that is sealed."""
        if not self.segments or self.segments[-1].sealed:
            return False
        active = self.segments[-1]
        if self._is_due(active) or seq - active.end_seq > limits.HOLE_RUN or not self._adopt(active):
            self._seal()
            return False
        return True

    def _adopt(self, active: Segment) -> bool:
        """Make the index of a pair that an earlier life left. False where its records rotted: what came behind them
        would be found by that index alone, which is not synced while the pair grows."""
        if not active.foreign:
            return True
        entries = self.tools.handles.rebuilt(active)
        if has_lost_place(entries):
            return False
        idx_file = self.tools.handles.file(active.path("idx"))
        idx_file.truncate(0)
        write_all(idx_file, 0, [entries])
        active.foreign = False
        return True

    def _is_due(self, active: Segment) -> bool:
        options = self.tools.options
        age_ms = (self.tools.clock.monotonic_ns() - active.opened_ns) // 1_000_000
        return (
            active.count >= options.segment_max_events
            or active.data_len >= options.segment_max_bytes
            or bool(options.segment_max_age_ms and age_ms >= options.segment_max_age_ms)
        )

    def _open_pair(self, first_seq: int) -> None:
        segment = Segment(
            self.topic.directory, first_seq, 0, 0, keyless=True, opened_ns=self.tools.clock.monotonic_ns()
        )
        self.tools.handles.forget(segment)
        self.begun.append(segment)
        for part in ("data", "idx"):
            file = self.tools.fs.open(segment.path(part), write=True, create=True)
            if file.size():  # left by a checkpoint that failed
                file.truncate(0)
        self._take(segment)

    def _take(self, segment: Segment) -> None:
        """A pair that is new in the list."""
        self.segments.append(segment)
        self.copies[segment.first_seq] = None
        self.list_changed = self.new_names = True

    def _copy_block(self, piece: Piece, mask: bytes, at: int) -> int:
        """Copy records of `piece` from index `at` into the active pair, as many as one read and the pair take."""
        active = self.segments[-1]
        count = self._block_size(active, np.frombuffer(piece.entries, dtype=ENTRY_DTYPE), at)
        dead = mask[at : at + count] or None
        first = piece.first_seq + at
        data, idx = bytearray(), bytearray()
        holes = first - active.end_seq
        idx += ENTRY.pack(active.data_len, 0, 0, HOLE, b"\0\0\0") * holes
        buffer = self.tools.mapped(piece.source)
        restamp_piece(self.topic, piece, buffer, dead, at, count, active.data_len, data, idx)
        if active.keyless:
            active.keyless = is_keyless(data, idx, 0, holes + count, SEGMENT_LAYOUT, active.data_len)
        if holes or dead is not None:
            fill_holes(idx, self._last_ts(active) if idx[16] & HOLE else 0)
        self._extend(active, data, idx)
        active.count += holes + count
        active.data_len += len(data)
        return count

    def _last_ts(self, active: Segment) -> int:
        """The time of the last entry; 0 in an empty pair."""
        if not active.count:
            return 0
        entry = self.tools.handles.entries(active, active.count - 1, 1)
        return int.from_bytes(entry[8:16], "little")

    def _block_size(self, active: Segment, column: np.ndarray, at: int) -> int:
        """Records that fit: the pair's limits are looked at before each record, and one read stays bounded."""
        options = self.tools.options
        room = max(options.segment_max_events - active.count, 1)
        count = min(len(column) - at, room, _BLOCK_RECORDS)
        lengths = column["length"][at : at + count]
        total = int(lengths.sum(dtype=np.int64))
        if total <= _BLOCK_BYTES and active.data_len + total < options.segment_max_bytes:
            return count
        sizes = np.cumsum(lengths, dtype=np.int64)
        fits = max(int(np.searchsorted(sizes, _BLOCK_BYTES, side="right")), 1)
        reaches = int(np.searchsorted(sizes, options.segment_max_bytes - active.data_len, side="left")) + 1
        return min(count, fits, reaches)

    def _extend(self, active: Segment, data: bytearray, idx: bytearray) -> None:
        handles = self.tools.handles
        data_file = handles.file(active.path("data"))
        idx_file = handles.file(active.path("idx"))
        if active.first_seq not in self.touched and data_file.size() > active.data_len:
            data_file.truncate(active.data_len)  # left by a checkpoint that failed
        write_all(data_file, active.data_len, [data])
        write_all(idx_file, active.count * ENTRY_SIZE, [idx])
        self.touched.add(active.first_seq)

    # -- sealing ----------------------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """The active pair becomes immutable. Its names and lengths count once MANIFEST is durable."""
        active = self.segments[-1]
        handles = self.tools.handles
        size = active.count * ENTRY_SIZE
        idx_file = handles.file(active.path("idx"))
        entries = b"" if active.foreign else read_exact(idx_file, 0, size)
        # Its hash vouches for the index from now on, so what turned to zeros meanwhile must not get one.
        if active.foreign or find_blank(entries, active.count) < active.count:
            entries = handles.rebuilt(active)
            write_all(idx_file, 0, [entries])
            active.foreign = False
        if idx_file.size() > size:
            idx_file.truncate(size)
        data_file = handles.file(active.path("data"))
        if data_file.size() > active.data_len:
            data_file.truncate(active.data_len)
        self._sync_soon([idx_file, data_file], active.data_len)
        self.touched.discard(active.first_seq)
        active.idx_xxh3 = xxh3_64(entries)
        active.sealed = True
        self._write_sidecars(active, entries)
        self.list_changed = True

    def _write_sidecars(self, segment: Segment, entries: bytes) -> None:
        """`.tags` and `.keys`. They are derived, so trouble with them is no trouble for the segment."""
        if segment.keyless:
            segment.keys = False
            if not has_tags(entries):
                return
        try:
            data = read_exact(self.tools.handles.file(segment.path("data")), 0, segment.data_len)
            sidecars = build_sidecars(data, entries, segment.first_seq, segment.keyless)
            for part, content in sidecars.items():
                replace_file(self.tools.fs, segment.path(part), content)
            segment.tags, segment.keys = "tags" in sidecars, "keys" in sidecars
        except (OSError, EOFError, ValueError):
            pass

    # -- making it count --------------------------------------------------------------------------------------------

    def _sync_soon(self, files: list[File], sealed_size: int = 0) -> None:
        """Sync files before the next `_wait_syncs` returns. With a size the last is the `.data` of a pair being sealed.
        They are one piece of work: its start and end in the pool cost callers more than the syncs one by one."""
        if self.tools.pool is None:
            self._sync_files(files, sealed_size)
        else:
            self.syncs.append(self.tools.pool.submit(self._sync_files, files, sealed_size))

    def _sync_files(self, files: list[File], sealed_size: int) -> None:
        for file in files:
            file.sync()
        if sealed_size:
            self.tools.handles.written(files[-1].path, sealed_size)

    def _wait_syncs(self) -> None:
        """Raise the first failure; nothing that was to be synced counts then."""
        syncs, self.syncs = self.syncs, []
        wait(syncs)
        for sync in syncs:
            sync.result()

    def _settle(self) -> None:
        """Until nothing is under way, whatever comes of it: the next checkpoint writes and syncs the same files, and of
        two syncs of one file at once the kernel may tell only one that it failed. A sync that failed is told even where
        something else did before it: it says more of the disk."""
        wait(self.syncs)
        self.whole.settle()
        self._wait_syncs()

    def _sync(self) -> None:
        for first_seq in sorted(self.touched):
            segment = next((s for s in self.segments if s.first_seq == first_seq), None)
            if segment is not None:
                self._sync_soon([self.tools.handles.file(segment.path("data"))])
        self._wait_syncs()
        self.whole.wait()
        if self.new_names:
            self.tools.fs.sync_dir(self.topic.directory)

    def _write_manifest(self) -> None:
        if not self.list_changed:
            return
        manifest = Manifest(self.topic.id, [segment.entry() for segment in self.segments])
        replace_file(self.tools.fs, f"{self.topic.directory}/MANIFEST", encode_manifest(manifest))

    def _advance(self) -> None:
        cut, topic = self.cut, self.topic
        with self.tools.lock:
            copies = self.copies
            segments: list[Segment] = []
            for segment in self.segments:
                if segment.first_seq in copies:
                    before = copies[segment.first_seq]
                    same = before is not None and before.count == segment.count
                    segment.live, segment.bytes = (
                        (before.live, before.bytes) if before is not None and same else (-1, 0)
                    )
                    segment = segment.twin()  # the snapshot's row is made of the other one, without the lock
                segments.append(segment)
            copied = max(topic.copied, cut.copy_through)
            done = set(cut.unflagged)
            unflagged = [item for item in topic.unflagged if item not in done]
            # Records deleted since the cut were copied as live ones; their frames get the flag next time.
            unflagged += _died_since(topic, cut, topic.copied + 1, copied)
            # At one go, so that a signal leaves all of it or nothing.
            topic.segments, topic.copied, topic.unflagged = segments, copied, unflagged
            topic.tail.drop_through(copied)


def _first_live(mask: bytes, at: int, count: int) -> int:
    """The first number from `at` on whose record is live, `count` where none is."""
    if not mask:
        return at
    found = mask.find(b"\0", at)
    return found if found >= 0 else count


def _died_since(topic: Topic, cut: TopicCut, first: int, last: int) -> list[tuple[int, int]]:
    first = max(first, topic.involuntary_floor + 1)
    if first > last or topic.dead.version == cut.dead_version:
        return []
    now, then = topic.dead.mask(first, last - first + 1), cut.dead.mask(first, last - first + 1)
    if now is None:
        return []
    fresh = np.frombuffer(now, dtype=np.uint8) != 0
    if then is not None:
        fresh &= np.frombuffer(then, dtype=np.uint8) == 0
    edges = np.flatnonzero(np.diff(np.concatenate(([0], fresh.astype(np.int8), [0]))))
    return [
        (first + low, first + high - 1) for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]
