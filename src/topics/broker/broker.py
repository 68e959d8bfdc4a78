"""The use cases, each a few lines over the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from topics.broker.group import ConsumerGroups
from topics.broker.heads import HeadRow, heads_like, heads_of
from topics.broker.history import History, Range
from topics.broker.listing import page_of
from topics.broker.lookups import At, RetentionPlan, TagCount, latest_of_key, record_at, retention_plan, tag_names
from topics.broker.queue import Queues
from topics.broker.reading import Page, Query, read_page
from topics.broker.router import pull
from topics.broker.routing import Routing
from topics.broker.segments import Part, SegmentList, find_part, list_segments
from topics.broker.state import Clocks, TopicRow, TopicState, row_of, state_of
from topics.broker.steps import Nap, Steps, asked, is_queue_full, last_queued, settled
from topics.broker.warmth import Warmth
from topics.format.control import Selector
from topics.format.prepared import Prepared
from topics.host.clock import Clock
from topics.model.config import TopicConfig, check_config
from topics.model.errors import InvalidRequest, Throttled, TopicNotFound, TopicsError
from topics.storage.append import Append, shares_submission
from topics.storage.leasing import check_delays
from topics.storage.names import TAGS
from topics.storage.namesearch import Search, is_quick, search_ahead
from topics.storage.scan import check_there
from topics.storage.store import Store
from topics.storage.submission import Submission, Together, WaitFirst
from topics.storage.topic import Topic

_HEADS_MS = 10
"""How often waiting heads are looked at again: a sync tells nobody whose records it made safe."""
_HEADS_PER_MS = 100
"""Many are looked at less often, so that waiting for them takes no more than some percent of the loop."""


class Appended(msgspec.Struct, frozen=True):
    topic: str
    first_seq: int
    count: int
    created: bool
    deduped: bool
    synced: bool
    """The answer waited for the disk."""
    waited_ns: int
    throttled_ns: int = 0
    """Of the time before it was ordered: what it waited for room in the queue of its shard."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Deleted(msgspec.Struct, frozen=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class AppendedTogether(Together, Protocol):
    """Several callers whose appends are one."""

    append: Append | None
    """What they have become; set before the first `release`."""


