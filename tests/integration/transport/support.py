"""A small app behind the transport, and a client that sees raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from topics.api.http import Admission, Answer, Budget, Head, Later, Request, Response, Sink, Socket, Stream, WebSocket
from topics.api.listener import Listener, serve
from topics.api.options import TlsOptions, TransportOptions

BODY_LIMIT = 1 << 20


class Placed(Later):
    """An answer to come, whose request has its place already."""

    __slots__ = ()
    placed = True

    def told(self, work: asyncio.Task[Answer]) -> None:
        self._tell(work.result())

    def cancel(self) -> None:
        pass


@dataclass
class EchoApp:
    """Says what it was asked; the path chooses how."""

    seen: list[Request] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    in_flight: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """What requests to /wait wait for."""
    sinks: list[Sink] = field(default_factory=list)
    sockets: list[WebSocket] = field(default_factory=list)
    bodies: Budget | None = None

    def begin(self, head: Head) -> Admission | Response:
        if head.path == "/forbidden":
            return Response(403, b'{"error":"forbidden"}')
        self.in_flight += 1
        return Admission(head.path, 16 if head.path == "/small" else BODY_LIMIT, self.release, self.bodies)

    def release(self) -> None:
        self.in_flight -= 1

    def handle(self, request: Request) -> Answer | Later | Awaitable[Answer]:
        self.seen.append(request)
        path = request.head.path
        if path == "/wait":
            return self.wait(request)
        if path == "/placed":
            placed = Placed()
            asyncio.ensure_future(self.wait(request)).add_done_callback(placed.told)
            return placed
        if path == "/future":
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.01, self.fulfil, future)
            return future
        if path == "/fail":
            raise ValueError("broken on purpose")
        if path == "/fail-later":
            return self.fail_later()
        if path == "/large":
            return Response(200, b"x" * int(request.head.query), b"application/octet-stream")
        if path == "/text":
            return Response(200, b"[" + b"1234567890," * int(request.head.query) + b"0]")
        if path == "/none":
            return Response(204)
        if path == "/headers":
            return Response(200, b"{}", headers=[(b"x-two", b"a\r\nb: c"), (b"etag", b'"1"')])
        if path == "/close":
            return Response(200, b"bye", b"text/plain", close=True)
        if path == "/count":
            return Stream(200, b"text/event-stream", self.count, [(b"cache-control", b"no-store")])
        if path == "/cut":
            return Stream(200, b"text/event-stream", self.cut)
        if path == "/forever":
            return Stream(200, b"text/event-stream", self.forever)
        if path == "/ws":
            return Socket(self.converse)
        return Response(200, b'{"path":"%b","bytes":%d}' % (request.head.target, len(request.body)))

    def fulfil(self, future: asyncio.Future[Answer]) -> None:
        if not future.done():
            future.set_result(Response(200, b'"future"'))

    async def wait(self, request: Request) -> Answer:
        self.events.append(f"start {request.head.query}")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.events.append(f"cancelled {request.head.query}")
            raise
        self.events.append(f"end {request.head.query}")
        return Response(200, b'"waited %b"' % request.head.query.encode())

    async def fail_later(self) -> Answer:
        await asyncio.sleep(0)
        raise ValueError("broken on purpose")

    async def count(self, sink: Sink) -> None:
        for number in range(3):
            sink.write(b"data: %d\n\n" % number)
            await asyncio.sleep(0.001)

    async def cut(self, sink: Sink) -> None:
        sink.write(b"data: 0\n\n")
        await sink.drain()
        sink.abort()

    async def forever(self, sink: Sink) -> None:
        """Writes as long as the peer takes it, then waits until it is gone."""
        self.sinks.append(sink)
        self.events.append("stream")
        sink.write(b"data: hello\n\n")
        try:
            await sink.gone.wait()
            self.events.append("gone")
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise

    async def converse(self, socket: WebSocket) -> None:
        self.sockets.append(socket)
        while (message := await socket.receive()) is not None:
            if message == "close":
                socket.close(4001, "as you wish")
            elif message == "fail":
                raise ValueError("broken on purpose")
            elif message == "return":
                return
            else:
                socket.send(message.encode() if isinstance(message, str) else b"binary %d" % len(message))
        self.events.append("socket gone")

    def express(self, head: Head, admission: Admission, answer_max: int | None) -> None:
        return None

    def too_large(self, head: Head) -> Response:
        return Response(413, b'{"error":"too large"}')

    def unsupported_encoding(self, head: Head) -> Response:
        return Response(415, b'{"error":"coding"}')

    def bad_request(self, why: str) -> Response:
        return Response(400, b'{"error":"%b"}' % why.encode())


@asynccontextmanager
async def serving(
    app: EchoApp | None = None, tls: TlsOptions | None = None, **options: float
) -> AsyncIterator[tuple[EchoApp, Listener]]:
    echo = app if app is not None else EchoApp()
    chosen = TransportOptions(**options)  # type: ignore[arg-type]
    listener = await serve(echo, "127.0.0.1", 0, tls=tls, options=chosen)
    try:
        yield echo, listener
    finally:
        await listener.stop(0.01)


@dataclass
class Reply:
    status: int
    version: str
    headers: dict[str, str]
    body: bytes


class Raw:
    """A connection on which tests write the very bytes and read answers one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    async def reply(self, to_head: bool = False) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        version, status = first.split(" ")[:2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if to_head or status.startswith("1") or status in ("204", "304"):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self.chunks()])
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return Reply(int(status), version, headers, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await self.reader.readline(), 16)
            chunk = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
            if not size:
                return
            yield chunk

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def raw(port: int) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "host: here", *headers, "\r\n")).encode("latin-1")


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: here", f"content-length: {len(body)}", *headers, "\r\n")
    return "\r\n".join(lines).encode("latin-1") + body


async def until(condition: object, limit_s: float = 3.0) -> None:
    """Wait until a callable says true."""
    assert callable(condition)
    end = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < end, "waited in vain"
        await asyncio.sleep(0.005)
