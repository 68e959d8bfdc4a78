"""The synchronous client, on urllib3. One client may be used by any number of threads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from topics.client import calls, history, staged
from topics.client.answers import (
    Appended,
    At,
    Batch,
    Configured,
    Deleted,
    Dropped,
    Heads,
    Health,
    HistoryPage,
    Part,
    Ready,
    Router,
    RouterDropped,
    RouterPage,
    SegmentList,
    TopicPage,
    TopicState,
    TopicSummary,
)
from topics.client.calls import Call
from topics.client.groupcalls import GroupInfo
from topics.client.groups import Group, groups
from topics.client.history import StreamCall
from topics.client.lines import Decoder
from topics.client.problems import problem
from topics.client.queues import Queue
from topics.client.retry import Attempts, RetryPolicy
from topics.client.staged import StagedAbort, StagedCommit, StagedCommits, StagedPart, StagedTxn
from topics.client.transport import Answer, HttpRequest, OpenAnswer, Transport
from topics.client.url import DEFAULT_URL, Place
from topics.client.watching import Topics, Watch, Watched, options_of
from topics.model.errors import NotFound, TopicsError, Unreachable
from topics.model.record import Gap, Record

T = TypeVar("T")


class Client:
    """A topics server. Close it, or use it as a context manager.

    Every call either returns what the server said or raises an error of `topics.model.errors`. What the server refused
    for the moment, or did not answer, is tried again within the bounds of `retry`, where that cannot do a thing twice.
    An append gets an idempotency key of its own for this, unless `idempotent=False`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        retry: RetryPolicy | None = None,
        ca_file: str | None = None,
        transport: Transport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ca_file`: PEM file of the authorities to trust instead of the system's, for `https`."""
        place = Place.parse(url, token)
        if transport is None:
            from topics.client.sync_transport import PoolTransport

            transport = PoolTransport(place, ca_file)
        self.url = place.url
        self._transport = transport
        self._retry = retry or RetryPolicy()
        self._sleep = sleep
        self._now = now

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    # -- topics --------------------------------------------------------------------------------------------------------

    def create(self, topic: str, **config: Any) -> Configured:
        """Create a topic, or replace the config of one that exists: a field left out falls back to its default."""
        return self._call(calls.create(topic, config))

    def configure(self, topic: str, **changes: Any) -> Configured:
        """Change some config fields of a topic, keep the rest."""
        return self._call(calls.configure(topic, changes))

    def info(self, topic: str, *, touch: bool | None = None) -> TopicState:
        """`touch=False` leaves the topic's read clocks alone, as monitoring should."""
        return self._call(calls.info(topic, touch))

    def topics_page(
        self,
        *,
        prefix: str | None = None,
        page_size: int | None = None,
        cursor: str | None = None,
        touch: bool | None = None,
    ) -> TopicPage:
        return self._call(calls.topics_page(prefix, page_size, cursor, touch))

    def topics(self, prefix: str | None = None) -> Iterator[TopicSummary]:
        """All topics by name, page by page."""
        cursor: str | None = None
        while True:
            page = self.topics_page(prefix=prefix, page_size=1000, cursor=cursor)
            yield from page.topics
            if (cursor := page.next_cursor) is None:
                return

    def drop(self, topic: str, *, if_empty: bool | None = None) -> Dropped:
        """Drop a topic, its records and every router that touches it."""
        return self._call(calls.drop(topic, if_empty))

    # -- records -------------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = True,
        create: bool | None = None,
        config: Mapping[str, Any] | None = None,
        return_seqs: bool = False,
        disable_backpressure: bool | None = None,
    ) -> Appended:
        """Append a batch, all of it or nothing. Records are mappings with `data` and perhaps `tag`, `node`, `key`,
        `meta`, `delay_ms`; bytes in `data` are JSON text. `idempotent=False` sends no key and never repeats."""
        call = calls.append(
            topic,
            records,
            node=node,
            idempotency_key=calls.auto_key(idempotency_key, idempotent),
            create=create,
            config=config,
            return_seqs=return_seqs,
            disable_backpressure=disable_backpressure,
        )
        return self._call(call)

    def append_ndjson(
        self,
        topic: str,
        body: bytes,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = True,
        create: bool | None = None,
        return_seqs: bool = False,
    ) -> Appended:
        """Append up to 100,000 records, one JSON object a line, as one batch."""
        key = calls.auto_key(idempotency_key, idempotent)
        call = calls.append_bulk(
            topic, body, calls.NDJSON, node=node, idempotency_key=key, create=create, return_seqs=return_seqs
        )
        return self._call(call)

    def append_arrow(
        self,
        topic: str,
        body: bytes,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = True,
        create: bool | None = None,
        return_seqs: bool = False,
    ) -> Appended:
        """Append up to 100,000 records of an Arrow IPC stream, as one batch."""
        key = calls.auto_key(idempotency_key, idempotent)
        call = calls.append_bulk(
            topic, body, calls.ARROW, node=node, idempotency_key=key, create=create, return_seqs=return_seqs
        )
        return self._call(call)

    def diff(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int | None = None,
        node: str | list[str] | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
        include_keys: bool = True,
        wait_ms: int = 0,
        max_batch_bytes: int | None = None,
        epoch: int | None = None,
    ) -> Batch:
        """What comes after `from_seq`. With `wait_ms` and nothing there, the server waits for an append."""
        call = calls.diff(
            topic,
            from_seq=from_seq,
            limit=limit,
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            include_keys=include_keys,
            wait_ms=wait_ms,
            max_batch_bytes=max_batch_bytes,
            epoch=epoch,
        )
        return self._call(call)

    def read(self, topic: str, from_seq: int = 0, *, follow: bool = False, limit: int = 1000) -> Iterator[Record | Gap]:
        """Records after `from_seq` and a Gap where some were lost: up to the head, or with `follow` for ever."""
        while True:
            batch = self.diff(topic, from_seq, limit=limit, wait_ms=calls.WAIT_MS_MAX if follow else 0)
            yield from batch.items()
            from_seq = batch.next_from_seq
            if batch.caught_up and not follow:
                return

    def watch(self, topics: Topics, **options: Any) -> Iterator[Watched]:
        """Records of topics as they are written, and a Gap where some were lost. After a cut it goes on where it
        was, also when the server was started again. `topics` is a name, several, or names with the last seq seen (None:
        only what comes from now on). It ends when every topic was dropped. Options are those of `Watch`."""
        watch = Watch(topics, **options_of(options))
        while not watch.done:
            if not watch.has_session:
                watch.opened(self._call(watch.open_session()))
            try:
                opened = self._try(lambda _: self._opened(watch.open_stream(), watch.silence_s), True, 0.0)
            except NotFound:
                watch.forget_session()
                self._sleep(watch.pause_s(self._retry.backoff_s, self._retry.backoff_s_max, random.random))
                continue
            try:
                watch.begin(opened.headers)
                for piece in opened.pieces():
                    yield from watch.feed(piece)
            except Unreachable:
                pass  # cut: the next stream says whether the server is there
            finally:
                opened.close()
            if not watch.done:
                self._sleep(watch.pause_s(self._retry.backoff_s, self._retry.backoff_s_max, random.random))

    def delete(self, topic: str, *, before_seq: int | None = None, tag: str | None = None) -> Deleted:
        """Delete records below a seq, with a tag (`p*` = by prefix), or both. By tag alone it is never repeated."""
        return self._call(calls.delete(topic, before_seq, tag))

    def queue(self, topic: str) -> Queue:
        """The calls of a queue's workers: claim, ack, nack, extend, redrive."""
        return Queue(self._call, topic)

    # -- staged append -------------------------------------------------------------------------------------------------

    def stage(
        self,
        topic: str,
        txn: str,
        part: str,
        records: Iterable[Any],
        *,
        node: str | None = None,
        create: bool | None = None,
    ) -> StagedPart:
        """Store one part of a transaction: durable when this returns, visible to nobody until its commit."""
        return self._call(staged.put(topic, txn, part, records, node, create))

    def stage_ndjson(
        self, topic: str, txn: str, part: str, body: bytes, *, node: str | None = None, create: bool | None = None
    ) -> StagedPart:
        return self._call(staged.put_bulk(topic, txn, part, body, calls.NDJSON, node, create))

    def stage_arrow(
        self, topic: str, txn: str, part: str, body: bytes, *, node: str | None = None, create: bool | None = None
    ) -> StagedPart:
        return self._call(staged.put_bulk(topic, txn, part, body, calls.ARROW, node, create))

    def commit_staged(self, topic: str, txn: str, parts: Sequence[str], *, query: str | None = None) -> StagedCommit:
        """Append exactly these parts, in this order, all at once. Repeated, it answers its first result."""
        return self._call(staged.commit(topic, txn, parts, query))

    def commit_staged_topics(
        self, txn: str, topics: Mapping[str, Sequence[str]], *, query: str | None = None
    ) -> StagedCommits:
        """The same in several topics: in all of them or in none."""
        return self._call(staged.commit_topics(txn, topics, query))

    def staged(self, topic: str, prefix: str | None = None) -> Iterator[StagedTxn]:
        """Open and remembered transactions by name, page by page."""
        cursor: str | None = None
        while True:
            page = self._call(staged.page(topic, prefix, 1000, cursor))
            yield from page.staged
            if (cursor := page.next_cursor) is None:
                return

    def staged_txn(self, topic: str, txn: str) -> StagedTxn:
        return self._call(staged.state(topic, txn))

    def abort_staged(self, topic: str, txn: str) -> StagedAbort:
        """Drop an open transaction; a committed one stays as it is, and the answer says so."""
        return self._call(staged.abort(topic, txn))

    def group(self, topic: str, group: str) -> Group:
        """A consumer group, to be made, looked at or worked in."""
        return Group(self._call, topic, group)

    def groups(self, topic: str, prefix: str | None = None) -> Iterator[GroupInfo]:
        return groups(self._call, topic, prefix)

    # -- history -------------------------------------------------------------------------------------------------------

    def records_page(self, topic: str, **wanted: Unpack[history.Range]) -> HistoryPage:
        return self._call(history.page(topic, **wanted))

    def records(self, topic: str, **wanted: Unpack[history.Range]) -> RecordStream[Record | Gap]:
        """A topic's past, streamed: a snapshot up to the head of this moment. StreamCut if it breaks on the way."""
        return self._open(history.lines(topic, **wanted))

    def records_arrow(self, topic: str, **wanted: Unpack[history.Range]) -> RecordStream[bytes]:
        """The same as pieces of an Arrow IPC stream."""
        return self._open(history.arrow(topic, **wanted))

    def at(self, topic: str, ts: int) -> At:
        """The first live record at or after `ts`."""
        return self._call(history.at(topic, ts))

    def segments(self, topic: str, *, from_seq: int | None = None, to_seq: int | None = None) -> SegmentList:
        return self._call(history.segments(topic, from_seq, to_seq))

    def segment_part(
        self,
        topic: str,
        first_seq: int,
        part: str,
        *,
        start: int | None = None,
        end: int | None = None,
        if_match: str | None = None,
    ) -> Part:
        """Bytes `start` to `end` (exclusive) of a segment's file; GenerationChanged if its etag is not `if_match`."""
        return self._call(history.segment_part(topic, first_seq, part, start=start, end=end, if_match=if_match))

    # -- routers -------------------------------------------------------------------------------------------------------

    def create_router(self, router: str, source: str, dest: str, **options: Any) -> Router:
        return self._call(calls.create_router(router, source, dest, options))

    def router(self, router: str) -> Router:
        return self._call(calls.router(router))

    def routers_page(
        self,
        *,
        prefix: str | None = None,
        source: str | None = None,
        dest: str | None = None,
        page_size: int | None = None,
        cursor: str | None = None,
    ) -> RouterPage:
        return self._call(calls.routers_page(prefix, source, dest, page_size, cursor))

    def routers(
        self, *, prefix: str | None = None, source: str | None = None, dest: str | None = None
    ) -> Iterator[Router]:
        cursor: str | None = None
        while True:
            page = self.routers_page(prefix=prefix, source=source, dest=dest, page_size=1000, cursor=cursor)
            yield from page.routers
            if (cursor := page.next_cursor) is None:
                return

    def drop_router(self, router: str) -> RouterDropped:
        return self._call(calls.drop_router(router))

    def latest(self, topic: str, key: str) -> Record | None:
        """The newest live record with this key."""
        return self._call(calls.latest(topic, key))

    def key_history(
        self, topic: str, key: str, *, from_seq: int | None = None, limit: int | None = None
    ) -> HistoryPage:
        """A page of the live records with this key, in seq order; go on from its `next_from_seq`."""
        return self._call(calls.key_history(topic, key, from_seq, limit))

    # -- the server ----------------------------------------------------------------------------------------------------

    def heads(self, topics: Mapping[str, int] | None = None, *, pattern: str | None = None, wait_ms: int = 0) -> Heads:
        """Heads of several topics at one instant: `{name: next_seq}`, or a pattern such as `orders.*`."""
        return self._call(calls.heads(topics, pattern, wait_ms))

    def health(self) -> Health:
        return self._call(calls.health())

    def ready(self) -> Ready:
        """NotReady while the server replays its log; asked once, not repeated."""
        return self._call(calls.ready())

    def metrics(self) -> str:
        """Prometheus text."""
        return self._call(calls.metrics())

    def metrics_json(self) -> dict[str, Any]:
        return self._call(calls.metrics_json())

    def stats(self, prefix: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """How fast topics grow, and how quick the disk is. Rates reach back as far as somebody has been asking."""
        return self._call(calls.stats(prefix, limit))

    def openapi(self) -> dict[str, Any]:
        return self._call(calls.openapi())

    # -- sending -------------------------------------------------------------------------------------------------------

    def _call(self, call: Call[T]) -> T:
        answer = self._try(lambda timeout_s: self._sent(call.request, timeout_s), call.safe, call.extra_s)
        return call.read(answer)

    def _open(self, call: StreamCall[T]) -> RecordStream[T]:
        opened = self._try(lambda timeout_s: self._opened(call.request, timeout_s), True, 0.0)
        return RecordStream(opened, call.decoder())

    def _try(self, attempt: Callable[[float], T], safe: bool, extra_s: float) -> T:
        attempts = Attempts(self._retry, safe=safe, extra_s=extra_s, now=self._now, chance=random.random)
        while True:
            try:
                return attempt(attempts.next_timeout_s())
            except TopicsError as error:
                pause_s = attempts.pause_s(error)
                if pause_s is None:
                    raise
            self._sleep(pause_s)

    def _sent(self, request: HttpRequest, timeout_s: float) -> Answer:
        answer = self._transport.send(request, timeout_s)
        if answer.status >= 300:
            raise problem(answer)
        return answer

    def _opened(self, request: HttpRequest, timeout_s: float) -> OpenAnswer:
        opened = self._transport.open(request, timeout_s)
        if opened.status < 300:
            return opened
        try:
            raise problem(Answer(opened.status, opened.headers, b"".join(opened.pieces())))
        finally:
            opened.close()


class RecordStream(Iterator[T]):
    """The items of a streamed answer. Leaving it early is fine: close it, or use it as a context manager."""

    def __init__(self, opened: OpenAnswer, decoder: Decoder[T]) -> None:
        self._opened = opened
        self._decoder = decoder
        self._items = self._read()

    def _read(self) -> Iterator[T]:
        try:
            for piece in self._opened.pieces():
                yield from self._decoder.feed(piece)
            self._decoder.finish()
        except Unreachable as error:
            raise self._decoder.cut(error.message) from error
        finally:
            self._opened.close()

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> RecordStream[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
