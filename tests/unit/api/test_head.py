"""Targets and upgrades, as the HTTP/1 side reads them."""

from __future__ import annotations

import pytest

from topics.api.head import is_websocket, split_target, without_upgrade
from topics.api.options import TransportOptions


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/a%2Fb?x=1?y=%3E", "/a%2Fb", "x=1?y=%3E"),
        (b"/a?", "/a", ""),
        (b"/a#b?c", "/a", ""),
        (b"//a", "//a", ""),
        (b"*", "*", ""),
        (b"http://here:80/a?b=1", "/a", "b=1"),
        (b"http://here", "/", ""),
        (b"/http://here", "/http://here", ""),
    ],
)
def test_target_is_split_as_sent(target: bytes, path: str, query: str) -> None:
    assert split_target(target) == (path, query)


@pytest.mark.parametrize(
    ("method", "version", "extra", "expected"),
    [
        ("GET", "1.1", {}, True),
        ("GET", "1.1", {b"upgrade": b"WebSocket"}, True),
        ("GET", "1.1", {b"content-length": b"0"}, True),
        ("POST", "1.1", {}, False),
        ("GET", "1.0", {}, False),
        ("GET", "1.1", {b"upgrade": b"h2c"}, False),
        ("GET", "1.1", {b"upgrade": b"websocket, h2c"}, False),
        ("GET", "1.1", {b"content-length": b"1"}, False),
        ("GET", "1.1", {b"transfer-encoding": b"chunked"}, False),
    ],
)
def test_only_a_bodiless_get_becomes_a_websocket(
    method: str, version: str, extra: dict[bytes, bytes], expected: bool
) -> None:
    assert is_websocket(method, version, {b"upgrade": b"websocket", **extra}) is expected


def test_head_without_its_upgrade_keeps_the_rest() -> None:
    headers = {
        b"host": b"here",
        b"connection": b"Upgrade, HTTP2-Settings, close",
        b"upgrade": b"h2c",
        b"http2-settings": b"AAMA",
        b"content-length": b"3",
    }
    assert without_upgrade("POST", b"/a", "1.1", headers) == (
        b"POST /a HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: 3\r\n\r\n"
    )


def test_options_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="pipeline_max must be greater than 0"):
        TransportOptions(pipeline_max=0)
    with pytest.raises(ValueError, match="h2_connection_window"):
        TransportOptions(h2_connection_window=1000)


def test_clock_ticks_often_enough_for_the_shortest_time() -> None:
    assert TransportOptions(header_timeout_s=0.5).tick_s == pytest.approx(0.1)
    assert TransportOptions(leave_s=0.001).tick_s == pytest.approx(0.02)
    assert TransportOptions().tick_s <= 1.0
