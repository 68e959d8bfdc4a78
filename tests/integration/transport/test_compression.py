"""Content codings over the wire, in both directions."""

from __future__ import annotations

import gzip

import pytest
import zstandard

from tests.integration.transport.h2client import h2_client
from tests.integration.transport.support import get, post, raw, serving


def unpack(coding: str, body: bytes) -> bytes:
    return gzip.decompress(body) if coding == "gzip" else zstandard.ZstdDecompressor().decompress(body)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("count", [200, 50_000], ids=["small", "large"])
async def test_large_json_is_compressed_for_who_accepts_it(coding: str, count: int) -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get(f"/text?{count}", f"accept-encoding: {coding}") + get(f"/text?{count}"))
        packed, plain = await client.reply(), await client.reply()
        assert packed.headers["content-encoding"] == coding
        assert packed.headers["vary"] == "accept-encoding"
        assert len(packed.body) < len(plain.body) // 5
        assert unpack(coding, packed.body) == plain.body
        assert "content-encoding" not in plain.headers
        assert app.in_flight == 0


@pytest.mark.parametrize("path", ["/text?10", "/large?5000", "/headers", "/none", "/count"])
async def test_small_opaque_and_streamed_answers_stay_as_they_are(path: str) -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get(path, "accept-encoding: gzip, zstd"))
        assert "content-encoding" not in (await client.reply()).headers


async def test_refused_coding_still_varies() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/text?200", "accept-encoding: br, gzip;q=0"))
        reply = await client.reply()
        assert "content-encoding" not in reply.headers
        assert reply.headers["vary"] == "accept-encoding"


async def test_head_has_the_headers_of_the_compressed_answer() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/text?200", "accept-encoding: gzip").replace(b"GET", b"HEAD") + get("/next"))
        assert (await client.reply(to_head=True)).headers["content-encoding"] == "gzip"
        assert (await client.reply()).body == b'{"path":"/next","bytes":0}'


@pytest.mark.parametrize("coding", ["gzip", "zstd", "GZIP", "identity"])
@pytest.mark.parametrize("size", [0, 10, 500_000], ids=["empty", "small", "large"])
async def test_compressed_bodies_reach_the_handler_inflated(coding: str, size: int) -> None:
    body = bytes(range(250)) * (size // 250) + b"x" * (size % 250)
    packed = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}.get(coding.lower(), bytes)(body)
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(post("/packed", packed, f"content-encoding: {coding}") + get("/next"))
        assert (await client.reply()).body == b'{"path":"/packed","bytes":%d}' % size
        assert (await client.reply()).status == 200
        assert app.seen[0].body == body


async def test_codings_work_over_http2() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        coded = ("content-encoding", "zstd")
        body = zstandard.ZstdCompressor().compress(b"abc" * 1000)
        assert (await client.reply(client.request("POST", "/z", body, coded))).status == 200
        assert app.seen[0].body == b"abc" * 1000
        reply = await client.reply(client.request("GET", "/text?50000", None, ("accept-encoding", "gzip")))
        assert reply.headers["content-encoding"] == "gzip"
        assert gzip.decompress(bytes(reply.body)).startswith(b"[1234567890,")
