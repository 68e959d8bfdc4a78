"""Many clients do everything to the same few names at once: no answer is a 5xx, nothing is logged, nobody waits in
vain, and a restart shows what was there before."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.contract.http.client import Api, Reply
from tests.contract.http.live import Http1, Http2, ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.realdisk]

SECONDS = 4.0
CLIENTS = 6
NAMES = ("a", "b", "c", "d")
CLASSES = ("ephemeral", "memory", "disk", "fsync")
KINDS = ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream")
RESTLESS = {
    "TOPICS_WAL_SHARDS": "2",
    "TOPICS_SEGMENT_MAX_EVENTS": "10",
    "TOPICS_CHECKPOINT_BYTES": "4096",
    "TOPICS_CHECKPOINT_MS": "20",
    "TOPICS_CHECKPOINT_GAP_MS": "0",
}


class Client:
    def __init__(self, server: ServerProcess, number: int, seed: str, drops: bool) -> None:
        self.rng = Random(f"{seed} {number}")
        self.wire = Http2(server.host, server.port) if number == 0 else Http1(server.host, server.port)
        self.api = Api(self.wire)
        self.drops = drops
        self.faults: list[str] = []
        self.done = 0
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        calls: list[Callable[[str], Reply]] = [
            self.drop, self.put, self.patch, self.append, self.append, self.append, self.diff, self.route, self.unroute,
            self.records, self.delete, self.look, self.heads, self.plan,
        ]  # fmt: skip
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            call, started = self.rng.choice(calls), time.monotonic()
            try:
                reply = call(self.rng.choice(NAMES))
                if reply.status >= 500:
                    self.faults.append(f"{call.__name__}: {reply.status} {reply.body[:200]!r}")
            except http.client.IncompleteRead as error:
                if call != self.records or not self.drops:
                    self.faults.append(f"{call.__name__}: {error!r}")
            except Exception as error:
                self.faults.append(f"{call.__name__}: {error!r}")
            if time.monotonic() - started > 5:
                self.faults.append(f"{call.__name__} took {time.monotonic() - started:.1f} s")
            self.done += 1
        if isinstance(self.wire, Http1):
            self.wire.close()

    def drop(self, name: str) -> Reply:
        return self.api.call("DELETE", f"/v0/topics/{name}") if self.drops else self.api.call("GET", "/v0/ready")

    def put(self, name: str) -> Reply:
        rng = self.rng
        config: dict[str, Any] = {"durability": rng.choice(CLASSES), "cap_records": rng.choice((0, 0, 5))}
        return self.api.put(name, **config, discard=rng.choice(("old", "reject")), ttl_ms=rng.choice((0, 0, 1)))

    def patch(self, name: str) -> Reply:
        config = {"cap_records": self.rng.choice((0, 3, 50)), "durability": self.rng.choice(CLASSES)}
        return self.api.call("PATCH", f"/v0/topics/{name}", config)

    def append(self, name: str) -> Reply:
        rng = self.rng
        records = [{"data": n, "tag": rng.choice("xyz"), "node": "n"} for n in range(rng.choice((1, 3, 30)))]
        return self.api.append(name, *records, idempotency_key=rng.choice((None, str(rng.randrange(50)))))

    def diff(self, name: str) -> Reply:
        rng = self.rng
        wait_ms, node = rng.choice((0, 0, 30)), rng.choice((None, "n", ["n", "m"]))
        return self.api.diff(name, from_seq=rng.choice((0, 5, 10**9)), wait_ms=wait_ms, node=node)

    def route(self, name: str) -> Reply:
        guarantee = self.rng.choice(("at_least_once", "exactly_once"))
        fields = {"source": name, "dest": self.rng.choice(NAMES), "allow_cycle": True, "guarantee": guarantee}
        return self.api.call("PUT", f"/v0/routers/r{self.rng.randrange(4)}", fields)

    def unroute(self, name: str) -> Reply:
        return self.api.call("DELETE", f"/v0/routers/r{self.rng.randrange(4)}")

    def records(self, name: str) -> Reply:
        return self.api.call("GET", f"/v0/topics/{name}/records", headers={"accept": self.rng.choice(KINDS)})

    def delete(self, name: str) -> Reply:
        return self.api.delete(name, match=self.rng.choice(("x", "*", "y*")))

    def look(self, name: str) -> Reply:
        parts = ("segments", "tags?match=x", "tags/names", "at?ts=1")
        places = [f"/v0/topics/{name}/{part}" for part in parts]
        more = ["/v0/metrics", "/v0/routers", "/v0/topics?touch=1", f"/v0/routers/r{self.rng.randrange(4)}"]
        return self.api.call("GET", self.rng.choice([*places, *more]))

    def heads(self, name: str) -> Reply:
        return self.api.call("POST", "/v0/heads", {"pattern": "*", "wait_ms": self.rng.choice((0, 20))})

    def plan(self, name: str) -> Reply:
        if self.rng.random() < 0.2:
            return self.api.call("POST", "/v0/admin/checkpoint")
        return self.api.call("POST", f"/v0/topics/{name}/retention/plan", {"cap_records": 2})


def content(server: ServerProcess) -> dict[str, Any]:
    """What the lasting topics hold."""
    wire = Http1(server.host, server.port)
    api = Api(wire)
    states = {name: api.state(name) for name in NAMES}
    lasting = [name for name, state in states.items() if "config" in state and state["config"]["ttl_ms"] == 0]
    found = {
        name: (states[name]["epoch"], api.call("GET", f"/v0/topics/{name}/records").json["records"])
        for name in lasting
        if states[name]["config"]["durability"] != "ephemeral"
    }
    wire.close()
    return found


@pytest.mark.parametrize("drops", [False, True], ids=["topics stay", "topics come and go"])
def test_everything_at_once_is_answered(tmp_path: Path, drops: bool) -> None:
    seed = f"{random.SystemRandom().randrange(1 << 32)}"
    server = ServerProcess(tmp_path, **RESTLESS)
    clients = [Client(server, number, seed, drops) for number in range(CLIENTS)]
    for client in clients:
        client.thread.start()
    for client in clients:
        client.thread.join(SECONDS + 40)
        assert not client.thread.is_alive(), "a client waits in vain"
    faults = [fault for client in clients for fault in client.faults]
    assert not faults, f"seed {seed}: {len(faults)} faults, the first: {faults[:5]}"
    assert sum(client.done for client in clients) > 300
    # With the routers gone nothing moves any more.
    wire = Http1(server.host, server.port)
    for number in range(4):
        Api(wire).call("DELETE", f"/v0/routers/r{number}")
    wire.close()
    before = content(server)
    status, _, complaints = server.stop()
    assert (status, complaints) == (0, "")
    server = ServerProcess(tmp_path)
    assert content(server) == before
    server.stop()
