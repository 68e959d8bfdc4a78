"""A topic's segment: `.data` holds frames back to back, `.idx` one entry of 20 bytes per seq.

A frame of `.data`, little-endian; the Append frame of the WAL minus kind and topic_id, plus a last byte:

    off  size   field
      0     4   frame_len    everything after this field, the last byte included
      4     1   flags        1 has tag, 2 has node; the high four bits count the routers it came through
      5     8   seq
     13     8   ts
     21     2   node_len
     23     2   tag_len
     25     4   data_len
     29         node, tag, body (the envelope)
    end-9   8   xxh3_64 over [4, end-9)
    end-1   1   del_flag     0xD5 = deleted, any other value = live; outside the checksum, so it can change in place

Valid iff frame_len = 25 + node_len + tag_len + data_len + 9, the checksum matches, and the body is an envelope.

An entry of `.idx`; the entry of seq s is number s - first:

    off  size   field
      0     4   offset       of the frame in `.data`; a segment stays below 4 GiB
      4     4   length       of the frame with its prefix; 0 in a hole and nowhere else
      8     8   ts
     16     1   flags        1 has tag, 2 has node, 4 hole: a seq without a frame; high bits as in the frame
     17     3   accounted    compact data + meta bytes (saturates), so that caps need not read `.data`

The same 20 bytes index the un-checkpointed tail, with offsets into a WAL file. Deletion lives in `.data` alone.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final

import msgspec
import numpy as np

from topics.format.checksum import Buffer, xxh3_64
from topics.format.frame import BadFrame
from topics.model import limits

TAG: Final = 1
NODE: Final = 2
HOLE: Final = 4
HOPS: Final = 0xF0
"""How often a router copied the record: the high half of the flags byte, in frames and entries alike."""
KEPT: Final = TAG | NODE | HOPS
"""Flags of a record, as opposed to those of its place in the log."""
DELETED: Final = 0xD5

HEADER: Final = 29
OVERHEAD: Final = 38
HEAD: Final = struct.Struct("<IBQQHHI")
_HASH: Final = struct.Struct("<Q")
_MIN_LEN: Final = OVERHEAD - 4

ENTRY: Final = struct.Struct("<IIQB3s")
ENTRY_SIZE: Final = 20
ENTRY_DTYPE: Final = np.dtype(
    [("offset", "<u4"), ("length", "<u4"), ("ts", "<u8"), ("flags", "u1"), ("accounted", "u1", 3)]
)
ACCOUNTED_MAX: Final = (1 << 24) - 1
"""Far above limits.RECORD_BYTES; only a frame of foreign make can reach it."""

IDX_BYTES_MAX: Final = ENTRY_SIZE << 24
"""More entries than a segment ever has: bounds what crafted gaps in seqs can make a rebuild allocate."""


class SegmentFrame(msgspec.Struct, frozen=True, gc=False):
    flags: int
    seq: int
    ts: int
    node: bytes
    """Empty unless flagged."""
    tag: bytes
    """Empty unless flagged."""
    body: bytes
    deleted: bool
    offset: int
    end: int


def encode_segment_frame(
    seq: int,
    ts: int,
    body: bytes,
    *,
    flags: int = 0,
    node: bytes = b"",
    tag: bytes = b"",
    deleted: bool = False,
) -> bytes:
    """One frame. A node or tag that is not empty sets its flag."""
    if node:
        flags |= NODE
    if tag:
        flags |= TAG
    size = len(node) + len(tag) + len(body)
    covered = b"".join((HEAD.pack(size + _MIN_LEN, flags, seq, ts, len(node), len(tag), len(body)), node, tag, body))
    return covered + _HASH.pack(xxh3_64(memoryview(covered)[4:])) + (b"\xd5" if deleted else b"\0")


def check_segment_frame(view: memoryview, offset: int, limit: int) -> tuple[int, int, int, int, int, int, int]:
    """The header of the valid frame at `offset`; BadFrame tells the first broken rule."""
    if limit - offset < OVERHEAD:
        raise BadFrame(offset, f"only {limit - offset} bytes are left")
    head = HEAD.unpack_from(view, offset)
    frame_len, _flags, _seq, _ts, node_len, tag_len, data_len = head
    if frame_len != _MIN_LEN + node_len + tag_len + data_len:
        raise BadFrame(offset, "its length does not match the lengths of its parts")
    if frame_len > limits.FRAME_BYTES:
        raise BadFrame(offset, f"its length {frame_len} is beyond the limit of {limits.FRAME_BYTES}")
    end = offset + 4 + frame_len
    if end > limit:
        raise BadFrame(offset, f"it ends {end - limit} bytes beyond the limit")
    if _HASH.unpack_from(view, end - 9)[0] != xxh3_64(view[offset + 4 : end - 9]):
        raise BadFrame(offset, "its checksum does not match")
    return head


def decode_segment_frame(buf: Buffer, offset: int, limit: int) -> SegmentFrame:
    """The frame at `offset`, which must end at or before `limit`; BadFrame if it is not valid."""
    view = memoryview(buf)
    if not 0 <= offset <= limit <= len(view):
        raise ValueError(f"range {offset}..{limit} lies outside a buffer of {len(view)} bytes")
    frame_len, flags, seq, ts, node_len, tag_len, _data_len = check_segment_frame(view, offset, limit)
    end = offset + 4 + frame_len
    tag_at = offset + HEADER + node_len
    return SegmentFrame(
        flags,
        seq,
        ts,
        bytes(view[offset + HEADER : tag_at]) if flags & NODE else b"",
        bytes(view[tag_at : tag_at + tag_len]) if flags & TAG else b"",
        bytes(view[tag_at + tag_len : end - 9]),
        view[end - 1] == DELETED,
        offset,
        end,
    )


def find_segment_frame(buf: Buffer, start: int, limit: int) -> int:
    """Where the next valid frame at or behind `start` begins; -1 where none does."""
    view = memoryview(buf)
    for offset in range(start, limit - _MIN_LEN - 3):
        frame_len, _, _, _, node_len, tag_len, data_len = HEAD.unpack_from(view, offset)
        if frame_len == _MIN_LEN + node_len + tag_len + data_len:
            with suppress(BadFrame):
                check_segment_frame(view, offset, limit)
                return offset
    return -1


def encode_entry(offset: int, length: int, ts: int, flags: int, accounted: int) -> bytes:
    return ENTRY.pack(offset, length, ts, flags, min(accounted, ACCOUNTED_MAX).to_bytes(3, "little"))
