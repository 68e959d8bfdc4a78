"""Staged append: parts that are durable and invisible, and their commit, atomic and repeatable, in one topic or many.

Reading and writing part files takes time, so these use cases also yield chores: work that whoever drives them does
without the store's lock and off the event loop. A chore that has begun runs to its end, whoever leaves meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from topics.broker.listing import page_of
from topics.broker.steps import Nap, Steps, asked, fills_queue, settled
from topics.format.ops import stage_frames
from topics.format.prepared import Prepared
from topics.model.config import TopicConfig, check_topic_name
from topics.model.errors import InvalidRequest, NotFound, StorageError, Throttled, TopicNotFound
from topics.rules.txns import Committed, Txn, parse_txn
from topics.storage.partfile import LoadedPart, Part, head_for, load_part
from topics.storage.stagecommit import Wanted, find_commit, find_parts, order_commit
from topics.storage.staging import Put, begin_abort, begin_put, end_abort, end_put, known_commit, stages_of
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst
from topics.storage.topic import Topic

T = TypeVar("T")


class Chore(Generic[T]):
    """Work off the loop. `run` raises nothing; `result` does."""

    __slots__ = ("_error", "_value", "_work")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


Work = Generator[Submission | Nap | Chore[Any], None, T]


class StoredPart(msgspec.Struct, frozen=True):
    txn: str
    part: str
    count: int
    bytes: int
    created: bool
    committed: bool = False
    """The transaction was over: nothing was stored."""


class Outcome(msgspec.Struct, frozen=True):
    """What a commit came to in one topic."""

    first_seq: int | None
    last_seq: int | None
    count: int
    repeated: bool


class PartState(msgspec.Struct, frozen=True):
    part: str
    count: int
    bytes: int


class StageState(msgspec.Struct, frozen=True, omit_defaults=True):
    txn: str
    state: str
    """`open` or `committed`."""
    parts: list[PartState] | msgspec.UnsetType = msgspec.UNSET
    first_seq: int | msgspec.UnsetType | None = msgspec.UNSET
    last_seq: int | msgspec.UnsetType | None = msgspec.UNSET
    count: int | msgspec.UnsetType = msgspec.UNSET
    query: str | msgspec.UnsetType = msgspec.UNSET


class Staged:
    """The use cases."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- parts ---------------------------------------------------------------------------------------------------------

    def put(self, name: str, txn: str, part: str, prepared: Prepared, may_create: bool = True) -> Work[StoredPart]:
        """Store one part: durable when this ends, visible to nobody."""
        parse_txn(txn)
        check_topic_name(part, "part")
        topic = yield from self._topic(name, may_create)
        chore = Chore(lambda: self._store_part(topic, txn, part, prepared))
        yield chore
        return chore.result()

    def _store_part(self, topic: Topic, txn: str, part: str, prepared: Prepared) -> StoredPart:
        store = self.store
        frames = stage_frames(prepared.frames, prepared.entries, prepared.count)
        head = head_for(txn, part, prepared.count, frames)
        with store.lock:
            store.check_open()
            if store.by_id.get(topic.id) is not topic or topic.closing:
                raise TopicNotFound(topic.name)
            found = begin_put(store, topic, head)
        created = isinstance(found, Put)
        if isinstance(found, Put):
            put = found
            try:
                put.run(store.fs, frames)
            finally:
                with store.lock:
                    found = end_put(store, put)
        committed = isinstance(found, Committed)
        return StoredPart(txn, part, head.count, head.frame_bytes, created and not committed, committed)

    def _topic(self, name: str, may_create: bool) -> Steps[Topic]:
        store = self.store

        def ask() -> tuple[Topic | None, Submission | None]:
            known = store.topics.get(name)
            if known is not None and not known.closing:
                store.check_open()
                return known, None
            if not may_create:
                raise TopicNotFound(name)
            return None, store.create(name, TopicConfig().resolved())

        while True:
            topic, creation = yield from asked(store, ask)
            if topic is not None:
                return topic
            yield from settled(creation)

    # -- commit --------------------------------------------------------------------------------------------------------

    def commit(self, txn: str, topics: dict[str, list[str]], query: str = "") -> Work[dict[str, Outcome]]:
        """Append the named parts, in this order: in all topics or in none. What a topic has committed before it
        answers with its first result."""
        parsed = parse_txn(txn)
        if not topics:
            raise InvalidRequest("'topics' is empty; a commit names at least one topic")
        for name, parts in topics.items():
            if len(set(parts)) != len(parts):
                raise InvalidRequest(f"a part is named twice for topic {name!r}")
        loaded: dict[str, LoadedPart] = {}
        tried: set[str] = set()
        while True:
            try:
                with self.store.lock:
                    outcomes, wanted = self._wanted(parsed, topics, query)
                    missing = [part for one in wanted for part in one.parts if part.path not in loaded]
                    if not missing:
                        commit = order_commit(self.store, wanted, loaded) if wanted else None
                        break
            except (WaitFirst, Throttled) as first:
                waited_for = first.submission if isinstance(first, WaitFirst) else fills_queue(self.store, first)
                if waited_for is not None:
                    yield waited_for
                continue
            gone = [part.path for part in missing if part.path in tried]
            if gone:
                raise StorageError(f"{gone[0]} is missing; the part has to be staged again", path=gone[0])
            tried.update(part.path for part in missing)
            chore = Chore(partial(self._load, missing))
            yield chore
            loaded |= chore.result()
        if commit is not None:
            for submission in commit.waits():
                if not submission.settled:
                    yield submission
            commit.check()
            for append in commit.appends:
                row = Committed(txn, query, append.first_seq, append.count, 0)
                outcomes[append.topic.name] = outcome(row, repeated=False)
                yield from self._swept(append.topic)
        return {name: outcomes[name] for name in topics}

    def _wanted(self, txn: Txn, topics: dict[str, list[str]], query: str) -> tuple[dict[str, Outcome], list[Wanted]]:
        """What is known already, and what is still to be done."""
        outcomes: dict[str, Outcome] = {}
        wanted: list[Wanted] = []
        found = [(self.store.topic(name), parts) for name, parts in topics.items()]
        known = [(topic, parts, find_commit(topic, txn, query)) for topic, parts in found]
        for topic, parts, before in known:
            if before is not None:
                outcomes[topic.name] = outcome(before, repeated=True)
            else:
                wanted.append(Wanted(topic, txn, query, find_parts(topic, txn, parts)))
        return outcomes, wanted

    def _load(self, parts: list[Part]) -> dict[str, LoadedPart]:
        """Read and prove the parts before anything is decided on them. One that is gone will be missed at the next
        look."""
        loaded: dict[str, LoadedPart] = {}
        for part in parts:
            with suppress(FileNotFoundError):
                loaded[part.path] = load_part(self.store.handles, part.path, part.number)
        return loaded

    def _swept(self, topic: Topic) -> Steps[None]:
        """What the commit has become too much of goes at once."""
        with self.store.lock:
            submission = self.store.sweep(topic)
        if submission is not None and not submission.settled:
            yield submission  # if it fails, everything stays as it is, and the next write says why

    # -- the rest ------------------------------------------------------------------------------------------------------

    def abort(self, name: str, txn: str) -> Work[bool]:
        """Drop an open stage, durably; False if the transaction is committed, which nothing undoes."""
        store, parsed = self.store, parse_txn(txn)
        found = yield from asked(store, lambda: self._begin_abort(name, parsed))
        if isinstance(found, Committed):
            return False
        topic, parts = found
        chore = Chore(lambda: end_abort(store, topic, parsed, parts))
        yield chore
        chore.result()
        return True

    def _begin_abort(self, name: str, txn: Txn) -> Committed | tuple[Topic, list[Part]]:
        topic = self.store.topic(name)
        found = begin_abort(self.store, topic, txn)
        return found if isinstance(found, Committed) else (topic, found)

    def state(self, name: str, txn: str) -> StageState:
        parsed = parse_txn(txn)
        with self.store.lock:
            found = _state(self.store.topic(name), parsed)
        if found is None:
            raise NotFound(f"topic {name!r} knows no transaction {txn!r}")
        return found

    def list(self, name: str, prefix: str, after: str | None, size: int) -> tuple[list[StageState], str | None]:
        """A page of open stages and remembered commits, by name."""
        with self.store.lock:
            topic = self.store.topic(name)
            stages = stages_of(topic)
            known = {row.txn for row in stages.memory.rows()} | stages.open.keys()
        names, following = page_of(known, prefix, after, size, lambda _: True)  # there may be very many: not locked
        with self.store.lock:
            states = [_state(topic, parse_txn(txn)) for txn in names]
        return [state for state in states if state is not None], following


def _state(topic: Topic, txn: Txn) -> StageState | None:
    known = known_commit(topic, txn)
    if known is not None:
        done = outcome(known, repeated=False)
        return StageState(
            txn.name, "committed", first_seq=done.first_seq, last_seq=done.last_seq, count=done.count, query=known.query
        )
    stage = stages_of(topic).open.get(txn.name)
    if stage is None:
        return None
    parts = [PartState(name, part.head.count, part.head.frame_bytes) for name, part in sorted(stage.parts.items())]
    return StageState(txn.name, "open", parts=parts)


def outcome(row: Committed, repeated: bool) -> Outcome:
    if not row.first_seq or not row.records:
        return Outcome(None, None, row.records, repeated)
    return Outcome(row.first_seq, row.first_seq + row.records - 1, row.records, repeated)
