"""Bytes on real sockets that are wrong on purpose: smuggling, bad chunks, bombs, slow and absurd clients. The server
refuses, lives on, and nothing of it reaches the data."""

from __future__ import annotations

import io
import socket
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from tests.contract.http.client import JSON
from tests.integration.server.target import KEPT, Target, read_rest, statuses
from tests.integration.transport.test_hostile import MISREAD

MIB = 1 << 20
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
APPEND = b'{"records":[{"data":"smuggled"}]}'
HOST = b"host: 127.0.0.1\r\n"


def post(body: bytes, *headers: bytes, length: bool = True) -> bytes:
    lines = [b"POST /v0/topics/kept HTTP/1.1", HOST[:-2], b"content-type: application/json", *headers]
    if length:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


SMUGGLED = post(APPEND)
CHUNKED = b"transfer-encoding: chunked"


@pytest.mark.parametrize("data", MISREAD.values(), ids=MISREAD)
def test_misreadable_request_hides_no_append(target: Target, data: bytes) -> None:
    sent = data.replace(b"POST /s ", b"POST /v0/topics/kept ").replace(b"host: here\r\n", HOST)
    assert statuses(target.raw(sent + SMUGGLED)) == [400]


HIDDEN: dict[str, bytes] = {
    "behind a body that is shorter than said": post(b"0\r\n\r\n" + SMUGGLED, CHUNKED),
    "behind a chunk of size 0 with a trailer": post(b"0\r\nx: y\r\nhost: z\r\n" + SMUGGLED, CHUNKED, length=False)[:-1],
    "in a chunk extension": post(b"0;" + SMUGGLED.replace(b"\r\n", b" ") + b"\r\n\r", CHUNKED, length=False),
    "behind a length with a plus": post(b"", b"content-length: +0", length=False) + SMUGGLED,
    "behind two lengths": post(b"", b"content-length: 0", b"content-length: 5", length=False) + SMUGGLED,
    "behind a length with a comment": post(b"", b"content-length: 0;x", length=False) + SMUGGLED,
    "behind a tab in the coding's name": post(b"0\r\n\r\n", b"transfer-encoding\t: chunked") + SMUGGLED,
    "in a header value": b"GET /v0/health HTTP/1.1\r\nhost: 127.0.0.1\r\nx: y\n\n" + SMUGGLED,
    "in the target": b"GET /v0/health\r\n\r\n" + SMUGGLED,
    "behind a space before the version": b"GET /v0/health  HTTP/1.1\r\nx\r\n" + HOST + b"\r\n" + SMUGGLED,
}


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_hidden_append_is_never_done(target: Target, data: bytes) -> None:
    found = statuses(target.raw(data))
    assert all(400 <= status < 500 for status in found), found


@pytest.mark.parametrize("cut", [1, 20, 60, 100, 130])
def test_request_that_breaks_off_is_not_done(target: Target, cut: int) -> None:
    assert all(status >= 400 for status in statuses(target.raw(SMUGGLED[:cut])))


def test_chunks_that_break_off_are_not_done(target: Target) -> None:
    whole = post(b"%x\r\n" % len(APPEND) + APPEND + b"\r\n0\r\n\r\n", CHUNKED, length=False)
    for cut in range(len(whole) - 9, len(whole)):
        assert all(status >= 400 for status in statuses(target.raw(whole[:cut]))), whole[:cut]


# -- too much ----------------------------------------------------------------------------------------------------------


def zeros(coding: str, mebibytes: int) -> bytes:
    packer: Any = zlib.compressobj(1, wbits=31) if coding == "gzip" else zstandard.ZstdCompressor().compressobj()
    return b"".join([*(packer.compress(b"0" * MIB) for _ in range(mebibytes)), packer.flush()])


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize(("mebibytes", "times"), [(256, 1), (4, 40)], ids=["one piece", "many pieces"])
def test_body_that_inflates_without_end_is_refused_and_holds_little_memory(
    target: Target, coding: str, mebibytes: int, times: int
) -> None:
    headers = {**JSON, "content-encoding": coding}
    reply = target.api.call("POST", f"/v0/topics/{KEPT}", zeros(coding, mebibytes) * times, headers)
    assert reply.status == 413 if times == 1 else reply.status in (400, 413)
    assert target.memory_peak() < 500 * MIB


