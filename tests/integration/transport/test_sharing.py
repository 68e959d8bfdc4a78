"""A connection whose file somebody else writes to: he is told before anything else happens to it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from tests.integration.transport.support import EchoApp
from topics.api.options import TransportOptions
from topics.api.protocol import Connection, Shared
from topics.api.ticker import Ticker
from topics.host.clock import SystemClock


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection that expects to stream, and its peer."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        mine, _ = server.accept()
        shared = Shared(EchoApp(), TransportOptions(), Ticker(SystemClock()), secure=False)
        _, connection = await loop.connect_accepted_socket(lambda: Connection(shared), mine)
        peer.setblocking(False)
        connection.expect_stream()
        yield connection, peer
        connection.abort()


async def received(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += await asyncio.get_running_loop().sock_recv(peer, 1 << 16)
    return found


def run(body: Callable[[Connection, socket.socket], Awaitable[Any]], loop: str) -> None:
    async def main() -> None:
        async with pair() as (connection, peer):
            await asyncio.wait_for(body(connection, peer), 20)

    (uvloop.run if loop == "uvloop" else asyncio.run)(main())


both = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


@both
def test_sharer_is_told_once_before_another_writes(loop: str) -> None:
    async def body(connection: Connection, peer: socket.socket) -> None:
        said: list[str] = []
        file = connection.share(lambda: said.append("told"))
        os.write(file, b"1")
        connection.write(b"2")
        assert said == ["told"]
        connection.write(b"3")
        connection.write_all([b"4" * 40_000, b"5" * 40_000])
        assert said == ["told"]
        assert (await received(peer, 80_003))[:4] == b"1234"

    run(body, loop)


@both
def test_many_pieces_are_another_write_too(loop: str) -> None:
    async def body(connection: Connection, peer: socket.socket) -> None:
        said: list[str] = []
        assert connection.share(lambda: said.append("told")) >= 0
        connection.write_all([b"4" * 40_000, b"5" * 40_000])
        assert said == ["told"]

    run(body, loop)


@both
def test_file_with_something_waiting_is_not_shared(loop: str) -> None:
    async def body(connection: Connection, peer: socket.socket) -> None:
        connection.write(b"x" * (8 << 20))
        assert connection.share(lambda: None) < 0
        await received(peer, 8 << 20)
        while connection.buffered:
            await asyncio.sleep(0)
        assert connection.share(lambda: None) >= 0

    run(body, loop)


@both
def test_what_goes_through_at_once_tells_nobody(loop: str) -> None:
    async def body(connection: Connection, peer: socket.socket) -> None:
        said: list[str] = []
        file = connection.share(lambda: said.append("told"))
        os.write(file, b"1")
        assert connection.write_through(b"2") == 0
        os.write(file, b"3")
        assert said == []
        assert await received(peer, 3) == b"123"
        connection.unshare()
        connection.write(b"4")
        assert said == []

    run(body, loop)


@both
@pytest.mark.parametrize("how", ["peer", "abort", "close"])
def test_file_is_still_open_when_its_sharer_is_told_that_it_ends(loop: str, how: str) -> None:
    async def body(connection: Connection, peer: socket.socket) -> None:
        ended = asyncio.Event()

        def told() -> None:
            assert os.fstat(file)
            assert connection.closing
            assert connection.share(told) < 0
            ended.set()

        file = connection.share(told)
        {"peer": peer.close, "abort": connection.abort, "close": connection.close}[how]()
        await ended.wait()
        while True:
            try:
                os.fstat(file)
            except OSError:
                return
            await asyncio.sleep(0)

    run(body, loop)
