"""Reading a WAL file whole: frames in order, evidence behind a bad frame, the next frame after one.

The Python twins of the kernel's functions. Nothing here trusts a byte that it has not checked.
"""

from __future__ import annotations

import struct
from typing import Final

from topics.format import frame, marks, segment
from topics.format.checksum import Buffer
from topics.format.envelope import BadEnvelope, accounted_bytes
from topics.format.frame import BadFrame
from topics.format.prepared import ScanReason, WalScan
from topics.model import limits

_MARK_FRAME: Final = frame.OVERHEAD + marks.SYNC_BODY
_MARK_START: Final = struct.pack("<IB", _MARK_FRAME - 4, frame.Kind.CHECKPOINT_MARK)
_MARK_SIZES: Final = struct.pack("<HHI", 0, 0, marks.SYNC_BODY)

OFFSETS_END: Final = 0xFFFF_FFFF
"""Entries hold offsets of 32 bits, so no frame of a WAL file ends behind this."""

SEARCH_SMALL: Final = 4096
SEARCH_BYTES_MIN: Final = 64 * 1024 * 1024
SEARCH_BYTES_FACTOR: Final = 16
"""Bytes that look like many long, overlapping frames would make the search quadratic: beyond this many hashed bytes
per byte searched, only frames up to SEARCH_SMALL are still tried."""


def check_range(size: int, start: int, end: int) -> None:
    if not 0 <= start <= end <= size:
        raise ValueError(f"range {start}..{end} lies outside a buffer of {size} bytes")


def explain(view: memoryview, offset: int, limit: int) -> str:
    """Why there is no valid frame at `offset`."""
    if view[offset : min(offset + 4, limit)] == bytes(min(4, limit - offset)):
        return "zeros are followed by other bytes"
    try:
        head = frame.check_frame(view, offset, limit)
        if head[1] == frame.Kind.APPEND:
            accounted_bytes(_body(view, offset, head))
    except BadFrame as error:
        return error.why
    except BadEnvelope as error:
        return f"its body is not an envelope: {error}"
    return f"it lies beyond the {OFFSETS_END} bytes that a WAL file may have"


def lies_beyond(buf: Buffer, offset: int) -> bool:
    """Whether the frame at `offset` is whole and sound but for its place: no torn write leaves one there."""
    view = memoryview(buf)
    try:
        return offset + 4 + frame.check_frame(view, offset, len(view))[0] > OFFSETS_END
    except BadFrame:
        return False


def _body(view: memoryview, offset: int, head: tuple[int, ...]) -> bytes:
    frame_len, node_len, tag_len = head[0], head[6], head[7]
    return bytes(view[offset + frame.HEADER + node_len + tag_len : offset + 4 + frame_len - 8])


