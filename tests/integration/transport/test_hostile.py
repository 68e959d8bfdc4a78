"""Input that is wrong on purpose: what two parsers could read differently, what is too much, what is too slow."""

from __future__ import annotations

import asyncio
import gzip

import pytest
import zstandard

from tests.integration.transport.support import BODY_LIMIT, get, post, raw, serving, until

START = b"POST /s HTTP/1.1\r\nhost: here\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: here\r\n\r\n"

MISREAD = {
    "length and chunked": START + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": START + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": START + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "one length twice": START + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "list of lengths": START + b"content-length: 3, 3\r\n\r\nabc",
    "signed length": START + b"content-length: +3\r\n\r\nabc",
    "negative length": START + b"content-length: -3\r\n\r\nabc",
    "hexadecimal length": START + b"content-length: 0x3\r\n\r\nabc",
    "empty length": START + b"content-length: \r\n\r\nabc",
    "length beyond 64 bits": START + b"content-length: 99999999999999999999\r\n\r\nabc",
    "space before the colon": START + b"content-length : 3\r\n\r\nabc",
    "chunked twice": START + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": START + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "gzip then chunked": START + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown transfer coding": START + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "vertical tab before chunked": START + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /s HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size no number": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
    "chunk size with prefix": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "negative chunk size": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "chunk size beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "space behind the chunk size": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "chunk longer than said": CHUNKED + b"3\r\nabcX\r\n0\r\n\r\n",
    "chunk ends with bare LF": CHUNKED + b"3\nabc\n0\n\n",
    "chunk extension ends with bare LF": CHUNKED + b"3;a\nabc\r\n0\r\n\r\n",
    "folded header": START + b"x: a\r\n b\r\n\r\n",
    "folded transfer coding": START + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "NUL in a value": START + b"x: a\0b\r\n\r\n",
    "NUL in a name": START + b"x\0y: a\r\n\r\n",
    "bare CR in a value": START + b"x: a\rb\r\n\r\n",
    "bare LF as line end": b"POST /s HTTP/1.1\nhost: here\n\n",
    "control character": START + b"x: a\x01b\r\n\r\n",
    "header without colon": START + b"nothing\r\n\r\n",
    "header without name": START + b": x\r\n\r\n",
    "space in a name": START + b"a b: x\r\n\r\n",
    "two hosts": START + b"host: there\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "version 2.0": b"GET / HTTP/2.0\r\n\r\n",
    "version 1.2": b"GET / HTTP/1.2\r\n\r\n",
    "method that is none": b"F(O / HTTP/1.1\r\n\r\n",
    "no target": b"FOO\r\n\r\n",
    "tunnel": b"CONNECT here:80 HTTP/1.1\r\nhost: here\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "wrong preface": b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
}


@pytest.mark.parametrize("data", MISREAD.values(), ids=MISREAD)
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
async def test_misreadable_request_is_400_and_ends_the_connection(data: bytes, split: bool) -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        for piece in (data[:20], data[20:]) if split else (data,):
            client.send(piece)
            await asyncio.sleep(0.002 if split else 0)
        client.send(SMUGGLED)
        reply = await client.reply()
        assert reply.status == 400
        assert reply.headers["connection"] == "close"
        assert await client.rest() == b""
        assert not app.seen
        assert app.in_flight == 0


@pytest.mark.parametrize("target", [b"/a<b", b"/a>b", b"/\xc3\xa9", b"/\xff", b"/?q=\xc3\xa9"])
async def test_target_with_a_forbidden_byte_is_400_without_a_body(target: bytes) -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(b"GET %b HTTP/1.1\r\nhost: here\r\n\r\n" % target)
        reply = await client.reply()
        assert (reply.status, reply.body, reply.headers["content-length"]) == (400, b"", "0")
        assert not app.seen


async def test_answers_before_a_misreadable_request_are_sent() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?1") + b"NONSENSE\r\n\r\n")
        await until(lambda: app.events)
        app.gate.set()
        assert (await client.reply()).body == b'"waited 1"'
        assert (await client.reply()).status == 400


async def test_input_behind_a_refusal_that_waits_is_dropped() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?1") + get("/x", "host: there"))
        await until(lambda: app.events)
        for _ in range(3):
            client.send(SMUGGLED)
            await asyncio.sleep(0.002)
        app.gate.set()
        assert (await client.reply()).body == b'"waited 1"'
        assert (await client.reply()).status == 400
        assert await client.rest() == b""
        assert len(app.seen) == 1