FLOODS: dict[str, tuple[str, str, bytes]] = {
    "ignored field": ("POST", "", b'{"records":[],"x":[%b1]}'),
    "behind an escaped name": ("POST", "", b'{"records":[{"data":1,"t\\u0061g":"x"}],"x":[%b1]}'),
    "behind a repeated field": ("POST", "", b'{"records":[{"data":1,"tag":"x","tag":"x"}],"x":[%b1]}'),
    "beside a bad config": ("POST", "", b'{"records":[{"data":1}],"config":{"ttl_ms":"x"},"x":[%b1]}'),
    "beside a config that repeats": (
        "POST", "", b'{"records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":1},"x":[%b1]}'),
    "patch": ("PATCH", "", b'{"ttl_ms":-1,"x":[%b1]}'),
    "diff": ("POST", "/diff", b'{"l\\u0069mit":-1,"x":[%b1]}'),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOODS)
def test_millions_of_tiny_values_do_not_become_objects(target: Target, name: str) -> None:
    method, path, body = FLOODS[name]
    reply = target.api.call(method, f"/v0/topics/{KEPT}{path}", body % (b"{}," * (10 * MIB)), JSON)
    assert reply.problem == (400, "invalid_request")
    assert target.memory_peak() < 500 * MIB


def test_window_of_gigabytes_is_not_allocated(target: Target) -> None:
    """A zstd frame of ten bytes may ask for a window of 2 GiB."""
    magic, no_size, window = b"\x28\xb5\x2f\xfd", b"\x00", bytes([21 << 3])
    frame = magic + no_size + window + ((2 << 3) | 1).to_bytes(3, "little") + b"{}"
    reply = target.api.call("POST", f"/v0/topics/{KEPT}", frame, {**JSON, "content-encoding": "zstd"})
    assert reply.status in (400, 413)
    assert target.memory_peak() < 500 * MIB


def arrow(table: Any, **options: Any) -> bytes:
    with io.BytesIO() as file:
        with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table)
        return file.getvalue()


def columns(*pairs: tuple[str, Any]) -> Any:
    return pa.Table.from_arrays([array for _, array in pairs], names=[name for name, _ in pairs])


def endless() -> Any:
    """Nulls take no bytes, however many."""
    return pa.nulls(2**31 - 2)


def one(value: Any) -> Any:
    return columns(("data", pa.array([value])))


ARROWS: dict[str, tuple[Callable[[], Any], int, str]] = {
    "one value for all rows": (
        lambda: columns(("data", pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * MIB]))),
        400, "invalid_request"),
    "one run for all rows": (
        lambda: columns(("data", pa.RunEndEncodedArray.from_arrays([100_000], ["x" * MIB]))), 400, "invalid_request"),
    "one view": (lambda: columns(("data", pa.array(["x" * 100], pa.string_view()))), 400, "invalid_request"),
    "list of nulls": (
        lambda: columns(("data", pa.ListArray.from_arrays([0, 2**31 - 2], endless()))), 400, "batch_too_large"),
    "fixed list of nulls": (
        lambda: columns(("data", pa.FixedSizeListArray.from_arrays(endless(), 2**31 - 2))), 400, "batch_too_large"),
    "too many rows": (lambda: columns(("data", pa.nulls(100_001))), 400, "batch_too_large"),
    "no rows": (lambda: columns(("data", pa.array([], pa.string()))), 400, "invalid_request"),
    "no data": (lambda: columns(("tag", pa.array(["x"]))), 400, "invalid_request"),
    "data twice": (
        lambda: columns(("data", pa.array(["1"])), ("data", pa.array(["2"]))), 400, "invalid_request"),
    "tag twice": (
        lambda: columns(("data", pa.array(["1"])), ("tag", pa.array(["a"])), ("tag", pa.array(["b"]))),
        400, "invalid_request"),
    "tag as a number": (lambda: columns(("data", pa.array(["1"])), ("tag", pa.array([1]))), 400, "invalid_request"),
    "delay on a log": (
        lambda: columns(("data", pa.array(["1"])), ("delay_ms", pa.array([5]))), 400, "invalid_request"),
    "not a number": (lambda: one(float("nan")), 400, "invalid_request"),
    "time beyond all calendars": (
        lambda: columns(("data", pa.array([2**62], pa.timestamp("s")))), 400, "invalid_request"),
    "text that is not JSON": (lambda: one("{"), 400, "invalid_request"),
    "struct with one name twice": (
        lambda: columns(("data", pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))),
        400, "invalid_request"),
}  # fmt: skip


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("name", ["data", "more"])
def test_arrow_stream_that_inflates_without_end_is_413(target: Target, name: str, compression: str) -> None:
    large = pa.array(["0" * (70 * MIB)])
    table = columns(("data", large)) if name == "data" else columns(("data", pa.array(["1"])), (name, large))
    reply = target.api.call("POST", f"/v0/topics/{KEPT}", arrow(table, compression=compression), ARROW)
    assert reply.problem == (413, "payload_too_large")
    assert target.memory_peak() < 500 * MIB


