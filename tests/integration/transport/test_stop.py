"""The end of a listener: what is under way is finished within the grace, the rest is cut."""

from __future__ import annotations

import asyncio
import time

import pytest
from h2.errors import ErrorCodes
from websockets.asyncio.client import connect

from tests.integration.transport.h2client import h2_client
from tests.integration.transport.support import get, post, raw, serving, until


async def test_idle_connections_are_closed_at_once() -> None:
    async with serving() as (_, listener), raw(listener.port) as client, raw(listener.port) as silent:
        client.send(get("/"))
        await client.reply()
        started = time.monotonic()
        await listener.stop(5)
        assert time.monotonic() - started < 1
        assert await client.rest() == b""
        assert await silent.rest() == b""


async def test_request_under_way_is_answered_and_its_connection_closed() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?1"))
        await until(lambda: app.events)
        stopping = asyncio.ensure_future(listener.stop(5))
        await asyncio.sleep(0.01)
        app.gate.set()
        reply = await client.reply()
        assert (reply.body, reply.headers["connection"]) == (b'"waited 1"', "close")
        assert await client.rest() == b""
        await stopping


async def test_body_under_way_is_read_and_answered() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(post("/b", b"abc")[:-2])
        await until(lambda: listener.connections == 1)
        await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(listener.stop(5))
        await asyncio.sleep(0.01)
        client.send(b"bc")
        reply = await client.reply()
        assert (reply.body, reply.headers["connection"]) == (b'{"path":"/b","bytes":3}', "close")
        await stopping


async def test_request_that_does_not_end_is_cut_after_the_grace() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?1"))
        await until(lambda: app.events)
        started = time.monotonic()
        await listener.stop(0.1)
        assert 0.09 <= time.monotonic() - started < 1
        assert await client.rest() == b""
        assert app.events == ["start 1", "cancelled 1"]
        assert app.in_flight == 0


async def test_stream_under_way_may_say_goodbye() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/forever"))
        await until(lambda: app.sinks)
        stopping = asyncio.ensure_future(listener.stop(5))
        await asyncio.sleep(0.01)
        app.sinks[0].write(b"data: bye\n\n")
        app.sinks[0].finish()
        assert (await client.reply()).body == b"data: hello\n\ndata: bye\n\n"
        assert await client.rest() == b""
        await stopping


async def test_streams_that_do_not_end_are_cut_and_told() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/forever"))
        await until(lambda: app.sinks)
        await listener.stop(0.05)
        assert app.events == ["stream", "gone"]


async def test_http2_is_told_to_go_away_and_finishes_its_streams() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        client.request("GET", "/wait?1")
        await until(lambda: app.events)
        stopping = asyncio.ensure_future(listener.stop(5))
        await client.until(lambda: client.terminated is not None)
        assert client.terminated == ErrorCodes.NO_ERROR
        app.gate.set()
        await stopping
        await client.until(lambda: client.closed)
        assert client.farewell.endswith(b'"waited 1"')
        assert app.events[-1] == "end 1"


async def test_websocket_may_close_with_1001() -> None:
    async with serving() as (app, listener), connect(f"ws://127.0.0.1:{listener.port}/ws") as socket:
        await socket.send("x")
        await socket.recv()
        stopping = asyncio.ensure_future(listener.stop(5))
        app.sockets[0].close(1001, "shutting down")
        await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (1001, "shutting down")
        await stopping


async def test_nothing_is_accepted_after_a_stop() -> None:
    async with serving() as (_, listener):
        port = listener.port
        await listener.stop(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
