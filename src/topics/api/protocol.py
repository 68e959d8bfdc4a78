"""One TCP connection: tells HTTP/1 from HTTP/2 by its first bytes, and owns what both share.

    first bytes --PRI * HTTP/2.0--> http2.Http2
               \\--anything else---> http1.Http1 --Upgrade: websocket--> ws.WebSocketSession

A speaker (one of those three) gets the bytes and is told of time, room to write and the end; it writes and closes
through its `Connection`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from topics.api.http import App
from topics.api.http1 import Http1
from topics.api.http2 import Http2
from topics.api.known import KnownHeads
from topics.api.options import TransportOptions
from topics.api.render import LARGE
from topics.api.ticker import Ticker

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Speaker(Protocol):
    def feed(self, data: bytes) -> None: ...

    def ended(self) -> bool:
        """The peer sends no more. True to keep the connection for the answers under way."""
        ...

    def lost(self) -> None:
        """The connection is gone, in both directions."""
        ...

    def tick(self, now: float) -> None: ...

    def shutdown(self) -> None:
        """Finish what is under way and take nothing new."""
        ...

    def readable(self) -> None:
        """Reading goes on after a pause."""
        ...


# Why input is not read at the moment, as bits (plain numbers: they are looked at for every request).
WRITING = 1
"""The peer does not take what we send."""
WAITING = 2
"""Enough is under way already."""


@dataclass(slots=True)
class Shared:
    """What the connections of one listener have in common."""

    app: App
    options: TransportOptions
    ticker: Ticker
    secure: bool
    known: KnownHeads = field(default_factory=KnownHeads)
    connections: set[Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    stopping: bool = False
    emptied: Callable[[], None] = lambda: None
    """Called when the last connection is gone."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_closing_at",
        "_discarding",
        "_drained",
        "_file",
        "_first",
        "_last_taken",
        "_pauses",
        "_seen_taken",
        "_taken_at",
        "_told",
        "app",
        "loop",
        "options",
        "peer",
        "secure",
        "shared",
        "speaker",
        "ticker",
        "transport",
        "written",
    )

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.app = shared.app
        self.options = shared.options
        self.ticker = shared.ticker
        self.secure = shared.secure
        self.loop = asyncio.get_running_loop()
        self.peer = ""
        self.transport: asyncio.Transport
        self.speaker: Speaker | None = None
        self._first = b""
        self._file = -1
        """Of a connection that streams without TLS: for writing past the loop."""
        self._told: Callable[[], None] | None = None
        """Somebody else who writes to the file."""
        self._pauses = 0
        self._drained: list[Callable[[], None]] = []
        self.written = 0
        """Bytes given to the transport."""
        self._last_taken = 0
        self._seen_taken = 0
        """What had been taken when it was last looked at for progress."""
        self._taken_at = shared.ticker.now
        self._closing_at = 0.0
        """When not 0: the moment at which a connection that has nothing more to send should be gone."""
        self._discarding = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        shared = self.shared
        if shared.stopping or len(shared.connections) >= self.options.connections_max:
            self.transport.abort()
            return
        shared.connections.add(self)
        self._set_marks()
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else ""
        handle = transport.get_extra_info("socket")
        if handle is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self.speaker is not None:
            self.speaker.feed(data)
        elif not self._discarding:
            self._choose(data)

    def _choose(self, data: bytes) -> None:
        if self._first:
            data = self._first + data
        if len(data) < len(PREFACE) and PREFACE.startswith(data):
            if not self._first:
                self._taken_at = self.ticker.now
            self._first = data
            return
        self._first = b""
        speaker: Speaker = Http2(self) if data.startswith(PREFACE) else Http1(self)
        self.speaker = speaker
        speaker.feed(data)

    def eof_received(self) -> bool:
        if self._discarding:
            return False
        self._last_taken = self.taken
        keep = self.speaker is not None and self.speaker.ended()
        if keep and not self._closing_at:
            self._closing_at = self.ticker.now + self.options.leave_s
        # TLS cannot be half-closed here; asyncio closes it whatever is answered.
        return keep and not self.secure

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        shared = self.shared
        self._claim()
        self._wake()
        speaker, self.speaker = self.speaker, None
        self._discarding = True
        if speaker is not None:
            speaker.lost()
        if self in shared.connections:
            shared.connections.discard(self)
            if not shared.connections:
                shared.emptied()

    def pause_writing(self) -> None:
        self._pause(WRITING)

    def resume_writing(self) -> None:
        self._set_marks()
        self._wake()
        self._resume(WRITING)

    # What speakers use.

    def write(self, data: bytes | memoryview) -> None:
        if self._told is not None:
            self._claim()
        self.written += len(data)
        self.transport.write(data)

    def write_all(self, pieces: list[bytes]) -> None:
        """In one go; large pieces without a copy."""
        if len(pieces) == 1:
            self.write(pieces[0])
            return
        size = sum(map(len, pieces))
        if size < LARGE:
            self.write(b"".join(pieces))
            return
        if self._told is not None:
            self._claim()
        self.written += size
        self.transport.writelines(pieces)

    @property
    def buffered(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def taken(self) -> int:
        """How much of `written` the kernel is known to have taken; when the connection is gone, the last that was
        known, because the transport then says that nothing waits any more."""
        if not (self._discarding or self.transport.is_closing()):
            self._last_taken = self.written - self.transport.get_write_buffer_size()
        return self._last_taken

    def expect_stream(self) -> None:
        """What follows may go on for ever to a peer that reads slowly or not at all: the kernel, too, is to hold little
        of it. Otherwise it would take megabytes for each, and what it took counts as handed over."""
        handle = self.transport.get_extra_info("socket")
        if handle is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self.options.kernel_unsent_max)
            if not self.secure:
                self._file = handle.fileno()

    def write_through(self, data: bytes) -> int:
        """Give it to the kernel here and now, if nothing waits before it, else queue it; where it ends, or 0 if the
        kernel has taken all of it. The loop would write only at the end of its turn, when all who are served in it have
        been, and cost more for each."""
        rest: bytes | memoryview = data
        if self._is_clear():
            try:
                sent = os.write(self._file, data)
            except OSError:
                sent = 0  # full, or broken, which the transport finds out by itself
            if sent == len(data):
                return 0
            rest = memoryview(data)[sent:]
        return self.queue(rest)

    def queue(self, data: bytes | memoryview) -> int:
        """Where it ends."""
        self.write(data)
        return self.written

    def _is_clear(self) -> bool:
        """What is written to the file comes right behind what was written before."""
        transport = self.transport
        # The file is the transport's, which gives it up only after it says that it is closing.
        return self._file >= 0 and not transport.get_write_buffer_size() and not transport.is_closing()

    def share(self, told: Callable[[], None]) -> int:
        """The file, for somebody else to write to until he is told; -1 if that cannot be now. He is told once, before
        anything is written here and before the file is given up."""
        if not self._is_clear():
            return -1
        self._told = told
        return self._file

    def unshare(self) -> None:
        self._told = None

    def _claim(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told()

    def _set_marks(self) -> None:
        high = self.options.write_high
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=high, low=high // 4)

    async def drain(self) -> None:
        """Until the kernel took enough of what was written, or the connection is gone."""
        if self._pauses & WRITING and not self._discarding:
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._drained.append(lambda: None if waiter.done() else waiter.set_result(None))
            await waiter

    def when_drained(self, tell: Callable[[], None]) -> None:
        """The same as a callback, and of all that was written."""
        self._drained.append(tell)
        if not self._pauses & WRITING and not self.closing:
            # The transport speaks up only when it falls below its marks, so they are lowered until it does.
            self.transport.set_write_buffer_limits(high=0, low=0)
        if not self._pauses & WRITING:
            self.loop.call_soon(self.resume_writing)

    def _wake(self) -> None:
        waiters, self._drained = self._drained, []
        for tell in waiters:
            tell()

    def pause_for_work(self) -> None:
        self._pause(WAITING)

    def resume_for_work(self) -> None:
        if self._pauses:
            self._resume(WAITING)

    def _pause(self, why: int) -> None:
        if not self._pauses and not self.transport.is_closing():
            self.transport.pause_reading()
        self._pauses |= why

    def _resume(self, why: int) -> None:
        if not self._pauses & why:
            return
        self._pauses &= ~why
        if not self._pauses and not self.transport.is_closing():
            self.transport.resume_reading()
            if self.speaker is not None:
                self.speaker.readable()

    @property
    def choked(self) -> bool:
        """The peer does not take what is written to it."""
        return bool(self._pauses & WRITING)

    @property
    def paused(self) -> bool:
        return bool(self._pauses)

    def hand_over(self, speaker: Speaker) -> None:
        """Another protocol goes on from here."""
        self.speaker = speaker

    def close(self, linger: bool = False) -> None:
        """Send what was written, then close. With `linger`, input is read and dropped for a while first: closing with
        input unread makes the kernel send a reset, which can overtake the answer."""
        self._closing_at = self.ticker.now + self.options.linger_s
        if not linger:
            self.transport.close()
            return
        speaker, self.speaker = self.speaker, None
        self._discarding = True
        if speaker is not None:
            speaker.lost()
        if self._pauses:
            self._pauses = 0
            self.transport.resume_reading()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def expect_end(self) -> None:
        """The peer was told goodbye and should close soon."""
        if not self._closing_at:
            self._closing_at = self.ticker.now + self.options.linger_s

    def abort(self) -> None:
        self.transport.abort()

    @property
    def closing(self) -> bool:
        return self._discarding or self.transport.is_closing()

    # What the listener calls.

    def shutdown(self) -> None:
        if self.speaker is not None:
            self.speaker.shutdown()
        elif not self._discarding:
            self.transport.close()

    def tick(self, now: float) -> None:
        self._last_taken = self.taken
        if self.buffered:
            self._check_progress(now)
        elif self._closing_at:
            if now >= self._closing_at:
                self.transport.abort()
        elif self.speaker is not None:
            self._taken_at = now
        elif now - self._taken_at > self.options.header_timeout_s:
            # Nothing, or part of a preface, has come since the connection was opened.
            self.transport.close()
        if self.speaker is not None and not self.closing:
            self.speaker.tick(now)

    def _check_progress(self, now: float) -> None:
        """Cut off a peer that takes nothing of what waits for it."""
        taken = self.taken
        if taken != self._seen_taken:
            self._seen_taken = taken
            self._taken_at = now
        elif now - self._taken_at > self.options.write_stall_s:
            self.transport.abort()

    def run(self, work: asyncio.Task[None]) -> None:
        """Keep a task of this connection known until it ends, so that a stop can wait for it."""
        self.shared.tasks.add(work)
        work.add_done_callback(self.shared.tasks.discard)
