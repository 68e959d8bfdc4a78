"""The staged append for callers who wait in their own threads, as embedded use has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from topics.broker.staging import Chore, Outcome, Staged, StageState, StoredPart, Work
from topics.format.ops import prepare
from topics.model import limits
from topics.model.errors import BatchTooLarge
from topics.storage.commit import Background, Committer
from topics.storage.store import Store
from topics.storage.submission import Submission

T = TypeVar("T")


class Staging:
    """A transaction is `<id>` or `<app>@<version>`. Its parts are visible to nobody until they are committed."""

    def __init__(self, store: Store, committer: Committer, background: Background) -> None:
        self._cases = Staged(store)
        self._store = store
        self._committer = committer
        self._background = background

    def put(self, topic: str, txn: str, part: str, records: Sequence[Any], *, node: str | None = None) -> StoredPart:
        """Store one part, durable when this returns. The same part again is welcome, another under its name is
        PartExists; once the transaction is committed nothing is stored, and the answer says so."""
        if len(records) > limits.PART_RECORDS:
            raise BatchTooLarge(f"{len(records)} records are more than the {limits.PART_RECORDS} of one part")
        return self._run(self._cases.put(topic, txn, part, prepare(records, default_node=node), may_create=False))

    def commit(self, txn: str, topics: Mapping[str, Sequence[str]], *, query: str = "") -> dict[str, Outcome]:
        """Append the named parts, in this order, in all of the topics or in none. Repeated, it answers its first
        result."""
        return self._run(self._cases.commit(txn, {name: list(parts) for name, parts in topics.items()}, query))

    def abort(self, topic: str, txn: str) -> bool:
        """Drop an open transaction; False if it is committed, which nothing undoes."""
        return self._run(self._cases.abort(topic, txn))

    def state(self, topic: str, txn: str) -> StageState:
        return self._cases.state(topic, txn)

    def _run(self, work: Work[T]) -> T:
        """In the background thread: signals reach the main thread alone, so one breaks off the waiting, and never a
        change of state in its middle."""
        done: list[T] = []

        def act() -> bool:
            while True:
                try:
                    wait = next(work)
                except StopIteration as end:
                    done.append(end.value)
                    return True
                if isinstance(wait, Chore):
                    wait.run()
                elif isinstance(wait, Submission):
                    self._committer.wait_settled(wait)

        self._store.check_open()  # without the lock: in a forked child it may be held for ever, and the store is closed
        self._background.run(act)
        return done[0]
