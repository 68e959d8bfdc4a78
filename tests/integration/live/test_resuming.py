"""A reader that comes again: nothing is lost, and nothing comes twice beyond the id it brings."""

from __future__ import annotations

import asyncio
import http.client
import random
import threading
from pathlib import Path

import pytest
import uvloop

from tests.contract.http.client import Api, eventually
from tests.contract.http.live import Http1, ServerProcess
from tests.integration.live.sse import Place, listen, open_session
from topics.broker.watch import TOPICS_MAX


def test_reader_that_comes_again_goes_on_where_it_stopped(place: Place) -> None:
    place.api.append("again", 1, 2, 3)
    url = place.session({"again": {}})
    with place.read(url) as reader:
        assert list(reader.records(3)) == [1, 2, 3]
        last = reader.until("caught-up")
    place.api.append("again", 4, 5)
    with place.read(url) as reader:
        assert list(reader.records(5)) == [4, 5], "without an id the session's cursor rules"
    with place.read(url, f"last-event-id: {last.id}") as reader:
        assert list(reader.records(5)) == [4, 5], "an id goes back"
    with place.read(url, "last-event-id: eyJhZ2FpbiI6NX0=") as reader:
        assert reader.named().event == "caught-up", "what cannot be read is ignored"


def test_reader_of_the_most_topics_with_the_longest_names_comes_again_with_its_id(place: Place) -> None:
    names = [f"{number:03}".ljust(255, "n") for number in range(TOPICS_MAX)]
    for name in names:
        place.api.put(name)
    url = place.session({name: {} for name in names})
    place.api.append(names[-1], 1, 2)
    with place.read(url) as reader:
        last = reader.until("record")
    place.api.append(names[-1], 3)
    with place.read(url, f"last-event-id: {last.id}") as again:
        assert list(again.records(3)) == [3]


def test_reader_may_come_again_while_its_old_stream_is_still_open(place: Place) -> None:
    place.api.put("twice")
    url = place.session({"twice": {}})
    old = place.read(url, receive_bytes=4096)
    for _ in range(100):
        place.api.append("twice", "x" * 100_000)
    assert eventually(lambda: place.metrics()["sse_lagging"] == 1)
    event = old.until("record")
    with place.read(url, f"last-event-id: {event.id}") as again:
        first = event.seqs[-1] + 1
        assert list(again.records(100)) == list(range(first, 101))
        assert again.until("caught-up").data["head_seq"] == 100
        old.close()
        place.api.append("twice", 1)
        assert list(again.records(101)) == [101], "what the old stream held does not come once more"


@pytest.mark.parametrize("with_id", [True, False])
def test_nothing_is_lost_or_repeated_over_many_reconnects(place: Place, with_id: bool) -> None:
    topic = f"reconnect-{with_id}"
    place.api.put(topic)
    url = place.session({topic: {}}, limit=7)
    rng = random.Random(11)
    total = 1500

    def write() -> None:
        wire = Http1(place.server.host, place.server.port)
        api = Api(wire)
        sent = 0
        while sent < total:
            size = min(rng.choice((1, 1, 5, 40)), total - sent)
            assert api.append(topic, *range(size)).status == 200
            sent += size
        wire.close()

    async def run() -> None:
        seen: list[int] = []
        last_id = ""
        writer = threading.Thread(target=write)
        writer.start()
        while not seen or seen[-1] < total:
            reader = await listen(place.server.host, place.server.port, url, last_id if with_id else "")
            goal = rng.randrange(1, 200)
            await reader.until(lambda r, goal=goal: len(r.seqs) >= goal or (r.seqs and r.seqs[-1] == total))
            if not with_id:
                # Bytes in the kernel's hands are the session's no longer: a reader without ids reads to the end.
                reader.transport.write_eof()
                await reader.ended.wait()
            seen += reader.seqs
            last_id = reader.last_id
            reader.transport.abort()
        writer.join()
        assert seen == list(range(1, total + 1))

    uvloop.run(asyncio.wait_for(run(), 120))


@pytest.mark.slow
def test_nothing_acknowledged_is_missed_when_the_server_is_killed(tmp_path: Path) -> None:
    topic = "killed"
    server = ServerProcess(tmp_path)
    address = (server.host, server.port)
    settings = {"TOPICS_PORT": str(server.port)}
    acked: list[int] = []
    stop = threading.Event()
    last = 0
    """The last seq of all, once it is known."""

    def write() -> None:
        while not stop.is_set():
            wire = Http1(*address)
            api = Api(wire)
            try:
                api.put(topic, durability="fsync")
                while not stop.is_set():
                    answer = api.append(topic, 1)
                    if answer.status == 200:
                        acked.append(answer.json["first_seq"])
            except (OSError, http.client.HTTPException):
                stop.wait(0.02)
            finally:
                wire.close()

    def done(seqs: list[int]) -> bool:
        return last > 0 and bool(seqs) and seqs[-1] >= last

    async def watch() -> list[int]:
        """Like a client whose server lost its session: another one from the last seq seen."""
        seen: list[int] = []
        while not done(seen):
            try:
                url = await open_session(*address, {topic: {"from_seq": seen[-1] if seen else 0}})
                reader = await listen(*address, url)
                await reader.until(lambda r: r.ended.is_set() or done(r.seqs))
                reader.transport.abort()
                seen += reader.seqs
            except OSError:
                await asyncio.sleep(0.05)
        return seen

    async def until_acked(more: int) -> None:
        goal = len(acked) + more
        while len(acked) < goal:
            await asyncio.sleep(0.01)

    async def run() -> list[list[int]]:
        nonlocal server, last
        await until_acked(1)
        watchers = [asyncio.create_task(watch()) for _ in range(100)]
        for _ in range(2):
            await until_acked(100)
            await asyncio.to_thread(server.kill)
            server = await asyncio.to_thread(lambda: ServerProcess(tmp_path, **settings))
        await until_acked(30)
        stop.set()
        await asyncio.to_thread(writer.join)
        wire = Http1(*address)
        last = Api(wire).append(topic, 1).json["first_seq"]
        wire.close()
        return await asyncio.gather(*watchers)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = uvloop.run(asyncio.wait_for(run(), 100))
    finally:
        stop.set()
        writer.join()
    assert server.stop()[0] == 0
    for mine in seen:
        assert mine == sorted(set(mine)), "in order, and nothing twice"
        assert set(acked) <= set(mine), "nothing acknowledged is missed"
