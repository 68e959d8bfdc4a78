"""Sealed pairs that a checkpoint makes at once, because the records of one topic fill them.

Such a pair is never active. Some are put together in memory, and their files made in one go while the next ones are put
together: a busy topic fills hundreds of pairs in a second, and the checkpoint has to keep up. It works beside writers
that leave it the interpreter for moments only, so it asks for it seldom.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topics.format.checksum import Buffer, xxh3_64
from topics.format.ops import SEGMENT_LAYOUT, is_keyless
from topics.format.segment import ENTRY_DTYPE
from topics.host.files import NO_DESCRIPTORS
from topics.model import limits
from topics.storage.cut import Piece, TopicCut
from topics.storage.restamping import fill_holes, restamp_piece
from topics.storage.segment import Segment
from topics.storage.sidecars import build_sidecars
from topics.storage.tail import ENTRY_SIZE

if TYPE_CHECKING:
    from topics.storage.copy import CopyTools

_PAIR_BYTES = 16 * 1024 * 1024
"""A larger pair grows block by block, so that memory stays bounded."""
_GO_BYTES = 8 * 1024 * 1024
_GO_PAIRS = 16
"""What is put together and made in one go; all its files are open at the end of it."""
_GOES = 5
"""Goes under way beside the one that is put together."""
_PAIR_FILES = 4
_FILES_SHARE = 4
"""All goes together hold at most one in so many of the files that the process may have open."""

Part = tuple[Piece, int, int]
"""Some records of a piece: the number of the first, and how many."""


@dataclass(slots=True)
class Planned:
    """A pair that has its place in the list, and no bytes yet."""

    segment: Segment
    parts: list[Part]
    size: int
    """Of its records in the WAL."""


class WholePairs:
    """The pairs of one topic in one checkpoint. None counts before `wait`."""

    def __init__(self, tools: CopyTools, cut: TopicCut, begun: list[Segment]) -> None:
        """`begun` is told of every pair before its first file is made."""
        self.tools = tools
        self.cut = cut
        self.begun = begun
        self.planned: list[Planned] = []
        self.bytes = 0
        self.pairs = min(_GO_PAIRS, max(tools.files_max // (_FILES_SHARE * _GOES * _PAIR_FILES), 1))
        """Most of one go."""
        self.hot = False
        """Those shall stay in memory."""
        self.goes: deque[Future[None]] = deque()

    def plan(self, index: int, at: int) -> Segment | None:
        """The pair of the records from number `at` of piece number `index` on; None unless they fill one up to its
        number of records. The first of them is live."""
        options = self.tools.options
        parts = self._parts(index, at, options.segment_max_events)
        if parts is None:
            return None
        size = sum(_size(*part) for part in parts)
        if size >= min(_PAIR_BYTES, options.segment_max_bytes):
            return None  # it may be full before, or is large
        first_seq = parts[0][0].first_seq + at
        segment = Segment(self.cut.topic.directory, first_seq, options.segment_max_events, 0, sealed=True)
        self.tools.handles.forget(segment)
        self.begun.append(segment)
        hot = self._is_hot(segment, size)
        if hot != self.hot:
            self._go()
        self.hot = hot
        self.planned.append(Planned(segment, parts, size))
        self.bytes += size
        if self.bytes >= _GO_BYTES or len(self.planned) >= self.pairs:
            self._go()
        return segment

    def _parts(self, index: int, at: int, wanted: int) -> list[Part] | None:
        """`wanted` consecutive records; None where there are fewer."""
        parts: list[Part] = []
        seq = 0
        for piece in self.cut.pieces[index:]:
            if seq and piece.first_seq != seq:
                return None
            count = min(piece.count - at, wanted)
            parts.append((piece, at, count))
            wanted -= count
            if not wanted:
                return parts
            at, seq = 0, piece.first_seq + piece.count
        return None

    def _is_hot(self, segment: Segment, size: int) -> bool:
        """Whether readers are to find it in memory: all of a checkpoint of usual size, the newest of a large one."""
        copied = self.cut.copy_through - self.cut.pieces[0].first_seq + 1
        left = self.cut.copy_through - segment.end_seq + 1
        each = size / segment.count
        return copied * each <= limits.BURST_BYTES or left * each <= limits.BURST_FRESH_BYTES

    def _go(self) -> None:
        planned, self.planned, self.bytes = self.planned, [], 0
        if not planned:
            return
        files = self._put_together(planned)
        if self.tools.pool is None:
            self._make(planned, files, self.hot)
            return
        while len(self.goes) >= _GOES:
            self.goes.popleft().result()
        self.goes.append(self.tools.pool.submit(self._make, planned, files, self.hot))

    def _put_together(self, planned: list[Planned]) -> list[tuple[str, Buffer]]:
        """The pairs one behind the other in one piece of memory, and then what each file of them holds."""
        data, idx = bytearray(), bytearray()
        holes = False
        for piece, at, count in _joined(planned):
            dead = self.cut.dead.mask(piece.first_seq + at, count)
            holes = holes or dead is not None
            restamp_piece(self.cut.topic, piece, self.tools.mapped(piece.source), dead, at, count, 0, data, idx)
        if holes:
            fill_holes(idx, 0)  # each pair begins with a live record, so none gets a time of another pair
        keyless = is_keyless(data, idx, 0, len(idx) // ENTRY_SIZE, SEGMENT_LAYOUT, 0)
        column = np.frombuffer(idx, dtype=ENTRY_DTYPE)
        files: list[tuple[str, Buffer]] = []
        first, low = 0, 0
        for plan in planned:
            segment = plan.segment
            last = first + segment.count
            high = int(column["offset"][last]) if last < len(column) else len(data)
            column["offset"][first:last] -= low
            pair = memoryview(data)[low:high], memoryview(idx)[first * ENTRY_SIZE : last * ENTRY_SIZE]
            files += self._finished(segment, *pair, keyless)
            first, low = last, high
        return files

    def _finished(self, segment: Segment, data: Buffer, idx: Buffer, keyless: bool) -> list[tuple[str, Buffer]]:
        segment.data_len, segment.idx_xxh3 = len(data), xxh3_64(idx)
        sidecars = build_sidecars(data, idx, segment.first_seq, keyless)
        segment.tags, segment.keys = "tags" in sidecars, "keys" in sidecars
        parts: dict[str, Buffer] = {"idx": idx, "data": data, **sidecars}
        return [(segment.path(part), content) for part, content in parts.items()]

    def _make(self, planned: list[Planned], files: list[tuple[str, Buffer]], hot: bool) -> None:
        try:
            self.tools.fs.make_files(files, hot=hot)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            # Others hold more than was thought. Each is made whole once more, so nothing of the try before counts.
            self.tools.handles.close_files()
            for file in files:
                self.tools.fs.make_files([file], hot=hot)
        if hot:
            for plan in planned:
                self.tools.handles.written(plan.segment.path("data"), plan.segment.data_len)

    def wait(self) -> None:
        """Until all of them are synced. Raises the first failure; none of them counts then."""
        self._go()
        while self.goes:
            self.goes.popleft().result()

    def settle(self) -> None:
        """Until nothing is under way, whatever comes of it: the next checkpoint makes the same files again."""
        wait(self.goes)


def _size(piece: Piece, start: int, count: int) -> int:
    column = np.frombuffer(piece.entries, dtype=ENTRY_DTYPE, count=count, offset=start * ENTRY_SIZE)
    return int(column["length"].sum(dtype=np.int64))


def _joined(planned: list[Planned]) -> list[Part]:
    """The records of all of them, in as few parts as may be."""
    parts: list[Part] = []
    for piece, at, count in (part for plan in planned for part in plan.parts):
        if parts and parts[-1][0] is piece and parts[-1][1] + parts[-1][2] == at:
            parts[-1] = (piece, parts[-1][1], parts[-1][2] + count)
        else:
            parts.append((piece, at, count))
    return parts
