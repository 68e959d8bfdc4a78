"""HTTP/2 by prior knowledge over real sockets: streams side by side, windows both ways, cancelling, floods."""

from __future__ import annotations

import asyncio

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import ContinuationFrame, HeadersFrame

from tests.integration.transport.h2client import h2_client
from tests.integration.transport.support import serving, until


async def test_settings_say_the_windows_and_streams() -> None:
    async with serving() as (_, listener), h2_client(listener.port) as client:
        await client.reply(client.request("GET", "/"))
        settings = client.h2.remote_settings
        assert settings[SettingCodes.INITIAL_WINDOW_SIZE] == 1 << 20
        assert settings[SettingCodes.MAX_CONCURRENT_STREAMS] == 1024
        assert client.h2.outbound_flow_control_window == 4 << 20


async def test_requests_are_answered_with_their_bodies() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        first = await client.reply(client.request("POST", "/a?b=1", b"abc", ("content-type", "application/json")))
        assert (first.status, bytes(first.body)) == (200, b'{"path":"/a?b=1","bytes":3}')
        assert first.headers["content-length"] == str(len(first.body))
        assert "date" in first.headers
        head = app.seen[0].head
        assert (head.version, head.path, head.query, head.headers[b"host"]) == ("2", "/a", "b=1", b"here")
        empty = await client.reply(client.request("GET", "/none"))
        assert (empty.status, bytes(empty.body)) == (204, b"")
        no_body = await client.reply(client.request("HEAD", "/text?1"))
        assert (no_body.headers["content-length"], bytes(no_body.body)) == ("14", b"")
        assert app.in_flight == 0


async def test_streams_do_not_wait_for_each_other() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        slow = client.request("GET", "/wait?1")
        assert (await client.reply(client.request("GET", "/fast"))).status == 200
        app.gate.set()
        assert bytes((await client.reply(slow)).body) == b'"waited 1"'


async def test_a_thousand_requests_share_a_connection() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        await client.reply(client.request("GET", "/"))
        ids = [client.request("POST", f"/{number}", b"x") for number in range(1000)]
        for stream_id in ids:
            assert (await client.reply(stream_id)).status == 200
        assert len(app.seen) == 1001


async def test_large_answer_fits_through_tiny_windows() -> None:
    async with serving() as (_, listener), h2_client(listener.port, window=100) as client:
        await client.reply(client.request("GET", "/"))
        first = client.request("GET", "/large?5000")
        second = client.request("GET", "/large?3000")
        assert len((await client.reply(first)).body) == 5000
        assert len((await client.reply(second)).body) == 3000


async def test_answer_waits_while_the_window_is_shut() -> None:
    async with serving() as (_, listener), h2_client(listener.port, window=1000) as client:
        client.acknowledge = False
        await client.reply(client.request("GET", "/none"))
        stream_id = client.request("GET", "/large?2500")
        stream = client.streams[stream_id]
        await client.until(lambda: len(stream.body) == 1000)
        assert (await client.reply(client.request("GET", "/none"))).status == 204
        assert len(stream.body) == 1000
        client.acknowledge = True
        client.h2.acknowledge_received_data(stream.unacknowledged, stream_id)
        client.flush()
        assert len((await client.reply(stream_id)).body) == 2500


async def test_large_body_comes_through_the_servers_windows() -> None:
    async with (
        serving(h2_stream_window=65_535, h2_connection_window=65_535) as (app, listener),
        h2_client(listener.port) as client,
    ):
        body = bytes(range(256)) * 4000
        stream_id = client.start("POST", "/up", False)
        await client.send_body(stream_id, body)
        assert (await client.reply(stream_id)).status == 200
        assert app.seen[0].body == body


async def test_stream_answers_are_data_frames() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        stream = await client.reply(client.request("GET", "/count"))
        assert bytes(stream.body) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        assert stream.headers["cache-control"] == "no-store"
        assert app.in_flight == 0


