"""Arithmetic on ranges of seqs."""

from __future__ import annotations

from collections.abc import Iterable


def without(start: int, end: int, holes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of the half-open start..end when the inclusive `holes`, in ascending order, are taken out."""
    left: list[tuple[int, int]] = []
    for first, last in holes:
        if last < start:
            continue
        if first >= end:
            break
        if first > start:
            left.append((start, first))
        start = max(start, last + 1)
    if start < end:
        left.append((start, end))
    return left


def clipped(ranges: Iterable[tuple[int, int]], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The parts of inclusive ranges that lie in the half-open start..end."""
    return tuple((max(first, start), min(last, end - 1)) for first, last in ranges if first < end and last >= start)
