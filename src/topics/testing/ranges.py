"""A set of byte positions, kept as sorted, disjoint, half-open ranges.

Which bytes of a file are un-synced is nearly always one range or a few, whatever the file's size: marking a whole file
costs the same as marking a byte.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Ranges that touch become one."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        first = bisect_right(ends, start)
        last = bisect_left(starts, end)
        if first >= last:
            return
        kept = [(starts[first], start), (end, ends[last - 1])]
        kept = [(low, high) for low, high in kept if low < high]
        starts[first:last] = [low for low, _ in kept]
        ends[first:last] = [high for _, high in kept]

    def cut(self, end: int) -> None:
        """Forget every position at or after `end`."""
        if self._ends and self._ends[-1] > end:
            self.remove(end, self._ends[-1])

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def meets(self, start: int, end: int) -> bool:
        """Whether any position of start..end is in the set."""
        index = bisect_right(self._ends, start)
        return start < end and index < len(self._starts) and self._starts[index] < end

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of the set that lie in start..end."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        return [(max(start, self._starts[i]), min(end, self._ends[i])) for i in range(first, last)]

    def copy(self) -> Ranges:
        other = Ranges()
        other._starts = self._starts.copy()
        other._ends = self._ends.copy()
        return other

    def __or__(self, other: Ranges) -> Ranges:
        both = self.copy()
        for start, end in other:
            both.add(start, end)
        return both

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __repr__(self) -> str:
        return " ".join(f"{start}..{end}" for start, end in self) or "(none)"
