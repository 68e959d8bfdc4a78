"""Answers to appends: both twins write the same bytes, and those bytes are JSON."""

from __future__ import annotations

from types import ModuleType

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import assert_same, needs_kernel

numbers = st.integers(0, 1 << 63)
names = st.text("abc-/._", max_size=20).map(str.encode)


@needs_kernel
@given(
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\ncontent-length: "]),
    names,
    numbers,
    st.integers(1, 50),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    numbers,
    numbers,
)
def test_twins_render_the_same_answer(
    start: bytes,
    topic: bytes,
    first: int,
    count: int,
    seqs: bool,
    created: bool,
    deduped: bool,
    synced: bool,
    waited_ns: int,
    total_ns: int,
) -> None:
    assert_same("render_ack", start, topic, first, count, seqs, created, deduped, synced, waited_ns, total_ns)


def test_answer_is_json_behind_its_length(ops: ModuleType) -> None:
    start = b"HTTP/1.1 200 OK\r\ncontent-length: "
    answer = ops.render_ack(start, b"a/b", 7, 3, True, False, False, True, 1_500_000, 2_000_001)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head == start + b"%d" % len(body)
    assert msgspec.json.decode(body) == {
        "topic": "a/b",
        "first_seq": 7,
        "last_seq": 9,
        "seqs": [7, 8, 9],
        "head_seq": 9,
        "count": 3,
        "created": False,
        "deduped": False,
        "performance": {"server_total_ms": 2.000001, "wal_append_ms": 0.0, "fsync_ms": 1.5},
    }


def test_answer_without_seqs_and_of_a_repeated_append_says_less(ops: ModuleType) -> None:
    body = ops.render_ack(b"", b"t", 1, 2, False, True, True, False, 5, 1000)
    assert body == (
        b'{"topic":"t","first_seq":1,"last_seq":2,"head_seq":2,"count":2,"created":true,"deduped":true,'
        b'"performance":{"server_total_ms":0.001000}}'
    )
