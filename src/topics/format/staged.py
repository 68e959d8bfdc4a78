"""A staged part: one file of records that are durable and invisible, and the frames that make parts visible.

A part file, little-endian (`lp` is a u32 length and as many bytes):

    lp txn, lp part           whose part it is
    u32 count, u64 bytes      how many frames follow, and how long they are together
    u64 xxh3_64               over the fields before it and the xxh3_64 (8 bytes) of all that follows
    frames                    as in a segment (segment.py), with seq 0 and ts 0

Valid iff the file ends with its last frame, the sum matches, every frame is valid and has seq 0. Seqs and time come
with the commit: the frame that names the part says them, and whoever reads a record puts them in.

StageCommit and StagePrepare have one body: lp txn, lp query, u64 first_seq, u64 ts, u32 n, n x (u64 part file,
u32 count). StageVerdict: lp txn, u32 n, n x (u64 topic_id, u64 first_seq, u64 count).

Below the layouts stand the Python twins of the kernel's functions on staged frames.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from topics.format import frame, segment
from topics.format.checksum import Buffer
from topics.format.checksum import portable as xxh3_64
from topics.format.envelope import BadEnvelope, accounted_bytes
from topics.format.fields import BadBody, FieldReader, lp
from topics.format.frame import BadFrame
from topics.format.segment import ENTRY, ENTRY_SIZE, HOLE

HEADER_MAX: Final = 2 * (4 + 1024) + 20
"""More than any header is long: names have a few hundred bytes."""

_NUMBERS: Final = struct.Struct("<IQ")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_COMMIT: Final = struct.Struct("<QQI")
_PART: Final = struct.Struct("<QI")
_VERDICT: Final = struct.Struct("<QQQ")
_NO_BYTES: Final = bytes(3)


class PartHead(msgspec.Struct, frozen=True):
    txn: str
    part: str
    count: int
    frame_bytes: int
    digest: int

    def encode(self) -> bytes:
        return _fields(self.txn, self.part, self.count, self.frame_bytes) + _U64.pack(self.digest)

    @property
    def size(self) -> int:
        """Where the frames begin."""
        return 8 + len(self.txn.encode()) + len(self.part.encode()) + _NUMBERS.size + 8

    def matches(self, frames_sum: int) -> bool:
        """Whether frames with this xxh3_64 are the ones the head was made for."""
        return _digest(self.txn, self.part, self.count, self.frame_bytes, frames_sum) == self.digest


def make_head(txn: str, part: str, count: int, size: int, frames_sum: int) -> PartHead:
    """`frames_sum` is the xxh3_64 of the frames."""
    return PartHead(txn, part, count, size, _digest(txn, part, count, size, frames_sum))


def decode_head(data: bytes) -> PartHead:
    """The head at the start of `data`, or BadBody. Its sum is proven when the frames are read."""
    reader = FieldReader(data)
    return PartHead(reader.text(), reader.text(), reader.u32(), reader.u64(), reader.u64())


def _fields(txn: str, part: str, count: int, size: int) -> bytes:
    return lp(txn.encode()) + lp(part.encode()) + _NUMBERS.pack(count, size)


def _digest(txn: str, part: str, count: int, size: int, frames_sum: int) -> int:
    return xxh3_64(_fields(txn, part, count, size) + _U64.pack(frames_sum))


class StageCommit(msgspec.Struct, frozen=True):
    """Also the body of StagePrepare."""

    txn: str
    query: str
    """Empty = none was given."""
    first_seq: int
    ts: int
    parts: tuple[tuple[int, int], ...]
    """(number of the part file, its records), in the order in which they are appended."""

    @property
    def count(self) -> int:
        return sum(count for _, count in self.parts)

    def encode(self) -> bytes:
        head = lp(self.txn.encode()) + lp(self.query.encode()) + _COMMIT.pack(self.first_seq, self.ts, len(self.parts))
        return head + b"".join(_PART.pack(number, count) for number, count in self.parts)

    @classmethod
    def decode(cls, body: bytes) -> StageCommit:
        reader = FieldReader(body)
        txn, query, first_seq, ts, count = reader.text(), reader.text(), reader.u64(), reader.u64(), reader.u32()
        if reader.left() != count * _PART.size:
            raise BadBody(f"{reader.left()} bytes are not {count} parts")
        parts = tuple((reader.u64(), reader.u32()) for _ in range(count))
        return cls(txn, query, first_seq, ts, parts)


class StageVerdict(msgspec.Struct, frozen=True):
    txn: str
    rows: tuple[tuple[int, int, int], ...]
    """(topic_id, first_seq, count) of every Prepare that it decides."""

    def encode(self) -> bytes:
        head = lp(self.txn.encode()) + _U32.pack(len(self.rows))
        return head + b"".join(_VERDICT.pack(*row) for row in self.rows)

    @classmethod
    def decode(cls, body: bytes) -> StageVerdict:
        reader = FieldReader(body)
        txn, count = reader.text(), reader.u32()
        if reader.left() != count * _VERDICT.size:
            raise BadBody(f"{reader.left()} bytes are not {count} rows")
        return cls(txn, tuple((reader.u64(), reader.u64(), reader.u64()) for _ in range(count)))


# -- the twins of kernel_staged.pxi ------------------------------------------------------------------------------------


def _check_entries(entries: Buffer, start_index: int, count: int) -> None:
    if start_index < 0 or count < 0 or (start_index + count) * ENTRY_SIZE > len(entries):
        raise ValueError(f"entries {start_index}..{start_index + count} lie outside {len(entries)} bytes of entries")


def stage_frames(frames: bytearray, entries: bytearray, count: int) -> bytes:
    """The frames of a prepared batch as staged ones."""
    _check_entries(entries, 0, count)
    out = bytearray()
    for i in range(count):
        offset, length, _ts, flags, _accounted = ENTRY.unpack_from(entries, i * ENTRY_SIZE)
        if length < frame.OVERHEAD or offset + length > len(frames):
            raise ValueError(f"entry {i} points outside the frames")
        node_len, tag_len, data_len = struct.unpack_from("<HHI", frames, offset + 30)
        head = segment.HEAD.pack(length - 12, flags & segment.KEPT, 0, 0, node_len, tag_len, data_len)
        covered = head + frames[offset + frame.HEADER : offset + length - 8]
        out += covered
        out += _U64.pack(xxh3_64(memoryview(covered)[4:]))
        out.append(0)
    return bytes(out)


def index_staged(buf: Buffer, start: int, end: int, ts: int, entries: bytearray) -> tuple[int, int]:
    """Add an entry for each whole staged frame from `start` on: (where the first other byte lies, accounted bytes)."""
    view = memoryview(buf)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} lies outside a buffer of {len(view)} bytes")
    if end > 0xFFFF_FFFF:
        raise OverflowError("entries hold offsets of 32 bits")
    at, total = start, 0
    while at < end:
        try:
            frame_len, flags, seq, _ts, node_len, tag_len, _data_len = segment.check_segment_frame(view, at, end)
            frame_end = at + 4 + frame_len
            accounted = accounted_bytes(bytes(view[at + segment.HEADER + node_len + tag_len : frame_end - 9]))
        except (BadFrame, BadEnvelope):
            break
        if seq:
            break
        accounted = min(accounted, segment.ACCOUNTED_MAX)
        entries += segment.encode_entry(at, frame_end - at, ts, flags & segment.KEPT, accounted)
        total += accounted
        at = frame_end
    return at, total


def restamp_staged(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    dead: bytes | None,
    data_out: bytearray,
    idx_out: bytearray,
    data_base: int = 0,
    base: int = 0,
) -> int:
    """What `restamp` does, from staged frames: each is verified, then copied with its seq and the time of its entry.

    A position in `buf` is an entry's offset minus `base`.
    """
    _check_entries(entries, start_index, count)
    if dead is not None and len(dead) < count:
        raise ValueError(f"{len(dead)} bytes of dead flags do not cover {count} entries")
    view = memoryview(buf)
    lengths_before = len(data_out), len(idx_out)
    for i in range(count):
        offset, length, ts, entry_flags, accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        at = offset - base
        is_hole = bool(entry_flags & HOLE)
        if not is_hole:
            if not _is_staged(view, at, length):
                return i
            is_hole = dead is not None and dead[i] != 0
        position = data_base + len(data_out)
        if position + (0 if is_hole else length) > 0xFFFF_FFFF:
            del data_out[lengths_before[0] :]
            del idx_out[lengths_before[1] :]
            raise OverflowError("a segment stays below 4 GiB")
        if is_hole:
            idx_out += ENTRY.pack(position, 0, ts, HOLE, _NO_BYTES)
            continue
        covered = bytearray(view[at : at + length - 9])
        struct.pack_into("<QQ", covered, 5, first_seq + i, ts)
        data_out += covered
        data_out += _U64.pack(xxh3_64(memoryview(covered)[4:]))
        data_out.append(0)
        idx_out += ENTRY.pack(position, length, ts, covered[4] & segment.KEPT, accounted)
    return count


def _is_staged(view: memoryview, at: int, length: int) -> bool:
    if at < 0 or length < segment.OVERHEAD or at + length > len(view):
        return False
    frame_len, _flags, seq, _ts, node_len, tag_len, data_len = segment.HEAD.unpack_from(view, at)
    return bool(
        frame_len + 4 == length
        and length == segment.OVERHEAD + node_len + tag_len + data_len
        and seq == 0
        and _U64.unpack_from(view, at + length - 9)[0] == xxh3_64(view[at + 4 : at + length - 9])
    )
