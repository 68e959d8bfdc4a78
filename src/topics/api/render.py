"""Answers as bytes: the heads of HTTP/1 and the header lists of HTTP/2."""

from __future__ import annotations

from http import HTTPStatus

from topics.api.http import Head, Header, Response, Stream
from topics.api.ticker import Ticker

REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
# Answers to these carry no body and no length.
BODILESS = frozenset((204, 205, 304))
LARGE = 32 * 1024
"""What is this long costs more to be copied than to be written as a piece of its own."""
CLOSE = b"connection: close\r\n"
KEEP = b"connection: keep-alive\r\n"


def start_of(ticker: Ticker, status: int, content_type: bytes) -> bytes:
    """Status line, type and date of an HTTP/1.1 answer, up to the value of its content-length."""
    key = (status, content_type)
    start = ticker.heads.get(key)
    if start is None:
        kind = b"content-type: %b\r\n" % content_type if content_type else b""
        start = b"HTTP/1.1 %d %b\r\n%bdate: %b\r\ncontent-length: " % (
            status,
            REASONS.get(status, b"Unknown"),
            kind,
            ticker.date,
        )
        # Types come from our own handlers and are few; the bound only guards against a mistake there.
        if len(ticker.heads) < 256:
            ticker.heads[key] = start
    return start


def http1_response(ticker: Ticker, head: Head, answer: Response, keep_alive: bool) -> bytes:
    """The whole answer, to be written in one go."""
    body = answer.body
    if head.version == "1.1" and keep_alive and not answer.headers and answer.status not in BODILESS:
        start = start_of(ticker, answer.status, answer.content_type if body else b"")
        return b"%b%d\r\n\r\n%b" % (start, len(body), b"" if head.method == "HEAD" else body)
    lines = _first_lines(ticker, head, answer.status, answer.content_type if body else b"", answer.headers)
    if answer.status not in BODILESS:
        lines.append(b"content-length: %d\r\n" % len(body))
        if head.method != "HEAD":
            return b"".join((*lines, _connection(head, keep_alive), b"\r\n", body))
    return b"".join((*lines, _connection(head, keep_alive), b"\r\n"))


def http1_stream(ticker: Ticker, head: Head, answer: Stream, keep_alive: bool, chunked: bool) -> bytes:
    lines = _first_lines(ticker, head, answer.status, answer.content_type, answer.headers)
    if chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    return b"".join((*lines, _connection(head, keep_alive), b"\r\n"))


def _first_lines(ticker: Ticker, head: Head, status: int, content_type: bytes, headers: list[Header]) -> list[bytes]:
    lines = [b"HTTP/%b %d %b\r\n" % (head.version.encode("ascii"), status, REASONS.get(status, b"Unknown"))]
    if content_type:
        lines.append(b"content-type: %b\r\n" % content_type)
    lines.append(b"date: %b\r\n" % ticker.date)
    lines.extend(b"%b: %b\r\n" % (name, one_line(value)) for name, value in headers)
    return lines


def one_line(value: bytes) -> bytes:
    """A header value that cannot start another header, whatever a handler put into it."""
    if b"\n" in value or b"\r" in value:
        return value.replace(b"\r", b" ").replace(b"\n", b" ")
    return value


def _connection(head: Head, keep_alive: bool) -> bytes:
    if not keep_alive:
        return CLOSE
    return KEEP if head.version == "1.0" else b""


def http2_headers(ticker: Ticker, answer: Response | Stream) -> list[Header]:
    headers: list[Header] = [(b":status", b"%d" % answer.status)]
    if isinstance(answer, Stream):
        headers.append((b"content-type", answer.content_type))
    elif answer.status not in BODILESS:
        if answer.body:
            headers.append((b"content-type", answer.content_type))
        headers.append((b"content-length", b"%d" % len(answer.body)))
    headers.append((b"date", ticker.date))
    headers.extend((name.lower(), one_line(value)) for name, value in answer.headers)
    return headers
