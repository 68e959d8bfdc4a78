"""A real server process, and two ways to speak to it."""

from __future__ import annotations

import atexit
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import h2.config
import h2.connection
import h2.events

from tests.contract.http.client import Reply

RUNNING: list[ServerProcess] = []
"""Servers that were started and neither stopped nor killed."""


def end_all(servers: Iterable[ServerProcess]) -> None:
    """Whatever became of the test that started them."""
    for server in tuple(servers):
        server.kill()


@atexit.register
def _end_rest() -> None:
    end_all(RUNNING)


class ServerProcess:
    """`topics serve` on any free port, with a data directory of its own inside `directory`. It ends with the test that
    started it at the latest, unless it is `shared` by several."""

    shared = False

    def __init__(self, directory: Path, wait: bool = True, /, **settings: str) -> None:
        """With `wait` False it has only been started: nobody knows its port before `wait_ready`."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._port_file = directory / "port"
        self._port_file.unlink(missing_ok=True)
        # A file and no pipe: a server with much to say must not wait for somebody who reads it.
        self._complaints = directory / "stderr"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {
            "TOPICS_DATA_DIR": str(directory / "data"),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self._port_file),
            **settings,
        }
        with self._complaints.open("wb") as complaints:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "topics.cli.main", "serve"],
                env=environ,
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
        RUNNING.append(self)
        self.host, self.port = "", 0
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        self.host, port = self._address().rsplit(":", 1)
        self.port = int(port)

    def _address(self) -> str:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if self._port_file.exists():
                return self._port_file.read_text()
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"the server did not start: {self.complaints}")

    @property
    def complaints(self) -> str:
        """What it has written to its standard error so far."""
        return self._complaints.read_text()

    def kill(self) -> str:
        """With SIGKILL; what it had complained about until then."""
        if self in RUNNING:
            RUNNING.remove(self)
        self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()
        return self.complaints

    def stop(self) -> tuple[int, str, str]:
        """Exit status and what it printed."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=120)
        if self in RUNNING:
            RUNNING.remove(self)
        return self.process.returncode, out.decode(), self.complaints


class Http1:
    """Kept-alive connections, one for each request under way."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[http.client.HTTPConnection] = []

    def send(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection(*self._address, timeout=120)
        try:
            connection.putrequest(method, target, skip_host="host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body or method in ("POST", "PUT", "PATCH"):
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return reply

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Http2:
    """A connection with prior knowledge for each request."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def send(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        with socket.create_connection(self._address, timeout=120) as wire:
            machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
            machine.initiate_connection()
            authority = headers.pop("host", f"{self._address[0]}:{self._address[1]}")
            head = [(":method", method), (":path", target), (":scheme", "http"), (":authority", authority)]
            head += [(name.lower(), value) for name, value in headers.items()]
            machine.send_headers(1, head, end_stream=not body)
            wire.sendall(machine.data_to_send())
            return self._exchange(wire, machine, memoryview(body))

    def _exchange(self, wire: socket.socket, machine: h2.connection.H2Connection, left: memoryview) -> Reply:
        status, found, pieces = 0, {}, []
        while True:
            while left:
                size = min(len(left), machine.local_flow_control_window(1), machine.max_outbound_frame_size)
                if size <= 0:
                    break
                machine.send_data(1, bytes(left[:size]), end_stream=size == len(left))
                left = left[size:]
            wire.sendall(machine.data_to_send())
            data = wire.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the server closed the connection before its answer")
            for event in machine.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    named = {_text(name): _text(value) for name, value in event.headers or ()}
                    status = int(named.pop(":status"))
                    found = named
                elif isinstance(event, h2.events.DataReceived):
                    pieces.append(bytes(event.data or b""))
                    machine.acknowledge_received_data(event.flow_controlled_length or 0, 1)
                elif isinstance(event, h2.events.StreamEnded):
                    return Reply(status, found, b"".join(pieces))
                elif isinstance(event, h2.events.StreamReset):
                    if status:
                        return Reply(status, found, b"".join(pieces))
                    raise AssertionError(f"the stream was reset: {event}")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