def scan_wal(buf: Buffer, start: int, end: int, entries: bytearray) -> WalScan:
    """Walk the frames from `start`; see WalScan. One entry per Append is added to `entries`, with its offset in `buf`.

    An unfinished submission at the end is not reported and leaves no entries behind. A frame that does not end at or
    below OFFSETS_END is a bad one.
    """
    view = memoryview(buf)
    check_range(len(view), start, end)
    frames_end = min(end, OFFSETS_END)
    items: list[tuple[int, ...]] = []
    run: list[int] | None = None
    frames = 0
    # What was there when the last submission ended: an unfinished one is cut back to it.
    whole: tuple[int, tuple[int, ...] | None, int, int, int] = (0, None, 0, len(entries), start)
    at = start
    open_chain = False
    reason: ScanReason
    while True:
        if at == end:
            reason, why = "end", "all was read"
            break
        if not any(view[at : min(at + 4, end)]) and _all_zero(view, at, end):
            reason, why = "zeros", "nothing but zeros follows"
            break
        try:
            head = frame.check_frame(view, at, frames_end)
            frame_len, kind, flags, topic_id, seq, ts, _node_len, _tag_len, _data_len = head
            accounted = accounted_bytes(_body(view, at, head)) if kind == frame.Kind.APPEND else 0
        except (BadFrame, BadEnvelope):
            reason, why = "bad", explain(view, at, end)
            break
        frame_end = at + 4 + frame_len
        if kind == frame.Kind.APPEND:
            accounted = min(accounted, segment.ACCOUNTED_MAX)
            if run is not None and run[1] == topic_id and run[2] + run[3] == seq:
                run[3] += 1
                run[6], run[8] = frame_end, ts
                run[9] += accounted
            else:
                if run is not None:
                    items.append(tuple(run))
                index = len(entries) // segment.ENTRY_SIZE
                run = [1, topic_id, seq, 1, index, at, frame_end, ts, ts, accounted]
            entries += segment.encode_entry(at, frame_end - at, ts, flags & segment.KEPT, accounted)
        else:
            if run is not None:
                items.append(tuple(run))
                run = None
            items.append((kind, topic_id, seq, ts, flags, at, frame_end))
        frames += 1
        at = frame_end
        open_chain = bool(flags & frame.MORE)
        if not open_chain:
            whole = (len(items), None if run is None else tuple(run), frames, len(entries), at)
    if open_chain:
        reason, why = "unfinished", f"the last submission is not whole: {why}"
    item_count, whole_run, whole_frames, entry_bytes, whole_end = whole
    del items[item_count:]
    if whole_run is not None:
        items.append(whole_run)
    del entries[entry_bytes:]
    return WalScan(items, whole_end, whole_frames, at, reason, why)


def _all_zero(view: memoryview, start: int, end: int) -> bool:
    step = 1 << 20
    return not any(any(view[at : min(at + step, end)]) for at in range(start, end, step))


def find_sync_marks(buf: Buffer, start: int, end: int, file_number: int) -> list[tuple[int, int]]:
    """(offset, synced) of every whole, valid SyncMark of this WAL file in [start, end), wherever it begins."""
    view = memoryview(buf)
    check_range(len(view), start, end)
    data = bytes(view[start:end])
    body_at = frame.HEADER
    number = struct.pack("<BQ", marks.SYNC_EXT, file_number)
    found = []
    at = data.find(_MARK_START)
    while at >= 0 and at + _MARK_FRAME <= len(data):
        if (
            data[at + 30 : at + 38] == _MARK_SIZES
            and data[at + body_at + 8 : at + body_at + 17] == number
            and _is_frame(view, start + at, end)
        ):
            found.append((start + at, int.from_bytes(data[at + body_at + 17 : at + body_at + 25], "little")))
        at = data.find(_MARK_START, at + 1)
    return found


def _is_frame(view: memoryview, offset: int, limit: int) -> bool:
    try:
        head = frame.check_frame(view, offset, limit)
        if head[1] == frame.Kind.APPEND:
            accounted_bytes(_body(view, offset, head))
    except (BadFrame, BadEnvelope):
        return False
    return True


def find_frames(buf: Buffer, start: int, end: int) -> int:
    """The first offset in [start, end) at which a valid frame begins, or -1. For salvage.

    The lengths are checked before anything is hashed.
    """
    view = memoryview(buf)
    check_range(len(view), start, end)
    budget = SEARCH_BYTES_MIN + SEARCH_BYTES_FACTOR * (end - start)
    for at in range(start, end - frame.OVERHEAD + 1):
        frame_len, kind, _flags, _topic_id, _seq, _ts, node_len, tag_len, data_len = frame.HEAD.unpack_from(view, at)
        if (
            frame_len != frame.OVERHEAD - 4 + node_len + tag_len + data_len
            or kind not in frame.KNOWN_KINDS
            or frame_len > limits.FRAME_BYTES
            or at + 4 + frame_len > end
        ):
            continue
        if frame_len > SEARCH_SMALL:
            if frame_len > budget:
                continue
            budget -= frame_len
        if _is_frame(view, at, end):
            return at
    return -1
