"""The WebSocket: subscribe, unsubscribe, publish and ping, one JSON object a message, handled in order.

Pushed messages are rendered once for all sockets that want the same. A socket holds at most four of them that the
kernel has not taken; room is made sure of before anything is rendered, and until there is some its cursors stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, UnsetType

from topics.api.append import check_new_config, prepared_of, read_body
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.cohort import Cohort, Form, Standing
from topics.api.events import Rendered, deleted_data
from topics.api.http import Answer, Socket, WebSocket
from topics.api.problems import message_of
from topics.api.service import Service
from topics.api.watch import find_topics, told_topics, view_of
from topics.api.wire import U64, PingIn, PublishIn, SubscribeIn, UnsubscribeIn, WatchTopic, bounded, decode
from topics.api.ws import not_an_upgrade
from topics.broker.broker import Appended
from topics.broker.steps import Steps
from topics.broker.watch import View
from topics.model.errors import Forbidden, InvalidRequest, MethodNotAllowed, StorageError, Throttled, TopicsError
from topics.storage.topic import Topic

log = logging.getLogger("topics.api")

T = TypeVar("T")

MESSAGES_MAX: Final = 4
"""Pushed messages of one socket that the kernel has not taken."""
_TURN_MESSAGES: Final = 3
"""What one read may make: a tombstone, records, and that this is all."""
_PUBLISHED_MAX: Final = 64
"""Publishes of one socket under way."""
_ANSWERS_BYTES: Final = 256 * 1024
"""Unread answers beyond which no further message is handled."""

GOING_AWAY: Final = 1001
TRY_AGAIN: Final = 1013
INTERNAL_ERROR: Final = 1011

_encode = msgspec.json.Encoder().encode


class _Op(msgspec.Struct):
    op: str


_OP: Final = msgspec.json.Decoder(_Op)
_NOT_JSON: Final = "invalid_json"


class _Misread(Exception):
    """A message that cannot be understood."""


def websocket(service: Service, call: Call) -> Answer:
    head = call.head
    if head.version == "2" or head.method == "HEAD":
        raise MethodNotAllowed("a WebSocket is opened by GET over HTTP/1.1", allow="GET")
    if head.headers.get(b"upgrade", b"").strip().lower() != b"websocket" or b"sec-websocket-key" not in head.headers:
        return not_an_upgrade()
    service.live.check_room(call.key)
    return Socket(Conversation(service, call).run)


class _Published:
    """A publish and what became of it: known at once, or when its commit is."""

    __slots__ = ("_outcome", "asked", "received_ns")

    def __init__(
        self, asked: PublishIn, received_ns: int, outcome: asyncio.Future[Appended] | Appended | TopicsError
    ) -> None:
        self.asked = asked
        self.received_ns = received_ns
        self._outcome = outcome

    @property
    def waited_for(self) -> asyncio.Future[Appended] | None:
        outcome = self._outcome
        return outcome if isinstance(outcome, asyncio.Future) and not outcome.done() else None

    def outcome(self) -> Appended | BaseException | None:
        """None where it was called off."""
        outcome = self._outcome
        if not isinstance(outcome, asyncio.Future):
            return outcome
        return None if outcome.cancelled() else outcome.exception() or outcome.result()


class SocketReader:
    """A subscription to one topic."""

    __slots__ = ("_conversation", "_cursor", "_said", "cohort", "form", "name", "open", "slot", "topic", "view")

    def __init__(self, conversation: Conversation, name: str, topic: Topic, cursor: int, view: View) -> None:
        self._conversation = conversation
        self.name = name
        self.topic = topic
        self._cursor = cursor
        self.view = view
        self.open = True
        self._said = False
        self.form: Form = Rendered.pushed
        self.cohort: Cohort[Any] | None = None
        self.slot = 0

    def standing(self) -> Standing:
        return self.view, self._cursor, None

    def ready(self) -> bool:
        return self._conversation.has_room(self)

    def take(self, rendered: Rendered) -> bool:
        if rendered.says_something or (rendered.caught_up and not self._said):
            if not self._conversation.has_room(self):
                return False
            self._conversation.push(*rendered.messages())
            self._said = rendered.caught_up
        self._cursor = rendered.cursor
        return True

    def share(self) -> int:
        return self._conversation.share(self)

    def claimed(self) -> None:
        """Something else is written to the socket."""
        self._conversation.claimed(self)

    def stepped_out(self, cursor: int, sent_at: float) -> None:
        self._cursor = cursor
        self._conversation.unshare()

    def queue(self, rest: memoryview, rendered: Rendered) -> None:
        self._conversation.queue(rest, rendered.messages()[1])

    def lost(self) -> None:
        self.open = False
        self._conversation.topic_gone(self.name)

    def failed(self, error: Exception) -> None:
        log.error("topic %s cannot be read for a WebSocket: %s", self.name, error)
        self._conversation.break_off()


class Conversation:
    """One socket."""

    def __init__(self, service: Service, call: Call) -> None:
        self._service = service
        self._live = service.live
        self._call = call
        self._key = call.key
        self._socket: WebSocket
        self._readers: dict[str, SocketReader] = {}
        self._unhanded: list[tuple[int, int]] = []
        """Where pushes end in the socket, and how many messages each is."""
        self._parked: list[SocketReader] | None = None
        self._published: deque[_Published] = deque()
        """Publishes not answered yet, oldest first: each is answered after the ones before it."""
        self._ops: dict[str, Callable[[bytes], Any]] = {
            "subscribe": self._subscribe, "unsubscribe": self._unsubscribe, "ping": self._ping,
        }  # fmt: skip

    async def run(self, socket: WebSocket) -> None:
        self._socket = socket
        try:
            self._live.enter(self, self._key)
        except Throttled as error:
            socket.close(TRY_AGAIN, error.message)
            return
        try:
            while (message := await socket.receive()) is not None:
                if isinstance(message, bytes):
                    self._say({"code": "unsupported_message", "message": "send text, not binary", "op": "error"})
                    continue
                await self._handle(message.encode())
                if socket.buffered > _ANSWERS_BYTES:
                    await socket.drain()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._live.leave(self)
        for reader in self._readers.values():
            reader.open = False
            self._live.hub.leave(reader.topic, reader)
        self._readers.clear()
        if self._parked is not None:
            self._parked = None
            self._live.lagging -= 1

    # -- messages in ---------------------------------------------------------------------------------------------------

    async def _handle(self, text: bytes) -> None:
        try:
            try:
                op = _OP.decode(text).op
            except (msgspec.DecodeError, RecursionError) as error:
                raise _Misread(str(error)) from None
            if op == "publish":
                await self._publish(text)
                return
            handler = self._ops.get(op)
            if handler is None:
                raise _Misread(f"there is no op {op!r}")
            # What follows a publish sees it, and is answered after it.
            await self._settle(0)
            await handler(text)
        except _Misread as error:
            await self._settle(0)
            self._say({"code": _NOT_JSON, "message": f"not understood: {error}", "op": "error", "request_id": None})
        except Exception:
            log.exception("a WebSocket message failed")
            self._say_failed(msgspec.UNSET)

    async def _subscribe(self, text: bytes) -> None:
        asked = _read(text, SubscribeIn)
        try:
            wanted: dict[str, WatchTopic] = {}
            if asked.topic is not None:
                wanted[asked.topic] = WatchTopic(asked.from_seq, asked.tail)
            wanted.update(asked.topics or {})
            if not wanted:
                raise InvalidRequest("name a topic to subscribe to: topic, topics or both")
            view = self._view(asked, wanted)
            self._check_scope(Scope.READ)
            for name in wanted:
                self._call.check_name(name)
            found = await self._do(find_topics(self._service, wanted, asked.lenient))
            topics = told_topics(self._service, found)
        except TopicsError as error:
            self._say_error(error, asked.request_id)
            return
        self._say({"op": "subscribed", "request_id": _echo(asked.request_id), "topics": topics})
        for name, (topic, cursor) in found.items():
            self._drop(name)
            reader = self._readers[name] = SocketReader(self, name, topic, cursor, view)
            self._live.hub.join(topic, reader)

    @staticmethod
    def _view(asked: SubscribeIn, wanted: dict[str, WatchTopic]) -> View:
        try:
            for place in wanted.values():
                bounded(place.from_seq, "from_seq", U64)
            return view_of(asked)
        except InvalidRequest as error:
            raise _Misread(error.message) from None

    async def _unsubscribe(self, text: bytes) -> None:
        asked = _read(text, UnsubscribeIn)
        names = [*(asked.topics or ()), *(() if asked.topic is None else (asked.topic,))]
        if not names:
            self._say_error(InvalidRequest("name a topic: topic, topics or both"), asked.request_id)
            return
        for name in names:
            self._drop(name)
        self._say({"op": "unsubscribed", "request_id": _echo(asked.request_id), "topics": names})

    def _drop(self, name: str) -> None:
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.open = False
            self._live.hub.leave(reader.topic, reader)

    async def _ping(self, text: bytes) -> None:
        asked = _read(text, PingIn)
        self._say({"op": "pong", "request_id": _echo(asked.request_id)})

    # -- publish -------------------------------------------------------------------------------------------------------

    async def _publish(self, text: bytes) -> None:
        received_ns = self._service.now_ns()
        try:
            asked, checked, batch = read_body(text, PublishIn)
        except InvalidRequest as error:
            raise _Misread(error.message) from None
        await self._settle(_PUBLISHED_MAX - 1)
        try:
            self._check_scope(Scope.WRITE if asked.config is None else Scope.WRITE | Scope.ADMIN)
            self._call.check_name(asked.topic)
            if asked.config is not None:
                check_new_config(self._service, self._call, asked.topic, asked.config)
            key = asked.idempotency_key
            prepared = prepared_of(asked, checked, batch, key)
            may_create = asked.create
            if may_create is None:
                may_create = asked.config is None or asked.config.auto_create
            insist = asked.disable_backpressure
            done: asyncio.Future[Appended] | Appended | TopicsError = self._live.pump.run(
                self._live.broker.append(asked.topic, prepared, key, asked.config, may_create, insist)
            )
        except TopicsError as error:
            done = error
        self._published.append(_Published(asked, received_ns, done))
        if isinstance(done, asyncio.Future):
            done.add_done_callback(self._answer_published)
        self._answer_published()

    async def _settle(self, most: int) -> None:
        """Wait until at most so many publishes are unanswered."""
        while len(self._published) > most:
            first = self._published[0].waited_for
            if first is not None:
                await asyncio.wait((first,))
            self._answer_published()

    def _answer_published(self, _done: object = None) -> None:
        while self._published and self._published[0].waited_for is None:
            publish = self._published.popleft()
            outcome = publish.outcome()
            if isinstance(outcome, Appended):
                self._acknowledge(publish.asked, outcome, publish.received_ns)
            elif isinstance(outcome, TopicsError):
                self._say_error(outcome, publish.asked.request_id)
            elif outcome is not None:
                log.error("a publish failed", exc_info=outcome)
                self._say_failed(publish.asked.request_id)

    def _acknowledge(self, asked: PublishIn, done: Appended, received_ns: int) -> None:
        if self._service.stats.watched:
            self._service.stats.appended(done.waited_ns)
        performance = _performance(done, (self._service.now_ns() - received_ns) / 1e6)
        self._say({
            "count": done.count, "created": done.created, "deduped": done.deduped, "first_seq": done.first_seq,
            "head_seq": done.last_seq, "last_seq": done.last_seq, "op": "ack", "performance": performance,
            "request_id": _echo(asked.request_id),
            "seqs": list(range(done.first_seq, done.last_seq + 1)) if asked.return_seqs else None,
            "topic": done.topic,
        })  # fmt: skip

    # -- messages out --------------------------------------------------------------------------------------------------

    def has_room(self, reader: SocketReader) -> bool:
        if self._parked is not None:
            self._parked.append(reader)
            return False
        if self._unhanded:
            taken = self._socket.taken
            self._unhanded = [entry for entry in self._unhanded if entry[0] > taken]
            if sum(count for _, count in self._unhanded) + _TURN_MESSAGES > MESSAGES_MAX:
                self._parked = [reader]
                self._live.lagging += 1
                self._socket.when_drained(self._drained)
                return False
        return True

    def _drained(self) -> None:
        parked, self._parked = self._parked, None
        if parked is None:
            return
        self._live.lagging -= 1
        for reader in parked:
            if reader.open:
                self._live.hub.go_on(reader.topic, reader)

    def push(self, frames: bytes, count: int) -> None:
        end = self._socket.send_frame(frames)
        if end:
            self._unhanded.append((end, count))

    def share(self, reader: SocketReader) -> int:
        """For the only one of its readers; several would not know of each other's."""
        if self._unhanded or len(self._readers) > 1:
            return -1
        return self._socket.share(reader.claimed)

    def claimed(self, reader: SocketReader) -> None:
        self._live.hub.step_out(reader.topic, reader)

    def unshare(self) -> None:
        self._socket.unshare()

    def queue(self, rest: memoryview, count: int) -> None:
        self._unhanded.append((self._socket.queue(rest), count))

    def topic_gone(self, name: str) -> None:
        self._readers.pop(name, None)
        self._socket.send(b'{"head_seq":0,"op":"topic_deleted",' + deleted_data(name)[len(b'{"head_seq":0,') :])

    def shutdown(self) -> None:
        self._say({"code": "server_shutting_down", "message": "the server is shutting down", "op": "error"})
        self._socket.close(GOING_AWAY)

    def break_off(self) -> None:
        self._socket.close(INTERNAL_ERROR)

    def _say(self, message: dict[str, Any]) -> None:
        self._socket.send(_encode(message))

    def _say_error(self, error: TopicsError, request_id: Raw | UnsetType) -> None:
        if isinstance(error, StorageError):
            log.error("%s", error.message)
        said = {"code": error.code, "message": message_of(error), "op": "error", "request_id": _echo(request_id)}
        self._say(said)

    def _say_failed(self, request_id: Raw | UnsetType) -> None:
        said = {"code": "internal", "message": "the server failed", "op": "error", "request_id": _echo(request_id)}
        self._say(said)

    def _check_scope(self, scope: Scope) -> None:
        if not self._key.may(scope):
            raise Forbidden("this key lacks the scope for that")

    async def _do(self, steps: Steps[T]) -> T:
        done = self._live.pump.run(steps)
        return await done if isinstance(done, asyncio.Future) else done


def _performance(done: Appended, total_ms: float) -> dict[str, float]:
    spent = {"server_total_ms": round(total_ms, 6)}
    if not done.deduped:
        waited_ms = round(done.waited_ns / 1e6, 6)
        spent["fsync_ms"] = waited_ms if done.synced else 0.0
        spent["wal_append_ms"] = 0.0 if done.synced else waited_ms
    if done.throttled_ns:
        spent["throttle_wait_ms"] = round(done.throttled_ns / 1e6, 6)
    return dict(sorted(spent.items()))


def _read(text: bytes, shape: type[Any]) -> Any:
    try:
        return decode(text, shape)[0]
    except InvalidRequest as error:
        raise _Misread(error.message) from None


def _echo(request_id: Raw | UnsetType) -> Raw | None:
    return None if isinstance(request_id, UnsetType) else request_id
