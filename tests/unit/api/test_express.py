"""Appends by express: the answers of the usual way, one write for all that came in one turn of the loop."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.api.test_http1 import FakeTransport
from tests.unit.format.twins import needs_kernel
from topics.api.app import Application, AppOptions
from topics.api.auth import parse_keys
from topics.api.options import TransportOptions
from topics.api.protocol import Connection, Shared
from topics.api.pump import Pump
from topics.api.service import Service
from topics.api.ticker import Ticker
from topics.broker.broker import Broker
from topics.host.clock import SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.storage.commit import Committer
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.wal import Shard

pytestmark = needs_kernel

ONE = b'{"records":[{"data":1}]}'
VARIES = re.compile(
    rb'date: [^\r]*|content-length: \d+|(?<=gzip)(?s:.*)|"\w+_ms":[\d.]+|"(\$ts|\w+_ts|epoch|store|durable_seq)":[^,}]*'
)


class Link(FakeTransport):
    """The client's end of one connection."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.asked = 0
        self._more = asyncio.Event()
        self.connection = Connection(shared)
        self.connection.connection_made(cast(asyncio.BaseTransport, self))

    def write(self, data: bytes) -> None:
        super().write(data)
        self._more.set()

    def send(self, *requests: bytes) -> None:
        """In one piece."""
        self.asked += len(requests)
        self.connection.data_received(b"".join(requests))

    @property
    def answers(self) -> list[bytes]:
        return [part for part in re.split(rb"(?=HTTP/1\.1 \d)", self.written) if part]

    async def all(self) -> list[bytes]:
        """The answers, once all are there; without what differs from run to run."""
        async with asyncio.timeout(20):
            while len(self.answers) < self.asked:
                self._more.clear()
                await self._more.wait()
        return [VARIES.sub(b"", answer) for answer in self.answers]

    def leave(self) -> None:
        self.connection.connection_lost(None)


class Place:
    """A server without sockets."""

    def __init__(self, path: Path, options: AppOptions) -> None:
        self.lock = threading.Lock()
        clock = SystemClock()
        self.store = open_store(OsFs(), str(path), StoreOptions(), clock, SystemIds(), self.lock)
        loop = asyncio.get_running_loop()
        self.pump = Pump(self.store, self.lock, loop)
        self.app = Application(options, clock)
        self.readers = ThreadPoolExecutor(1)
        self.app.service = Service(Broker(self.store, clock), self.pump, clock, loop, self.readers)
        self.shared = Shared(self.app, TransportOptions(), Ticker(clock), secure=False)

    def link(self) -> Link:
        return Link(self.shared)

    @property
    def writes(self) -> int:
        return sum(shard.stats.batches for shard in self.store.shards)

    async def warmed(self, name: str, durability: str = "fsync", count: int = 1, *headers: bytes) -> list[Link]:
        """Connections over which appends to this topic go by express from now on."""
        links = [self.link() for _ in range(count)]
        links[0].send(posted(name, b'{"records":[{"data":0}],"config":{"durability":"%b"}}' % durability.encode()))
        await links[0].all()
        for link in links:
            link.send(posted(name, ONE, *headers))
            await link.all()
        return links


def in_place(path: Path, body: Callable[[Place], Coroutine[Any, Any, None]], options: AppOptions | None = None) -> None:
    async def main() -> None:
        place = Place(path, options or AppOptions())
        try:
            await asyncio.wait_for(body(place), 120)
        finally:
            place.pump.stop_waiting()
            await asyncio.to_thread(place.pump.close)
            place.readers.shutdown()

    asyncio.run(main())


def asked(method: str, target: str, body: bytes, *headers: bytes) -> bytes:
    start = b"%b %b HTTP/1.1" % (method.encode(), target.encode())
    length = b"content-length: %d" % len(body)
    return b"\r\n".join((start, b"host: here", b"content-type: application/json", length, *headers, b"", body))


def posted(name: str, body: bytes, *headers: bytes) -> bytes:
    return asked("POST", f"/v0/topics/{name}", body, *headers)


