"""An index made from `.data`, also where some of its frames are damaged: those alone are without a place.

1. Frames are walked from the first byte, as long as they are whole. Seqs that are missing between two of them that
   touch were deleted before they were copied, however many: the caller knows how many records there are.
2. Behind a damaged one an `.idx` that nobody vouches for may know the places: where a whole frame of the right seq
   lies, it was right.
3. What is still missing is searched: the next bytes that are a whole frame with a seq of this segment, and walked from
   there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from topics.format.checksum import Buffer
from topics.format.frame import BadFrame
from topics.format.ops import SEGMENT_LAYOUT, rebuild_idx, verify
from topics.format.segment import ENTRY, ENTRY_DTYPE, ENTRY_SIZE, HOLE, OVERHEAD, check_segment_frame

NOWHERE: Final = 0xFFFF_FFFF
"""The offset of a record whose place is not known."""
NO_PLACE: Final = ENTRY.pack(NOWHERE, 1, 0, 0, b"\0\0\0")
"""Stands for a record whose place is not known any more: no frame lies there, so reading it says `corrupt`."""

_BLOCK: Final = 1024 * 1024
_HASHED_TIMES: Final = 64
"""How often the bytes behind damage are hashed for what only looks like a frame; what is missing then stays without a
place."""


def make_index(data: Buffer, first_seq: int, count: int, trusted: int, hints: Callable[[], Buffer]) -> bytes:
    """`count` entries. `data` is what is there of the `trusted` bytes; `hints` is asked for only where it is needed."""
    view = memoryview(data)
    entries, end = _walk(view, 0, first_seq, first_seq + count)
    found = len(entries) // ENTRY_SIZE
    if found == count:
        return bytes(entries)
    if end == trusted:  # nothing but holes follows the last frame
        return bytes(entries + _hole(end, entries) * (count - found))
    entries += _hinted(data, first_seq, count, found, bytes(hints()))
    if has_lost_place(entries):
        _search(view, end, first_seq, entries)
    return bytes(entries)


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


def _walk(view: memoryview, start: int, first_seq: int, end_seq: int) -> tuple[bytearray, int]:
    """The entries of the whole frames from byte `start` on and of the holes between them, and the end of the last."""
    entries = bytearray()
    at, seq = start, first_seq
    while True:
        made, length, count = rebuild_idx(view[at:], seq, len(view) - at)
        part = np.frombuffer(bytearray(made), dtype=ENTRY_DTYPE)
        part["offset"] += at
        entries += part.tobytes()
        at += length
        seq += count
        with suppress(BadFrame):
            following = check_segment_frame(view, at, len(view))[2]
            if seq < following < end_seq:  # more holes than a rebuild believes
                entries += _hole(at, entries) * (following - seq)
                seq = following
                continue
        del entries[(end_seq - first_seq) * ENTRY_SIZE :]
        return entries, at


def _hole(at: int, before: bytearray) -> bytes:
    """An entry without a frame, behind those `before`."""
    ts = ENTRY.unpack_from(before, len(before) - ENTRY_SIZE)[2] if before else 0
    return ENTRY.pack(at, 0, ts, HOLE, b"\0\0\0")


def _search(view: memoryview, start: int, first_seq: int, entries: bytearray) -> None:
    """Fill in every record that lies whole behind byte `start`."""
    known = np.frombuffer(entries, dtype=ENTRY_DTYPE)
    end_seq = first_seq + len(known)
    low, at = first_seq, start
    budget = _HASHED_TIMES * (len(view) - start)
    while (index := np.flatnonzero(known["offset"][low - first_seq :] == NOWHERE)).size:
        low += int(index[0])
        for place, seq, length in _likely(view, at, low, end_seq):
            budget -= length
            if budget < 0:
                return
            made, at = _walk(view, place, seq, end_seq)
            if made:
                low = seq + len(made) // ENTRY_SIZE
                there = known[seq - first_seq : low - first_seq]
                unknown = (there["offset"] == NOWHERE) | (there["flags"] & HOLE != 0)  # a hint may lie about a hole
                np.copyto(there, np.frombuffer(made, dtype=ENTRY_DTYPE), where=unknown)
                break
        else:
            return


def _likely(view: memoryview, start: int, low: int, end_seq: int) -> Iterator[tuple[int, int, int]]:
    """Where a header of seq `low` to `end_seq` seems to lie from byte `start` on: (its place, the seq, its length)."""
    for begin in range(start, len(view) - OVERHEAD + 1, _BLOCK):
        count = min(_BLOCK, len(view) - OVERHEAD + 1 - begin)
        length, seq, *parts = (
            np.ndarray((count,), kind, view, begin + at, (1,))
            for kind, at in (("<u4", 0), ("<u8", 5), ("<u2", 21), ("<u2", 23), ("<u4", 25))
        )
        at_all = np.flatnonzero((seq >= low) & (seq < end_seq))
        size = sum((part[at_all].astype(np.int64) for part in parts), np.int64(OVERHEAD - 4))
        for at in at_all[size == length[at_all]].tolist():
            yield begin + at, int(seq[at]), int(length[at]) + 4
