"""WebSocket over real sockets, with the client of the `websockets` library and with raw frames."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.integration.transport.support import get, raw, serving, until
from topics.api.bodies import Bodies

HANDSHAKE = (
    "connection: Upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


def dial(port: int, path: str = "/ws") -> connect:
    return connect(f"ws://127.0.0.1:{port}{path}", max_size=None, ping_interval=None)


async def closed_with(socket: ClientConnection) -> tuple[int, str]:
    try:
        while True:
            await socket.recv()
    except ConnectionClosed:
        pass
    return socket.close_code or 0, socket.close_reason or ""


async def test_messages_come_back_in_order() -> None:
    async with serving() as (app, listener), dial(listener.port) as socket:
        for number in range(500):
            await socket.send(f"message {number} ü")
        for number in range(500):
            assert await socket.recv() == f"message {number} ü"
        assert app.in_flight == 0


async def test_no_extension_or_subprotocol_is_chosen() -> None:
    offered = [Subprotocol("a"), Subprotocol("b")]
    async with (
        serving() as (_, listener),
        connect(f"ws://127.0.0.1:{listener.port}/ws", subprotocols=offered) as socket,
    ):
        assert socket.subprotocol is None
        assert socket.response is not None
        assert "sec-websocket-extensions" not in socket.response.headers


async def test_large_and_fragmented_messages_are_joined() -> None:
    async with serving() as (_, listener), dial(listener.port) as socket:
        await socket.send("x" * 3_000_000)
        assert len(await socket.recv()) == 3_000_000
        await socket.send(["one ", "two ", "ü", "three"])
        assert await socket.recv() == "one two üthree"


async def test_ping_between_fragments_is_answered_once() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/ws", *HANDSHAKE))
        reply = await client.reply()
        assert (reply.status, reply.headers["sec-websocket-accept"]) == (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        zero = b"\0\0\0\0"
        client.send(b"\x01\x82" + zero + b"ab" + b"\x89\x81" + zero + b"p" + b"\x80\x81" + zero + b"c")
        assert await client.reader.readexactly(3) == b"\x8a\x01p"
        assert await client.reader.readexactly(5) == b"\x81\x03abc"


def fragment(size: int, *, first: bool = True) -> bytes:
    """A part of a text message, masked with zeros; the message goes on behind it."""
    return bytes([0x01 if first else 0x00, 0xFF]) + size.to_bytes(8, "big") + b"\0\0\0\0" + b"x" * size


async def test_messages_on_their_way_share_one_budget() -> None:
    bodies = Bodies(4_000_000)
    async with serving() as (app, listener), raw(listener.port) as first, raw(listener.port) as second:
        app.bodies = bodies
        for client in (first, second):
            client.send(get("/ws", *HANDSHAKE))
            assert (await client.reply()).status == 101
        first.send(fragment(3_000_000) + fragment(2_000_000, first=False)[:500_000])
        await until(lambda: bodies.held > 3_400_000)
        second.send(fragment(1_000_000))
        head = await second.reader.readexactly(4)
        assert (head[0], int.from_bytes(head[2:], "big")) == (0x88, 1013)
        await until(lambda: 3_400_000 < bodies.held < 3_600_000)
        first.writer.transport.abort()
        await until(lambda: bodies.held == 0)
        async with dial(listener.port) as socket:
            await socket.send("x" * 3_900_000)
            assert len(await socket.recv()) == 3_900_000
        assert bodies.held == 0


async def test_half_a_message_goes_with_its_connection() -> None:
    """Though others hold on to the conversation, or nobody looks for objects that hold each other."""
    tracemalloc.start()
    try:
        async with serving() as (app, listener):
            app.bodies = bodies = Bodies(0)
            async with raw(listener.port) as client:
                client.send(get("/ws", *HANDSHAKE))
                assert (await client.reply()).status == 101
                before = tracemalloc.get_traced_memory()[0]
                client.send(fragment(3_000_000) + fragment(3_000_000, first=False)[:2_000_000])
                await until(lambda: bodies.held > 4_900_000)
                client.writer.transport.abort()
                await until(lambda: tracemalloc.get_traced_memory()[0] < before + 1_000_000)
            assert app.sockets
    finally:
        tracemalloc.stop()


async def test_frames_right_behind_the_handshake_are_read() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/ws", *HANDSHAKE) + b"\x81\x82\0\0\0\0hi")
        assert (await client.reply()).status == 101
        assert await client.reader.readexactly(4) == b"\x81\x02hi"


async def test_upgrade_comes_behind_answers_given_in_the_same_turn() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/first") + get("/ws", *HANDSHAKE) + b"\x81\x82\0\0\0\0hi")
        assert (await client.reply()).body == b'{"path":"/first","bytes":0}'
        assert (await client.reply()).status == 101
        assert await client.reader.readexactly(4) == b"\x81\x02hi"


async def test_binary_message_reaches_the_handler_as_bytes() -> None:
    async with serving() as (_, listener), dial(listener.port) as socket:
        await socket.send(b"\0\1\2")
        assert await socket.recv() == "binary 3"


async def test_close_by_the_client_is_answered() -> None:
    async with serving() as (app, listener):
        async with dial(listener.port) as socket:
            await socket.close(4321, "bye")
            assert socket.close_code == 4321
        await until(lambda: app.events == ["socket gone"])
        await until(lambda: listener.connections == 0)


async def test_close_by_the_handler_has_its_code() -> None:
    async with serving() as (_, listener):
        async with dial(listener.port) as socket:
            await socket.send("close")
            assert await closed_with(socket) == (4001, "as you wish")
        async with dial(listener.port) as socket:
            await socket.send("return")
            assert await closed_with(socket) == (1000, "")


async def test_broken_handler_closes_with_1011_and_is_reported() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with serving() as (_, listener), dial(listener.port) as socket:
        await socket.send("fail")
        assert (await closed_with(socket))[0] == 1011
    assert reported == ["the WebSocket of /ws failed"]


async def test_text_that_is_not_utf8_closes_with_1007() -> None:
    async with serving() as (_, listener), dial(listener.port) as socket:
        await socket.send(b"\xff\xfe", text=True)
        assert (await closed_with(socket))[0] == 1007


@pytest.mark.parametrize("pieces", [["x" * 1001], ["x" * 900] * 3], ids=["frame", "message"])
async def test_too_large_frame_or_message_closes_with_1009(pieces: list[str]) -> None:
    async with serving(ws_frame_max=1000, ws_message_max=2000) as (_, listener), dial(listener.port) as socket:
        await socket.send("y" * 1000)
        assert await socket.recv() == "y" * 1000
        await socket.send(pieces)
        assert (await closed_with(socket))[0] == 1009


async def test_unmasked_frame_closes_with_1002() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/ws", *HANDSHAKE))
        await client.reply()
        client.send(b"\x81\x02hi")
        data = await client.rest()
        assert data[:1] == b"\x88"
        assert data[2:4] == (1002).to_bytes(2)


async def test_client_that_leaves_without_close_is_gone() -> None:
    async with serving() as (app, listener):
        async with raw(listener.port) as client:
            client.send(get("/ws", *HANDSHAKE))
            await client.reply()
        await until(lambda: app.events == ["socket gone"])
        assert app.sockets[0].gone.is_set()
        app.sockets[0].send(b"into the void")
        assert app.sockets[0].buffered == 0


@pytest.mark.parametrize("missing", range(4))
async def test_get_without_proper_upgrade_is_400_in_plain_text(missing: int) -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/ws", *(line for number, line in enumerate(HANDSHAKE) if number != missing)))
        reply = await client.reply()
        assert (reply.status, reply.headers["content-type"]) == (400, "text/plain; charset=utf-8")
        assert reply.body


async def test_refused_upgrade_is_an_ordinary_answer() -> None:
    async with serving() as (_, listener):
        with pytest.raises(InvalidStatus):
            await dial(listener.port, "/forbidden")
        async with raw(listener.port) as client:
            client.send(get("/plain", *HANDSHAKE) + get("/forbidden", *HANDSHAKE) + get("/next"))
            assert (await client.reply()).body == b'{"path":"/plain","bytes":0}'
            assert (await client.reply()).status == 403
            assert (await client.reply()).body == b'{"path":"/next","bytes":0}'


async def test_upgrade_waits_for_the_answers_before_it() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?1") + get("/ws", *HANDSHAKE) + b"\x81\x82\0\0\0\0hi")
        await until(lambda: app.events)
        app.gate.set()
        assert (await client.reply()).body == b'"waited 1"'
        assert (await client.reply()).status == 101
        assert await client.reader.readexactly(4) == b"\x81\x02hi"


async def test_silent_peer_is_pinged_and_then_cut_off() -> None:
    async with serving(ping_s=0.1) as (_, listener), raw(listener.port) as client:
        client.send(get("/ws", *HANDSHAKE))
        await client.reply()
        assert await client.reader.readexactly(2) == b"\x89\x00"
        await client.rest()
        await until(lambda: listener.connections == 0)


async def test_messages_nobody_takes_stop_the_reading() -> None:
    async with serving(ws_waiting_max=4, write_stall_s=0.3) as (app, listener), dial(listener.port) as socket:
        await socket.send("first")
        await socket.recv()
        # The echo handler blocks nowhere, so a flood that is not read back must end up in the client's own buffers.
        sender = asyncio.ensure_future(_flood(socket))
        await asyncio.sleep(0.1)
        assert app.sockets[0].buffered < 2 << 20
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


async def _flood(socket: ClientConnection) -> None:
    while True:
        await socket.send("x" * 100_000)
