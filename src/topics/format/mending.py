"""An index made from `.data`, also where some of its frames are damaged: those alone are without a place.

1. Frames are walked from the first byte, as long as they are whole.
2. Behind a damaged one an `.idx` that nobody vouches for may know the places: where a whole frame of the right seq
   lies, it was right.
3. What is still missing is searched: a frame bears its seq, and frames lie in the order of their seqs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from topics.format.checksum import Buffer
from topics.format.envelope import BadEnvelope, accounted_bytes
from topics.format.frame import BadFrame
from topics.format.ops import SEGMENT_LAYOUT, rebuild_idx, verify
from topics.format.segment import ENTRY, ENTRY_DTYPE, ENTRY_SIZE, HOLE, KEPT, decode_segment_frame, encode_entry

NOWHERE: Final = 0xFFFF_FFFF
"""The offset of a record whose place is not known."""
NO_PLACE: Final = ENTRY.pack(NOWHERE, 1, 0, 0, b"\0\0\0")
"""Stands for a record whose place is not known any more: no frame lies there, so reading it says `corrupt`."""

_SEQ_AT: Final = 5
"""Where the seq stands in a frame."""
_SEARCH_TIMES: Final = 64
"""How often the bytes behind damage are gone through for records that are not there; the rest of them then stays
without a place."""


def make_index(data: Buffer, first_seq: int, count: int, trusted: int, hints: Callable[[], Buffer]) -> bytes:
    """`count` entries. `data` is what is there of the `trusted` bytes; `hints` is asked for only where it is needed."""
    entries, end, found = rebuild_idx(data, first_seq, len(memoryview(data)))
    if found >= count:
        return entries[: count * ENTRY_SIZE]
    if end == trusted:  # nothing but holes follows the last frame
        ts = ENTRY.unpack_from(entries, len(entries) - ENTRY_SIZE)[2] if entries else 0
        return entries + ENTRY.pack(end, 0, ts, HOLE, b"\0\0\0") * (count - found)
    entries += _hinted(data, first_seq, count, found, bytes(hints()))
    return _searched(data, first_seq, end, entries) if has_lost_place(entries) else entries


def has_lost_place(entries: Buffer) -> bool:
    return bool((np.frombuffer(entries, dtype=ENTRY_DTYPE)["offset"] == NOWHERE).any())


def _hinted(data: Buffer, first_seq: int, count: int, start: int, hints: bytes) -> bytes:
    """The entries from `start` on, as far as the hints are right."""
    kept: list[bytes] = []
    size = len(memoryview(data))
    for index in range(start, count):
        entry = hints[index * ENTRY_SIZE : (index + 1) * ENTRY_SIZE]
        if len(entry) == ENTRY_SIZE:
            offset, length, _ts, flags, _accounted = ENTRY.unpack(entry)
            hole = flags & HOLE and not length
            whole = length and offset + length <= size
            if hole or (whole and verify(data, entry, 0, 1, first_seq + index, SEGMENT_LAYOUT, 0, 0)):
                kept.append(entry)
                continue
        kept.append(NO_PLACE)
    return b"".join(kept)


def _searched(data: Buffer, first_seq: int, start: int, entries: bytes) -> bytes:
    """The entries, with a place for every record that lies whole behind byte `start`."""
    raw = bytes(memoryview(data)[start:])
    view, found = memoryview(raw), bytearray(entries)
    budget = _SEARCH_TIMES * len(raw)
    at = 0
    for index in np.flatnonzero(np.frombuffer(entries, dtype=ENTRY_DTYPE)["offset"] == NOWHERE).tolist():
        wanted = (first_seq + index).to_bytes(8, "little")
        place = raw.find(wanted, at + _SEQ_AT)
        while place >= 0:
            entry = _entry_at(view, place - _SEQ_AT, start)
            if entry is not None:
                found[index * ENTRY_SIZE : (index + 1) * ENTRY_SIZE] = entry
                at = place - _SEQ_AT + ENTRY.unpack(entry)[1]
                break
            place = raw.find(wanted, place + 1)
        else:
            budget -= len(raw) - at
            if budget < 0:
                break
    return bytes(found)


def _entry_at(view: memoryview, offset: int, start: int) -> bytes | None:
    """The entry of the whole frame at `offset` of a part of `.data` that begins at byte `start`."""
    try:
        frame = decode_segment_frame(view, offset, len(view))
        accounted = accounted_bytes(frame.body)
    except (BadFrame, BadEnvelope):
        return None
    return encode_entry(start + offset, frame.end - offset, frame.ts, frame.flags & KEPT, accounted)
