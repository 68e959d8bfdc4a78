"""Ranges of seqs that were lost against anyone's will, or skipped; the first kind is said when a reader crosses it."""

from __future__ import annotations

from bisect import bisect_right

from topics.format.control import LostReason
from topics.model.record import GapReason

_WORDS: dict[LostReason, GapReason] = {
    LostReason.CRASH: "crash",
    LostReason.CORRUPT: "corrupt",
    LostReason.RESTART: "restart",
    LostReason.SOURCE_TRIM: "source_trim",
}


class LostRanges:
    """Disjoint, ascending, inclusive ranges. Skipped ones are not kept: the dead set alone remembers those."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[tuple[int, int, int]] | None = None) -> None:
        self.rows: list[tuple[int, int, int]] = list(rows or [])

    def add(self, first: int, last: int, reason: LostReason) -> None:
        """Add a range; what was known before about a part of it stays."""
        if reason == LostReason.SKIPPED or first > last:
            return
        rows = self.rows
        if not rows or first > rows[-1][1] + 1:  # in replay they come in order
            rows.append((first, last, int(reason)))
            return
        at = bisect_right(rows, first, key=lambda row: row[0])
        if at and rows[at - 1][1] >= first:
            first = rows[at - 1][1] + 1
        pieces: list[tuple[int, int, int]] = []
        position = at
        while first <= last:
            if position < len(rows) and rows[position][0] <= last:
                if rows[position][0] > first:
                    pieces.append((first, rows[position][0] - 1, int(reason)))
                first = rows[position][1] + 1
                position += 1
            else:
                pieces.append((first, last, int(reason)))
                break
        if pieces:
            self.rows = sorted([*rows, *pieces])
            self._join()

    def _join(self) -> None:
        joined: list[tuple[int, int, int]] = []
        for row in self.rows:
            if joined and joined[-1][1] + 1 == row[0] and joined[-1][2] == row[2]:
                joined[-1] = (joined[-1][0], row[1], row[2])
            else:
                joined.append(row)
        self.rows = joined

    def drop_through(self, floor: int) -> None:
        """Forget what an involuntary floor says anyway."""
        if self.rows and self.rows[0][0] <= floor:
            self.rows = [(max(a, floor + 1), b, r) for a, b, r in self.rows if b > floor]

    def of(self, reason: LostReason) -> list[tuple[int, int, LostReason]]:
        return [(first, last, reason) for first, last, why in self.rows if why == reason]

    def at_or_after(self, seq: int) -> tuple[int, int, GapReason] | None:
        """The range that holds `seq`, or the next one above it."""
        at = bisect_right(self.rows, seq, key=lambda row: row[0])
        if at and self.rows[at - 1][1] >= seq:
            at -= 1
        if at >= len(self.rows):
            return None
        first, last, reason = self.rows[at]
        return first, last, _WORDS[LostReason(reason)]
