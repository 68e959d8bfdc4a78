"""A small HTTP/2 client on the same library as the server, with its windows under the test's control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes, Settings


@dataclass
class Stream:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    informational: list[int] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None
    unacknowledged: int = 0


class H2Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, window: int) -> None:
        self._reader = reader
        self.writer = writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
        self.h2.local_settings = Settings(client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.h2.initiate_connection()
        self.streams: dict[int, Stream] = {}
        self.terminated: int | None = None
        self.farewell = b""
        """What came after GOAWAY, which the library refuses to read."""
        self.closed = False
        self.acknowledge = True
        """Open the windows again for what arrives."""
        self._changed = asyncio.Event()
        self.flush()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    def request(self, method: str, path: str, body: bytes | None = None, *extra: tuple[str, str]) -> int:
        stream_id = self.start(method, path, body is None, *extra)
        if body is not None:
            self.h2.send_data(stream_id, body, end_stream=True)
            self.flush()
        return stream_id

    def start(self, method: str, path: str, ends: bool, *extra: tuple[str, str]) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.streams[stream_id] = Stream()
        pseudo = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "here")]
        self.h2.send_headers(stream_id, [*pseudo, *extra], end_stream=ends)
        self.flush()
        return stream_id

    async def pump(self) -> None:
        """Read until the server closes."""
        while data := await self._reader.read(65536):
            if self.terminated is not None:
                self.farewell += data
                continue
            for event in self.h2.receive_data(data):
                self._take(event)
            if not self.closed:
                self.flush()
            self._changed.set()
        self.closed = True
        self._changed.set()

    def _take(self, event: object) -> None:
        if isinstance(event, ConnectionTerminated):
            self.terminated = int(event.error_code or 0)
        elif isinstance(event, InformationalResponseReceived):
            self.streams[event.stream_id].informational.append(int(event.headers[0][1]))
        elif isinstance(event, ResponseReceived):
            stream = self.streams[event.stream_id]
            stream.headers = {str(name): str(value) for name, value in event.headers}
            stream.status = int(stream.headers[":status"])
        elif isinstance(event, DataReceived):
            stream = self.streams[event.stream_id]
            stream.body += event.data
            if self.acknowledge:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            else:
                stream.unacknowledged += event.flow_controlled_length
        elif isinstance(event, StreamEnded):
            self.streams[event.stream_id].ended = True
        elif isinstance(event, StreamReset):
            self.streams[event.stream_id].reset = int(event.error_code)

    async def until(self, condition: object, limit_s: float = 5.0) -> None:
        assert callable(condition)
        async with asyncio.timeout(limit_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def reply(self, stream_id: int) -> Stream:
        stream = self.streams[stream_id]
        await self.until(lambda: stream.ended or stream.reset is not None or self.closed)
        return stream

    async def send_body(self, stream_id: int, body: bytes) -> None:
        """All of it, as the server's windows open."""
        view = memoryview(body)
        while view:
            await self.until(lambda: self.h2.local_flow_control_window(stream_id) > 0)
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            self.h2.send_data(stream_id, bytes(view[:room]), end_stream=len(view) <= room)
            self.flush()
            view = view[room:]
            await asyncio.sleep(0)


@asynccontextmanager
async def h2_client(port: int, window: int = 65_535) -> AsyncIterator[H2Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = H2Client(reader, writer, window)
    pump = asyncio.ensure_future(client.pump())
    try:
        yield client
    finally:
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass
