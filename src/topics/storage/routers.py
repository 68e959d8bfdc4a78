"""Routers: what a source topic takes in is copied to a dest topic, behind the source's ack.

The copies are ordinary appends of the dest's class, in one submission with a RouterCursor frame: a crash neither
repeats nor loses one, whatever happens to the source meanwhile. The list of routers is logged on shard 0, the progress
of each on its dest's shard, with its copies; of the frames found there the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from topics.format.control import LostRange, LostReason, RouterCreate, RouterCursor, RouterDelete, Selector
from topics.format.frame import DURABLE, MORE, Kind, encode_frame
from topics.format.snapshot import RouterRow
from topics.model.config import Durability
from topics.storage.append import check_seqs
from topics.storage.effect import Effect
from topics.storage.submission import Buffers, Submission, WaitFirst
from topics.storage.topic import Topic
from topics.storage.wal import Shard


@dataclass(slots=True, eq=False)
class Router:
    id: int
    name: str
    source: str
    dest: str
    source_id: int
    dest_id: int
    bits: int
    filter: Selector | None
    start: int
    """The cursor it was made with."""
    cursor: int
    """Last source seq that was copied, or passed over."""
    forwarded: int = 0
    """Copies, and holes where the source had lost records."""
    under_way: Submission | None = None
    """The pass that is not settled yet: one at a time."""

    looked: int = 0
    """How far the dest was searched for copies that somebody else made of what this router is to copy."""
    taken: dict[int, int] = field(default_factory=dict)
    """What was found: source seq -> dest seq."""

    def frame(self, ts: int) -> bytes:
        body = RouterCreate(
            self.name, self.source, self.dest, self.bits, self.filter, self.cursor, 0, self.id, self.source_id,
            self.dest_id,
        )  # fmt: skip
        return encode_frame(Kind.ROUTER_CREATE, 0, body.encode(), ts=ts, flags=DURABLE)

    def cursor_frame(self, cursor: int, forwarded: int, ts: int, flags: int) -> bytes:
        body = RouterCursor(self.id, cursor, forwarded).encode()
        return encode_frame(Kind.ROUTER_CURSOR, 0, body, ts=ts, flags=flags)

    def advance(self, cursor: int, forwarded: int) -> None:
        self.cursor = max(self.cursor, cursor)
        self.forwarded = max(self.forwarded, forwarded)

    def row(self, cursor: int, forwarded: int) -> RouterRow:
        match = None if self.filter is None else (self.filter.op, self.filter.value)
        return RouterRow(
            self.id, self.name, self.source, self.dest, self.source_id, self.dest_id, self.bits, match, self.start,
            cursor, forwarded,
        )  # fmt: skip


def router_of(row: RouterRow) -> Router:
    match = None if row.filter is None else Selector(*row.filter)
    return Router(
        row.id, row.name, row.source, row.dest, row.source_id, row.dest_id, row.bits, match, row.start, row.cursor,
        row.forwarded,
    )  # fmt: skip


@dataclass(slots=True)
class Routers:
    """The routers of a store. Its list changes one step at a time, so that each is decided on all that came before."""

    by_name: dict[str, Router] = field(default_factory=dict)
    rows: list[RouterRow] = field(default_factory=list)
    """As the last snapshot has them."""
    version: int = 0
    """Rises whenever the list changes."""
    unmarked: int = 0
    """Copies of this life that were to say where they came from and had no room for it."""
    _changing: Submission | None = None
    _into: dict[int, list[Router]] = field(default_factory=dict)
    _out_of: dict[int, list[Router]] = field(default_factory=dict)

    def adopt(self, routers: Iterable[Router]) -> None:
        for router in routers:
            self._add(router)

    def check_settled(self) -> None:
        """Raise WaitFirst while a change of the list is under way."""
        if self._changing is not None:
            raise WaitFirst(self._changing)

    def put(self, shard: Shard, router: Router, topics: Container[int], now_ms: int) -> Submission:
        """Log a new router, or another set of options for one that is there (same id, same progress)."""

        def apply() -> None:
            known = self.by_name.get(router.name)
            if known is not None and known.id == router.id:
                known.bits, known.filter = router.bits, router.filter
            elif router.source_id in topics and router.dest_id in topics:
                # Recovery, too, ends a router whose topic was dropped while it was being logged.
                self._add(router)

        return self._change(shard, router.frame(now_ms), apply)

    def drop(self, shard: Shard, name: str, now_ms: int) -> Submission:
        frame = encode_frame(Kind.ROUTER_DELETE, 0, RouterDelete(name).encode(), ts=now_ms, flags=DURABLE)

        def apply() -> None:
            known = self.by_name.get(name)
            if known is not None:
                self._remove(known)

        return self._change(shard, frame, apply)

    def _change(self, shard: Shard, frame: bytes, apply: Callable[[], None]) -> Submission:
        assert self._changing is None, "one change of the list at a time"

        def done(_: Submission) -> None:
            self._changing = None
            apply()

        def fail(_: Submission) -> None:
            self._changing = None

        self._changing = Submission(0, [frame], done, needs_sync=True, on_fail=fail)
        return shard.submit(self._changing)

    def _add(self, router: Router) -> None:
        self.version += 1
        self.by_name[router.name] = router
        self._into.setdefault(router.dest_id, []).append(router)
        self._out_of.setdefault(router.source_id, []).append(router)

    def _remove(self, router: Router) -> None:
        self.version += 1
        del self.by_name[router.name]
        for index, topic_id in ((self._into, router.dest_id), (self._out_of, router.source_id)):
            index[topic_id].remove(router)
            if not index[topic_id]:
                del index[topic_id]

    def touching(self, topic_id: int) -> list[Router]:
        return [*self._into.get(topic_id, ()), *self._out_of.get(topic_id, ())]

    def forget_topic(self, topic_id: int) -> None:
        """A dropped topic ends every router that touches it. Ids are never used again, so recovery needs no frame to
        come to the same end."""
        for router in self.touching(topic_id):
            self._remove(router)

    def into(self, topic_id: int) -> list[Router]:
        return list(self._into.get(topic_id, ()))

    def out_of(self, topic_id: int) -> list[Router]:
        return list(self._out_of.get(topic_id, ()))

    def dests(self) -> Iterable[tuple[int, list[Router]]]:
        return self._into.items()

    def has(self, router: Router) -> bool:
        """False once it was dropped, whatever has its name now."""
        return self.by_name.get(router.name) is router


# -- progress without copies -------------------------------------------------------------------------------------------


def order_cursor(
    router: Router, dest: Topic, shard: Shard, cursor: int, now_ms: int, counted: int = 0
) -> Submission | None:
    """Pass over source records that need no copy; `counted` of them count as forwarded all the same."""
    forwarded = router.forwarded + counted
    if dest.ordered.config.commit_class == Durability.EPHEMERAL:
        router.advance(cursor, forwarded)
        return None
    frame = router.cursor_frame(cursor, forwarded, now_ms, 0)
    return _submit(router, shard, dest, [frame], lambda: router.advance(cursor, forwarded), None)


def order_holes(router: Router, dest: Topic, shard: Shard, count: int, cursor: int, now_ms: int) -> Submission | None:
    """The source lost `count` records before they were copied: the dest says so, one hole each."""
    check_seqs(dest, count)
    first = dest.ordered.head + 1
    last = first + count - 1
    forwarded = router.forwarded + count
    if dest.ordered.config.commit_class == Durability.EPHEMERAL:
        if dest.pending:
            raise WaitFirst(dest.pending[-1].submission)
        dest.apply_lost(first, last, LostReason.SOURCE_TRIM)
        dest.ordered = dest.published()
        router.advance(cursor, forwarded)
        dest.wake()
        return None
    ts = max(now_ms, dest.ordered.ts)
    effect = Effect(head=last, ts=ts)
    lost = LostRange(first, last, LostReason.SOURCE_TRIM).encode()
    buffers: Buffers = [
        router.cursor_frame(cursor, forwarded, ts, DURABLE | MORE),
        encode_frame(Kind.LOST_RANGE, dest.id, lost, ts=ts, flags=DURABLE),
    ]

    def apply() -> None:
        dest.apply_lost(first, last, LostReason.SOURCE_TRIM)
        router.advance(cursor, forwarded)
        dest.settled(effect)
        dest.wake()

    return _submit(router, shard, dest, buffers, apply, effect)


def _submit(
    router: Router, shard: Shard, dest: Topic, buffers: Buffers, apply: Callable[[], None], effect: Effect | None
) -> Submission:
    def done(_: Submission) -> None:
        router.under_way = None
        apply()

    def fail(failed: Submission) -> None:
        router.under_way = None
        if effect is not None and failed.file is None:
            dest.withdraw(effect)

    submission = Submission(dest.id, buffers, done, needs_sync=effect is not None, on_fail=fail)
    if effect is not None:
        effect.submission = submission
        dest.order(effect)
    router.under_way = shard.submit(submission)
    return submission