async def test_too_many_headers_are_431() -> None:
    async with serving(headers_max=10) as (_, listener), raw(listener.port) as client:
        client.send(get("/", *(f"x-{number}: 1" for number in range(11))))
        assert (await client.reply()).status == 431
        assert await client.rest() == b""


@pytest.mark.parametrize("data", [b"GET /%b", b"GET / HTTP/1.1\r\nx: %b", b"GET / HTTP/1.1\r\n%b"])
async def test_endless_head_is_431(data: bytes) -> None:
    async with serving(head_bytes_max=4096) as (_, listener), raw(listener.port) as client:
        for _ in range(8):
            client.send(data % (b"a" * 1000) if data else b"a" * 1000)
            data = b""
            await asyncio.sleep(0.001)
        assert (await client.reply()).status == 431


@pytest.mark.parametrize("data", [b"GET /%b HTTP/1.1\r\nhost: here\r\n\r\n", b"GET / HTTP/1.1\r\nx: %b\r\n\r\n"])
async def test_large_head_is_431_however_it_arrives_and_one_of_the_limit_passes(data: bytes) -> None:
    async with serving(head_bytes_max=4096) as (_, listener):
        for size, status in ((3900, 200), (4200, 431), (40_000, 431)):
            async with raw(listener.port) as client:
                client.send(data % (b"a" * size))
                assert (await client.reply()).status == status


async def test_one_header_repeated_without_end_is_431() -> None:
    async with serving(head_bytes_max=4096) as (_, listener), raw(listener.port) as client:
        client.send(get("/", *(f"x: {number:0100}" for number in range(100))))
        assert (await client.reply()).status == 431


UNENDED = {
    "many": b"%07d: " + b"a" * 1000 + b"\r\n",
    "one value": b"%07d" + b"a" * 1000,
    "extension": b"%07d" + b"a" * 1000,
}
STARTS = {"many": b"0\r\n", "one value": b"0\r\nx: ", "extension": b"0;x="}


@pytest.mark.parametrize("kind", UNENDED)
@pytest.mark.parametrize(("path", "statuses"), [("/s", [431]), ("/forbidden", [403])])
async def test_endless_trailers_are_refused_and_end_the_connection(kind: str, path: str, statuses: list[int]) -> None:
    async with serving(head_bytes_max=4096, linger_s=0.1) as (echo, listener), raw(listener.port) as client:
        client.send(b"POST %b HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode())
        client.send(b"3\r\nabc\r\n" + STARTS[kind])
        for number in range(200):
            client.send(UNENDED[kind] % number)
            await asyncio.sleep(0.0005)
        assert [(await client.reply()).status for _ in statuses] == statuses
        assert await client.rest() == b""
        assert (echo.seen, echo.in_flight) == ([], 0)


async def test_trailers_are_read_over_and_the_connection_lives_on() -> None:
    async with serving() as (echo, listener), raw(listener.port) as client:
        for _ in range(2):
            client.send(CHUNKED + b"3\r\nabc\r\n0\r\nhost: there\r\nx: 1\r\n\r\n")
            assert (await client.reply()).body == b'{"path":"/s","bytes":3}'
        assert set(echo.seen[0].head.headers) == {b"host", b"transfer-encoding"}


async def test_body_of_the_limit_passes_and_one_byte_more_is_413() -> None:
    async with serving() as (app, listener):
        async with raw(listener.port) as client:
            client.send(post("/small", b"x" * 16))
            assert (await client.reply()).status == 200
            client.send(post("/small", b"x" * 17))
            assert (await client.reply()).status == 413
        async with raw(listener.port) as client:
            head = b"POST /small HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
            client.send(head + b"10\r\n" + b"x" * 16 + b"\r\n1\r\nx\r\n")
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert len(app.seen) == 1
        await until(lambda: app.in_flight == 0)


async def test_huge_body_is_refused_by_its_length_and_the_answer_is_seen() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(b"POST /huge HTTP/1.1\r\nhost: here\r\ncontent-length: 100000000\r\n\r\n")
        for _ in range(64):
            client.send(b"x" * 65536)
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (413, "close")


async def test_endless_chunks_behind_a_refusal_end_the_connection() -> None:
    async with serving(discard_max=10_000, linger_s=0.1) as (_, listener), raw(listener.port) as client:
        client.send(b"POST /forbidden HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
        assert (await client.reply()).status == 403
        for _ in range(20):
            client.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert await client.rest() == b""


BOMB = b"0" * (BODY_LIMIT + 1)


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(BOMB)),
        ("zstd", zstandard.ZstdCompressor().compress(BOMB)),
        ("gzip", gzip.compress(b"0" * (100 << 20))),
        ("zstd", zstandard.ZstdCompressor().compress(b"0" * (500 << 20))),
    ],
    ids=["gzip one over", "zstd one over", "gzip bomb", "zstd bomb"],
)
async def test_body_that_inflates_too_far_is_413(coding: str, packed: bytes) -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(post("/bomb", packed, f"content-encoding: {coding}"))
        assert (await client.reply()).status == 413
        client.send(get("/next"))
        assert (await client.reply()).status == 200
        assert len(app.seen) == 1
        assert app.in_flight == 0


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_body_that_is_not_what_it_says_is_400(coding: str) -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(post("/bad", b"not compressed at all", f"content-encoding: {coding}"))
        assert (await client.reply()).status == 400


