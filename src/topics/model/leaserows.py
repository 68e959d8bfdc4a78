"""Rows about leases, as the log and the rules exchange them: one for each record, or one run for many.

What one call hands out is, as a rule, consecutive, and so are its tokens: a `LeaseRun` says so in five numbers. To
whoever does not care it is the sequence of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

LeaseRow = tuple[int, int, int, int]
"""(seq, token, until, deliveries). A released one's `until` is when it may be claimed again, 0 = at once."""


class LeaseRun(Sequence[LeaseRow]):
    """Consecutive seqs with consecutive tokens, one deadline and one number of deliveries."""

    __slots__ = ("deliveries", "seqs", "token", "until")

    def __init__(self, seqs: range, token: int, until: int, deliveries: int) -> None:
        self.seqs = seqs
        self.token = token
        """Of the first one."""
        self.until = until
        self.deliveries = deliveries

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[LeaseRow]:
        tokens = range(self.token, self.token + len(self.seqs))
        return zip(self.seqs, tokens, repeat(self.until), repeat(self.deliveries))  # the last two have no end

    @overload
    def __getitem__(self, at: int) -> LeaseRow: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[LeaseRow]: ...
    def __getitem__(self, at: int | slice) -> LeaseRow | Sequence[LeaseRow]:
        if isinstance(at, int):
            seq = self.seqs[at]
            return seq, self.token + seq - self.seqs[0], self.until, self.deliveries
        start, _, step = at.indices(len(self.seqs))
        if step != 1:
            return list(self)[at]
        return LeaseRun(self.seqs[at], self.token + start, self.until, self.deliveries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"LeaseRun({self.seqs}, {self.token}, {self.until}, {self.deliveries})"

    __hash__ = None  # type: ignore[assignment]  # it equals a list of the same rows


def in_a_row(seqs: Sequence[int]) -> Sequence[int]:
    """A range, if they are one after the other; themselves, if not."""
    if isinstance(seqs, range) or not seqs or seqs[-1] - seqs[0] != len(seqs) - 1:
        return seqs
    row = range(seqs[0], seqs[-1] + 1)
    return row if list(row) == seqs else seqs


def seqs_of(rows: Sequence[LeaseRow]) -> Sequence[int]:
    return rows.seqs if isinstance(rows, LeaseRun) else [row[0] for row in rows]


def as_run(rows: Sequence[LeaseRow]) -> Sequence[LeaseRow]:
    """A run, if they are one; themselves, if not."""
    if isinstance(rows, LeaseRun) or len(rows) < 2:
        return rows
    (first, token, until, deliveries), count = rows[0], len(rows)
    if rows[-1] != (first + count - 1, token + count - 1, until, deliveries):
        return rows
    run = LeaseRun(range(first, first + count), token, until, deliveries)
    return run if run == rows else rows


def is_twofold(seqs: Sequence[int]) -> bool:
    """Whether one of them is named twice."""
    return not isinstance(seqs, range) and len(set(seqs)) < len(seqs)
