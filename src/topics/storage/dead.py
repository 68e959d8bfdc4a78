"""Which seqs of a topic are gone: a floor, and bitmaps of 4096 seqs above it.

One bit per seq where anything died, nothing where nothing did. A frozen copy shares its blocks with the live set
until the live set writes to one, so a checkpoint copies a topic's dead set without walking it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np

BLOCK = 4096
_BYTES = BLOCK // 8
_FULL = b"\xff" * _BYTES
_FEW = 256
_CROWD = 16
"""Ranges in one block from which on its bits are set together."""


class DeadSet:
    __slots__ = ("_blocks", "_owned", "floor", "version")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        """Every seq at or below it is gone."""
        self.version = 0
        """Rises with every change."""
        self._blocks: dict[int, bytes | bytearray] = {}
        self._owned: set[int] = set()

    def freeze(self) -> DeadSet:
        """A copy as of now. Blocks are shared until either side writes."""
        copy = DeadSet(self.floor)
        copy.version = self.version
        if self._blocks:
            copy._blocks = dict(self._blocks)
            self._owned.clear()
        return copy

    def __contains__(self, seq: int) -> bool:
        if seq <= self.floor:
            return True
        block = self._blocks.get(seq // BLOCK)
        if block is None:
            return False
        bit = seq % BLOCK
        return bool(block[bit >> 3] >> (bit & 7) & 1)

    def has_any(self, first: int, last: int) -> bool:
        """Whether one of first..last is gone, where that is quickly seen; True where it takes a closer look."""
        number = first // BLOCK
        if first <= self.floor or last // BLOCK != number or last < first:
            return True
        block = self._blocks.get(number)
        if block is None:
            return False
        bit = first % BLOCK
        piece = int.from_bytes(block[bit >> 3 : (last % BLOCK >> 3) + 1], "little")
        return bool(piece >> (bit & 7) & (1 << last - first + 1) - 1)

    def raise_floor(self, floor: int) -> None:
        if floor <= self.floor:
            return
        self.floor = floor
        self.version += 1
        if self._blocks:
            lowest = (floor + 1) // BLOCK
            for number in [n for n in self._blocks if n < lowest]:
                del self._blocks[number]
                self._owned.discard(number)

    def mark(self, first: int, last: int) -> None:
        """Every seq in first..last (inclusive) is gone."""
        first = max(first, self.floor + 1)
        self.version += 1
        while first <= last:
            number = first // BLOCK
            start = first - number * BLOCK
            stop = min(last - number * BLOCK + 1, BLOCK)
            if start == 0 and stop == BLOCK:
                self._blocks[number] = _FULL
                self._owned.discard(number)
            else:
                block = self._writable(number)
                if stop - start == 1:
                    block[start >> 3] |= 1 << (start & 7)
                else:
                    _set_bits(block, start, stop)
            first = (number + 1) * BLOCK

    def mark_all(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Every seq of the ranges is gone; where many lie in one block, it is changed once."""
        if len(ranges) < _CROWD:
            for first, last in ranges:
                self.mark(first, last)
            return
        bounds = np.fromiter(chain.from_iterable(ranges), dtype=np.uint64, count=2 * len(ranges)).reshape(-1, 2)
        bounds[:, 0] = np.maximum(bounds[:, 0], np.uint64(self.floor + 1))
        bounds = bounds[bounds[:, 0] <= bounds[:, 1]]
        numbers = (bounds // np.uint64(BLOCK)).astype(np.int64)
        inside = numbers[:, 0] == numbers[:, 1]
        for first, last in bounds[~inside].tolist():
            self.mark(first, last)
        bounds, homes = bounds[inside], numbers[inside, 0]
        edges = np.flatnonzero(np.diff(homes, prepend=-1, append=-1)).tolist()
        for low, high in pairwise(edges):
            if high - low < _CROWD:
                for first, last in bounds[low:high].tolist():
                    self.mark(first, last)
            else:
                number = int(homes[low])
                self._mark_bits(number, (bounds[low:high] - np.uint64(number * BLOCK)).astype(np.int64))
        self.version += 1

    def _mark_bits(self, number: int, bounds: np.ndarray) -> None:
        begun, over = np.bincount(bounds[:, 0], minlength=BLOCK), np.bincount(bounds[:, 1] + 1, minlength=BLOCK)
        bits = np.packbits(np.cumsum(begun - over[:BLOCK]) > 0, bitorder="little")
        block = np.frombuffer(self._writable(number), dtype=np.uint8)
        block |= bits

    def _writable(self, number: int) -> bytearray:
        block = self._blocks.get(number)
        if block is None:
            block = bytearray(_BYTES)
        elif number in self._owned and isinstance(block, bytearray):
            return block
        else:
            block = bytearray(block)
        self._blocks[number] = block
        self._owned.add(number)
        return block

    def mask(self, first: int, count: int) -> bytes | None:
        """One byte per seq from `first`, nonzero where gone; None where none is."""
        end = first + count
        if first > self.floor and not self._blocks:
            return None
        numbers = [n for n in range(first // BLOCK, (end - 1) // BLOCK + 1) if n in self._blocks]
        if not numbers and first > self.floor:
            return None
        out: np.ndarray | None = None
        if first <= self.floor:
            out = np.zeros(count, dtype=np.uint8)
            out[: min(count, self.floor - first + 1)] = 1
        for number in numbers:
            low = max(first, number * BLOCK)
            high = min(end, (number + 1) * BLOCK)
            start = (low - number * BLOCK) >> 3
            piece = self._blocks[number][start : (high - number * BLOCK + 7) >> 3]
            # None of them is the usual case near the head, and quicker to see than bits are taken apart.
            if high - low <= _FEW:
                if not int.from_bytes(piece, "little") >> (low & 7) & (1 << high - low) - 1:
                    continue
            elif piece.count(0) == len(piece):
                continue
            if out is None:
                out = np.zeros(count, dtype=np.uint8)
            bits = np.unpackbits(np.frombuffer(piece, dtype=np.uint8), bitorder="little")
            skip = number * BLOCK + start * 8
            out[low - first : high - first] |= bits[low - skip : high - skip]
        return out.tobytes() if out is not None and out.any() else None

    def next_live(self, seq: int, end: int) -> int:
        """The first seq at or after `seq` that is not gone, or `end`."""
        seq = max(seq, self.floor + 1)
        while seq < end:
            number = seq // BLOCK
            block = self._blocks.get(number)
            bit = seq - number * BLOCK
            if block is None or not block[bit >> 3] >> (bit & 7) & 1:
                return seq
            if block != _FULL:
                bits = np.unpackbits(np.frombuffer(block, dtype=np.uint8), bitorder="little")[seq - number * BLOCK :]
                live = int(bits.argmin())
                if not bits[live]:
                    return min(seq + live, end)
            seq = (number + 1) * BLOCK
        return end

    def count(self, first: int, last: int) -> int:
        """How many of first..last are gone."""
        mask = self.mask(first, last - first + 1) if last >= first else None
        return 0 if mask is None else int(np.count_nonzero(np.frombuffer(mask, dtype=np.uint8)))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Runs of gone seqs above the floor, ascending, inclusive."""
        start = 0
        last = 0
        for number in sorted(self._blocks):
            bits = np.unpackbits(np.frombuffer(self._blocks[number], dtype=np.uint8), bitorder="little")
            edges = np.flatnonzero(np.diff(np.concatenate(([0], bits, [0])).astype(np.int8)))
            for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                first, end = number * BLOCK + low, number * BLOCK + high - 1
                if start and first == last + 1:
                    last = end
                    continue
                if start and last > self.floor:
                    yield max(start, self.floor + 1), last
                start, last = first, end
        if start and last > self.floor:
            yield max(start, self.floor + 1), last


def _set_bits(block: bytearray, start: int, stop: int) -> None:
    first, last = start >> 3, (stop - 1) >> 3
    head = 0xFF << (start & 7) & 0xFF
    tail = 0xFF >> (7 - (stop - 1 & 7))
    if first == last:
        block[first] |= head & tail
        return
    block[first] |= head
    block[last] |= tail
    if last - first > 1:
        block[first + 1 : last] = b"\xff" * (last - first - 1)
