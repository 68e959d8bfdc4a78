"""A server that says what it was told to say: for what a client does when the answers are bad, late or missing."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

Step = Callable[[socket.socket], bool]
"""Answers one request; True keeps the connection."""


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answer(status: int = 200, body: Any = None, headers: Mapping[str, str] | None = None) -> Step:
    """A regular answer; a body that is not bytes is sent as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
    lines = [
        f"HTTP/1.1 {status} Word",
        f"Content-Length: {len(raw)}",
        *(f"{k}: {v}" for k, v in (headers or {}).items()),
    ]

    def step(connection: socket.socket) -> bool:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + raw)
        return True

    return step


def problem(status: int, code: str, detail: Any = None, headers: Mapping[str, str] | None = None) -> Step:
    error = {"code": code, "message": f"because of {code}"}
    return answer(status, {"error": error if detail is None else {**error, "detail": detail}}, headers)


def chunks(*pieces: bytes, end: bool = True) -> Step:
    """A streamed answer; without `end` the connection breaks where the next piece would come."""

    def step(connection: socket.socket) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        if end:
            connection.sendall(b"0\r\n\r\n")
        return end

    return step


def half(body: bytes, announced: int) -> Step:
    """Fewer bytes than announced, then the end of the connection."""

    def step(connection: socket.socket) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (announced, body))
        return False

    return step


def hang_up(connection: socket.socket) -> bool:
    """Took the request and said nothing."""
    return False


class FakeServer:
    """Answers request after request with the next step of its script, on whatever connection each arrives."""

    def __init__(self, *script: Step) -> None:
        self.script = list(script)
        self.by_target: dict[str, Step] = {}
        """Answers that depend on the target and not on the order; before the script."""
        self.otherwise: Step = problem(500, "script_is_over")
        self.seen: list[Seen] = []
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def silence(self, connection: socket.socket) -> bool:
        """Takes the request and says nothing until the test ends."""
        self.stopped.wait(10)
        return False

    def __enter__(self) -> FakeServer:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        # A closed listener does not wake the thread that waits in accept; a last connection does.
        socket.create_connection(self._listener.getsockname()).close()
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self.stopped.is_set():
                connection.close()
                return
            with self._lock:
                self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            try:
                while (request := self._request(reader)) is not None:
                    with self._lock:
                        self.seen.append(request)
                        step = self.by_target.get(request.target) or self._next_step()
                    if not step(connection):
                        return
            except OSError:
                return

    def _next_step(self) -> Step:
        return self.script.pop(0) if self.script else self.otherwise

    @staticmethod
    def _request(reader: Any) -> Seen | None:
        line = reader.readline().decode()
        if not line:
            return None
        method, target, _ = line.split(" ")
        headers = {}
        while (header := reader.readline().decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        return Seen(method, target, headers, reader.read(int(headers.get("content-length", 0))))
