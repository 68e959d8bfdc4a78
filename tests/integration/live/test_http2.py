"""Event streams over HTTP/2: several on one connection, each with a window of its own."""

from __future__ import annotations

import asyncio
import json
import re

import uvloop

from tests.contract.http.client import eventually
from tests.integration.live.sse import Place
from tests.integration.transport.h2client import H2Client, Stream, h2_client


def seqs(stream: Stream) -> list[int]:
    found = []
    for data in re.findall(rb"event: record\ndata: ([^\n]+)\n\n", bytes(stream.body)):
        found += [record["$seq"] for record in json.loads(data)["records"]]
    return found


def open_stream(client: H2Client, url: str) -> Stream:
    return client.streams[client.request("GET", url)]


async def add(place: Place, topic: str, *data: object) -> None:
    assert (await asyncio.to_thread(place.api.append, topic, *data)).status == 200


def test_streams_of_one_connection_are_live_side_by_side(place: Place) -> None:
    for name in ("h2-a", "h2-b"):
        place.api.put(name)
    urls = [place.session({name: {}}) for name in ("h2-a", "h2-b", "h2-a")]

    async def run() -> None:
        async with h2_client(place.server.port) as client:
            streams = [open_stream(client, url) for url in urls]
            for number in range(1, 21):
                await add(place, "h2-a", number)
                await add(place, "h2-b", number)
            for stream in streams:
                await client.until(lambda stream=stream: len(seqs(stream)) == 20)
                assert seqs(stream) == list(range(1, 21))
                assert stream.headers["content-type"] == "text/event-stream"

    uvloop.run(asyncio.wait_for(run(), 120))


def test_closed_window_stalls_its_own_stream_alone_and_loses_nothing(place: Place) -> None:
    place.api.put("h2-stalled")
    urls = [place.session({"h2-stalled": {}}, max_batch_bytes=20_000), place.session({"h2-stalled": {}})]

    async def run() -> None:
        async with h2_client(place.server.port) as stalled, h2_client(place.server.port) as quick:
            stalled.acknowledge = False
            slow, other = open_stream(stalled, urls[0]), open_stream(quick, urls[1])
            await stalled.until(lambda: b"caught-up" in slow.body)
            await quick.until(lambda: b"caught-up" in other.body)
            for _ in range(150):
                await add(place, "h2-stalled", "x" * 10_000)
            await quick.until(lambda: len(seqs(other)) == 150)
            assert await asyncio.to_thread(eventually, lambda: place.metrics()["sse_lagging"] == 1)
            assert len(slow.body) <= 65_535
            stalled.acknowledge = True
            stalled.h2.acknowledge_received_data(slow.unacknowledged, 1)
            stalled.flush()
            await stalled.until(lambda: len(seqs(slow)) == 150)
            assert seqs(slow) == list(range(1, 151))

    uvloop.run(asyncio.wait_for(run(), 120))
