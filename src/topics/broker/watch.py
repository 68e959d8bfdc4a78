"""Watch sessions: some topics, a cursor in each, and what a reader is told of a page. Time, ids and pages come in.

A cursor moves when a frame is made, and goes back to where the frame began if the frame was never handed to the socket:
whoever opens the session again gets it then. `Last-Event-ID` says more exactly what the reader has; it may lie below or
above the cursor, but never above what was once made.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from topics.broker.reading import Page, Query
from topics.format.render import WITH_DATA, WITH_META
from topics.model.errors import Throttled

SESSION_TTL_MS: Final = 300_000
"""A session without an open stream is forgotten after this."""
TOPICS_MAX: Final = 256
"""Topics of one session; every frame's id names all of them."""
_ID_BYTES_MAX: Final = 128 * 1024
"""An id of 256 topics with the longest names is smaller."""

Kind = Literal["tombstone", "record", "caught-up"]


class View(NamedTuple):
    """What of a topic a reader wants to see. Those with equal views and cursors share what is rendered."""

    limit: int = 256
    bytes_max: int = 256 * 1024
    want: int = WITH_DATA | WITH_META
    exclude_nodes: tuple[bytes, ...] = ()
    strong: bool = False
    """Only what is safe from a power cut, in every class."""

    def query(self, cursor: int, through: int | None, epoch: int | None) -> Query:
        # An error has no place in a stream: it would end it, and the other topics of the session with it.
        past_missing = True
        return Query(cursor, self.limit, self.bytes_max, self.exclude_nodes, self.want, epoch, through, past_missing)


class Told(NamedTuple):
    """One named frame, and the cursor behind it."""

    kind: Kind
    cursor: int


def told_of(page: Page, said: bool) -> list[Told]:
    """The frames of a page. `said`: the last frame of this topic was `caught-up`, which is not said twice in a row."""
    frames: list[Told] = []
    gap = page.tombstone
    if gap is not None:
        # Of a topic made again the records that follow lie inside the gap.
        frames.append(Told("tombstone", page.earliest_seq - 1 if gap.reason == "recreated" else gap.gap_to))
    if page.count:
        frames.append(Told("record", page.next_from_seq))
    if page.caught_up and (frames or not said):
        frames.append(Told("caught-up", page.next_from_seq))
    return frames


@dataclass(slots=True)
class Place:
    """Where a session stands in one topic."""

    epoch: int
    """The instance of the topic that the cursor belongs to."""
    cursor: int
    made: int
    """The furthest that frames were made; a reader cannot have seen more."""

    def move(self, cursor: int) -> None:
        self.cursor = cursor
        if cursor > self.made:
            self.made = cursor

    def give_back(self, cursor: int) -> None:
        """What begins at `cursor` was not handed over."""
        if cursor < self.cursor:
            self.cursor = cursor

    def resume(self, cursor: int) -> None:
        self.cursor = min(cursor, max(self.made, self.cursor))

    def restart(self, epoch: int) -> None:
        """It is another instance now."""
        self.epoch = epoch
        self.made = self.cursor


class Session:
    __slots__ = ("heartbeat_ms", "idle_since_ms", "owner", "places", "streams", "view", "wid")

    def __init__(
        self, wid: str, owner: bytes, view: View, heartbeat_ms: int, places: dict[str, Place], now_ms: int
    ) -> None:
        self.wid = wid
        self.owner = owner
        """Digest of the key that may stream it; empty = anybody."""
        self.view = view
        self.heartbeat_ms = heartbeat_ms
        self.places = dict(sorted(places.items()))
        self.streams: list[Any] = []
        """Open now; they share the cursors."""
        self.idle_since_ms = now_ms

    def event_id(self) -> bytes:
        return event_id((name, place.cursor) for name, place in self.places.items())

    def resume(self, last_event_id: bytes) -> None:
        """What the reader says it has. What cannot be read is ignored, and so are topics of others."""
        for name, cursor in decode_id(last_event_id).items():
            place = self.places.get(name)
            if place is not None:
                place.resume(cursor)


class Sessions:
    """All sessions, in memory alone: a restart ends them, and a reader opens another one where it stands."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """0 = no limit."""
        self._busy: dict[str, Session] = {}
        """With an open stream."""
        self._resting: dict[str, Session] = {}
        """Without one; whichever has rested longest stands first."""

    def __len__(self) -> int:
        return len(self._busy) + len(self._resting)

    def add(self, session: Session, now_ms: int) -> None:
        self.sweep(now_ms)
        if self._limit and len(self) >= self._limit:
            raise Throttled(
                f"there are {self._limit} watch sessions, the limit of this server; idle ones end by themselves",
                limit="max_watch_sessions",
                max=self._limit,
            )
        self._resting[session.wid] = session

    def find(self, wid: str, now_ms: int) -> Session | None:
        self.sweep(now_ms)
        return self._busy.get(wid) or self._resting.get(wid)

    def opened(self, session: Session, stream: Any) -> None:
        session.streams.append(stream)
        self._resting.pop(session.wid, None)
        self._busy[session.wid] = session

    def closed(self, session: Session, stream: Any, now_ms: int) -> None:
        session.streams.remove(stream)
        if not session.streams:
            session.idle_since_ms = now_ms
            self._busy.pop(session.wid, None)
            self._resting[session.wid] = session

    def sweep(self, now_ms: int) -> None:
        """Forget what has expired."""
        while self._resting:
            wid, first = next(iter(self._resting.items()))
            if now_ms - first.idle_since_ms <= SESSION_TTL_MS:
                return
            del self._resting[wid]


_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def event_id(cursors: Iterable[tuple[str, int]]) -> bytes:
    """The `id:` of a frame; names come sorted."""
    text = msgspec.json.encode(dict(cursors))
    return binascii.b2a_base64(text, newline=False).rstrip(b"=").translate(_URL_SAFE)


_CURSORS: Final = msgspec.json.Decoder(dict[str, int])


def decode_id(text: bytes) -> dict[str, int]:
    """The cursors in an id; none at all if it is not one of ours. Padding makes it another's."""
    if len(text) > _ID_BYTES_MAX or b"=" in text:
        return {}
    try:
        found = _CURSORS.decode(base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True))
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return {}
    return {name: cursor for name, cursor in found.items() if 0 <= cursor < 1 << 64}
