"""What the head of an HTTP/1 request says and asks for, apart from its parsing."""

from __future__ import annotations

import re

import httptools

# A token at the very start of a request, where its method stands.
METHOD = re.compile(rb"(?:\r\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]+) ")
UNANSWERED = b"PURGE"
"""A method that the parser knows and no path takes."""


def size_of_head(target: bytes, headers: dict[bytes, bytes]) -> int:
    """About what it had on the wire."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers.items())


def split_target(target: bytes) -> tuple[str, str]:
    """Path and query of a request target, in origin or absolute form; a fragment has no business there."""
    text = target.decode("ascii")
    if text[:1] == "/" and "?" not in text and "#" not in text:
        return text, ""
    if text[:1] != "/" and "://" in text:
        text = "/" + text.split("://", 1)[1].partition("/")[2]
    if "#" in text:
        text = text.partition("#")[0]
    path, _, query = text.partition("?")
    return path, query


def with_other_method(data: bytes) -> bytes | None:
    """Input that starts with a request, under a method that is sure to be refused as the one it has; None if the parser
    knows that one."""
    found = METHOD.match(data)
    if found is None:
        return None
    try:
        httptools.HttpRequestParser(object()).feed_data(found[1] + b" ")
    except httptools.HttpParserInvalidMethodError:
        return UNANSWERED + data[found.end(1) :]
    return None


def is_websocket(method: str, version: str, headers: dict[bytes, bytes]) -> bool:
    return (
        method == "GET"
        and version == "1.1"
        and headers[b"upgrade"].strip().lower() == b"websocket"
        and headers.get(b"content-length", b"0") == b"0"
        and b"transfer-encoding" not in headers
    )


def without_upgrade(method: str, target: bytes, version: str, headers: dict[bytes, bytes]) -> bytes:
    """The head again, as if the client had not offered another protocol."""
    lines = [b"%b %b HTTP/%b\r\n" % (method.encode("ascii"), target, version.encode("ascii"))]
    for name, value in headers.items():
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in (b"upgrade", b"http2-settings"))
        if name not in (b"upgrade", b"http2-settings"):
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))