async def test_stream_counts_what_the_window_holds_back() -> None:
    async with serving() as (app, listener), h2_client(listener.port, window=1000) as client:
        client.acknowledge = False
        await client.reply(client.request("GET", "/none"))
        stream_id = client.request("GET", "/forever")
        await until(lambda: app.sinks)
        sink = app.sinks[0]
        sink.write(b"x" * 500_000)
        assert sink.buffered > 498_000
        draining = asyncio.ensure_future(sink.drain())
        await client.until(lambda: len(client.streams[stream_id].body) == 1000)
        assert not draining.done()
        client.h2.increment_flow_control_window(1_000_000, stream_id)
        client.h2.increment_flow_control_window(1_000_000)
        client.flush()
        await draining
        await client.until(lambda: len(client.streams[stream_id].body) == 500_013)
        assert sink.buffered == 0
        sink.finish()
        assert (await client.reply(stream_id)).ended


async def test_cut_stream_is_reset() -> None:
    async with serving() as (_, listener), h2_client(listener.port) as client:
        stream = await client.reply(client.request("GET", "/cut"))
        assert (bytes(stream.body), stream.ended) == (b"data: 0\n\n", False)
        assert stream.reset == ErrorCodes.INTERNAL_ERROR


async def test_reset_by_the_client_cancels_handler_and_stream() -> None:
    async with serving(leave_s=0.1) as (app, listener), h2_client(listener.port) as client:
        waiting = client.request("GET", "/wait?1")
        streaming = client.request("GET", "/forever")
        await until(lambda: sorted(app.events) == ["start 1", "stream"])
        client.h2.reset_stream(waiting, ErrorCodes.CANCEL)
        client.h2.reset_stream(streaming, ErrorCodes.CANCEL)
        client.flush()
        await until(lambda: {"cancelled 1", "gone"} <= set(app.events))
        assert app.in_flight == 0
        assert (await client.reply(client.request("GET", "/none"))).status == 204


async def test_lost_connection_ends_every_stream() -> None:
    async with serving(leave_s=0.1) as (app, listener):
        async with h2_client(listener.port) as client:
            client.request("GET", "/wait?1")
            client.request("GET", "/forever")
            await until(lambda: sorted(app.events) == ["start 1", "stream"])
        await until(lambda: {"cancelled 1", "gone"} <= set(app.events))
        assert app.in_flight == 0


async def test_refused_requests_leave_the_connection_alone() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        refused = await client.reply(client.request("POST", "/forbidden", b"abc"))
        assert (refused.status, refused.reset) == (403, None)
        coded = await client.reply(client.request("POST", "/x", b"abc", ("content-encoding", "br")))
        assert coded.status == 415
        failed = await client.reply(client.request("GET", "/ws"))
        assert failed.status == 400
        assert app.in_flight == 0


async def test_body_over_the_limit_is_413_and_reset() -> None:
    async with serving() as (_, listener), h2_client(listener.port) as client:
        by_length = client.start("POST", "/small", False, ("content-length", "17"))
        by_size = client.start("POST", "/small", False)
        client.h2.send_data(by_size, b"x" * 17)
        client.flush()
        for stream_id in (by_length, by_size):
            stream = client.streams[stream_id]
            await client.until(lambda stream=stream: stream.reset is not None)
            assert (stream.status, stream.ended, stream.reset) == (413, True, ErrorCodes.NO_ERROR)
        assert (await client.reply(client.request("POST", "/small", b"x" * 16))).status == 200


async def test_continue_is_an_informational_answer() -> None:
    async with serving() as (_, listener), h2_client(listener.port) as client:
        stream_id = client.start("POST", "/e", False, ("expect", "100-continue"))
        await client.until(lambda: client.streams[stream_id].informational == [100])
        client.h2.send_data(stream_id, b"abc", end_stream=True)
        client.flush()
        assert bytes((await client.reply(stream_id)).body) == b'{"path":"/e","bytes":3}'


@pytest.mark.parametrize("path", ["/a<b", "/a>b", "/é"])
async def test_target_with_a_forbidden_byte_resets_its_stream(path: str) -> None:
    async with serving() as (_, listener), h2_client(listener.port) as client:
        refused = await client.reply(client.request("GET", path.encode().decode("latin-1")))
        assert (refused.reset, refused.status) == (ErrorCodes.PROTOCOL_ERROR, 0)
        assert (await client.reply(client.request("GET", "/"))).status == 200


async def test_rapid_resets_end_the_connection() -> None:
    async with serving(h2_resets_max=20) as (app, listener), h2_client(listener.port) as client:
        for _ in range(200):
            if client.closed or client.terminated is not None:
                break
            stream_id = client.request("GET", "/wait?1")
            client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            client.flush()
            await asyncio.sleep(0)
        await client.until(lambda: client.terminated is not None)
        assert client.terminated == ErrorCodes.ENHANCE_YOUR_CALM
        await until(lambda: app.in_flight == 0)


