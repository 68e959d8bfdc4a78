"""Calls that one connection sends without waiting take effect in the order it sent them, whatever each waits for."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.server.target import Target, read_rest

NAME = "pipelined"
ROUNDS = 5
"""A write is waited for, and so can be overtaken, only where the disk is busy or slow just then."""


@pytest.fixture
def topic(target: Target) -> Iterator[str]:
    yield NAME
    assert target.api.call("DELETE", f"/v0/topics/{NAME}").status == 200


def request(method: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{method} /v0/topics/{NAME} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def answers(target: Target, requests: list[bytes]) -> list[Any]:
    requests[-1] = requests[-1].replace(b"host: ", b"connection: close\r\nhost: ", 1)
    with target.connect() as wire:
        wire.sendall(b"".join(requests))
        rest = read_rest(wire)
    return [json.loads(part.partition(b"\r\n\r\n")[2]) for part in rest.split(b"HTTP/1.1 ")[1:]]


def test_appends_behind_the_one_that_makes_their_topic_keep_their_order(target: Target, topic: str) -> None:
    for _ in range(ROUNDS):
        told = answers(target, [request("POST", b'{"records":[{"data":%d}]}' % at) for at in range(12)])
        assert [answer["first_seq"] for answer in told] == list(range(1, 13))
        assert [record["data"] for record in target.api.diff(topic).json["records"]] == list(range(12))
        assert target.api.call("DELETE", f"/v0/topics/{topic}").status == 200


def test_an_append_is_not_overtaken_while_its_body_is_inflated(target: Target, topic: str) -> None:
    target.api.put(topic)
    bodies = [b'{"records":[{"data":"%b"}]}' % os.urandom(size).hex().encode() for size in (200_000, 10, 200_000)]
    requests = [request("POST", gzip.compress(body), "content-encoding: gzip") for body in bodies]
    told = answers(target, [*requests, request("POST", b'{"records":[{"data":1}]}')])
    assert [answer["first_seq"] for answer in told] == [1, 2, 3, 4]
