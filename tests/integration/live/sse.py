"""Readers of event streams on real sockets: one that blocks and sees every byte, and a crowd on one event loop."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from tests.contract.http.client import Api
from tests.contract.http.live import Http1, ServerProcess

TIME_MAX_S = 60.0


@dataclass
class Event:
    id: str
    event: str
    """Empty for a comment or `retry`."""
    text: str
    """The value of `data`, or the block itself where there is none."""

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]


BLOCK = re.compile(r"id: ([A-Za-z0-9_-]+)\nevent: ([a-z-]+)\ndata: ([^\n]+)")


def parse(block: str) -> Event:
    """A block without its empty line; anything but a comment, `retry` or id, event and data in this order fails."""
    found = BLOCK.fullmatch(block)
    if found is not None:
        return Event(*found.groups())
    assert block in (": : hb", "retry: 2000"), repr(block)
    return Event("", "", block)


class Reader:
    """One stream over HTTP/1.1. Checks on its way that each chunk is exactly one block."""

    def __init__(self, host: str, port: int, url: str, *headers: str, receive_bytes: int = 0) -> None:
        self._socket = socket.socket()
        self._ends = time.monotonic() + 3 * TIME_MAX_S
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(TIME_MAX_S)
        self._socket.connect((host, port))
        lines = (f"GET {url} HTTP/1.1", f"host: {host}:{port}", *headers, "", "")
        self._socket.sendall("\r\n".join(lines).encode())
        self._rest = b""
        head = self._until(b"\r\n\r\n").decode().split("\r\n")
        self.status = int(head[0].split(" ")[1])
        self.headers = dict(line.split(": ", 1) for line in head[1:] if line)

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise EOFError("the stream was cut")
        self._rest += data

    def _until(self, end: bytes) -> bytes:
        while end not in self._rest:
            self._more()
        found, self._rest = self._rest.split(end, 1)
        return found

    def next(self) -> Event | None:
        """The next block; None at the regular end."""
        assert time.monotonic() < self._ends, "waited in vain"
        size = int(self._until(b"\r\n"), 16)
        while len(self._rest) < size + 2:
            self._more()
        block, end, self._rest = self._rest[:size], self._rest[size : size + 2], self._rest[size + 2 :]
        assert end == b"\r\n"
        if not size:
            return None
        text = block.decode()
        assert text.endswith("\n\n")
        return parse(text[:-2])

    def named(self) -> Event:
        """The next one that is no comment."""
        while True:
            event = self.next()
            assert event is not None, "the stream ended"
            if event.event:
                return event

    def until(self, kind: str) -> Event:
        while True:
            event = self.named()
            if event.event == kind:
                return event

    def records(self, through: int) -> Iterator[int]:
        """Seqs as they come, up to this one."""
        while True:
            event = self.named()
            if event.event == "record":
                yield from event.seqs
                if event.data["to_seq"] >= through:
                    return

    def hurry(self) -> None:
        """Take much at once from now on: with a tiny window the kernel waits between pieces."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)

    def rest(self) -> list[Event]:
        events = []
        while (event := self.next()) is not None:
            events.append(event)
        return events

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Place:
    """A server and the few calls that tests of live reading make."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._wire = Http1(server.host, server.port)
        self.api = Api(self._wire)

    def close(self) -> None:
        self._wire.close()

    def session(self, topics: dict[str, Any], **options: Any) -> str:
        """The url of its stream."""
        answer = self.api.call("POST", "/v0/watch", {"topics": topics, **options})
        assert answer.status == 200, answer.body
        url: str = answer.json["stream_url"]
        return url

    def read(self, url: str, *headers: str, receive_bytes: int = 0) -> Reader:
        reader = Reader(self.server.host, self.server.port, url, *headers, receive_bytes=receive_bytes)
        assert reader.status == 200
        return reader

    def watch(self, topics: dict[str, Any], **options: Any) -> Reader:
        return self.read(self.session(topics, **options))

    def metrics(self) -> Any:
        return self.api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json

    def memory(self) -> int:
        """Resident, in bytes."""
        with open(f"/proc/{self.server.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


class Listening(asyncio.Protocol):
    """One of a crowd: keeps the seqs it was given, in order, and the last id."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._rest = ""
        self.seqs: list[int] = []
        self.last_id = ""
        self.caught_up = 0
        self.ended = asyncio.Event()
        self.changed = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        *blocks, self._rest = (self._rest + data.decode()).split("\n\n")
        for block in blocks:
            found = BLOCK.search(block)
            if found is None:
                continue
            self.last_id, kind, text = found.groups()
            if kind == "record":
                self.seqs += [record["$seq"] for record in json.loads(text)["records"]]
            self.caught_up += kind == "caught-up"
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended.set()
        self.changed.set()

    async def until(self, test: Any) -> None:
        while not test(self):
            self.changed.clear()
            await self.changed.wait()


async def listen(host: str, port: int, url: str, last_id: str = "") -> Listening:
    resume = f"last-event-id: {last_id}\r\n" if last_id else ""
    request = f"GET {url} HTTP/1.1\r\nhost: {host}\r\n{resume}\r\n".encode()
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Listening(request), host, port)
    return protocol


async def open_session(host: str, port: int, topics: dict[str, Any]) -> str:
    """The url of its stream; OSError if there is no server that answers."""
    body = json.dumps({"topics": topics}).encode()
    head = f"POST /v0/watch HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        answer = await reader.read()
    finally:
        writer.close()
    if b"200 OK" not in answer:
        raise ConnectionError(answer)
    url: str = json.loads(answer.split(b"\r\n\r\n", 1)[1])["stream_url"]
    return url
