"""Idempotency keys of one topic: what the first append under a key was given."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from topics.model import limits


class Remembered(NamedTuple):
    first_seq: int
    records: int
    ts: int


class Dedupe:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: OrderedDict[str, Remembered] = OrderedDict()

    def get(self, key: str, now_ms: int, window_ms: int) -> Remembered | None:
        row = self._rows.get(key)
        return row if row is not None and now_ms - row.ts <= window_ms else None

    def add(self, key: str, row: Remembered) -> None:
        self._rows.pop(key, None)
        self._rows[key] = row
        if len(self._rows) > limits.DEDUPE_KEYS:
            self._rows.popitem(last=False)

    def expire(self, now_ms: int, window_ms: int) -> None:
        """Forget what no answer may use any more; rows are in the order of their time."""
        while self._rows:
            key = next(iter(self._rows))
            if now_ms - self._rows[key].ts <= window_ms:
                return
            del self._rows[key]

    def drop_in(self, first: int, last: int) -> None:
        """Forget keys whose records were lost: a retry must append them."""
        for key in [k for k, row in self._rows.items() if first <= row.first_seq <= last]:
            del self._rows[key]

    def rows(self) -> list[tuple[str, int, int, int]]:
        return [(key, *row) for key, row in self._rows.items()]

    def __len__(self) -> int:
        return len(self._rows)
