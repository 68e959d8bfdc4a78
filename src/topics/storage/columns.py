"""Entries and ranges of seqs as columns: what thousands of scattered records come to costs about as much as a few.

A range is inclusive. A long one is cheap by itself, since whole segments know their counts; it is the many short ones
that are taken together, as one column of seqs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topics.format.segment import ENTRY_DTYPE

Ranges = tuple[tuple[int, int], ...]
Column = npt.NDArray[np.int64]

MANY: Final = 32
"""Fewer ranges are taken one by one."""
SHORT: Final = 64
"""A range of more seqs is taken by itself."""
PIECE: Final = 16_384
"""So many ranges are spelled out at a time, so that memory stays small whatever a delete hits."""


class Spread(NamedTuple):
    """Ranges that do not overlap, apart by length."""

    long: Ranges
    firsts: Column
    lasts: Column
    """Of the short ones, ascending."""

    def pieces(self) -> Iterator[tuple[Column, Column]]:
        for start in range(0, len(self.firsts), PIECE):
            yield self.firsts[start : start + PIECE], self.lasts[start : start + PIECE]


def spread(ranges: Ranges, first: int, last: int) -> Spread:
    """What the ranges have of first..last. Few of them, any that are not in order, and seqs beyond what a column holds
    are all taken by themselves."""
    none = np.empty(0, dtype=np.int64)
    if len(ranges) < MANY:
        return Spread(ranges, none, none)
    flat = np.fromiter(chain.from_iterable(ranges), dtype=np.uint64, count=2 * len(ranges))
    firsts, lasts = flat[::2], flat[1::2]
    if (firsts[1:] <= lasts[:-1]).any() or (firsts > lasts).any() or lasts[-1] >> np.uint64(63):
        return Spread(ranges, none, none)
    low = np.maximum(firsts, np.uint64(max(first, 0)))
    high = np.minimum(lasts, np.uint64(max(last, 0)))
    there = low <= high
    low, high = low[there].astype(np.int64), high[there].astype(np.int64)
    short = high - low < SHORT
    if short.all():
        return Spread((), low, high)
    long = tuple(zip(low[~short].tolist(), high[~short].tolist(), strict=True))
    return Spread(long, low[short], high[short])


def spell_out(firsts: Column, lasts: Column) -> Column:
    """Every seq of the ranges."""
    counts = lasts - firsts + 1
    ends = np.cumsum(counts)
    if not len(counts) or ends[-1] == len(counts):
        return firsts
    seqs: Column = np.repeat(firsts - (ends - counts), counts) + np.arange(ends[-1], dtype=np.int64)
    return seqs


def within(seqs: Column, first: int, end: int) -> Column:
    """Those of ascending seqs that lie in first..end - 1."""
    low, high = np.searchsorted(seqs, (first, end)).tolist()
    return seqs[low:high]


def measure_at(entries: memoryview, mask: bytes | None, at: Column) -> tuple[int, int]:
    """How many of the entries at these places are live, and their accounted bytes."""
    sizes = np.frombuffer(entries, dtype="<u4").reshape(-1, 5)[at, 4] >> np.uint32(8)
    if mask is not None:
        sizes = sizes[np.frombuffer(mask, dtype=np.uint8)[at] == 0]
    return len(sizes), int(sizes.sum(dtype=np.uint64))


def live_sizes(entries: memoryview, mask: bytes | None) -> npt.NDArray[np.uint32]:
    """Accounted bytes of the entries that are not gone, in seq order."""
    column = np.frombuffer(entries, dtype=ENTRY_DTYPE)
    sizes: npt.NDArray[np.uint32] = entry_sizes(column)
    if mask is None:
        return sizes
    kept: npt.NDArray[np.uint32] = sizes[np.frombuffer(mask, dtype=np.uint8) == 0]
    return kept


def entry_sizes(column: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    words: npt.NDArray[np.uint32] = np.ascontiguousarray(column).view(np.uint32).reshape(-1, 5)[:, 4]
    sizes: npt.NDArray[np.uint32] = np.right_shift(words, np.uint32(8))
    return sizes