@pytest.mark.parametrize("name", ARROWS)
def test_arrow_stream_that_asks_too_much_is_refused(target: Target, name: str) -> None:
    make, status, code = ARROWS[name]
    reply = target.api.call("POST", f"/v0/topics/{KEPT}", arrow(make()), ARROW)
    assert reply.problem == (status, code)
    assert target.memory_peak() < 500 * MIB


def test_arrow_stream_with_any_byte_turned_is_refused_or_taken_and_never_a_fault(target: Target) -> None:
    good = arrow(columns(("data", pa.array(["1", '{"a":2}'])), ("tag", pa.array(["a", None]))))
    packed = arrow(columns(("data", pa.array(["1"] * 300))), compression="lz4")
    for whole in (good, packed):
        for at in range(0, len(whole), 5):
            turned = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
            reply = target.api.call("POST", "/v0/topics/turned", turned, ARROW)
            assert reply.status < 500, (at, reply.body)
        assert target.api.call("POST", "/v0/topics/turned", whole[: len(whole) * 2 // 3], ARROW).status == 400
    target.api.call("DELETE", "/v0/topics/turned")


def test_compressed_arrow_of_honest_size_is_taken(target: Target) -> None:
    for compression in ("zstd", "lz4"):
        body = arrow(columns(("data", pa.array([str(n) for n in range(1000)]))), compression=compression)
        assert target.api.call("POST", "/v0/topics/honest", body, ARROW).json["count"] == 1000
    target.api.call("DELETE", "/v0/topics/honest")


def test_absurd_heads_are_refused(target: Target) -> None:
    start = b"GET /v0/health HTTP/1.1\r\n" + HOST
    for head in (
        start + b"".join(b"x-%d: 1\r\n" % n for n in range(5000)),
        start + b"x: " + b"y" * 200_000 + b"\r\n",
        start + b"y" * 200_000 + b": x\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + HOST,
        start + b"x: y\r\n" * 50_000,
        start + b"cookie: " + b"a=b; " * 50_000 + b"\r\n",
    ):
        assert statuses(target.raw(head + b"\r\n"))[:1] in ([431], [400])
    huge = (
        b"POST /v0/topics/kept HTTP/1.1\r\n"
        + HOST
        + b"content-type: application/json\r\ncontent-length: 99999999999\r\n\r\n"
    )
    assert statuses(target.raw(huge + b"{" * 10)) == [413]


# -- too slow ----------------------------------------------------------------------------------------------------------


def test_clients_that_never_go_on_hold_nobody_up(target: Target) -> None:
    with ExitStack() as stack:
        halves = (
            b"GET /v0/hea",
            SMUGGLED[:60],
            SMUGGLED[:-5],
            post(b"5\r\n{", CHUNKED, length=False),
            b"PRI * HTTP/2.0\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 100)[1:] + b"\x01\x04\x00\x00\x00\x01",
        )
        for number in range(120):
            stack.enter_context(target.connect()).sendall(halves[number % len(halves)])
        for _ in range(20):
            started = time.monotonic()
            assert target.api.call("GET", "/v0/health").status == 200
            assert target.api.diff(KEPT).json["head_seq"] == 3
            assert time.monotonic() - started < 2


def test_body_in_single_bytes_is_taken_at_its_end(target: Target) -> None:
    request = post(b'{"records":[{"data":1}]}').replace(b"/v0/topics/kept", b"/v0/topics/slow")
    with target.connect() as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(request)):
            wire.sendall(request[at : at + 1])
            time.sleep(0.001)
        assert wire.recv(100).startswith(b"HTTP/1.1 201 ")
    target.api.call("DELETE", "/v0/topics/slow")


def test_client_that_takes_no_answers_holds_nobody_up(target: Target) -> None:
    with target.connect() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.setblocking(False)
        request = b"GET /v0/metrics HTTP/1.1\r\n" + HOST + b"\r\n"
        try:
            for _ in range(20_000):
                wire.send(request)
        except BlockingIOError:
            pass
        for _ in range(10):
            assert target.api.call("GET", "/v0/health").status == 200
    assert target.memory_peak() < 500 * MIB


def test_pipelined_requests_behind_a_refused_one_are_answered_in_order(target: Target) -> None:
    bad = post(b"{")
    health = b"GET /v0/health HTTP/1.1\r\n" + HOST + b"\r\n"
    with target.connect() as wire:
        wire.sendall(health + bad + health + bad + health)
        wire.shutdown(socket.SHUT_WR)
        assert statuses(read_rest(wire)) == [200, 400, 200, 400, 200]