REQUESTS = (
    posted("plain", ONE),
    posted("plain", b'{"records":[{"data":[1,2],"tag":"t","node":"n"},{"data":null}]}'),
    posted("plain", b' {"records" : [ {"data" : 1} ] } '),
    posted("plain?return_seqs=false", b'{"records":[{"data":1},{"data":2}]}'),
    posted("plain", b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 60), b"accept-encoding: gzip"),
    posted("plain", ONE, b"accept-encoding: gzip"),
    posted("plain", b'{"records":[{"data":1}],"node":"n"}'),
    posted("plain", b'{"records":[{"data":1}],"idempotency_key":"k"}'),
    posted("plain", ONE, b"idempotency-key: k2"),
    posted("plain", b'{"records":[{"data":01}]}'),
    posted("plain", b'{"records":[]}'),
    posted("plain", b""),
    posted("synced", ONE),
    posted("capped", b'{"records":[{"data":1},{"data":2}]}'),
    posted("full", b'{"records":[{"data":1},{"data":2}]}'),
    posted("loose", ONE),
    posted("new", ONE),
    posted("no%20name", ONE),
    asked("DELETE", "/v0/topics/new", b""),
    asked("PUT", "/v0/topics/synced", b'{"cap_records":3}'),
    asked("POST", "/v0/topics/plain/diff", b'{"limit":3}'),
    asked("GET", "/v0/topics/plain", b""),
)
TOPICS = {
    "plain": b'{"durability":"disk"}',
    "synced": b'{"durability":"fsync"}',
    "capped": b'{"cap_records":3}',
    "full": b'{"cap_records":3,"discard":"reject"}',
    "loose": b'{"durability":"ephemeral"}',
}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4), min_size=1, max_size=12))
def test_express_gives_the_answers_of_the_usual_way(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[list[bytes]]
) -> None:
    found = []
    for express in (True, False):

        async def body(place: Place, express: bool = express) -> None:
            if not express:
                place.app._terminal.station = None
            link = place.link()
            for name, config in TOPICS.items():
                link.send(asked("PUT", f"/v0/topics/{name}", config))
            for piece in pieces:
                link.send(*piece)
                await link.all()
                for request in piece:
                    link.send(request)
            found.append(await link.all())

        in_place(tmp_path_factory.mktemp("express"), body)
    assert found[0] == found[1]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_appends_of_one_turn_share_one_write(tmp_path: Path, durability: str) -> None:
    async def body(place: Place) -> None:
        links = await place.warmed("t", durability, 20)
        before = place.writes
        for link in links:
            link.send(posted("t", ONE))
        for number, link in enumerate(links):
            assert b'"first_seq":%d,' % (22 + number) in (await link.all())[-1]
        assert place.writes == before + 1

    in_place(tmp_path / "s", body)


