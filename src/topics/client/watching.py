"""Watching topics: what to ask for, how to read the events that come, and where to go on after a cut.

A watch knows the cursor of each of its topics from the ids of the events. While the server has its session, it goes on
there with the last id; when the session is gone, because the server was started again or the pause was long, it opens
another one at its cursors. Either way no record comes twice and none is passed over.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from topics.client.answers import WireGap, WireItem
from topics.client.calls import Call, given, path, send
from topics.client.retry import drawn_s
from topics.client.transport import HttpRequest
from topics.model.errors import BadAnswer, InvalidRequest
from topics.model.record import Gap, Record

BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
"""A frame holds at most 8 MiB of records, of which JSON escapes may make several."""
HEARTBEAT_MS: Final = 15_000
EVENTS: Final = "text/event-stream"


class Watched(NamedTuple):
    topic: str
    item: Record | Gap


class WatchPlace(msgspec.Struct, frozen=True):
    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchSession(msgspec.Struct, frozen=True):
    wid: str
    stream_url: str
    topics: dict[str, WatchPlace]
    session_ttl_ms: int = 300_000


class _Records(msgspec.Struct):
    topic: str
    records: list[WireItem]


class _Told(msgspec.Struct):
    topic: str


class _Lost(WireGap):
    topic: str


_RECORDS: Final = msgspec.json.Decoder(_Records)
_TOLD: Final = msgspec.json.Decoder(_Told)
_LOST: Final = msgspec.json.Decoder(_Lost)
_CURSORS: Final = msgspec.json.Decoder(dict[str, int])

Topics = str | Iterable[str] | Mapping[str, int | None]
"""One name, several, or names with the last seq seen; None = only what comes from now on."""


class Watch:
    """One watch on its way; pure, for both clients."""

    def __init__(
        self,
        topics: Topics,
        *,
        tail: bool = False,
        node: str | list[str] | None = None,
        limit: int | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
        include_keys: bool = True,
        heartbeat_ms: int = HEARTBEAT_MS,
        consistency: str | None = None,
    ) -> None:
        start = None if tail else 0
        if isinstance(topics, str):
            self._cursors: dict[str, int | None] = {topics: start}
        elif isinstance(topics, Mapping):
            self._cursors = dict(topics)
        else:
            self._cursors = dict.fromkeys(topics, start)
        if not self._cursors:
            raise InvalidRequest("name at least one topic to watch")
        self._options = given(
            node=node,
            limit=limit,
            include_tags=include_tags,
            include_meta=include_meta,
            include_keys=include_keys,
            heartbeat_ms=heartbeat_ms,
            consistency=consistency,
        )
        self.silence_s = 3 * heartbeat_ms / 1000
        """Without a sign of life for so long the stream is taken for dead."""
        self._url: str | None = None
        self._again = False
        """A session was open before: a topic that is gone meanwhile is no error."""
        self._last_id = ""
        self._rest = b""
        self._failures = 0

    @property
    def done(self) -> bool:
        """Every topic was dropped."""
        return not self._cursors

    @property
    def has_session(self) -> bool:
        return self._url is not None

    @property
    def cursors(self) -> dict[str, int | None]:
        return dict(self._cursors)

    def open_session(self) -> Call[WatchSession]:
        topics = {
            name: {"tail": True} if cursor is None else {"from_seq": cursor} for name, cursor in self._cursors.items()
        }
        lenient = "?lenient=true" if self._again else ""
        return send("POST", path("watch") + lenient, {"topics": topics, **self._options}, WatchSession)

    def opened(self, session: WatchSession) -> None:
        self._url = session.stream_url
        self._last_id = ""
        self._again = True
        self._cursors = {name: place.from_seq for name, place in session.topics.items() if name in self._cursors}

    def forget_session(self) -> None:
        self._url = None

    def open_stream(self) -> HttpRequest:
        assert self._url is not None
        self._rest = b""
        headers = {"accept": EVENTS}
        if self._last_id:
            headers["last-event-id"] = self._last_id
        return HttpRequest("GET", self._url, headers)

    def begin(self, headers: Mapping[str, str]) -> None:
        """A stream was opened; BadAnswer if it is none, say the page of a proxy that wants a login."""
        kind = headers.get("content-type", EVENTS)
        if not kind.startswith(EVENTS):
            raise BadAnswer(f"the server answered a watch with {kind}, not with {EVENTS}")

    def pause_s(self, backoff_s: float, backoff_s_max: float, chance: Callable[[], float]) -> float:
        """Before the next stream: none after one that brought something, ever longer ones otherwise."""
        self._failures += 1
        return 0.0 if self._failures == 1 else drawn_s(self._failures - 1, backoff_s, backoff_s_max, chance)

    def feed(self, piece: bytes) -> list[Watched]:
        """Bytes of the stream, cut anywhere."""
        *blocks, self._rest = (self._rest + piece).split(b"\n\n")
        if len(self._rest) > BLOCK_BYTES_MAX:
            raise BadAnswer(f"the server sent an event of more than {BLOCK_BYTES_MAX} bytes")
        items: list[Watched] = []
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
            if b"event" in fields:
                try:
                    items += self._event(fields[b"event"], fields.get(b"data", b""), fields.get(b"id", b""))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise BadAnswer(f"an event of the stream cannot be read: {error}") from None
        return items

    def _event(self, kind: bytes, data: bytes, identity: bytes) -> list[Watched]:
        self._failures = 0
        items: list[Watched] = []
        if kind == b"record":
            told = _RECORDS.decode(data)
            items = [Watched(told.topic, record.record()) for record in told.records]
        elif kind == b"tombstone":
            lost = _LOST.decode(data)
            items = [Watched(lost.topic, lost.gap())]
        elif kind == b"topic-deleted":
            self._cursors.pop(_TOLD.decode(data).topic, None)
        if identity:
            self._note(identity)
        return items

    def _note(self, identity: bytes) -> None:
        self._last_id = identity.decode("ascii", "replace")
        try:
            cursors = _CURSORS.decode(base64.urlsafe_b64decode(identity + b"=" * (-len(identity) % 4)))
        except (msgspec.DecodeError, binascii.Error, ValueError):
            return  # another server's ids need not be ours; the session knows them
        for name, cursor in cursors.items():
            if name in self._cursors:
                self._cursors[name] = cursor


def options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    known = {"tail", "node", "limit", "include_tags", "include_meta", "include_keys", "heartbeat_ms", "consistency"}
    unknown = set(options) - known
    if unknown:
        raise InvalidRequest(f"unknown option {min(unknown)!r}; known: {', '.join(sorted(known))}")
    return dict(options)
