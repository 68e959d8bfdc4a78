"""Which transactions a topic has committed, and for how long it remembers: what makes a commit repeatable.

A transaction is `<id>`, remembered for some days, or `<app>@<version>`: of an app only the highest committed version
is kept, for the life of the topic, and every version at or below it counts as committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from topics.model.config import check_topic_name
from topics.model.errors import InvalidRequest

_VERSION: Final = re.compile(r"0|[1-9][0-9]{0,19}")


class Txn(NamedTuple):
    app: str
    version: int | None
    """None: a plain id."""

    @property
    def name(self) -> str:
        return self.app if self.version is None else f"{self.app}@{self.version}"


class Committed(NamedTuple):
    txn: str
    query: str
    """Empty = none was given."""
    first_seq: int
    """0 = not known any more, or nothing was appended."""
    records: int
    ts: int


def parse_txn(text: str) -> Txn:
    app, at, digits = text.partition("@")
    check_topic_name(app, "transaction")
    if not at:
        return Txn(app, None)
    if not _VERSION.fullmatch(digits) or int(digits) >= 1 << 64:
        raise InvalidRequest(f"transaction {text!r} is not valid: behind '@' stands a version from 0 to 2^64-1")
    return Txn(app, int(digits))


class TxnMemory:
    __slots__ = ("_apps", "_plain")

    def __init__(self) -> None:
        self._apps: dict[str, tuple[int, Committed]] = {}
        self._plain: dict[str, Committed] = {}

    def find(self, txn: Txn) -> Committed | None:
        """What the commit of `txn` came to; with first_seq 0 where only that there was one is known."""
        if txn.version is None:
            return self._plain.get(txn.app)
        known = self._apps.get(txn.app)
        if known is None or txn.version > known[0]:
            return None
        return known[1] if txn.version == known[0] else Committed(txn.name, known[1].query, 0, 0, known[1].ts)

    def is_foreign(self, txn: Txn, query: str) -> bool:
        """True if the app was last used by another query: its versions count something else."""
        known = self._apps.get(txn.app) if txn.version is not None else None
        return known is not None and bool(query) and bool(known[1].query) and known[1].query != query

    def add(self, row: Committed) -> None:
        """Adding what is known already changes nothing, so a replay may add it again."""
        txn = parse_txn(row.txn)
        if txn.version is None:
            self._plain.pop(txn.app, None)
            self._plain[txn.app] = row
        elif txn.app not in self._apps or txn.version >= self._apps[txn.app][0]:
            self._apps[txn.app] = (txn.version, row)

    def expire(self, now_ms: int, memory_ms: int) -> int:
        """Forget plain ids that are older than `memory_ms`; how many. They are in the order of their time."""
        before = len(self._plain)
        while self._plain:
            name = next(iter(self._plain))
            if now_ms - self._plain[name].ts <= memory_ms:
                break
            del self._plain[name]
        return before - len(self._plain)

    def rows(self) -> Iterator[Committed]:
        yield from self._plain.values()
        for _, row in self._apps.values():
            yield row

    def __len__(self) -> int:
        return len(self._plain) + len(self._apps)
