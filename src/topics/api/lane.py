"""One HTTP/2 stream: its exchange, and the bytes of its answer that wait for the windows to open."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from topics.api.exchange import Exchange, begin_stream
from topics.api.http import Frames, Response, Socket, Stream
from topics.api.render import BODILESS, http2_headers
from topics.api.sink import cancel_later
from topics.api.ws import not_an_upgrade

if TYPE_CHECKING:
    from topics.api.http2 import Http2
    from topics.api.protocol import Connection


class Lane:
    """Also the `Sink` of a stream answer."""

    chunked = False

    def __init__(self, http2: Http2, connection: Connection, stream_id: int, whole: bool) -> None:
        self._http2 = http2
        self._connection = connection
        self._options = connection.options
        self.stream_id = stream_id
        self.exchange: Exchange
        self.whole = whole
        """The request has come to its end."""
        self.collected = 0
        """Bytes of its body that are in memory."""
        self.sent = False
        """The answer has come to its end."""
        self.pending = 0
        """Bytes written and not yet sent because of a window."""
        self._pieces: deque[memoryview] = deque()
        self._counts = False
        """What waits is an answer, and counted as such for the whole connection."""
        self._finished = False
        """Nothing will be added to `_pieces`."""
        self._closed = False
        self._gone: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: list[Callable[[], None]] = []
        self.on_gone: Callable[[], None] | None = None
        self._last_taken = 0
        self._since = connection.ticker.now
        self._moved = 0
        """Bytes of the answer that have gone out."""
        self._seen = 0
        """Bytes of the body, later of the answer, that had moved at `_since`."""

    # The answer.

    def answered(self, exchange: Exchange) -> None:
        if self._closed or self._connection.closing:
            return
        try:
            self._answer(exchange)
        except ProtocolError:
            self._broken()
        self._http2.settle()

    def _broken(self) -> None:
        """The library knows that the stream, or the connection, has ended; the event that says so is on its way."""
        self.leave()
        self._http2.forget(self)

    def say_continue(self) -> None:
        try:
            self._http2.h2.send_headers(self.stream_id, [(b":status", b"100")])
        except ProtocolError:
            self._broken()

    def _answer(self, exchange: Exchange) -> None:
        answer = exchange.answer
        if isinstance(answer, Socket):
            exchange.release()
            answer = not_an_upgrade()
        assert answer is not None
        headers = http2_headers(self._connection.ticker, answer)
        bare = exchange.head.method == "HEAD" or answer.status in BODILESS
        if isinstance(answer, Response):
            bare = bare or not answer.body
            self._send_headers(headers, bare)
            if not bare:
                self._queue(answer.body)
                self._counts = True
                self._http2.answers += self.pending
            self._finished = True
            if bare:
                self._end()
            else:
                self._pump()
        else:
            self._send_headers(headers, bare)
            exchange.release()
            if bare:
                self._end()
            else:
                self._run(answer)

    def _send_headers(self, headers: list[tuple[bytes, bytes]], ends: bool) -> None:
        self._http2.h2.send_headers(self.stream_id, headers, end_stream=ends)

    def _run(self, answer: Stream) -> None:
        self._gone = asyncio.Event()
        work = begin_stream(answer, self, self.exchange.head)
        if work is not None:
            self._task = self._connection.loop.create_task(work)
            self._connection.run(self._task)

    def _queue(self, data: bytes) -> None:
        self._pieces.append(memoryview(data))
        self.pending += len(data)

    def _pump(self) -> None:
        while self.send_some():
            pass

    def send_some(self) -> bool:
        """Send one frame if the windows and the socket let it; True if another may follow."""
        connection = self._connection
        if self._closed or self.sent or connection.paused or connection.closing:
            return False
        if not (self._pieces or self._finished):
            return False
        try:
            return self._send_frame()
        except ProtocolError:
            self._broken()
            return False

    def _send_frame(self) -> bool:
        h2 = self._http2.h2
        if not self._pieces:
            h2.send_data(self.stream_id, b"", end_stream=True)
            self._end()
            return False
        room = min(h2.local_flow_control_window(self.stream_id), h2.max_outbound_frame_size)
        if room <= 0:
            return False
        piece = self._pieces[0]
        if len(piece) > room:
            part, self._pieces[0] = piece[:room], piece[room:]
        else:
            part = self._pieces.popleft()
        ends = self._finished and not self._pieces
        h2.send_data(self.stream_id, bytes(part), end_stream=ends)
        self.pending -= len(part)
        if self._counts:
            self._http2.answers -= len(part)
        self._moved += len(part)
        self._http2.flush()
        if self.pending <= self._options.write_high // 4:
            self._wake()
        if ends:
            self._end()
            return False
        return bool(self._pieces)

    def _end(self) -> None:
        """Our side has ended. A request that has not is read to its end and dropped, unless it is too large."""
        self.sent = True
        self._since = self._connection.ticker.now
        self._wake()
        if self.whole:
            self._http2.forget(self)
        elif self.exchange.unread:
            self.reset(ErrorCodes.NO_ERROR)

    def reset(self, code: ErrorCodes) -> None:
        if self._closed:
            return
        try:
            self._http2.h2.reset_stream(self.stream_id, code)
        except ProtocolError:
            # The stream or the connection has ended by itself.
            pass
        self.leave()
        self._http2.forget(self)
        self._http2.settle()

    def leave(self) -> None:
        """The peer is gone, or wants no more of this."""
        self._last_taken = self.taken
        self._closed = True
        self._pieces.clear()
        if self._counts:
            self._http2.answers -= self.pending
        self.pending = 0
        self._wake()
        self.exchange.drop()
        if self._gone is not None:
            self._gone.set()
        tell, self.on_gone = self.on_gone, None
        if tell is not None:
            tell()
        cancel_later(self._task, self._options.leave_s)

    def is_slow(self, now: float) -> bool:
        """The body, or the peer's windows, have not moved for too long."""
        if self.sent:
            return now - self._since > self._options.body_window_s
        if not self.whole and not self.exchange.started:
            if now - self._since <= self._options.body_window_s or self._connection.paused:
                return False
            slow = self.exchange.body_size - self._seen < self._options.body_window_bytes
            self._seen = self.exchange.body_size
            self._since = now
            return slow
        if not self.pending or self._moved != self._seen:
            self._seen = self._moved
            self._since = now
            return False
        return now - self._since > self._options.write_stall_s

    # The sink.

    def write(self, data: bytes) -> None:
        if data and not self._closed and not self._finished and not self._connection.closing:
            self._queue(data)
            self._pump()
            self._http2.settle()

    def share(self, told: Callable[[], None]) -> int:
        """The connection is shared by streams already."""
        return -1

    def unshare(self) -> None:
        pass

    def queue(self, data: memoryview) -> int:
        self.write(bytes(data))
        return self.written

    def write_frames(self, frames: Frames) -> int:
        self.write(frames.plain)
        return self.written

    @property
    def written(self) -> int:
        return self._moved + self.pending

    @property
    def taken(self) -> int:
        connection = self._connection
        # Streams share the buffer of the connection: only an empty one says that ours has gone.
        if not self._closed and not connection.closing and not connection.buffered:
            self._last_taken = self._moved
        return self._last_taken

    @property
    def buffered(self) -> int:
        return 0 if self._closed else self.pending + self._connection.buffered

    async def drain(self) -> None:
        while not self._closed and self.pending > self._options.write_high // 4:
            waiter: asyncio.Future[None] = self._connection.loop.create_future()
            self._drained.append(lambda waiter=waiter: None if waiter.done() else waiter.set_result(None))  # type: ignore[misc]
            await waiter
        if not self._closed:
            await self._connection.drain()

    def when_drained(self, tell: Callable[[], None]) -> None:
        if self._closed:
            self._connection.loop.call_soon(tell)
        elif self.pending:
            self._drained.append(lambda: self.when_drained(tell))
        else:
            self._connection.when_drained(tell)

    def _wake(self) -> None:
        waiters, self._drained = self._drained, []
        for tell in waiters:
            tell()

    @property
    def gone(self) -> asyncio.Event:
        assert self._gone is not None
        return self._gone

    def finish(self) -> None:
        if not self._closed and not self._finished:
            self._finished = True
            self._pump()
            self._http2.settle()

    def abort(self) -> None:
        self.reset(ErrorCodes.INTERNAL_ERROR)
