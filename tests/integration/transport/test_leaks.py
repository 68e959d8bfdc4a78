"""After many clients that come, ask, and leave at any moment, nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest
from h2.errors import ErrorCodes

from tests.integration.transport.h2client import h2_client
from tests.integration.transport.support import EchoApp, get, post, raw, serving, until
from topics.api.listener import Listener
from topics.api.protocol import Connection

PATHS = (
    "/a",
    "/wait?1",
    "/future",
    "/forever",
    "/count",
    "/large?300000",
    "/text?20000",
    "/forbidden",
    "/small",
    "/cut",
)


def some_request(chance: random.Random) -> bytes:
    path = chance.choice(PATHS)
    coded = ("accept-encoding: zstd",) if chance.random() < 0.5 else ()
    request = get(path, *coded) if chance.random() < 0.5 else post(path, b"x" * chance.randrange(40), *coded)
    return request[: chance.randrange(len(request))] if chance.random() < 0.2 else request


async def rude_client(port: int, chance: random.Random) -> None:
    async with raw(port) as client:
        for _ in range(chance.randrange(1, 5)):
            client.send(b"".join(some_request(chance) for _ in range(chance.randrange(1, 4))))
            await asyncio.sleep(chance.random() / 100)
        if chance.random() < 0.5:
            client.writer.transport.abort()


async def rude_h2_client(port: int, chance: random.Random) -> None:
    async with h2_client(port, window=chance.choice((100, 65_535))) as client:
        client.acknowledge = chance.random() < 0.5
        for _ in range(chance.randrange(1, 8)):
            if client.closed or client.terminated is not None:
                return
            stream_id = client.request("GET", chance.choice(PATHS))
            await asyncio.sleep(chance.random() / 100)
            stream = client.streams[stream_id]
            if chance.random() < 0.3 and not stream.ended and stream.reset is None and not client.closed:
                client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
                client.flush()


def no_connection_is_kept() -> bool:
    gc.collect()
    return not any(isinstance(found, Connection) for found in gc.get_objects())


async def nothing_is_left(app: EchoApp, listener: Listener) -> None:
    await until(lambda: listener.connections == 0)
    await until(lambda: app.in_flight == 0)
    await until(lambda: listener.tasks == 0)


@pytest.mark.parametrize("seed", range(3))
async def test_rude_clients_leave_nothing_behind(seed: int) -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context)))
    chance = random.Random(seed)
    async with serving(leave_s=0.05, linger_s=0.05) as (app, listener):
        for _ in range(5):
            clients = [rude_client(listener.port, chance) for _ in range(15)]
            clients += [rude_h2_client(listener.port, chance) for _ in range(5)]
            await asyncio.gather(*clients)
        await nothing_is_left(app, listener)
        app.sinks.clear()
        app.seen.clear()
        await until(no_connection_is_kept)
    assert not reported
