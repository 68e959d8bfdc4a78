"""HTTP/1 over real sockets: framing, order, keep-alive, refusals and times."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from tests.integration.transport.support import BODY_LIMIT, get, post, raw, serving, until


async def test_one_connection_carries_many_requests() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        for number in range(3):
            client.send(post(f"/p{number}?q={number}", b"x" * number))
            reply = await client.reply()
            assert reply.status == 200
            assert reply.body == b'{"path":"/p%d?q=%d","bytes":%d}' % (number, number, number)
            assert reply.headers["content-type"] == "application/json"
            assert reply.headers["date"].endswith("GMT")
        assert listener.connections == 1
        assert [request.head.query for request in app.seen] == ["q=0", "q=1", "q=2"]
        assert app.in_flight == 0


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?1") + get("/a") + get("/wait?2") + get("/b"))
        await until(lambda: app.events == ["start 1", "start 2"])
        app.gate.set()
        assert [(await client.reply()).body for _ in range(4)] == [
            b'"waited 1"',
            b'{"path":"/a","bytes":0}',
            b'"waited 2"',
            b'{"path":"/b","bytes":0}',
        ]


async def test_unknown_methods_are_for_the_app_to_refuse_and_their_bodies_are_read() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        for method in (b"BREW", b"get", b"M-X.1"):
            client.send(b"%b /a HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\n\r\nhello" % method + get("/b"))
            assert (await client.reply()).body == b'{"path":"/a","bytes":5}'
            assert (await client.reply()).body == b'{"path":"/b","bytes":0}'
        assert {request.head.method for request in app.seen} == {"PURGE", "GET"}
        client.send(get("/c") + b"BREW /d HTTP/1.1\r\nhost: here\r\n\r\n")
        assert [(await client.reply()).status for _ in range(2)] == [200, 400], "only where it begins the input"


async def test_a_read_behind_a_pipelined_write_starts_after_it() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(post("/placed?1", b"") + post("/placed?2", b"") + post("/other", b""))
        await until(lambda: len(app.events) == 2)
        assert [request.head.path for request in app.seen] == ["/placed", "/placed"]
        app.gate.set()
        assert [(await client.reply()).status for _ in range(3)] == [200, 200, 200]
        assert app.seen[-1].head.path == "/other"


async def test_a_call_that_has_no_place_yet_is_not_overtaken_by_the_next_of_its_path() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(b"".join(post(f"/wait?{number}", b"") for number in range(9)))
        await until(lambda: bool(app.events))
        await asyncio.sleep(0.02)
        assert app.events == ["start 0"]
        app.gate.set()
        assert [(await client.reply()).body for _ in range(9)] == [b'"waited %d"' % number for number in range(9)]
        assert app.events == [f"{what} {number}" for number in range(9) for what in ("start", "end")]


async def test_requests_beyond_the_bound_wait_unread() -> None:
    async with serving(pipeline_max=4) as (app, listener), raw(listener.port) as client:
        client.send(b"".join(get(f"/wait?{number}") for number in range(4000)))
        await until(lambda: len(app.events) == 4)
        await asyncio.sleep(0.02)
        assert len(app.events) == 4
        app.gate.set()
        for number in range(4000):
            assert (await client.reply()).body == b'"waited %d"' % number
        assert app.in_flight == 0


async def test_a_future_is_awaited_like_a_coroutine() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/future"))
        assert (await client.reply()).body == b'"future"'


async def test_requests_may_come_byte_by_byte() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        for byte in post("/bytes", b"abc") + get("/next"):
            client.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.reply()).body == b'{"path":"/bytes","bytes":3}'
        assert (await client.reply()).body == b'{"path":"/next","bytes":0}'


async def test_chunked_bodies_are_joined() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        head = b"POST /c HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
        client.send(head + b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nx-trailer: 1\r\nhost: evil\r\n\r\n")
        client.send(get("/after"))
        assert (await client.reply()).body == b'{"path":"/c","bytes":5}'
        assert (await client.reply()).status == 200
        assert app.seen[0].body == b"abcde"
        assert app.seen[0].head.headers[b"host"] == b"here"


async def test_large_bodies_arrive_whole() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        body = bytes(range(256)) * (BODY_LIMIT // 256)
        client.send(post("/l", body))
        assert (await client.reply()).status == 200
        assert app.seen[0].body == body


async def test_repeated_headers_are_joined_or_replaced() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/", "x-a: 1", "X-A: 2", "cookie: a=1", "cookie: b=2", "content-type: x", "Content-Type: y"))
        await client.reply()
        headers = app.seen[0].head.headers
        assert headers[b"x-a"] == b"1, 2"
        assert headers[b"cookie"] == b"a=1; b=2"
        assert headers[b"content-type"] == b"y"


async def test_continue_is_said_before_the_body_is_read() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(post("/e", b"", "expect: 100-continue").replace(b"length: 0", b"length: 3"))
        assert (await client.reply()).status == 100
        client.send(b"abc")
        assert (await client.reply()).body == b'{"path":"/e","bytes":3}'


async def test_continue_comes_behind_the_answers_before_it() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?1") + post("/e", b"", "expect: 100-continue").replace(b"length: 0", b"length: 3"))
        await until(lambda: app.events)
        app.gate.set()
        assert (await client.reply()).body == b'"waited 1"'
        assert (await client.reply()).status == 100
        client.send(b"abc")
        assert (await client.reply()).status == 200


async def test_refused_head_gets_no_continue() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(post("/forbidden", b"", "expect: 100-continue").replace(b"length: 0", b"length: 3"))
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (403, "close")
        assert await client.rest() == b""


async def test_body_of_a_refused_request_is_skipped() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(post("/forbidden", b"x" * 1000) + get("/next"))
        assert (await client.reply()).status == 403
        assert (await client.reply()).body == b'{"path":"/next","bytes":0}'


async def test_upgrade_to_http2_is_ignored_and_the_body_read() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        offer = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")
        client.send(post("/u", b"abc", *offer) + get("/next", *offer) + get("/last"))
        assert (await client.reply()).body == b'{"path":"/u","bytes":3}'
        assert (await client.reply()).body == b'{"path":"/next","bytes":0}'
        assert (await client.reply()).body == b'{"path":"/last","bytes":0}'
        assert app.seen[0].body == b"abc"


async def test_upgrade_with_a_chunked_body_is_ignored() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        head = b"POST /u HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: TLS/1.3\r\n"
        for byte in head + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
            client.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.reply()).body == b'{"path":"/u","bytes":3}'


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2", "--http2-prior-knowledge"])
async def test_curl_posts_a_body_in_every_version(version: str) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip(reason="curl is not installed")
    async with serving() as (_, listener):
        url = f"http://127.0.0.1:{listener.port}/curl"
        process = await asyncio.create_subprocess_exec(
            curl, "-sS", "-m", "5", version, "-d", "a" * 100_000, url, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert output == b'{"path":"/curl","bytes":100000}'


async def test_http10_is_answered_as_http10_and_closed() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(b"GET /old HTTP/1.0\r\n\r\n")
        reply = await client.reply()
        assert (reply.version, reply.status, reply.headers["connection"]) == ("HTTP/1.0", 200, "close")
        assert await client.rest() == b""


async def test_http10_is_kept_alive_when_asked_for() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        for _ in range(2):
            client.send(b"GET /old HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            reply = await client.reply()
            assert (reply.version, reply.headers["connection"]) == ("HTTP/1.0", "keep-alive")


async def test_http10_stream_ends_with_the_connection() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(b"GET /count HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        reply = await client.reply()
        assert "transfer-encoding" not in reply.headers
        assert reply.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_connection_ends_after_the_request_that_says_so() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/1") + get("/2", "connection: close") + get("/3"))
        assert "connection" not in (await client.reply()).headers
        assert (await client.reply()).headers["connection"] == "close"
        assert await client.rest() == b""
        assert len(app.seen) == 2


async def test_answer_can_end_the_connection() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/close") + get("/never"))
        reply = await client.reply()
        assert (reply.body, reply.headers["connection"]) == (b"bye", "close")
        assert await client.rest() == b""


async def test_head_has_the_length_and_no_body() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/text?1").replace(b"GET", b"HEAD") + get("/count").replace(b"GET", b"HEAD") + get("/none"))
        reply = await client.reply(to_head=True)
        assert (reply.status, reply.headers["content-length"]) == (200, "14")
        assert (await client.reply(to_head=True)).headers["content-type"] == "text/event-stream"
        reply = await client.reply()
        assert reply.status == 204
        assert "content-length" not in reply.headers


async def test_header_values_cannot_add_headers() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/headers"))
        reply = await client.reply()
        assert reply.headers["x-two"] == "a  b: c"
        assert "b" not in reply.headers


async def test_absolute_targets_are_served() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(b"GET http://here:1/p%2F?q=1 HTTP/1.1\r\nhost: here\r\n\r\n")
        assert (await client.reply()).status == 200
        assert (app.seen[0].head.path, app.seen[0].head.query) == ("/p%2F", "q=1")


@pytest.mark.parametrize("path", ["/fail", "/fail-later"])
async def test_broken_handler_is_a_500_and_is_reported(path: str) -> None:
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get(path) + get("/next"))
        reply = await client.reply()
        assert reply.status == 500
        assert b'"code":"internal"' in reply.body
        assert (await client.reply()).status == 200
        assert app.in_flight == 0
    assert reported == [f"a request to {path} failed"]


async def test_stream_is_one_chunk_per_piece_and_the_connection_lives_on() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/count") + get("/next"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"cache-control: no-store" in head
        assert [chunk async for chunk in client.chunks()] == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
        assert (await client.reply()).body == b'{"path":"/next","bytes":0}'
        assert app.in_flight == 0


async def test_cut_stream_lacks_its_last_chunk() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/cut"))
        assert (await client.rest()).endswith(b"9\r\ndata: 0\n\n\r\n")


async def test_large_answer_is_read_slowly_to_its_end() -> None:
    async with serving(write_stall_s=0.2) as (_, listener), raw(listener.port) as client:
        client.send(get("/large?8000000", "connection: close"))
        await client.reader.readuntil(b"\r\n\r\n")
        left = 8_000_000
        while left:
            # Longer than the stall time in all, but never without progress for so long.
            left -= len(await client.reader.readexactly(min(left, 1_000_000)))
            await asyncio.sleep(0.05)
        assert await client.rest() == b""


async def test_client_that_leaves_cancels_its_handler() -> None:
    async with serving(leave_s=0.1) as (app, listener):
        async with raw(listener.port) as client:
            client.send(get("/wait?1"))
            await until(lambda: app.events == ["start 1"])
        await until(lambda: app.events == ["start 1", "cancelled 1"])
        assert app.in_flight == 0


async def test_client_that_leaves_is_gone_for_its_stream() -> None:
    async with serving() as (app, listener):
        async with raw(listener.port) as client:
            client.send(get("/forever"))
            await until(lambda: app.events == ["stream"])
        await until(lambda: app.events == ["stream", "gone"])


async def test_client_that_stops_sending_still_gets_its_answer() -> None:
    async with serving() as (_, listener), raw(listener.port) as client:
        client.send(get("/future"))
        client.writer.write_eof()
        assert (await client.reply()).body == b'"future"'
        assert await client.rest() == b""


async def test_large_answers_are_not_made_for_a_peer_that_does_not_take_them() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get("/large?4000000") * 40)
        await until(lambda: app.seen)
        await asyncio.sleep(0.2)
        assert len(app.seen) <= 3
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        sizes = [len((await client.reply()).body) for _ in range(40)]
        assert sizes == [4_000_000] * 40


async def test_large_answers_that_take_their_time_are_made_a_few_at_once() -> None:
    async with serving() as (app, listener), raw(listener.port) as client:
        client.send(get("/wait?x") * 40)
        await until(lambda: len(app.seen) == 4)
        await asyncio.sleep(0.05)
        assert len(app.seen) == 4
        app.gate.set()
        assert [(await client.reply()).status for _ in range(40)] == [200] * 40
