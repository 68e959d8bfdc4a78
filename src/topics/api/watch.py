"""Watching topics: a session with a cursor in each, and the stream of server-sent events that reads it."""

from __future__ import annotations

import base64
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from topics.api.auth import ANYONE, Key, Keyring, bearer
from topics.api.call import Call
from topics.api.diff import BYTES, BYTES_MAX, LIMIT, LIMIT_MAX
from topics.api.http import Answer, Response, Sink, Stream
from topics.api.live import HEARTBEAT_MS_MAX
from topics.api.service import Service
from topics.api.stream import EventStream
from topics.api.wire import U32, U64, SubscribeIn, WatchIn, WatchTopic, bounded, decode, node_filter
from topics.broker.steps import Steps
from topics.broker.watch import SESSION_TTL_MS, TOPICS_MAX, Place, Session, View
from topics.format.render import WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.model.errors import InvalidRequest, NotAcceptable, NotFound, TopicNotFound, Unauthorized
from topics.storage.topic import Topic

EVENT_STREAM: Final = b"text/event-stream"
STREAM_HEADERS: Final = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
_WID_BYTES: Final = 16


class WatchedTopic(msgspec.Struct, frozen=True):
    from_seq: int
    head_seq: int
    earliest_seq: int


class Watched(msgspec.Struct, frozen=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]


def open_session(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), WatchIn)
    if not 1 <= len(asked.topics) <= TOPICS_MAX:
        raise InvalidRequest(f"a watch takes 1 to {TOPICS_MAX} topics, not {len(asked.topics)}")
    view = view_of(asked)._replace(strong=asked.consistency == "strong")
    least = service.live.options.heartbeat_ms_min
    heartbeat_ms = min(max(bounded(asked.heartbeat_ms, "heartbeat_ms", U64), least), HEARTBEAT_MS_MAX)
    for name, wanted in asked.topics.items():
        bounded(wanted.from_seq, "from_seq", U64)
        call.check_name(name)
    found = yield from find_topics(service, asked.topics, call.flag("lenient", False))
    now_ms = service.broker.clock.now_ms()
    wid = "wid_" + base64.urlsafe_b64encode(bytes.fromhex(service.ids.token(_WID_BYTES))).rstrip(b"=").decode()
    places = {name: Place(topic.id, cursor, cursor) for name, (topic, cursor) in found.items()}
    session = Session(wid, call.key.digest, view, heartbeat_ms, places, now_ms)
    service.live.sessions.add(session, now_ms)
    answer = Watched(wid, f"/v0/watch/{wid}", SESSION_TTL_MS, told_topics(service, found))
    return call.answer(answer, service.now_ns())


def view_of(asked: WatchIn | SubscribeIn) -> View:
    limit = bounded(asked.limit, "limit", U32)
    size = bounded(asked.max_batch_bytes, "max_batch_bytes", U64)
    want = (
        (WITH_DATA if asked.include_data else 0)
        | (WITH_TAGS if asked.include_tags else 0)
        | (WITH_META if asked.include_meta else 0)
        | (WITH_KEYS if asked.include_keys else 0)
    )
    # Sorted, so that readers who name the same nodes share what is rendered.
    nodes = tuple(sorted(set(node_filter(asked.node))))
    return View(min(limit or LIMIT, LIMIT_MAX), min(size or BYTES, BYTES_MAX), want, nodes)


Found = dict[str, tuple[Topic, int]]
"""Topics by name, each with the cursor to begin at."""


def find_topics(service: Service, wanted: dict[str, WatchTopic], lenient: bool) -> Steps[Found]:
    found: Found = {}
    for name, place in wanted.items():
        try:
            topic = yield from service.broker.watched(name, pull=True)
        except TopicNotFound:
            if not lenient:
                raise
            continue
        found[name] = topic, topic.head if place.tail else place.from_seq
    return found


def told_topics(service: Service, found: Found) -> dict[str, WatchedTopic]:
    with service.broker.store.lock:
        return {
            name: WatchedTopic(cursor, topic.head, topic.earliest_seq)
            for name, (topic, cursor) in sorted(found.items())
        }


def stream(service: Service, call: Call) -> Answer:
    accept = call.head.headers.get(b"accept", b"")
    if accept and EVENT_STREAM not in accept and b"*/*" not in accept:
        raise NotAcceptable("a watch is read as text/event-stream")
    live = service.live
    session = live.sessions.find(call.names[0], service.broker.clock.now_ms())
    if session is None:
        raise NotFound("there is no such watch session; it ended, or the server was started again: open another one")
    key = ANYONE
    if session.owner:
        found = presented_key(service.keyring, call)
        if found is None or found.digest != session.owner:
            raise Unauthorized("this watch session belongs to another key")
        key = found
    live.check_room(key)
    last_event_id = call.head.headers.get(b"last-event-id")

    def run(sink: Sink) -> None:
        EventStream(live, session, sink).start(key, last_event_id)

    return Stream(200, EVENT_STREAM, run, list(STREAM_HEADERS))


def presented_key(keyring: Keyring, call: Call) -> Key | None:
    """Browsers cannot set headers on an event stream, so the key may come as `?token=`; the last one counts."""
    token = bearer(call.head.headers.get(b"authorization"))
    if token is None:
        given = [value for name, value in parse_qsl(call.head.query, errors="surrogateescape") if name == "token"]
        token = given[-1].encode("utf-8", "surrogateescape") if given else None
    return None if token is None else keyring.find(token)
