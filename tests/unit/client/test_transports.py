"""What the transports do with connections: how many, for how long, and what they say when one fails."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from tests.unit.client.conftest import Connect
from tests.unit.client.server import FakeServer, answer
from topics.client import AsyncClient, Client, RetryPolicy
from topics.client.aio_transport import CALLS
from topics.client.sync_transport import PoolTransport
from topics.client.transport import HttpRequest
from topics.client.url import Place
from topics.model.errors import InvalidRequest, Unreachable

APPENDED = {"topic": "a", "first_seq": 1, "last_seq": 2, "head_seq": 2, "count": 2, "created": True, "deduped": False}
HEAD = b"HTTP/1.1 200 OK\r\n"


def test_an_append_does_not_wait_for_watches_and_long_polls() -> None:
    with FakeServer() as server:
        server.by_target = {"/v0/topics/a?return_seqs=false": answer(200, APPENDED)}
        server.otherwise = server.silence

        async def crowd() -> None:
            async with AsyncClient(server.url) as client:
                polls = [asyncio.create_task(client.diff("a", wait_ms=30_000)) for _ in range(CALLS)]
                streams = [asyncio.create_task(client.records("a")) for _ in range(CALLS)]
                while len(server.seen) < 2 * CALLS:
                    await asyncio.sleep(0.01)
                await client.append("a", [{"data": 1}])
                for task in polls + streams:
                    task.cancel()
                await asyncio.gather(*polls, *streams, return_exceptions=True)

        asyncio.run(asyncio.wait_for(crowd(), 8))


def test_a_closed_client_says_so_at_once_and_asks_nobody() -> None:
    with FakeServer() as server:
        client = Client(server.url)
        client.close()
        with pytest.raises(InvalidRequest, match="this client is closed"):
            client.info("a")

        async def late(used: bool) -> None:
            client = AsyncClient(server.url)
            if used:
                server.otherwise = answer(200, APPENDED)
                await client.append("a", [{"data": 1}])
            await client.close()
            for call in (client.info("a"), client.records("a")):
                with pytest.raises(InvalidRequest, match="this client is closed"):
                    await call

        asyncio.run(late(used=False))
        assert server.seen == []
        asyncio.run(late(used=True))
        assert len(server.seen) == 1


def test_a_large_body_may_take_longer_than_the_opening_of_a_connection() -> None:
    body = b"x" * 16 * 1024 * 1024  # more than the kernel takes while nobody reads
    got: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                time.sleep(0.6)
                left = len(body)
                while left > 0 and (piece := connection.recv(65536)):
                    left -= len(piece.partition(b"\r\n\r\n")[2] if piece.startswith(b"POST") else piece)
                got.append(left)
                connection.sendall(b"HTTP/1.1 204 Done\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        place = Place.parse(f"http://127.0.0.1:{listener.getsockname()[1]}", None)
        transport = PoolTransport(place, connect_s=0.2)
        try:
            assert transport.send(HttpRequest("POST", "/", {}, body), 30.0).status == 204
        finally:
            transport.close()
            thread.join()
    assert got == [0]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (HEAD + b'Content-Length: 50\r\n\r\n{"to', "read|content length"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "IncompleteRead|chunk size"),
        (b"HELLO\r\n\r\n", "HELLO|Bad status line"),
        (None, "it took too long"),
    ],
)
def test_why_there_is_no_answer_is_said_in_one_line(connect: Connect, sent: bytes | None, told: str) -> None:
    with FakeServer() as server:

        def step(connection: socket.socket) -> bool:
            if sent is None:
                return server.silence(connection)
            connection.sendall(sent)
            return False

        server.otherwise = step
        with pytest.raises(Unreachable, match=told) as caught:
            connect(server.url, retry=RetryPolicy(deadline_s=0.2, attempts_max=1)).health()
        said = caught.value.message.replace(server.url, "")  # whose port may hold any digits
    assert "\n" not in said
    assert not any(word in said for word in ("CancelledError", "400", "invalid literal"))
