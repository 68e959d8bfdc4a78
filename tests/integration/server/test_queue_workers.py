"""A hundred workers over HTTP, some of which die with jobs in their hands, and a server that is killed among them.

No job is lost, no acked job comes back, no lease id is given out twice, and a job is handed out again only when its
lease had run out or the server was started anew.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import SEED
from tests.contract.http.live import ServerProcess

WORKERS = 100
JOBS = 3000
LEASE_MS = 1500
KILLS = 2
SECONDS_MAX = 240


class Dropped(Exception):
    """The connection broke; what became of the call is unknown."""


async def connect(server: ServerProcess) -> Link:
    return Link(*await asyncio.open_connection(server.host, server.port))


class Link:
    """One connection of one worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(text)}\r\n"
        try:
            self._writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + text)
            lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            answer = json.loads(await self._reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError, StopIteration) as error:
            raise Dropped from error
        if not lines[0].startswith((b"http/1.1 200", b"http/1.1 201")):
            raise Dropped
        assert isinstance(answer, dict)
        return answer

    def cut(self) -> None:
        self._writer.transport.abort()


@dataclass
class Delivery:
    token: int
    at: float
    """When the answer came: the lease began before."""
    life: int


@dataclass
class Crew:
    server: ServerProcess
    rng: random.Random
    life: int = 0
    acked: set[int] = field(default_factory=set)
    """Whose acks were answered."""
    unsure: set[int] = field(default_factory=set)
    """Whose acks were sent and not answered."""
    tokens: set[int] = field(default_factory=set)
    deliveries: dict[int, list[Delivery]] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    repeats: int = 0
    deaths: int = 0
    done: bool = False

    async def work(self, number: int) -> None:
        names = 0
        while not self.done:
            names += 1
            try:
                link = await connect(self.server)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                await self._shift(link, f"w{number}-{names}")
            except Dropped:
                await asyncio.sleep(0.02)
            finally:
                link.cut()

    async def _shift(self, link: Link, node: str) -> None:
        """Until the end, or the worker's own."""
        while not self.done:
            life, asked = self.life, time.monotonic()
            answer = await link.call("POST", "/v0/topics/jobs/claim", {"node": node, "max": 8, "lease_ms": LEASE_MS})
            jobs = answer["claimed"]
            for job in jobs:
                self._note(job, asked, life)
            if not jobs:
                await asyncio.sleep(0.05)
                continue
            await asyncio.sleep(self.rng.random() * 0.01)
            if self.rng.random() < 0.04:
                self.deaths += 1
                raise Dropped
            seqs = [job["$seq"] for job in jobs]
            self.unsure.update(seqs)
            ids = [job["lease_id"] for job in jobs]
            settled = await link.call("POST", "/v0/topics/jobs/ack", {"node": node, "seqs": seqs, "lease_ids": ids})
            self.acked.update(seq for seq in seqs if seq not in settled["skipped"])

    def _note(self, job: dict[str, Any], asked: float, life: int) -> None:
        seq, token = job["$seq"], int(job["lease_id"].removeprefix("lease_"), 16)
        if token in self.tokens:
            self.trouble.append(f"lease id {token} was given out twice")
        self.tokens.add(token)
        if seq in self.acked:
            self.trouble.append(f"job {seq} came back after its ack")
        before = self.deliveries.setdefault(seq, [])
        now = time.monotonic()
        if before:
            self.repeats += 1
            last = before[-1]
            # What is known is when the claim was answered; the lease began when the server decided, a little before.
            if last.life == life and now - last.at < LEASE_MS / 1000:
                self.trouble.append(f"job {seq} was handed out again after {now - last.at:.3f} s")
        before.append(Delivery(token, asked, life))


async def _run(directory: Path) -> Crew:
    server = ServerProcess(directory)
    crew = Crew(server, random.Random(SEED))
    link = await connect(server)
    await link.call("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync"})
    for start in range(0, JOBS, 1000):
        await link.call("POST", "/v0/topics/jobs", {"records": [{"data": start + n} for n in range(1000)]})
    link.cut()
    workers = [asyncio.create_task(crew.work(number)) for number in range(WORKERS)]
    ends = time.monotonic() + SECONDS_MAX
    kills = 0
    while time.monotonic() < ends and len(crew.acked | crew.unsure) < JOBS:
        await asyncio.sleep(0.05)
        if kills < KILLS and len(crew.acked) >= JOBS * (kills + 1) // (KILLS + 2):
            kills += 1
            crew.life += 1
            crew.server.kill()
            crew.server = await asyncio.to_thread(ServerProcess, directory)
            crew.life += 1
    assert kills == KILLS, "the server was to be killed in the middle"
    await _drain(crew, ends)
    crew.done = True
    await asyncio.gather(*workers)
    return crew


async def _drain(crew: Crew, ends: float) -> None:
    """Until the queue itself says that nothing is left."""
    while time.monotonic() < ends:
        link = await connect(crew.server)
        state = await link.call("GET", "/v0/topics/jobs")
        link.cut()
        if state["count"] == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("jobs are left over")


def test_workers_and_the_server_die_and_no_job_is_lost(tmp_path: Path) -> None:
    crew = asyncio.run(_run(tmp_path))
    status, _, complaints = crew.server.stop()
    assert (status, complaints) == (0, "")
    assert not crew.trouble, crew.trouble[:5]
    assert set(crew.deliveries) == set(range(1, JOBS + 1)), "every job was handed out"
    assert crew.acked | crew.unsure == set(range(1, JOBS + 1))
    assert crew.deaths
    assert crew.repeats, "the dead held jobs, and others got them"
