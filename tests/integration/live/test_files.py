"""Deliveries go past the connections, straight to their files: nobody gets bytes that were meant for another."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct

import uvloop
from websockets.asyncio.client import connect

from tests.integration.live.sse import Place, listen, open_session

ROUNDS = 25
EACH = 8


async def asked(host: str, port: int) -> socket.socket:
    """A connection that asked for something small and was answered exactly that."""
    loop = asyncio.get_running_loop()
    link = socket.socket()
    link.setblocking(False)
    await loop.sock_connect(link, (host, port))
    await loop.sock_sendall(link, f"GET /v0/health HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
    answer = await loop.sock_recv(link, 1 << 16)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return link


def reset(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def test_file_of_a_watcher_that_left_is_not_written_to_when_another_has_it(place: Place) -> None:
    host, port = place.server.host, place.server.port
    rng = random.Random(1)
    place.api.put("reused")

    async def write(enough: asyncio.Event) -> None:
        while not enough.is_set():
            answer = await asyncio.to_thread(place.api.append, "reused", 1)
            assert answer.status == 200

    async def run() -> None:
        enough = asyncio.Event()
        writer = asyncio.create_task(write(enough))
        steady = await listen(host, port, await open_session(host, port, {"reused": {}}))
        for _ in range(ROUNDS):
            streams = [
                await listen(host, port, await open_session(host, port, {"reused": {"tail": True}}))
                for _ in range(EACH)
            ]
            sockets = [await connect(f"ws://{host}:{port}/v0/ws", ping_interval=None) for _ in range(EACH)]
            for one in sockets:
                await one.send(json.dumps({"op": "subscribe", "topic": "reused", "tail": True}))
            for stream in streams:
                await stream.until(lambda w: w.caught_up > 1)
            for one in sockets:
                while "record" not in await one.recv():
                    pass
            for stream in streams:
                stream.transport.abort() if rng.random() < 0.5 else stream.transport.close()
            for one in sockets:
                reset(one.transport.get_extra_info("socket").dup()) if rng.random() < 0.5 else None
                one.transport.abort()
            # Their files are given to whoever comes next.
            links = [await asked(host, port) for _ in range(2 * EACH)]
            seen = len(steady.seqs)
            await steady.until(lambda w, seen=seen: len(w.seqs) > seen + 1)
            for link in links:
                try:
                    found = link.recv(1 << 16)
                except BlockingIOError:
                    found = b""
                assert found == b"", "nobody asked for more"
                link.close()
        enough.set()
        await writer
        assert steady.seqs == list(range(1, len(steady.seqs) + 1))
        steady.transport.abort()

    uvloop.run(asyncio.wait_for(run(), 60))


def test_socket_that_speaks_between_deliveries_gets_whole_messages_in_order(place: Place) -> None:
    """Answers are queued while records go straight to the file."""

    async def run() -> None:
        url = f"ws://{place.server.host}:{place.server.port}/v0/ws"
        place.api.put("spoken")
        async with connect(url, ping_interval=None) as talker, connect(url, ping_interval=None) as listener:
            for one in (talker, listener):
                await one.send(json.dumps({"op": "subscribe", "topic": "spoken"}))
            for number in range(150):
                await asyncio.to_thread(place.api.append, "spoken", number)
                await talker.send(json.dumps({"op": "ping", "request_id": number}))
                if number % 10 == 0:
                    await talker.ping()
            for one, pongs in ((talker, 150), (listener, 0)):
                seqs: list[int] = []
                answers: list[int] = []
                while len(seqs) < 150 or len(answers) < pongs:
                    message = json.loads(await one.recv())
                    if message["op"] == "record":
                        seqs += [record["$seq"] for record in message["records"]]
                    elif message["op"] == "pong":
                        answers.append(message["request_id"])
                assert seqs == list(range(1, 151))
                assert answers == list(range(pongs))

    uvloop.run(asyncio.wait_for(run(), 60))


def test_stream_that_was_served_with_others_resumes_where_it_was(place: Place) -> None:
    """Its cursor was kept by its cohort: whoever asks for it next gets it from there."""
    place.api.put("kept")
    url = place.session({"kept": {}})
    others = [place.watch({"kept": {}}) for _ in range(3)]
    reader = place.read(url)
    for one in (reader, *others):
        one.until("caught-up")
    for number in range(5):
        place.api.append("kept", number)
        for one in (reader, *others):
            assert one.until("record").seqs == [number + 1]
            one.until("caught-up")
    with place.read(url) as again:
        assert again.named().event == "caught-up", "nothing comes twice"
        place.api.append("kept", 5)
        for one in others:
            assert one.until("record").seqs == [6]
            one.close()
    reader.close()
