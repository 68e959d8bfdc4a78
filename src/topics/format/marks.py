"""Bodies of CheckpointMark: u64 last_seq, then one of our extensions, told apart by a byte.

(nothing)  PlainMark      as the reference writes it
u8 1       SnapshotMark   u64 snapshot_id, u32 n, n x row: which state a checkpoint wrote; for tools
u8 2       SyncMark       u64 file_number, u64 synced: evidence that bytes below `synced` were on disk
u8 3       FileMark       u64 number, u64 previous, u64 previous_length: the first frame of every WAL file; the
                          chain tells a missing, swapped or shortened file
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from topics.format.fields import BadBody, FieldReader

SNAPSHOT_EXT: Final = 1
SYNC_EXT: Final = 2
FILE_EXT: Final = 3

_ROW: Final = struct.Struct("<QQQQQQQI")
_SYNC: Final = struct.Struct("<QBQQ")
SYNC_BODY: Final = _SYNC.size


class PlainMark(msgspec.Struct, frozen=True):
    last_seq: int

    def encode(self) -> bytes:
        return struct.pack("<Q", self.last_seq)


class MarkRow(msgspec.Struct, frozen=True):
    """What the checkpoint knows of one changed topic."""

    topic_id: int
    ckpt_seq: int
    evict_floor: int
    expiry_floor: int
    delete_below: int
    segment_first: int
    data_len: int
    idx_entries: int


class SnapshotMark(msgspec.Struct, frozen=True):
    last_seq: int
    snapshot_id: int
    rows: tuple[MarkRow, ...] = ()

    def encode(self) -> bytes:
        head = struct.pack("<QBQI", self.last_seq, SNAPSHOT_EXT, self.snapshot_id, len(self.rows))
        return head + b"".join(_ROW.pack(*msgspec.structs.astuple(row)) for row in self.rows)


class SyncMark(msgspec.Struct, frozen=True):
    last_seq: int
    file_number: int
    synced: int

    def encode(self) -> bytes:
        return _SYNC.pack(self.last_seq, SYNC_EXT, self.file_number, self.synced)


class FileMark(msgspec.Struct, frozen=True):
    last_seq: int
    number: int
    previous: int
    """0 = the first file of its shard."""
    previous_length: int

    def encode(self) -> bytes:
        return struct.pack("<QBQQQ", self.last_seq, FILE_EXT, self.number, self.previous, self.previous_length)


Mark = PlainMark | SnapshotMark | SyncMark | FileMark


def decode_mark(body: bytes) -> Mark:
    reader = FieldReader(body)
    last_seq = reader.u64()
    mark: Mark
    if not reader.left():
        return PlainMark(last_seq)
    extension = reader.u8()
    if extension == SNAPSHOT_EXT:
        snapshot_id, count = reader.u64(), reader.u32()
        if count * _ROW.size != reader.left():
            raise BadBody(f"{count} rows do not fill the {reader.left()} bytes left")
        rows = tuple(MarkRow(*row) for row in _ROW.iter_unpack(body[len(body) - reader.left() :]))
        return SnapshotMark(last_seq, snapshot_id, rows)
    if extension == SYNC_EXT:
        mark = SyncMark(last_seq, reader.u64(), reader.u64())
    elif extension == FILE_EXT:
        mark = FileMark(last_seq, reader.u64(), reader.u64(), reader.u64())
    else:
        raise BadBody(f"mark extension {extension} is unknown")
    reader.finish()
    return mark
