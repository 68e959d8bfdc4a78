"""What live readers are sent, as bytes: blocks of server-sent events and frames of WebSocket.

A page of a topic is rendered once and its bytes are shared by every reader that stands at the same cursor with the same
view. Only the `id:` of a session with several topics is a reader's own: it names all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from topics.broker.reading import Page
from topics.broker.watch import Kind, Told, event_id, told_of

RETRY: Final = b"retry: 2000\n\n"
HEARTBEAT: Final = b": : hb\n\n"
TOO_OLD: Final = "from_seq_too_old"
"""Why, whatever it was, a reader misses something at its very first read."""

_WS_KINDS: Final[dict[Kind, bytes]] = {"tombstone": b"tombstone", "record": b"record", "caught-up": b"caught_up"}


class Block:
    """Frames that are written together. Over HTTP/1.1 each is a chunk of its own."""

    __slots__ = ("_chunked", "_frames", "_plain", "count")

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames: Sequence[bytes] | None = frames
        self._plain = b""
        self._chunked = b""
        self.count = len(frames)

    @property
    def plain(self) -> bytes:
        if not self._plain:
            assert self._frames is not None
            self._plain = self._frames[0] if self.count == 1 else b"".join(self._frames)
        return self._plain

    @property
    def chunked(self) -> bytes:
        if not self._chunked:
            assert self._frames is not None
            self._chunked = b"".join([b"%x\r\n%b\r\n" % (len(frame), frame) for frame in self._frames])
        return self._chunked

    def __len__(self) -> int:
        return len(self._plain) or len(self._chunked) or sum(map(len, self._frames or ()))


HEARTBEAT_BLOCK: Final = Block([HEARTBEAT])


def sse_frame(event: bytes, data: bytes, identity: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (identity, event, data)


def deleted_data(topic: str) -> bytes:
    return b'{"head_seq":0,"reason":"deleted","topic":%b}' % msgspec.json.encode(topic)


def shutdown_data() -> bytes:
    return b'{"code":"server_shutting_down","message":"the server is shutting down; connect again"}'


class Rendered:
    """One read of one topic, and its bytes in every form that somebody asked for."""

    __slots__ = (
        "_block", "_data", "_first", "_messages", "_name", "caught_up", "cursor", "from_seq", "page", "says_something",
    )  # fmt: skip

    def __init__(self, page: Page, from_seq: int) -> None:
        self.page = page
        self.from_seq = from_seq
        self.cursor = page.next_from_seq
        """Where the reader stands behind it."""
        self.caught_up = page.caught_up
        self.says_something = page.count > 0 or page.tombstone is not None
        self._name = msgspec.json.encode(page.topic)
        self._data: dict[tuple[Kind, bool], bytes] = {}
        self._block: Block | None = None
        self._first: Block | None = None
        self._messages: tuple[bytes, int] | None = None

    def block(self, first: bool) -> Block:
        """For a session of this topic alone. Only for a page that says something, or on which `caught-up` is due."""
        block = self._first if first else self._block
        if block is None:
            block = Block(self._usual() or self._frames(first))
            if first and self.page.tombstone is not None:
                self._first = block
            else:
                self._first = self._block = block
        return block

    def _frames(self, first: bool) -> list[bytes]:
        name = self.page.topic
        return [
            sse_frame(told.kind.encode(), self.sse_data(told, first), event_id(((name, told.cursor),)))
            for told in told_of(self.page, said=False)
        ]

    def _usual(self) -> list[bytes]:
        """The same for records that are all there is: each live delivery comes by here, so it is said in one go."""
        page = self.page
        if page.tombstone is not None or not page.count or not self.caught_up:
            return []
        head, name = page.head_seq, self._name
        identity = event_id(((page.topic, head),))
        records = page.pieces[0] if len(page.pieces) == 1 else b",".join(page.pieces)
        return [
            b'id: %b\nevent: record\ndata: {"topic":%b,"from_seq":%d,"head_seq":%d,"records":[%b],"to_seq":%d}\n\n'
            % (identity, name, self.from_seq, head, records, head),
            b'id: %b\nevent: caught-up\ndata: {"head_seq":%d,"topic":%b}\n\n' % (identity, head, name),
        ]

    def plain(self) -> bytes:
        """That block for all but the first read."""
        return self.block(first=False).plain

    def chunked(self) -> bytes:
        """The same over HTTP/1.1."""
        return self.block(first=False).chunked

    def sse_data(self, told: Told, first: bool) -> bytes:
        key = (told.kind, first and told.kind == "tombstone")
        data = self._data.get(key)
        if data is None:
            page = self.page
            if told.kind == "record":
                data = b'{"topic":%b,"from_seq":%d,"head_seq":%d,"records":[%b],"to_seq":%d}' % (
                    self._name, self.from_seq, page.head_seq, b",".join(page.pieces), page.next_from_seq,
                )  # fmt: skip
            elif told.kind == "tombstone":
                data = b"{%b}" % self._tombstone(TOO_OLD if first else "", b"")
            else:
                data = b'{"head_seq":%d,"topic":%b}' % (page.head_seq, self._name)
            self._data[key] = data
        return data

    def _tombstone(self, reason: str, op: bytes) -> bytes:
        gap = self.page.tombstone
        assert gap is not None
        return b'"earliest_seq":%d,"gap_from":%d,"gap_to":%d,"head_seq":%d%b,"reason":"%b","topic":%b' % (
            gap.earliest_seq, gap.gap_from, gap.gap_to, gap.head_seq, op,
            (reason or gap.reason).encode(), self._name,
        )  # fmt: skip

    def messages(self) -> tuple[bytes, int]:
        """WebSocket frames, one behind the other, `caught_up` among them if it holds; and how many they are."""
        if self._messages is None:
            frames = [text_frame(self._message(told.kind)) for told in told_of(self.page, said=False)]
            self._messages = b"".join(frames), len(frames)
        return self._messages

    def pushed(self) -> bytes:
        """Them alone."""
        return self.messages()[0]

    def _message(self, kind: Kind) -> bytes:
        page = self.page
        if kind == "record":
            return b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}' % (
                self._name, self.from_seq, page.next_from_seq, page.head_seq, b",".join(page.pieces),
            )  # fmt: skip
        if kind == "tombstone":
            return b"{%b}" % self._tombstone("", b',"op":"tombstone"')
        return b'{"head_seq":%d,"op":"%b","topic":%b}' % (page.head_seq, _WS_KINDS[kind], self._name)


def text_frame(message: bytes) -> bytes:
    """A whole text message as an unmasked WebSocket frame."""
    size = len(message)
    if size < 126:
        return b"\x81%c%b" % (size, message)
    if size < 1 << 16:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), message)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), message)
