"""More writers and watchers than the server can serve at once: everything takes longer and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import uvloop

from tests.contract.http.live import ServerProcess
from tests.integration.live.sse import BLOCK, Place

TOPICS = 48
WATCHERS = 16
"""Of each topic."""
LOAD_S_MAX = 60.0
"""The load ends as soon as every effect was seen; this is for a machine on which one never shows."""


class Watcher(asyncio.Protocol):
    """Keeps the bytes and takes them apart only when it is over, so that the load falls on the server."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._bytes = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._bytes += data

    def events(self) -> tuple[str, list[tuple[int, Any]]]:
        """The last id, and (seq, data) of every record so far. What was cut in the middle does not count."""
        blocks = BLOCK.findall(self._bytes[: self._bytes.rfind(b"\n\n") + 2].decode())
        pages = [json.loads(text)["records"] for _, kind, text in blocks if kind == "record"]
        found = [(record["$seq"], record["data"]) for page in pages for record in page]
        return blocks[-1][0] if blocks else "", found

    def has(self, text: bytes) -> bool:
        return text in self._bytes[-4096:]


opened: list[Watcher] = []


async def watch(place: Place, url: str, last_id: str = "") -> Watcher:
    resume = f"last-event-id: {last_id}\r\n" if last_id else ""
    request = f"GET {url} HTTP/1.1\r\nhost: here\r\n{resume}\r\n".encode()
    server = place.server
    loop = asyncio.get_running_loop()
    _, watcher = await loop.create_connection(lambda: Watcher(request), server.host, server.port)
    opened.append(watcher)
    return watcher


class Connection:
    """One request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, place: Place) -> Connection:
        return cls(*await asyncio.open_connection(place.server.host, place.server.port))

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        head = f"{method} {path} HTTP/1.1\r\nhost: here\r\naccept: application/json\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        size = next(int(line.split(": ")[1]) for line in lines if line.startswith("content-length"))
        return int(lines[0].split(" ")[1]), json.loads(await self._reader.readexactly(size))

    def close(self) -> None:
        self._writer.close()


class Load:
    """Writers that begin again as soon as they are answered, until somebody says enough."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.enough = False
        self.acked: dict[str, dict[int, str]] = {}
        self.refused = 0
        self.insistent_refused = 0

    async def write(self, topic: str, name: str, insist: bool) -> None:
        connection = await Connection.open(self._place)
        acked = self.acked.setdefault(topic, {})
        number = 0
        while not self.enough:
            data = f"{name}-{number}"
            body = {"records": [{"data": data}], "disable_backpressure": insist}
            status, answer = await connection.call("POST", f"/v0/topics/{topic}", json.dumps(body).encode())
            if status == 429:
                self.refused += 1
                self.insistent_refused += insist
                continue
            assert status == 200, answer
            assert answer["seqs"][0] not in acked, "a seq is given once"
            acked[answer["seqs"][0]] = data
            number += 1
        connection.close()


async def settled(place: Place, wanted: dict[str, Any]) -> dict[str, Any]:
    """The metrics, once they say so."""
    connection = await Connection.open(place)
    while True:
        numbers: dict[str, Any] = (await connection.call("GET", "/v0/metrics"))[1]
        if all(numbers[name] == value for name, value in wanted.items()):
            connection.close()
            return numbers
        await asyncio.sleep(0.02)


def test_overload_costs_time_and_no_records(tmp_path: Path) -> None:
    place = Place(ServerProcess(tmp_path, TOPICS_ALLOWED_HOSTS="here"))
    topics = [f"busy-{number:02}" for number in range(TOPICS)]
    for topic in topics:
        place.api.put(topic)
    place.api.put("low", priority=-500)
    low_url = place.session({"low": {}})
    # Each asks for another page size, so none is served along with another: the server has more to do than we have.
    urls = {topic: [place.session({topic: {}}, limit=900 + at) for at in range(WATCHERS)] for topic in topics}
    assert place.metrics()["pressure"] == 0

    async def run() -> None:
        load = Load(place)
        watchers = {topic: [await watch(place, url) for url in urls[topic]] for topic in topics}
        low = await watch(place, low_url)
        meter = await Connection.open(place)
        writers = [
            asyncio.create_task(load.write(topic, f"{topic}/{writer}", insist=writer == 0))
            for topic in topics
            for writer in range(2)
        ]
        writers.append(asyncio.create_task(load.write("low", "low/0", insist=True)))
        peak = {"pressure": 0.0, "coalesce_ms": 0.0, "commit_window_ms": 0.0, "shedding": 0.0}
        ends = asyncio.get_running_loop().time() + LOAD_S_MAX
        while asyncio.get_running_loop().time() < ends and not (peak["shedding"] and peak["pressure"] == 1):
            numbers = (await meter.call("GET", "/v0/metrics"))[1]
            peak = {name: max(value, numbers[name]) for name, value in peak.items()}
            await asyncio.sleep(0.02)

        # Some lose their connection in the middle of it and come back with the last id they saw.
        broken = {topic: watchers[topic].pop() for topic in topics[:8]}
        for watcher in broken.values():
            watcher.transport.abort()
        resumed = {topic: await watch(place, urls[topic][-1], broken[topic].events()[0]) for topic in broken}

        load.enough = True
        await asyncio.gather(*writers)
        assert peak["pressure"] == 1, peak
        assert peak["coalesce_ms"] > 10, peak
        assert peak["commit_window_ms"] > 5, peak
        assert peak["shedding"], "topics of negative priority stood back"
        assert load.insistent_refused == 0

        calm = await settled(place, {"pressure": 0, "shedding": False, "ready_topics": 0, "coalesce_ms": 0})
        assert calm["refused_total"] == load.refused
        for topic in (*topics, "low"):
            status, answer = await meter.call("POST", f"/v0/topics/{topic}", b'{"records":[{"data":"the last"}]}')
            assert status == 200
            load.acked[topic][answer["seqs"][0]] = "the last"
        meter.close()
        everybody = [*(one for several in watchers.values() for one in several), *resumed.values(), low]
        while not all(watcher.has(b"the last") for watcher in everybody):
            await asyncio.sleep(0.02)

        for topic in topics:
            wanted = sorted(load.acked[topic].items())
            assert [seq for seq, _ in wanted] == list(range(1, len(wanted) + 1)), "each record is there once"
            for watcher in watchers[topic]:
                assert watcher.events()[1] == wanted
        for topic, watcher in resumed.items():
            both = broken[topic].events()[1] + watcher.events()[1]
            assert both == sorted(load.acked[topic].items()), "nothing is missed, and nothing comes twice"
        assert low.events()[1] == sorted(load.acked["low"].items())

    async def whole() -> None:
        try:
            await asyncio.wait_for(run(), 240)
        finally:
            # A loop with open connections does not close.
            for watcher in opened:
                watcher.transport.abort()

    uvloop.run(whole())
    place.close()
    assert place.server.stop()[::2] == (0, "")
