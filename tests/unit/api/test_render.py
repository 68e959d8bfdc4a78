"""Heads of answers, byte for byte."""

from __future__ import annotations

import pytest

from topics.api.http import Head, Response, Stream
from topics.api.render import http1_response, http1_stream, http2_headers
from topics.api.ticker import Ticker
from topics.testing.clock import FakeClock

DATE = b"Sun, 09 Sep 2001 01:46:40 GMT"


def a_ticker() -> Ticker:
    return Ticker(FakeClock(1_000_000_000_000))


def a_head(method: str = "GET", version: str = "1.1") -> Head:
    return Head(method, b"/", "/", "", {}, version, "", False, 0)


async def nothing(sink: object) -> None: ...


def test_plain_answer_is_exactly_these_bytes() -> None:
    answer = http1_response(a_ticker(), a_head(), Response(200, b"{}"), keep_alive=True)
    assert answer == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ndate: " + DATE + b"\r\ncontent-length: 2\r\n\r\n{}"
    )


def test_empty_answer_has_a_length_and_no_type() -> None:
    answer = http1_response(a_ticker(), a_head(), Response(400), keep_alive=False)
    assert answer == (
        b"HTTP/1.1 400 Bad Request\r\ndate: " + DATE + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )


@pytest.mark.parametrize("status", [204, 304])
def test_answer_without_content_has_no_length(status: int) -> None:
    answer = http1_response(a_ticker(), a_head(), Response(status, headers=[(b"etag", b'"1"')]), keep_alive=True)
    assert b"content-length" not in answer
    assert b'etag: "1"\r\n' in answer


@pytest.mark.parametrize(
    ("version", "keep_alive", "line"),
    [
        ("1.0", True, b"connection: keep-alive\r\n"),
        ("1.0", False, b"connection: close\r\n"),
        ("1.1", False, b"connection: close\r\n"),
    ],
)
def test_connection_header_is_said_where_it_matters(version: str, keep_alive: bool, line: bytes) -> None:
    answer = http1_response(a_ticker(), a_head(version=version), Response(200, b"x"), keep_alive)
    assert answer.startswith(b"HTTP/" + version.encode())
    assert line in answer
    assert answer.endswith(b"\r\n\r\nx")


def test_unknown_status_still_has_a_reason() -> None:
    assert b"HTTP/1.1 299 Unknown\r\n" in http1_response(a_ticker(), a_head(), Response(299, b"x"), keep_alive=True)


def test_stream_head_is_chunked_for_1_1_only() -> None:
    stream = Stream(200, b"text/event-stream", nothing)
    chunked = http1_stream(a_ticker(), a_head(), stream, True, True)
    assert b"transfer-encoding: chunked\r\n" in chunked
    assert b"content-length" not in chunked
    bare = http1_stream(a_ticker(), a_head(version="1.0"), stream, False, False)
    assert b"transfer-encoding" not in bare


def test_http2_headers_are_in_small_letters() -> None:
    headers = http2_headers(a_ticker(), Response(200, b"{}", headers=[(b"Retry-After", b"1\r\n")]))
    assert headers == [
        (b":status", b"200"),
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"date", DATE),
        (b"retry-after", b"1  "),
    ]


def test_date_follows_the_clock_by_the_second() -> None:
    clock = FakeClock(1_000_000_000_000)
    ticker = Ticker(clock)
    first = http1_response(ticker, a_head(), Response(200, b"{}"), keep_alive=True)
    clock.advance(999)
    ticker.tick()
    assert http1_response(ticker, a_head(), Response(200, b"{}"), keep_alive=True) == first
    clock.advance(1)
    ticker.tick()
    assert b"01:46:41 GMT" in http1_response(ticker, a_head(), Response(200, b"{}"), keep_alive=True)
