"""Frames that are made when a checkpoint, or a search, wants them: those of the snapshot's records, and those of the
WAL whose time has to be moved. So an import holds one block in memory, whatever the size of the store."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from topics.format.frame import Kind, decode_frame, encode_frame
from topics.format.rustsnapshot import RustTopic, read_record
from topics.format.segment import ENTRY_DTYPE, encode_entry
from topics.storage.tail import MadeSource

_BLOCK_BYTES: Final = 2 * 1024 * 1024
_BLOCK_RECORDS: Final = 4096

Times = npt.NDArray[np.uint64]


class Cache:
    """The block that was made last: a checkpoint asks for the same one a few times in a row."""

    __slots__ = ("data", "owner")

    def __init__(self) -> None:
        self.owner: MadeSource | None = None
        self.data = b""


class _Block(MadeSource):
    __slots__ = ("_cache",)

    def __init__(self, path: str, cache: Cache) -> None:
        super().__init__(path)
        self._cache = cache

    def make(self) -> bytes:
        if self._cache.owner is not self:
            self._cache.owner, self._cache.data = self, b"".join(self.frames())
        return self._cache.data

    def frames(self) -> Iterator[bytes]:
        raise NotImplementedError


class SnapshotBlock(_Block):
    """Records of one topic of a snapshot, consecutive in seq."""

    __slots__ = ("_file", "_places", "_times", "_topic_id")

    def __init__(
        self, path: str, cache: Cache, file: memoryview, topic_id: int, places: array[int], times: Times
    ) -> None:
        super().__init__(path, cache)
        self._file = file
        self._topic_id = topic_id
        self._places = places
        self._times = times

    def frames(self) -> Iterator[bytes]:
        for place, ts in zip(self._places, self._times.tolist(), strict=True):
            yield read_record(self._file, place).frame(self._topic_id, ts)


class MovedBlock(_Block):
    """Appends of a WAL file with other times than they were logged with."""

    __slots__ = ("_entries", "_file", "_times")

    def __init__(self, path: str, cache: Cache, file: memoryview, entries: bytes, times: Times) -> None:
        super().__init__(path, cache)
        self._file = file
        self._entries = entries
        self._times = times

    def frames(self) -> Iterator[bytes]:
        column = np.frombuffer(self._entries, dtype=ENTRY_DTYPE)
        for offset, length, ts in zip(
            column["offset"].tolist(), column["length"].tolist(), self._times.tolist(), strict=True
        ):
            frame = decode_frame(self._file, offset, offset + length)
            yield encode_frame(
                Kind.APPEND, frame.topic_id, frame.body, seq=frame.seq, ts=ts, flags=frame.flags, node=frame.node,
                tag=frame.tag,
            )  # fmt: skip


def never_falling(times: npt.ArrayLike, last_ts: int) -> Times:
    """The times, each at least the one before it: searches by time rest on that."""
    column = np.asarray(times, dtype=np.uint64)
    risen: Times = np.maximum.accumulate(np.concatenate((np.array([last_ts], dtype=np.uint64), column)))[1:]
    return risen


def moved_entries(entries: bytes, times: Times) -> bytes:
    """Entries of the same frames, one behind the other from byte 0 and with these times."""
    column = np.frombuffer(entries, dtype=ENTRY_DTYPE).copy()
    column["offset"] = np.concatenate(([0], np.cumsum(column["length"][:-1], dtype=np.uint32)))
    column["ts"] = times
    return column.tobytes()


def snapshot_blocks(
    topic: RustTopic, path: str, file: memoryview, cache: Cache, times: Times, above: int
) -> Iterator[tuple[int, int, bytes, SnapshotBlock]]:
    """(first seq, count, entries, source) of the topic's records above a seq, in runs of consecutive ones."""
    seqs, sizes, start, end = topic.seqs, topic.sizes, 0, len(topic.seqs)
    while start < end and seqs[start] <= above:
        start += 1
    while start < end:
        stop, size = start, 0
        entries = bytearray()
        while (
            stop < end
            and stop - start < _BLOCK_RECORDS
            and size <= _BLOCK_BYTES
            and seqs[stop] == seqs[start] + stop - start
        ):
            entries += encode_entry(size, sizes[stop], int(times[stop]), topic.flags[stop], topic.accounted[stop])
            size += sizes[stop]
            stop += 1
        block = SnapshotBlock(path, cache, file, topic.id, topic.places[start:stop], times[start:stop])
        yield seqs[start], stop - start, bytes(entries), block
        start = stop
