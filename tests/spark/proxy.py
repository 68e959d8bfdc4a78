"""A proxy between Spark and a server that stops a chosen request at a chosen moment, so that a test can kill somebody
just then. The request that was stopped never gets its answer."""

from __future__ import annotations

import http.client
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote

from tests.spark.conftest import Server

Moment = Literal["a part comes", "a part is stored", "the commit comes", "the commit is done"]
_METHODS: Final = {"part": "PUT", "commit": "POST"}
_OWN: Final = ("connection", "transfer-encoding", "content-length", "date", "server")
WAIT_S: Final = 600.0
"""A bound for what would never come; a slow machine must not reach it."""


@dataclass
class Aim:
    """The first request of an app that reaches the moment is stopped there."""

    app: str
    moment: Moment
    act: Callable[[int], None]
    """Gets the port from which the request came."""
    met: threading.Event = field(default_factory=threading.Event)


class Proxy:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.seen: list[str] = []
        """Method and target of every request, in the order they came."""
        self._aims: list[Aim] = []
        self._held: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._up = threading.Event()
        self._up.set()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._listener.daemon_threads = True
        self._thread = threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def aim(self, app: str, moment: Moment, act: Callable[[int], None]) -> Aim:
        aim = Aim(app, moment, act)
        self._aims.append(aim)
        return aim

    def stop(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    # -- victims -------------------------------------------------------------------------------------------------------

    def kill_server(self, _port: int) -> None:
        """With SIGKILL; another one starts on its directory, and nobody gets through before that."""
        self._up.clear()
        self.server.restart_killed()
        self._up.set()

    def kill_asker(self, port: int) -> None:
        """With SIGKILL: the process that sent the request."""
        os.kill(process_of(port, self.port), signal.SIGKILL)

    def hold(self, app: str, over: threading.Event) -> None:
        """Nothing of the app gets through before that, not even another try of what was stopped: a client does not wait
        forever, and a slow machine may take longer."""
        with self._lock:
            self._held[app] = over
        over.wait(2 * WAIT_S)
        with self._lock:
            self._held.pop(app, None)

    # -- for the handler -----------------------------------------------------------------------------------------------

    def came(self, method: str, target: str) -> None:
        with self._lock:
            self.seen.append(f"{method} {unquote(target)}")

    def holds(self, target: str) -> bool:
        """Whether the request came while its app was held, and waited for the end of that."""
        with self._lock:
            found = re.search(r"/staged/([^/@]+)@", unquote(target))
            over = self._held.get(found[1]) if found is not None else None
        if over is not None:
            over.wait(2 * WAIT_S)
        return over is not None

    def stops(self, method: str, target: str, before: bool, port: int) -> bool:
        """Whether the request was stopped here; what the aim wanted is done then."""
        with self._lock:
            aim = next((one for one in self._aims if _fits(one, method, unquote(target), before)), None)
            if aim is not None:
                self._aims.remove(aim)
        if aim is None:
            return False
        aim.met.set()
        aim.act(port)
        return True

    def wait_up(self) -> int:
        assert self._up.wait(WAIT_S), "the server did not return"
        return self.server.process.port


def _fits(aim: Aim, method: str, target: str, before: bool) -> bool:
    found = re.search(r"/staged/([^/@]+)@", target)
    _, what, *_, last = aim.moment.split()
    return found is not None and (found[1], method, before) == (aim.app, _METHODS[what], last == "comes")


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        port = int(self.client_address[1])
        self.proxy.came(self.command, self.path)
        if self.proxy.holds(self.path):
            return self._drop()
        if self.proxy.stops(self.command, self.path, True, port):
            return self._drop()
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.wait_up(), timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        try:
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return self._drop()
        finally:
            upstream.close()
        if answer.status < 400 and self.proxy.stops(self.command, self.path, False, port):
            return self._drop()
        try:
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self._drop()

    do_GET = do_PUT = do_POST = do_DELETE = _pass

    def _drop(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Failed connections are what this is for."""


@contextmanager
def proxied(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.stop()


# -- processes ---------------------------------------------------------------------------------------------------------


def process_of(port: int, peer: int) -> int:
    """Who holds the loopback connection from `port` to `peer`."""
    ends = (f"0100007F:{port:04X}", f"0100007F:{peer:04X}")
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    (inode,) = (row[9] for row in rows if (row[1], row[2]) == ends)
    for folder in _processes():
        try:
            if any(os.readlink(entry) == f"socket:[{inode}]" for entry in (folder / "fd").iterdir()):
                return int(folder.name)
        except OSError:
            continue  # gone, or not ours
    raise AssertionError(f"nobody holds the connection from port {port}")


def kill_session(leader: int) -> None:
    """With SIGKILL: every process of the session that `leader` began; Spark gives its Python workers a group of their
    own, so the group of the driver is not enough."""
    for folder in _processes():
        try:
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(folder.name), signal.SIGKILL)
        except (OSError, IndexError):
            continue


def _processes() -> Iterator[Path]:
    return (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())