async def test_request_and_its_reset_in_one_packet_leave_the_others_alone() -> None:
    async with serving() as (app, listener), h2_client(listener.port) as client:
        await client.reply(client.request("GET", "/"))
        waiting = client.request("GET", "/wait?1")
        for path in ("/fast", "/count", "/forbidden", "/a<b"):
            stream_id = client.h2.get_next_available_stream_id()
            head = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "here")]
            client.h2.send_headers(stream_id, head, end_stream=path != "/a<b")
            client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        client.flush()
        app.gate.set()
        assert (await client.reply(waiting)).status == 200
        assert (await client.reply(client.request("GET", "/none"))).status == 204
        assert client.terminated is None
        assert app.in_flight == 0


async def test_flood_of_continuations_ends_the_connection() -> None:
    async with serving() as (_, listener), h2_client(listener.port) as client:
        await client.reply(client.request("GET", "/"))
        first = HeadersFrame(3)
        client.writer.write(first.serialize())
        for _ in range(100):
            client.writer.write(ContinuationFrame(3, b"").serialize())
        await client.until(lambda: client.terminated is not None)
        assert client.terminated != ErrorCodes.NO_ERROR


async def test_large_header_list_ends_the_connection() -> None:
    async with serving(head_bytes_max=4096) as (app, listener), h2_client(listener.port) as client:
        client.request("GET", "/", None, *((f"x-{number}", "v" * 100) for number in range(100)))
        await client.until(lambda: client.terminated is not None)
        assert not app.seen


async def test_nonsense_behind_the_preface_ends_the_connection() -> None:
    async with serving() as (_, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\4\0\0\0\0\0\0oops")
        answer = await reader.read()
        assert answer[-14] == 7, "the last frame is GOAWAY"
        writer.close()
        await writer.wait_closed()


async def test_preface_may_come_in_pieces() -> None:
    async with serving() as (_, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        frame = await reader.readexactly(9)
        assert frame[3] == 4, "the first frame is SETTINGS"
        writer.close()
        await writer.wait_closed()


async def test_slow_body_resets_its_stream() -> None:
    async with (
        serving(body_window_s=0.1, body_window_bytes=100) as (app, listener),
        h2_client(listener.port) as client,
    ):
        stream = await client.reply(client.start("POST", "/slow", False))
        assert stream.reset == ErrorCodes.CANCEL
        assert app.in_flight == 0


async def test_silent_peer_is_pinged_and_then_cut_off() -> None:
    async with serving(ping_s=0.1) as (_, listener):
        async with h2_client(listener.port) as client:
            await asyncio.sleep(0.4)
            assert not client.closed, "a client that answers pings stays"
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        writer.close()


async def test_idle_connection_is_told_to_go_away() -> None:
    async with serving(idle_timeout_s=0.1) as (_, listener), h2_client(listener.port) as client:
        await client.reply(client.request("GET", "/"))
        await client.until(lambda: client.closed)
        assert client.terminated == ErrorCodes.NO_ERROR


async def test_large_answers_are_not_made_for_a_peer_that_does_not_take_them() -> None:
    async with serving(h2_answers_max=3_000_000) as (app, listener), h2_client(listener.port) as client:
        await client.reply(client.request("GET", "/"))
        client.acknowledge = False
        ids = [client.request("GET", "/large?1000000") for _ in range(20)]
        ids.append(client.request("POST", "/last", b"x"))
        await client.until(lambda: len(app.seen) == 5)
        await asyncio.sleep(0.1)
        assert len(app.seen) == 5
        # One that nobody wants any more makes room for the next, and so does what is taken.
        for stream_id in ids[:2]:
            client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        client.flush()
        await client.until(lambda: len(app.seen) > 5)
        client.acknowledge = True
        client.h2.increment_flow_control_window(1 << 24)
        for stream_id in ids[2:]:
            if client.streams[stream_id].unacknowledged:
                client.h2.increment_flow_control_window(1 << 24, stream_id)
        client.flush()
        for stream_id in ids[2:-1]:
            assert len((await client.reply(stream_id)).body) == 1_000_000
        assert (await client.reply(ids[-1])).status == 200
        assert app.in_flight == 0
