"""WebSocket connections: framing by the sans-I/O half of `websockets`, messages to and from one handler.

Text comes as `str` and binary as `bytes`; whether a binary message makes sense is for the handler to say. Pings are
answered once, by the library. A frame or message over its limit ends the connection with 1009, text that is not UTF-8
with 1007, a breach of the protocol with 1002. Large messages count against the budget of request bodies; one that finds
it spent ends its connection with 1013.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.api.bodies import Pieces, add_piece, joined
from topics.api.exchange import SMALL
from topics.api.http import Budget, Head, Response, Socket
from topics.api.render import http1_response
from topics.api.sink import cancel_later

if TYPE_CHECKING:
    from topics.api.protocol import Connection

PLAIN = b"text/plain; charset=utf-8"
DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


def not_an_upgrade(why: str = "this address answers WebSocket upgrades only") -> Response:
    return Response(400, why.encode("utf-8"), PLAIN)


class WebSocketSession:
    def __init__(self, connection: Connection, head: Head, bodies: Budget | None) -> None:
        self._connection = connection
        self._bodies = bodies
        self._held = 0
        """What is counted against that budget."""
        self._options = connection.options
        self._head = head
        limits = (self._options.ws_message_max, self._options.ws_frame_max)
        self._frames = ServerProtocol(max_size=limits)
        self._pieces: Pieces = []
        self._pieces_size = 0
        self._binary = False
        self._messages: deque[str | bytes] = deque()
        self._messages_size = 0
        self._reader: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heard_at = connection.ticker.now
        self._pinged_at = connection.ticker.now

    def open(self, answer: Socket, rest: bytes) -> None:
        """Answer the handshake and run the handler; `rest` came right behind the handshake."""
        frames = self._frames
        frames.receive_data(_handshake(self._head))
        request = next((event for event in frames.events_received() if isinstance(event, Request)), None)
        response = frames.accept(request) if request is not None else None
        if response is None or response.status_code != 101:
            why = (response.body if response is not None else b"").decode("utf-8").strip()
            refusal = not_an_upgrade(why or "this is not a WebSocket handshake")
            self._connection.write(http1_response(self._connection.ticker, self._head, refusal, keep_alive=False))
            self._connection.close()
            return
        frames.send_response(response)
        self._connection.expect_stream()
        self._flush()
        self._task = self._connection.loop.create_task(self._run(answer))
        self._connection.run(self._task)
        if rest:
            self.feed(rest)

    async def _run(self, answer: Socket) -> None:
        code = CloseCode.NORMAL_CLOSURE
        try:
            await answer.run(self)
        except asyncio.CancelledError:
            code = CloseCode.GOING_AWAY
        except Exception as error:
            code = CloseCode.INTERNAL_ERROR
            context = {"message": f"the WebSocket of {self._head.path} failed", "exception": error}
            self._connection.loop.call_exception_handler(context)
        self._messages.clear()
        self.close(code)

    # For the handler.

    async def receive(self) -> str | bytes | None:
        while not self._messages:
            if self._gone.is_set():
                return None
            self._reader = self._connection.loop.create_future()
            await self._reader
        message = self._messages.popleft()
        self._messages_size -= len(message)
        if self._held:
            self._hold()
        if len(self._messages) < self._options.ws_waiting_max:
            self._connection.resume_for_work()
        return message

    def send(self, message: bytes) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_text(message)
            self._flush()

    def share(self, told: Callable[[], None]) -> int:
        return self._connection.share(told) if self._frames.state is State.OPEN else -1

    def unshare(self) -> None:
        self._connection.unshare()

    def queue(self, data: memoryview) -> int:
        return self._connection.queue(data)

    def send_frame(self, frame: bytes) -> int:
        if self._frames.state is State.OPEN and not self._connection.closing:
            return self._connection.write_through(frame)
        return 0

    @property
    def written(self) -> int:
        return self._connection.written

    @property
    def taken(self) -> int:
        return self._connection.taken

    @property
    def buffered(self) -> int:
        return 0 if self._connection.closing else self._connection.buffered

    def when_drained(self, tell: Callable[[], None]) -> None:
        self._connection.when_drained(tell)

    async def drain(self) -> None:
        await self._connection.drain()

    @property
    def gone(self) -> asyncio.Event:
        return self._gone

    def close(self, code: int, reason: str = "") -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_close(code, reason)
            self._flush()
            self._leave()
            # The peer answers with its own Close, or its time runs out.
            self._connection.expect_end()

    # Called by the connection.

    def feed(self, data: bytes) -> None:
        self._heard_at = self._connection.ticker.now
        frames = self._frames
        frames.receive_data(data)
        for event in frames.events_received():
            if isinstance(event, Frame) and event.opcode in DATA:
                self._take(event)
        self._hold()
        self._flush()
        if len(self._messages) >= self._options.ws_waiting_max and not self._gone.is_set():
            self._connection.pause_for_work()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._binary = frame.opcode is Opcode.BINARY
        add_piece(self._pieces, bytes(frame.data))
        self._pieces_size += len(frame.data)
        if not frame.fin:
            return
        whole = joined(self._pieces)
        self._pieces = []
        self._pieces_size = 0
        if self._frames.close_sent is not None and self._frames.state is not State.OPEN:
            return
        try:
            message = whole if self._binary else whole.decode("utf-8")
        except UnicodeDecodeError as error:
            self._frames.fail(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")
            return
        self._messages.append(message)
        self._messages_size += len(message)
        self._wake()

    def _hold(self) -> None:
        """Count messages that are not whole yet, or wait for the handler, against what all of them may take."""
        if self._bodies is None:
            return
        size = self._messages_size + self._pieces_size + len(self._frames.reader.buffer)
        more = (size if size > SMALL and not self._gone.is_set() else 0) - self._held
        if more > 0 and not self._bodies.take(more, self._held):
            self._frames.fail(CloseCode.TRY_AGAIN_LATER, "large messages hold all the memory they may; try again")
            return
        if more < 0:
            self._bodies.give(-more)
        self._held += more

    def _flush(self) -> None:
        """Send what the library has; it ends with an empty piece where the connection is to be closed."""
        ends = False
        pieces = self._frames.data_to_send()
        if self._connection.closing:
            return
        for piece in pieces:
            if piece:
                self._connection.write(piece)
            else:
                ends = True
        if ends:
            self._leave()
            self._connection.close(linger=True)

    def ended(self) -> bool:
        return False

    def lost(self) -> None:
        self._leave()
        # Objects that hold each other stay until somebody looks for them; what is large about them goes now.
        self._pieces = []
        self._pieces_size = 0
        self._frames.reader.discard()
        self._frames.parser.close()
        self._hold()

    def _leave(self) -> None:
        self._gone.set()
        self._wake()
        self._connection.resume_for_work()
        cancel_later(self._task, self._options.leave_s)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def tick(self, now: float) -> None:
        silence = now - self._heard_at
        if self._connection.paused:
            # We are the ones who do not listen.
            self._heard_at = now
        elif silence > 3 * self._options.ping_s:
            self._connection.abort()
        elif silence > self._options.ping_s and now - self._pinged_at > self._options.ping_s:
            self._pinged_at = now
            if self._frames.state is State.OPEN:
                self._frames.send_ping(b"")
                self._flush()

    def shutdown(self) -> None:
        """Handlers say goodbye themselves; what is left at the end of the grace is closed by the listener."""

    def readable(self) -> None:
        pass


def _handshake(head: Head) -> bytes:
    lines = [b"GET %b HTTP/1.1\r\n" % head.target]
    lines += [b"%b: %b\r\n" % item for item in head.headers.items()]
    return b"".join((*lines, b"\r\n"))
