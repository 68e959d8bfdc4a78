"""A full queue at full pressure is answered with 429 and a time to come again, and every other answer is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import uvloop

from tests.contract.http.live import ServerProcess
from tests.integration.live.sse import Place

TOPICS = 8
SCRUBBERS = 64
"""Connections with a scrub under way on each: many more than there are threads for them, so that some always wait,
which is full pressure."""
REFUSALS = 20
LOAD_S_MAX = 40.0
"""The load ends as soon as enough was refused; this is for a machine on which nothing ever is."""


class Caller:
    """One request after the other on a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, server: ServerProcess) -> Caller:
        return cls(*await asyncio.open_connection(server.host, server.port))

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], Any]:
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        start, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        answer = json.loads(await self._reader.readexactly(int(headers["content-length"])))
        return int(start.split(" ")[1]), headers, answer

    def close(self) -> None:
        self._writer.close()


class Scrubber(asyncio.Protocol):
    """Asks again as soon as it is answered."""

    REQUEST = b"POST /v0/admin/scrub HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n"
    ANSWER = b"HTTP/1.1 200 "

    def __init__(self) -> None:
        self._rest = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.REQUEST)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        self._rest = data[-len(self.ANSWER) + 1 :]
        answered = data.count(self.ANSWER)
        if answered:
            self.transport.write(answered * self.REQUEST)


class Load:
    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.enough = asyncio.Event()
        self.acked: dict[str, dict[int, str]] = {f"full-{number}": {} for number in range(TOPICS)}
        self.refused: set[str] = set()
        self.throttled_ms = 0.0

    async def write(self, topic: str, insist: bool) -> None:
        caller = await Caller.open(self._server)
        number = 0
        while not self.enough.is_set():
            number += 1
            data = f"{topic}/{insist}/{number}"
            body = json.dumps({"records": [{"data": data}], "disable_backpressure": insist}).encode()
            status, headers, answer = await caller.call("POST", f"/v0/topics/{topic}", body)
            if status == 200:
                self.acked[topic][answer["seqs"][0]] = data
                self.throttled_ms += answer["performance"].get("throttle_wait_ms", 0.0)
                continue
            assert (status, answer["error"]["code"]) == (429, "throttled"), answer
            assert int(headers["retry-after"]) >= 1
            assert not insist, "who insists waits for room"
            self.refused.add(data)
            if len(self.refused) >= REFUSALS and self.throttled_ms:
                self.enough.set()
        caller.close()


def test_full_queue_is_told_to_writers_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    settings = {"TOPICS_QUEUE_SUBMISSIONS": "2", "TOPICS_WAL_SHARDS": "1", "TOPICS_SEGMENT_MAX_EVENTS": "64"}
    server = ServerProcess(tmp_path, **settings)
    place = Place(server)
    place.api.put("large")
    for _ in range(16):
        assert place.api.append("large", *["x" * 65_536] * 16).status == 200
    assert place.api.call("POST", "/v0/admin/checkpoint").status == 200
    for number in range(TOPICS):
        place.api.put(f"full-{number}")
    place.close()

    async def run() -> Load:
        load = Load(server)
        loop = asyncio.get_running_loop()
        scrubbers = [await loop.create_connection(Scrubber, server.host, server.port) for _ in range(SCRUBBERS)]
        work = [asyncio.create_task(load.write(topic, insist)) for topic in load.acked for insist in (False, True)]
        try:
            await asyncio.wait_for(load.enough.wait(), LOAD_S_MAX)
        except TimeoutError:
            load.enough.set()
        await asyncio.gather(*work)
        for transport, _ in scrubbers:
            transport.abort()
        caller = await Caller.open(server)
        while (await caller.call("GET", "/v0/metrics"))[2]["pressure"]:
            await asyncio.sleep(0.02)
        numbers = (await caller.call("GET", "/v0/metrics"))[2]
        assert numbers["refused_total"] == len(load.refused)
        for topic, acked in load.acked.items():
            status, _, answer = await caller.call("POST", f"/v0/topics/{topic}", b'{"records":[{"data":"calm"}]}')
            assert status == 200, "when the pressure is gone there is room again"
            acked[answer["seqs"][0]] = "calm"
        caller.close()
        return load

    load = uvloop.run(asyncio.wait_for(run(), 3 * LOAD_S_MAX))
    assert len(load.refused) >= REFUSALS
    assert load.throttled_ms > 0
    server.kill()
    place = Place(ServerProcess(tmp_path, **settings))
    for topic, acked in load.acked.items():
        found: dict[int, str] = {}
        while len(found) < len(acked):
            page = place.api.diff(topic, from_seq=max(found, default=0)).json["records"]
            assert page, "an acknowledged record is missing"
            found |= {record["$seq"]: record["data"] for record in page}
        assert found == acked, "what was acknowledged is there, and what was refused is not"
    place.close()
    assert place.server.stop()[::2] == (0, "")
