"""Seqs by a number, least first: those that were handed out together are one item of a heap.

What no longer counts stays until it comes to the top, or until whoever owns this builds it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from heapq import heapify, heappop, heappush, heapreplace


class Spans:
    __slots__ = ("_heap",)

    def __init__(self, rows: Iterable[tuple[int, int]] = ()) -> None:
        """Of (number, seq) each."""
        self._heap = [(number, seq, seq + 1) for number, seq in rows]
        """(number, first seq, end of the seqs)."""
        heapify(self._heap)

    def __len__(self) -> int:
        """Items, each of one or more seqs."""
        return len(self._heap)

    def push(self, number: int, first: int, end: int) -> None:
        heappush(self._heap, (number, first, end))

    def pop_until(self, number: int) -> tuple[int, range] | None:
        """The least item, if its number is not greater than `number`: that number and its seqs."""
        if not self._heap or self._heap[0][0] > number:
            return None
        found, first, end = heappop(self._heap)
        return found, range(first, end)

    def first_in(self, seqs: Container[int]) -> int | None:
        """The least seq of the least number that is among these; what is found before it is dropped."""
        heap = self._heap
        while heap:
            number, first, end = heap[0]
            seq = next(filter(seqs.__contains__, range(first, end)), None)
            if seq == first:
                return seq
            if seq is None:
                heappop(heap)
            else:
                heapreplace(heap, (number, seq, end))
        return None

    def first(self, counts: Callable[[int, int], bool]) -> tuple[int, int] | None:
        """(number, seq) of the least that counts; what is found before it is dropped."""
        heap = self._heap
        while heap:
            number, first, end = heap[0]
            seq = first
            while seq < end and not counts(number, seq):
                seq += 1
            if seq == first:
                return number, seq
            if seq < end:
                heapreplace(heap, (number, seq, end))
            else:
                heappop(heap)
        return None
