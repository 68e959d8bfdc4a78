"""Frames that entries point at, in a WAL file or a segment: the checks and borders that every batch function needs.

The two layouts are those of frame.py and segment.py.
"""

from __future__ import annotations

import struct
from typing import Final

from topics.format import frame, segment
from topics.format.checksum import Buffer
from topics.format.checksum import portable as xxh3_64
from topics.format.segment import ENTRY_SIZE

WAL_LAYOUT: Final = 0
SEGMENT_LAYOUT: Final = 1

_U64: Final = struct.Struct("<Q")


def check_entries(entries: Buffer, start_index: int, count: int) -> None:
    if start_index < 0 or count < 0 or (start_index + count) * ENTRY_SIZE > len(entries):
        raise ValueError(f"entries {start_index}..{start_index + count} lie outside {len(entries)} bytes of entries")


def check_dead(dead: bytes | None, count: int) -> None:
    if dead is not None and len(dead) < count:
        raise ValueError(f"{len(dead)} bytes of dead flags do not cover {count} entries")


def check_layout(layout: int) -> None:
    if layout not in (WAL_LAYOUT, SEGMENT_LAYOUT):
        raise ValueError(f"layout {layout} is unknown")


def wal_fault(view: memoryview, at: int, length: int, seq: int, topic_id: int, check: bool = True) -> bool:
    if at < 0 or length < frame.OVERHEAD or at + length > len(view):
        return True
    frame_len, kind, _flags, found_topic, found_seq, _ts, node_len, tag_len, data_len = frame.HEAD.unpack_from(view, at)
    return bool(
        frame_len + 4 != length
        or length != frame.OVERHEAD + node_len + tag_len + data_len
        or kind != frame.Kind.APPEND
        or found_topic != topic_id
        or found_seq != seq
        or (check and _U64.unpack_from(view, at + length - 8)[0] != xxh3_64(view[at + 4 : at + length - 8]))
    )


def segment_fault(view: memoryview, at: int, length: int, seq: int, _topic_id: int, check: bool = True) -> bool:
    if at < 0 or length < segment.OVERHEAD or at + length > len(view):
        return True
    frame_len, _flags, found_seq, _ts, node_len, tag_len, data_len = segment.HEAD.unpack_from(view, at)
    return bool(
        frame_len + 4 != length
        or length != segment.OVERHEAD + node_len + tag_len + data_len
        or found_seq != seq
        or (check and _U64.unpack_from(view, at + length - 9)[0] != xxh3_64(view[at + 4 : at + length - 9]))
    )


def parts_of(view: memoryview, at: int, length: int, layout: int) -> tuple[int, int, int, int, int]:
    """(flags, ts, start of node, of tag, of body) of the frame at `at`; ValueError if it does not lie in the buffer."""
    header, overhead = (frame.HEADER, frame.OVERHEAD) if layout == WAL_LAYOUT else (segment.HEADER, segment.OVERHEAD)
    if at < 0 or length < overhead or at + length > len(view):
        raise ValueError("an entry points outside the buffer")
    if layout == WAL_LAYOUT:
        _len, _kind, flags, _topic_id, _seq, ts, node_len, tag_len, data_len = frame.HEAD.unpack_from(view, at)
    else:
        _len, flags, _seq, ts, node_len, tag_len, data_len = segment.HEAD.unpack_from(view, at)
    if length != overhead + node_len + tag_len + data_len:
        raise ValueError("a frame's lengths do not match its entry")
    tag_at = at + header + node_len
    return flags, ts, at + header, tag_at, tag_at + tag_len
