"""Where the newest records of a topic are: packed 20-byte entries over WAL files or RAM blocks.

An entry has the layout of `.idx` (`format/segment.py`), its offset counting from the start of the WAL file. Entries
are stored when a record is ordered and read only up to the published head. A chunk's buffer is replaced, never
resized, so a view taken by a reader or a checkpoint stays valid while writers go on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from topics.format.ops import rebase
from topics.format.segment import ENTRY

ENTRY_SIZE = ENTRY.size
_CHUNK_MIN = 16
_CHUNK_MAX = 65_536


class Source(Protocol):
    """Bytes that entries point into: a WAL file, or a RAM block of an ephemeral topic."""

    @property
    def path(self) -> str: ...

    def read_at(self, offset: int, size: int) -> bytes: ...

    def map(self) -> memoryview: ...


class MadeSource:
    """A source whose bytes are made whenever they are asked for: whoever asks uses them and lets them go."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def make(self) -> bytes:
        raise NotImplementedError

    def read_at(self, offset: int, size: int) -> bytes:
        return self.make()[offset : offset + size]

    def map(self) -> memoryview:
        return memoryview(self.make())


class Chunk:
    """Entries of consecutive seqs from `first_seq`."""

    __slots__ = ("buffer", "count", "first_seq", "places", "ram")

    def __init__(self, first_seq: int, capacity: int, ram: bool) -> None:
        self.first_seq = first_seq
        self.count = 0
        self.buffer = bytearray(capacity * ENTRY_SIZE)
        self.ram = ram
        self.places: list[tuple[int, Source]] = []
        """(first seq, source): the source holds the seqs from there to the next place."""

    @property
    def end_seq(self) -> int:
        return self.first_seq + self.count

    def room(self, count: int) -> bool:
        need = (self.count + count) * ENTRY_SIZE
        if need <= len(self.buffer):
            return True
        if self.count + count > _CHUNK_MAX:
            return False
        grown = bytearray(max(need, min(2 * len(self.buffer), _CHUNK_MAX * ENTRY_SIZE)))
        grown[: self.count * ENTRY_SIZE] = memoryview(self.buffer)[: self.count * ENTRY_SIZE]
        self.buffer = grown
        return True

    def place(self, first_seq: int, source: Source) -> None:
        if not self.places or self.places[-1][1] is not source:
            self.places.append((first_seq, source))

    def source_of(self, seq: int) -> tuple[Source, int]:
        """The source of `seq`, and the seq at which that source ends."""
        at = bisect_right(self.places, seq, key=lambda place: place[0])
        end = self.places[at][0] if at < len(self.places) else self.end_seq
        return self.places[at - 1][1], end


class Tail:
    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def add(self, first_seq: int, entries: bytes | bytearray | memoryview, count: int, ram: bool = False) -> Chunk:
        """Store `count` entries; the seqs must lie above every seq stored before."""
        chunk = self.chunks[-1] if self.chunks else None
        if (
            chunk is None
            or chunk.first_seq + chunk.count != first_seq
            or chunk.ram != ram
            or not ((chunk.count + count) * ENTRY_SIZE <= len(chunk.buffer) or chunk.room(count))
        ):
            assert chunk is None or chunk.end_seq <= first_seq, "entries are stored in seq order"
            # Behind a full chunk comes as much again: growing step by step would copy and clear it all once more.
            full = chunk is not None and chunk.ram == ram and chunk.end_seq == first_seq
            chunk = Chunk(first_seq, max(count, _CHUNK_MAX if full else _CHUNK_MIN), ram)
            self.chunks.append(chunk)
        start = chunk.count * ENTRY_SIZE
        chunk.buffer[start : start + count * ENTRY_SIZE] = entries
        chunk.count += count
        return chunk

    def settle(self, chunk: Chunk, first_seq: int, count: int, source: Source, offset: int) -> None:
        """The records from `first_seq` lie in `source`, their frames beginning at `offset`."""
        if offset:
            rebase(chunk.buffer, first_seq - chunk.first_seq, count, offset)
        if not chunk.places or chunk.places[-1][1] is not source:
            chunk.place(first_seq, source)

    def find(self, seq: int) -> Chunk | None:
        """The chunk that holds `seq`."""
        at = bisect_right(self.chunks, seq, key=lambda chunk: chunk.first_seq) - 1
        if at < 0:
            return None
        chunk = self.chunks[at]
        return chunk if seq < chunk.end_seq else None

    def between(self, first: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """(chunk, first seq, end seq) of what is stored of first..end."""
        at = max(bisect_right(self.chunks, first, key=lambda chunk: chunk.first_seq) - 1, 0)
        for chunk in self.chunks[at:]:
            low, high = max(first, chunk.first_seq), min(end, chunk.end_seq)
            if low < high:
                yield chunk, low, high
            elif chunk.first_seq >= end:
                return

    def drop_through(self, seq: int) -> None:
        """Forget chunks wholly at or below `seq`; RAM is the only place of what it holds, so it stays."""
        if self.chunks and self.chunks[0].end_seq <= seq + 1:
            self.chunks = [chunk for chunk in self.chunks if chunk.ram or chunk.end_seq > seq + 1]

    def cut_after(self, seq: int) -> None:
        """Forget every entry above `seq`: those were ordered and will not be committed."""
        while self.chunks and self.chunks[-1].first_seq > seq:
            self.chunks.pop()
        if self.chunks and self.chunks[-1].end_seq > seq + 1:
            chunk = self.chunks[-1]
            chunk.count = seq + 1 - chunk.first_seq
            while chunk.places and chunk.places[-1][0] > seq:
                chunk.places.pop()

    def ram_ranges(self) -> Iterator[tuple[int, int]]:
        for chunk in self.chunks:
            if chunk.ram and chunk.count:
                yield chunk.first_seq, chunk.end_seq - 1


class RamBlock:
    """Frames of an ephemeral topic. Fixed size, so that views of it stay valid."""

    __slots__ = ("buffer", "path", "used")
    SIZE = 256 * 1024

    def __init__(self, size: int) -> None:
        self.path = "<memory>"
        self.buffer = bytearray(size)
        self.used = 0

    def room(self, size: int) -> bool:
        return self.used + size <= len(self.buffer)

    def add(self, frames: bytes | bytearray) -> int:
        offset = self.used
        self.buffer[offset : offset + len(frames)] = frames
        self.used += len(frames)
        return offset

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(memoryview(self.buffer)[offset : min(offset + size, self.used)])

    def map(self) -> memoryview:
        return memoryview(self.buffer).toreadonly()
