"""Bodies in pieces: what they take of memory while they come, and what they are in the end."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.api.test_http1 import MirrorApp, answers_to
from topics.api.bodies import PIECE_BYTES, Pieces, add_piece, joined
from topics.api.http import Admission, Head, Request, Response
from topics.api.options import TransportOptions
from topics.api.protocol import Shared
from topics.api.ticker import Ticker
from topics.testing.clock import FakeClock

SIZE = 600_000


def held(pieces: Pieces) -> int:
    return sys.getsizeof(pieces) + sum(map(sys.getsizeof, pieces))


@given(st.lists(st.integers(0, 3000).map(lambda size: size.to_bytes(2, "big") * (size // 2)), max_size=30))
def test_body_is_what_came_however_it_was_cut(cuts: list[bytes]) -> None:
    pieces: Pieces = []
    for piece in cuts:
        add_piece(pieces, piece)
    assert joined(pieces) == b"".join(cuts)
    assert type(joined(pieces)) is bytes


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (PIECE_BYTES,), (PIECE_BYTES, 1), (0,)])
def test_small_pieces_take_hardly_more_than_their_bytes(sizes: tuple[int, ...]) -> None:
    pieces: Pieces = []
    for number in range(10_000):
        add_piece(pieces, b"x" * sizes[number % len(sizes)])
    whole = sum(map(len, pieces))
    assert held(pieces) < 1.3 * whole + 500


def test_body_of_one_piece_is_not_copied() -> None:
    pieces: Pieces = []
    piece = b"x" * 10
    add_piece(pieces, piece)
    assert joined(pieces) is piece


class MeasuringApp(MirrorApp):
    peak = 0

    def begin(self, head: Head) -> Admission | Response:
        tracemalloc.start()
        return Admission(None, SIZE)

    def handle(self, request: Request) -> Response:
        self.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert request.body == b"ab" * (SIZE // 2)
        return Response(200)


def test_body_in_tiny_chunks_is_no_larger_in_memory_than_one_in_large_ones() -> None:
    head = b"POST /a HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
    app = MeasuringApp()
    shared = Shared(app, TransportOptions(), Ticker(FakeClock(0)), secure=False)
    chunks = [b"2\r\nab\r\n" * 1000 for _ in range(SIZE // 2000)]
    assert b" 200 " in asyncio.run(answers_to([head, *chunks, b"0\r\n\r\n"], shared))
    assert app.peak < 3 * SIZE