class Broker:
    def __init__(self, store: Store, clock: Clock, max_routers: int = 0) -> None:
        self.store = store
        self.clock = clock
        self.clocks = Clocks()
        self.routing = Routing(store, max_routers)
        self.queues = Queues(store, self._pulled)
        self.groups = ConsumerGroups(store, self._pulled)
        self.patient: Callable[[], bool] = lambda: True
        """Whether an append that finds the queue of its shard full waits for room instead of being refused."""
        self.warmth: Warmth | None = None
        """Who waits for the disk before a page is read; None = whoever reads it."""

    # -- topics --------------------------------------------------------------------------------------------------------

    def put_topic(self, name: str, config: TopicConfig) -> Steps[bool]:
        """Create a topic, or replace the config of one that exists; True if it is new."""
        check_topic_config(name, config)
        wanted = config.resolved()

        def ask() -> tuple[bool, Submission | None]:
            submission = self.store.create(name, wanted)
            if submission is not None:
                return True, submission
            return False, self.store.configure(name, wanted)

        created, submission = yield from asked(self.store, ask)
        yield from settled(submission)
        if submission is not None and not created:
            yield from self._swept_by_name(name)
        return created

    def patch_topic(self, name: str, changes: dict[str, Any]) -> Steps[TopicConfig]:
        """Change some config fields, keep the rest."""

        def ask() -> tuple[TopicConfig, Submission | None]:
            # Merged under the lock, so that two callers who change different fields both get their way.
            known = msgspec.to_builtins(self.store.topic(name).ordered.config)
            if "durable" in changes and "durability" not in changes:
                known["durability"] = None
            try:
                config = msgspec.convert({**known, **changes}, TopicConfig, strict=True)
            except msgspec.ValidationError as error:
                raise InvalidRequest(f"bad topic config: {error}") from None
            check_topic_config(name, config)
            config = config.resolved()
            return config, self.store.configure(name, config)

        config, submission = yield from asked(self.store, ask)
        yield from settled(submission)
        yield from self._swept_by_name(name)
        return config

    def drop_topic(self, name: str, if_empty: bool) -> Steps[list[str] | None]:
        """The names of the routers that ended with it; None if there was no such topic."""

        def ask() -> tuple[int, list[str], Submission | None]:
            known = self.store.topics.get(name)
            if known is None and name not in self.store.creating:
                return 0, [], None  # whatever the name is: nothing to drop
            self.store.routers.check_settled()
            submission = self.store.drop(name, if_empty)
            topic_id = known.id if known is not None else 0
            return topic_id, sorted(router.name for router in self.store.routers.touching(topic_id)), submission

        yield from self._swept_by_name(name)
        topic_id, ended, submission = yield from asked(self.store, ask)
        yield from settled(submission)
        self.clocks.forget(topic_id)
        return None if submission is None else ended

    def state(self, name: str, touch: bool) -> Steps[TopicState]:
        topic = yield from self._pulled(name)
        now = self.clock.now_ms()
        with self.store.lock:
            if touch:
                self.clocks.read(topic, now)
            self.queues.sweep(topic)
            return state_of(self.store, topic, self.clocks, now)

    def list_topics(
        self, prefix: str, after: str | None, size: int, touch: bool, allowed: Callable[[str], bool]
    ) -> Steps[tuple[list[TopicRow], str | None]]:
        """A page of topics that are allowed to be seen, and the last name of it if another page follows."""
        now = self.clock.now_ms()
        with self.store.lock:
            self.store.check_open()
            names, following = page_of(self.store.topics, prefix, after, size, allowed)
            topics = [self.store.topics[name] for name in names]
            sweeps = [self.store.sweep(topic) for topic in topics]
        for submission in sweeps:
            if submission is not None and not submission.settled:
                yield submission
        with self.store.lock:
            for topic in topics:
                if touch:
                    self.clocks.of(topic).consumed_ms = now
            return [row_of(topic, self.clocks, now) for topic in topics], following

    def exists(self, name: str) -> bool:
        with self.store.lock:
            self.store.check_open()
            topic = self.store.topics.get(name)
            return topic is not None and not topic.closing

    # -- records -------------------------------------------------------------------------------------------------------

    def append_now(self, name: str, prepared: Prepared, key: str | None) -> Append | None:
        """Order an append without waiting; None where its topic has to be made or something else to end first."""
        store = self.store
        with store.lock:
            known = store.topics.get(name)
            if known is None or known.closing:
                return None
            try:
                return store.append(name, prepared, key)
            except WaitFirst:
                return None
            except Throttled as refused:
                if is_queue_full(refused):
                    return None
                raise

    def append_together(self, name: str, prepared: Prepared, waiter: AppendedTogether) -> None:
        """Order the appends of several callers, which `prepared` holds one behind the other; `waiter` is released when
        all are settled. It gets no append where each of them has to be asked for by itself."""
        store = self.store
        with store.lock:
            known = store.topics.get(name)
            if known is None or known.closing or not shares_submission(known.ordered.config):
                return
            try:
                append = store.append(name, prepared)
            except WaitFirst:
                return
            assert append.submission is not None
            waiter.append = append
            append.submission.carry(waiter)

    def append(
        self,
        name: str,
        prepared: Prepared,
        key: str | None,
        config: TopicConfig | None,
        may_create: bool,
        insist: bool = False,
    ) -> Steps[Appended]:
        """`config` is that of a topic which this append makes; None = the defaults. `insist`: whatever the pressure, it
        waits for room rather than be refused."""
        store = self.store
        created = False
        throttled = 0
        wait: Submission | None
        while True:
            append: Append | None = None
            try:
                with store.lock:
                    known = store.topics.get(name)
                    if known is not None and not known.closing:
                        append = store.append(name, prepared, key)
                        break
                    store.check_open()
                    if not may_create:
                        raise TopicNotFound(name)
                    wanted = config or TopicConfig()
                    check_topic_config(name, wanted)
                    check_delays(name, wanted.type, prepared)
                    wait = store.create(name, wanted.resolved())
            except WaitFirst as first:
                yield first.submission
                continue
            except Throttled as refused:
                if not is_queue_full(refused) or not (insist or self.patient()):
                    raise
                began = self.clock.monotonic_ns()
                last = last_queued(self.store, refused)
                if last is not None:
                    yield last
                throttled += self.clock.monotonic_ns() - began
                continue
            if wait is not None:
                yield from settled(wait)
                created = True
        submission = append.submission
        waited = 0
        synced = False
        if submission is not None:
            started = self.clock.monotonic_ns()
            yield from settled(submission)
            waited = self.clock.monotonic_ns() - started
            synced = submission.needs_sync
        return Appended(name, append.first_seq, append.count, created, append.deduped, synced, waited, throttled)

    def delete(
        self, name: str, before_seq: int | None, match: Selector | None, search: Search | None = None
    ) -> Steps[Deleted]:
        """`search`: what was found ahead, to be believed only of the very same topic."""

        def ask() -> tuple[Topic, Submission | None, Callable[[], int]]:
            topic = self.store.topic(name)
            known = search.found if search is not None and search.topic is topic else None
            return topic, *self.store.delete(name, before_seq, match, known)

        topic, submission, died = yield from asked(self.store, ask)
        yield from settled(submission)
        with self.store.lock:
            return Deleted(name, died(), topic.earliest_seq, topic.head, topic.live, topic.bytes)

    def diff(self, name: str, query: Query, wait_ms: int = 0) -> Steps[Page]:
        """A page after the cursor; an empty one waits for the next append, up to `wait_ms`."""
        topic = yield from self._pulled(name)
        self.clocks.read(topic, self.clock.now_ms())
        if self.warmth is not None:
            yield from self.warmth.warmed(topic, query)
        if not wait_ms:
            return read_page(self.store, topic, query)
        nap = Nap(wait_ms)
        with self.store.lock:
            nap.watch(topic)
        try:
            page = read_page(self.store, topic, query)
            if not page.is_empty:
                return page
            yield nap
        finally:
            with self.store.lock:
                nap.leave()
        if not nap.woken:
            return page
        topic = yield from self._swept(name)
        return read_page(self.store, topic, query)

    def watched(self, name: str, pull: bool) -> Steps[Topic]:
        """The topic, ready for a live reader: without what became too old and, with `pull`, with all its sources had
        for it; later on those arrive by themselves."""
        topic = yield from (self._pulled(name) if pull else self._swept(name))
        self.clocks.read(topic, self.clock.now_ms())
        return topic

    def history(self, name: str, wanted: Range) -> Steps[History]:
        """A range of the past, ready to be read."""
        topic = yield from self._pulled(name)
        self.clocks.read(topic, self.clock.now_ms())
        with self.store.lock:
            check_there(self.store, topic)
            return History(self.store, topic, wanted)

    def heads(
        self, asked: dict[str, int] | None, prefix: str, exact: bool, allowed: Callable[[str], bool], wait_ms: int
    ) -> Steps[dict[str, HeadRow]]:
        """Where some topics stand: those asked for with their next seqs, or those whose name begins with `prefix`. With
        `wait_ms` it waits until one of them has a safe record at its next seq."""
        ends = self.clock.monotonic_ns() + wait_ms * 1_000_000
        while True:
            left_ms = max((ends - self.clock.monotonic_ns()) // 1_000_000, 0)
            pace_ms = max(_HEADS_MS, len(asked or ()) // _HEADS_PER_MS)
            nap = Nap(min(left_ms, pace_ms) if left_ms else 0)
            with self.store.lock:
                self.store.check_open()
                names = asked
                if names is None:
                    names = heads_like(self.store, prefix, exact, allowed)
                rows, passed = heads_of(self.store, names)
            if asked is None:
                asked = names
            if passed or left_ms <= 0:
                return rows
            yield nap
            if nap.refused:
                return rows

    def at(self, name: str, ts: int) -> Steps[At]:
        topic = yield from self._swept(name)
        with self.store.lock:
            return record_at(topic, ts)

    def tag_names(self, name: str, prefix: str, limit: int) -> Steps[Callable[[], list[TagCount]]]:
        """How to find them, without the lock."""
        topic = yield from self._swept(name)
        return partial(tag_names, self.store, topic, prefix, limit)

    def latest_of_key(self, name: str, key: str, want: int) -> Steps[Callable[[], bytes | None]]:
        """How to find the newest record with a key, without the lock."""
        topic = yield from self._pulled(name)
        self.clocks.read(topic, self.clock.now_ms())
        return partial(latest_of_key, self.store, topic, key, want)

    def search_before_delete(self, name: str, match: Selector) -> Callable[[], Search] | None:
        """The long part of a delete by tag, to be done without the lock; None = it is short."""
        with self.store.lock:
            topic = self.store.topic(name)
            return None if is_quick(topic, TAGS) else partial(search_ahead, self.store, topic, TAGS, match)

    def retention_plan(self, name: str, changes: dict[str, int]) -> Steps[RetentionPlan]:
        topic = yield from self._swept(name)
        config = topic.config
        with self.store.lock:
            return retention_plan(
                topic,
                changes.get("cap_records", config.cap_records),
                changes.get("cap_bytes", config.cap_bytes),
                changes.get("ttl_ms", config.ttl_ms),
                self.clock.now_ms(),
                self.clock.monotonic_ns() // 1_000_000,
            )

    def segments(self, name: str, from_seq: int, to_seq: int | None, show_paths: bool) -> Steps[SegmentList]:
        topic = yield from self._swept(name)
        with self.store.lock:
            return list_segments(self.store, topic, from_seq, to_seq, show_paths)

    def segment_part(self, name: str, first_seq: int, part: str) -> Steps[Part]:
        topic = yield from self._swept(name)
        with self.store.lock:
            return find_part(topic, first_seq, part)

    # -- before a read -------------------------------------------------------------------------------------------------

    def _pulled(self, name: str) -> Steps[Topic]:
        """The topic, with everything that its sources had for it, and without what is too old or too much."""
        if self.store.routers.by_name:
            with self.store.lock:
                topic = self.store.topic(name)
            yield from pull(self.store, topic)
        return (yield from self._swept(name))

    def _swept(self, name: str) -> Steps[Topic]:
        """The topic, with what became too old or too much gone from it."""
        with self.store.lock:
            topic = self.store.topic(name)
            submission = self.store.sweep(topic)
        if submission is not None and not submission.settled:
            yield submission  # if it fails, everything stays as it is, and the next write says why
        return topic

    def _swept_by_name(self, name: str) -> Steps[None]:
        with suppress(TopicsError):
            yield from self._swept(name)


def check_topic_config(name: str, config: TopicConfig) -> None:
    try:
        check_config(config)
    except InvalidRequest as error:
        if "dead_letter" in error.message:
            raise InvalidRequest(error.message, dead_letter=config.dead_letter) from None
        raise
    if config.type == "queue" and config.dead_letter == name:
        raise InvalidRequest(f"the dead letters of queue {name!r} cannot go to itself", dead_letter=name)
