"""HTTP/1 without sockets: whatever the network makes of the bytes, the answers are the same."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.api.http import Admission, Head, Request, Response
from topics.api.options import TransportOptions
from topics.api.protocol import Connection, Shared
from topics.api.ticker import Ticker
from topics.testing.clock import FakeClock

PIPELINE = b"".join(
    (
        b"GET /a?x=1 HTTP/1.1\r\nhost: here\r\n\r\n",
        b"POST /b HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\n\r\nhello",
        b"POST /c HTTP/1.1\r\nHOST: here\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
        b"POST /d HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi",
        b"POST /large HTTP/1.1\r\nhost: here\r\ncontent-length: 3\r\n\r\nno!",
        b"HEAD /e HTTP/1.1\r\nhost: here\r\n\r\n",
        b"POST /b HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: 1\r\n\r\n!",
        b"GET /never HTTP/1.1\r\nhost: here\r\n\r\n",
    )
)


class MirrorApp:
    def begin(self, head: Head) -> Admission | Response:
        return Response(403, b"no") if head.path == "/large" else Admission(None, 100)

    def handle(self, request: Request) -> Response:
        return Response(200, b"%b %b" % (request.head.target, request.body))

    def express(self, head: Head, admission: Admission, answer_max: int | None) -> None:
        return None

    def too_large(self, head: Head) -> Response:
        return Response(413)

    def unsupported_encoding(self, head: Head) -> Response:
        return Response(415)

    def bad_request(self, why: str) -> Response:
        return Response(400)


class FakeTransport:
    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str) -> None: ...


def a_listener() -> Shared:
    return Shared(MirrorApp(), TransportOptions(), Ticker(FakeClock(0)), secure=False)


async def answers_to(pieces: list[bytes], shared: Shared | None = None) -> bytes:
    shared = shared if shared is not None else a_listener()
    connection = Connection(shared)
    transport = FakeTransport()
    connection.connection_made(cast(asyncio.BaseTransport, transport))
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    return transport.written


def posted(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST %b HTTP/1.1" % path, b"host: here", b"content-length: %d" % len(body), *headers, b"", body)
    return b"\r\n".join(lines)


# Heads that come again with other bodies, and everything that could be taken for one of them.
REPEATED = (
    posted(b"/a", b"one"),
    posted(b"/a", b"two"),
    posted(b"/a", b"four"),
    posted(b"/a", b""),
    posted(b"/a", b"\r\n\r\n"),
    posted(b"/a", posted(b"/a", b"one")),
    posted(b"/a", b"x" * 101),
    posted(b"/large", b"one"),
    posted(b"/a", b"one", b"x: " + b"y" * 1100),
    posted(b"/a", b"two", b"x: " + b"y" * 1100),
    posted(b"/a", b"one", b"expect: 100-continue"),
    posted(b"/a", b"one", b"upgrade: h2c", b"connection: upgrade"),
    b"\r\n" + posted(b"/a", b"one"),
    b"GET /a HTTP/1.1\r\nhost: here\r\n\r\n",
    b"HEAD /a HTTP/1.1\r\nhost: here\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
    b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if end > start]


class LargeApp(MirrorApp):
    """Bodies as long as the paths say."""

    def handle(self, request: Request) -> Response:
        return Response(200, b"x" * int(request.head.path[1:]))


def test_large_answers_keep_their_place_among_small_ones() -> None:
    sizes = [1, 32 * 1024 - 1, 32 * 1024, 200_000, 2, 100_000]
    sent = b"".join(b"GET /%d HTTP/1.1\r\nhost: here\r\n\r\n" % size for size in sizes)
    shared = Shared(LargeApp(), TransportOptions(), Ticker(FakeClock(0)), secure=False)
    for pieces in ([sent], [request + b"\r\n\r\n" for request in sent.split(b"\r\n\r\n") if request]):
        written = asyncio.run(answers_to(pieces, shared))
        bodies = [part.partition(b"\r\n\r\n")[2] for part in written.split(b"HTTP/1.1 ")[1:]]
        assert [len(body) for body in bodies] == sizes


def test_pipeline_is_answered_as_a_whole() -> None:
    written = asyncio.run(answers_to([PIPELINE]))
    bodies = [part.partition(b"\r\n\r\n")[2] for part in written.split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b"/a?x=1 ", b"/b hello", b"/c abcd", b"/d hi", b"no", b"", b"/b !"]


class RoomyApp(MirrorApp):
    def begin(self, head: Head) -> Admission | Response:
        return Admission(None, 1 << 20)


def statuses_of(pieces: list[bytes]) -> list[int]:
    shared = Shared(RoomyApp(), TransportOptions(), Ticker(FakeClock(0)), secure=False)
    written = asyncio.run(answers_to(pieces, shared))
    return [int(part[2:5]) for part in written.split(b"HTTP/1.")[1:]]


@pytest.mark.parametrize("into", [1, 20, 60])
def test_body_in_front_of_a_head_that_comes_in_pieces_is_no_part_of_it(into: int) -> None:
    second = posted(b"/b", b"x" * 10, b"x: " + b"y" * 1000)
    for size in (TransportOptions().head_bytes_max - 150, 300_000):
        first = posted(b"/a", b"x" * size)
        assert statuses_of([first + second[:into], second[into:1000], second[1000:]]) == [200, 200]


def test_large_head_behind_a_body_is_refused_however_it_is_cut() -> None:
    most = TransportOptions().head_bytes_max
    body, large = posted(b"/a", b"x" * 100), posted(b"/b", b"", b"x: " + b"y" * most)
    for cut in (len(body) + 1, len(body) + 1000, most, most + 50):
        whole = body + large
        assert statuses_of([whole[:cut], whole[cut:]]) == [200, 431]


@given(st.lists(st.tuples(st.sampled_from(REPEATED), st.integers(1, 400)), min_size=1, max_size=20))
def test_heads_seen_before_are_read_as_the_first_time(requests: list[tuple[bytes, int]]) -> None:
    whole = b"".join(request for request, _ in requests)
    pieces = [piece for request, place in requests for piece in (request[:place], request[place:]) if piece]
    shared = a_listener()
    # Byte by byte no head comes in one piece, so that each is parsed.
    expected = asyncio.run(answers_to([bytes((byte,)) for byte in whole]))
    plain = expected.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    for _ in range(2):
        for way in ([request for request, _ in requests], pieces, [whole]):
            written = asyncio.run(answers_to(way, shared))
            assert written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"") == plain


@given(st.lists(st.integers(0, len(PIPELINE)), max_size=12))
def test_answers_do_not_depend_on_where_the_input_was_cut(places: list[int]) -> None:
    written = asyncio.run(answers_to(cut(PIPELINE, places)))
    # Whether the body came before it could be asked for is the only thing the cuts may change.
    assert written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"") == asyncio.run(answers_to([PIPELINE]))


@example([355], b"!", [])  # a refusal behind an upgrade that was ignored
@example([0, 0, 0, 140], b" \x00A", [])  # one behind a method that nobody knows
@given(
    st.lists(st.integers(0, len(PIPELINE) - 1), min_size=1, max_size=8),
    st.binary(min_size=1, max_size=8),
    st.lists(st.integers(0, len(PIPELINE)), max_size=4),
)
def test_damaged_input_is_answered_or_refused_but_never_raises(
    spots: list[int], damage: bytes, places: list[int]
) -> None:
    data = bytearray(PIPELINE)
    for spot, byte in zip(spots, damage * len(spots), strict=False):
        data[spot] = byte
    written = asyncio.run(answers_to(cut(bytes(data), places)))
    assert written == b"" or written.startswith(b"HTTP/1.")


@given(st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=5))
def test_noise_never_raises(pieces: list[bytes]) -> None:
    asyncio.run(answers_to(pieces))


@given(st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=5))
def test_noise_behind_the_http2_preface_never_raises(pieces: list[bytes]) -> None:
    asyncio.run(answers_to([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *pieces]))