def test_pipelined_appends_are_answered_in_their_order(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        (link,) = await place.warmed("t")
        key = posted("t", b'{"records":[{"data":1}],"idempotency_key":"k"}')
        for request in (posted("t", ONE), posted("t", ONE), key, posted("t", ONE), posted("u", ONE), posted("t", ONE)):
            link.send(request)
        link.send(asked("POST", "/v0/topics/t/diff", b'{"from_seq":6,"limit":1}'))
        *appends, diff = (await link.all())[2:]
        told = [re.findall(rb'"first_seq":(\d+),', answer) for answer in appends]
        assert told == [[b"3"], [b"4"], [b"5"], [b"6"], [b"1"], [b"7"]]
        assert b'"$seq":7,' in diff

    in_place(tmp_path / "s", body)


def test_topic_that_goes_in_the_same_turn_sends_its_appends_the_usual_way(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await place.warmed("t", "disk", 3)
        other = place.link()
        for link in links:
            link.send(posted("t", ONE))
            link.send(posted("t", ONE))
        other.send(asked("DELETE", "/v0/topics/t", b""))
        assert b"200 OK" in (await other.all())[-1]
        seqs = []
        for link in links:
            first, second = (
                int(seq) for answer in (await link.all())[-2:] for seq in re.findall(rb'"first_seq":(\d+),', answer)
            )
            assert first < second
            seqs += [first, second]
        assert sorted(seqs) == [1, 2, 3, 4, 5, 6], "of a topic that was made anew"

    in_place(tmp_path / "s", body)


def test_failed_write_is_told_to_every_rider(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await place.warmed("t", "fsync", 3)
        file = place.store.shards[place.store.topics["t"].shard].file
        assert file is not None
        file.file.close()
        for _ in range(2):  # the second time the shard is known to be read-only
            for link in links:
                link.send(posted("t", ONE))
            for link in links:
                assert b"HTTP/1.1 503 " in (await link.all())[-1] or b"HTTP/1.1 500 " in (await link.all())[-1]
        assert place.store.topics["t"].head == 4

    in_place(tmp_path / "s", body)


def test_last_answer_of_a_stopping_server_says_so(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        (link,) = await place.warmed("t")
        link.send(posted("t", ONE))
        link.connection.shutdown()
        last = (await link.all())[-1]
        assert last.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in last
        assert link.closed

    in_place(tmp_path / "s", body)


def test_client_that_left_keeps_nobody_from_an_answer(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        first, second, third = await place.warmed("t", "fsync", 3)
        for link in (first, second, third):
            link.send(posted("t", ONE))
        second.leave()
        await first.all()
        await third.all()
        assert len(second.answers) == second.asked - 1
        assert place.store.topics["t"].head == 7, "what was ordered stays so"

    in_place(tmp_path / "s", body)


def test_answer_that_cannot_be_written_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        troubles: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context["exception"]))
        first, second = await place.warmed("t", "fsync", 2)
        first.send(posted("t", ONE))
        second.send(posted("t", ONE))
        first.closed = True  # its `write` raises now
        await second.all()
        assert [type(trouble) for trouble in troubles] == [AssertionError]

    in_place(tmp_path / "s", body)


def test_mistake_of_our_own_is_told_to_every_rider_and_tried_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake")

    async def body(place: Place) -> None:
        links = await place.warmed("t", "fsync", 3)
        monkeypatch.setattr(Broker, "append_together", broken)
        for link in links:
            link.send(posted("t", ONE))
        for link in links:
            assert (await link.all())[-1].startswith(b"HTTP/1.1 500 ")
        assert place.store.topics["t"].head == 4

    in_place(tmp_path / "s", body)
    assert "a mistake" in caplog.text


class Overtaken:
    """A lock that, when it is given up with something in the queue, another thread has at once: one that ended a sync
    and asks the first who waits to write."""

    def __init__(self, lock: threading.Lock, shards: list[Shard]) -> None:
        self._lock = lock
        self._shards = shards
        self.asked = 0

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        for shard in self._shards:
            if not self.asked and shard.queue:
                self.asked += 1
                with self._lock:
                    Committer.pass_on(shard)


async def overtake(place: Place, links: list[Link], requests: list[bytes]) -> None:
    """One request over each connection: the convoy that they become is asked to write as soon as it is ordered."""
    lock = place.store.lock
    for link, request in zip(links, requests, strict=True):
        link.send(request)
    place.store.lock = overtaken = Overtaken(place.lock, place.store.shards)
    assert [(await link.all())[-1][9:12] for link in links] == [b"200"] * len(links)
    assert overtaken.asked == 1
    place.store.lock = lock


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_convoy_may_be_asked_to_write_as_soon_as_it_is_ordered(tmp_path: Path, durability: str) -> None:
    async def body(place: Place) -> None:
        await overtake(place, await place.warmed("t", durability, 2), [posted("t", ONE)] * 2)
        assert place.store.topics["t"].head == 5

    in_place(tmp_path / "s", body)


def test_slots_of_a_key_are_held_by_express_and_given_back(tmp_path: Path) -> None:
    options = AppOptions(keyring=parse_keys("secret"), max_inflight_per_key=2)
    key = b"authorization: Bearer secret"

    async def body(place: Place) -> None:
        maker = place.link()
        maker.send(asked("PUT", "/v0/topics/t", b'{"durability":"fsync"}', key))
        await maker.all()
        links = [place.link() for _ in range(3)]
        for _ in range(3):
            for link in links:
                link.send(posted("t", ONE, key))
                await link.all()
            for link in links:
                link.send(posted("t", ONE, key))
            statuses = [(await link.all())[-1][9:12] for link in links]
            assert statuses == [b"200", b"200", b"429"]
        stranger = place.link()
        stranger.send(posted("t", ONE, b"authorization: Bearer other"))
        assert (await stranger.all())[-1][9:12] == b"401"

    in_place(tmp_path / "s", body, options)


def test_records_survive_a_reopening_with_their_seqs(tmp_path: Path) -> None:
    async def write(place: Place) -> None:
        links = await place.warmed("t", "fsync", 5)
        for number, link in enumerate(links):
            link.send(posted("t", b'{"records":[{"data":%d},{"data":"x"}]}' % (100 + number)))
        for link in links:
            await link.all()

    async def read(place: Place) -> None:
        link = place.link()
        link.send(asked("POST", "/v0/topics/t/diff", b'{"from_seq":6,"limit":100}'))
        answer = (await link.all())[-1]
        assert [int(seq) for seq in re.findall(rb'"\$seq":(\d+)', answer)] == list(range(7, 17))
        assert [int(data) for data in re.findall(rb'"data":(\d+)', answer)] == [100, 101, 102, 103, 104]

    in_place(tmp_path / "s", write)
    in_place(tmp_path / "s", read)