@pytest.mark.parametrize("coding", ["deflate", "br", "gzip, gzip", "gzip, zstd"])
async def test_unknown_content_coding_is_415(coding: str) -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(post("/bad", b"abc", f"content-encoding: {coding}") + get("/next"))
        assert (await client.reply()).status == 415
        assert (await client.reply()).status == 200
        assert app.in_flight == 0


async def test_slow_head_is_408() -> None:
    async with serving(header_timeout_s=0.1) as (_, listener), raw(listener.port) as client:
        client.send(b"GET / HTTP/1.1\r\nx: ")
        assert (await client.reply()).status == 408
        assert await client.rest() == b""


@pytest.mark.parametrize("first", [b"", b"PRI * HT"])
async def test_connection_without_a_request_is_closed(first: bytes) -> None:
    async with serving(header_timeout_s=0.1) as (_, listener), raw(listener.port) as client:
        client.send(first)
        assert await client.rest() == b""


async def test_trickling_head_is_408_all_the_same() -> None:
    async with serving(header_timeout_s=0.15) as (_, listener), raw(listener.port) as client:
        client.send(b"GET / HTTP/1.1\r\nx: ")
        waiting = asyncio.ensure_future(client.reply())
        while not waiting.done():
            client.send(b"a")
            await asyncio.sleep(0.02)
        assert (await waiting).status == 408


async def test_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with (
        serving(idle_timeout_s=0.1) as (app, listener),
        raw(listener.port) as idle,
        raw(listener.port) as busy,
    ):
        idle.send(get("/"))
        busy.send(get("/wait?1"))
        assert (await idle.reply()).status == 200
        assert await idle.rest() == b""
        await asyncio.sleep(0.1)
        app.gate.set()
        assert (await busy.reply()).status == 200


async def test_slow_body_is_408() -> None:
    async with serving(body_window_s=0.1, body_window_bytes=100) as (app, listener), raw(listener.port) as client:
        client.send(b"POST /slow HTTP/1.1\r\nhost: here\r\ncontent-length: 1000\r\n\r\n")
        waiting = asyncio.ensure_future(client.reply())
        while not waiting.done():
            client.send(b"a")
            await asyncio.sleep(0.02)
        assert (await waiting).status == 408
        await until(lambda: app.in_flight == 0)
        assert not app.seen


async def test_body_that_keeps_its_pace_is_not_slow() -> None:
    async with serving(body_window_s=0.1, body_window_bytes=20) as (_, listener), raw(listener.port) as client:
        client.send(b"POST /pace HTTP/1.1\r\nhost: here\r\ncontent-length: 300\r\n\r\n")
        for _ in range(15):
            client.send(b"a" * 20)
            await asyncio.sleep(0.02)
        assert (await client.reply()).status == 200


async def test_peer_that_takes_nothing_is_cut_off() -> None:
    async with serving(write_stall_s=0.2) as (app, listener), raw(listener.port) as client:
        client.send(get("/forever"))
        await until(lambda: app.sinks)
        sink = app.sinks[0]
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while sink.buffered < 1 << 20:
            sink.write(b"x" * 65536)
            await asyncio.sleep(0)
        await asyncio.wait_for(sink.drain(), 60)
        assert sink.gone.is_set()
        assert sink.buffered == 0


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with serving(connections_max=1) as (_, listener), raw(listener.port) as first:
        first.send(get("/"))
        await first.reply()
        async with raw(listener.port) as second:
            second.send(get("/"))
            assert await second.rest() == b""
        first.send(get("/"))
        assert (await first.reply()).status == 200
