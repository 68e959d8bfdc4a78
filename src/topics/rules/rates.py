"""How fast things go: what was added in the last second, ten seconds and minute.

Samples come in about once a second, each with how far every counter is. Only what moved is kept, so that a store of
many sleeping topics costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WINDOWS_MS: Final = (1_000, 10_000, 60_000)


@dataclass(slots=True)
class _Step:
    """What happened between two samples."""

    ts: int
    took_ms: int
    moved: dict[int, int]
    counts: list[int]


class Rates:
    """Counters by id, and one histogram."""

    def __init__(self, buckets: int) -> None:
        self._known: Mapping[int, int] | None = None
        self._counts = [0] * buckets
        self._ts = 0
        self._steps: deque[_Step] = deque()

    @property
    def span_ms(self) -> int:
        """How far back the samples reach."""
        return sum(step.took_ms for step in self._steps)

    def sample(self, now_ms: int, counters: Mapping[int, int], counts: Sequence[int]) -> None:
        known = self._known
        if known is not None and now_ms > self._ts:
            moved = {key: value - known.get(key, 0) for key, value in counters.items() if value > known.get(key, 0)}
            counted = [max(new - old, 0) for new, old in zip(counts, self._counts, strict=True)]
            self._steps.append(_Step(now_ms, now_ms - self._ts, moved, counted))
            while self._steps[0].ts <= now_ms - WINDOWS_MS[-1]:
                self._steps.popleft()
        if known is None or now_ms > self._ts:
            self._known, self._counts, self._ts = counters, list(counts), now_ms

    def per_second(self) -> dict[int, tuple[float, ...]]:
        """By id, for each window. What did not move in the longest is not in it."""
        sums: dict[int, list[int]] = {}
        spans = [0] * len(WINDOWS_MS)
        for step in self._steps:
            for at, window in enumerate(WINDOWS_MS):
                if step.ts > self._ts - window:  # it ended inside the window
                    spans[at] += step.took_ms
                    for key, moved in step.moved.items():
                        sums.setdefault(key, [0] * len(WINDOWS_MS))[at] += moved
        return {
            key: tuple(1000 * total / span if span else 0.0 for total, span in zip(totals, spans, strict=True))
            for key, totals in sums.items()
        }

    def counts(self) -> list[int]:
        """The histogram of everything in the longest window."""
        return [sum(column) for column in zip(*(step.counts for step in self._steps), strict=True)] or [
            0 for _ in self._counts
        ]


def percentile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """The bound that `share` of what was counted stays below; None where nothing was. What lies beyond the last bound
    is said to be there."""
    total = sum(counts)
    if not total:
        return None
    reached = 0
    cumulated = [reached := reached + count for count in counts]
    at = bisect_left(cumulated, share * total)
    return float(bounds[min(at, len(bounds) - 1)])
