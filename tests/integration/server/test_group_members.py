"""A hundred members of a group over HTTP, some of which die with records in their hands, and a server that is killed
among them.

No record is lost, none that was acked comes back, no token is given out twice, and a record is handed out again only
when its lease had run out or the server was started anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import SEED
from tests.contract.http.live import ServerProcess
from tests.integration.server.test_queue_workers import Dropped, Link, connect

MEMBERS = 100
RECORDS = 1500
VISIBILITY_MS = 1500
KILLS = 2
SECONDS_MAX = 120
GROUP = "/v0/topics/orders/groups/billing"


@dataclass
class Members:
    server: ServerProcess
    rng: random.Random
    life: int = 0
    acked: set[int] = field(default_factory=set)
    """Whose acks were answered."""
    unsure: set[int] = field(default_factory=set)
    """Whose acks were sent."""
    tokens: set[int] = field(default_factory=set)
    last: dict[int, tuple[int, float]] = field(default_factory=dict)
    """seq -> (life, when it was asked for), of its last delivery."""
    trouble: list[str] = field(default_factory=list)
    repeats: int = 0
    deaths: int = 0
    done: bool = False

    async def work(self, member: str) -> None:
        while not self.done:
            try:
                link = await connect(self.server)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                while not self.done:
                    await self._round(link, member)
            except Dropped:
                await asyncio.sleep(0.02)
            finally:
                link.cut()

    async def _round(self, link: Link, member: str) -> None:
        life, asked = self.life, time.monotonic()
        records = (await link.call("POST", f"{GROUP}/fetch", {"member": member, "max": 8}))["records"]
        for record in records:
            self._note(record, life, asked)
        if not records:
            await asyncio.sleep(0.05)
            return
        if not self.deaths or self.rng.random() < 0.05:
            self.deaths += 1
            raise Dropped
        seqs = [record["$seq"] for record in records]
        self.unsure.update(seqs)
        tokens = [record["delivery"]["token"] for record in records]
        settled = await link.call("POST", f"{GROUP}/ack", {"member": member, "seqs": seqs, "tokens": tokens})
        self.acked.update(seq for seq in seqs if seq not in settled["stale"])

    def _note(self, record: dict[str, Any], life: int, asked: float) -> None:
        seq, token = record["$seq"], record["delivery"]["token"]
        if token in self.tokens:
            self.trouble.append(f"token {token} was given out twice")
        self.tokens.add(token)
        if seq in self.acked:
            self.trouble.append(f"record {seq} came back after its ack")
        if seq in self.last:
            self.repeats += 1
            # The lease began after it was asked for: whatever the time between, it was not over before this.
            held = time.monotonic() - self.last[seq][1]
            if self.last[seq][0] == life and held < VISIBILITY_MS / 1000:
                self.trouble.append(f"record {seq} was handed out again after {held:.3f} s")
        self.last[seq] = (life, asked)


async def _run(directory: Path) -> Members:
    crew = Members(ServerProcess(directory), random.Random(SEED))
    link = await connect(crew.server)
    await link.call("PUT", "/v0/topics/orders", {"durability": "fsync"})
    await link.call("POST", "/v0/topics/orders", {"records": [{"data": n} for n in range(RECORDS)]})
    await link.call("PUT", GROUP, {"visibility_ms": VISIBILITY_MS})
    link.cut()
    members = [asyncio.create_task(crew.work(f"m{number}")) for number in range(MEMBERS)]
    ends = time.monotonic() + SECONDS_MAX
    kills = 0
    while time.monotonic() < ends:
        await asyncio.sleep(0.05)
        if kills < KILLS and len(crew.acked) >= RECORDS * (kills + 1) // (KILLS + 2):
            kills += 1
            crew.life += 1
            crew.server.kill()
            crew.server = await asyncio.to_thread(ServerProcess, directory)
            crew.life += 1
        elif len(crew.unsure) == RECORDS:
            link = await connect(crew.server)
            state = await link.call("GET", GROUP)
            link.cut()
            if state["committed"] == RECORDS + 1:
                break
    else:
        raise AssertionError(f"{RECORDS - len(crew.acked)} records are left over")
    crew.done = True
    await asyncio.gather(*members)
    assert kills == KILLS
    return crew


def test_members_and_the_server_die_and_no_record_is_lost(tmp_path: Path) -> None:
    crew = asyncio.run(_run(tmp_path))
    status, _, complaints = crew.server.stop()
    assert (status, complaints) == (0, "")
    assert not crew.trouble, crew.trouble[:5]
    assert crew.last.keys() == crew.unsure == set(range(1, RECORDS + 1)), "every record was handed out, and acked"
    assert crew.deaths
    assert crew.repeats, "the dead held records, and others got them"
