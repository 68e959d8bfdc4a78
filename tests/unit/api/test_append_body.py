"""The quick way through an append's body gives what the slow way gives, or nothing."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import damaged, json_values, names, needs_kernel
from topics.api.append import read_body
from topics.api.wire import AppendIn, decode
from topics.format.ops import Gather, prepare, prepare_body, reference
from topics.format.prepared import Prepared
from topics.format.segment import ENTRY
from topics.model import limits
from topics.model.errors import TopicsError

pytestmark = needs_kernel


def slow(text: bytes) -> Prepared | None:
    """What the slow way makes of a body, None if it refuses it."""
    try:
        body, checked = decode(text, AppendIn)
        if not body.records or len(body.records) > limits.RECORDS_PER_APPEND:
            return None
        return prepare(body.records, default_node=body.node, checked=checked, strict_fields=False)  # type: ignore[arg-type]
    except TopicsError:
        return None


def assert_agrees(text: bytes) -> bool:
    """Whether the quick way took it; if so, with the same bytes."""
    quick = prepare_body(text, limits.RECORDS_PER_APPEND)
    if quick is None:
        return False
    try:
        body, _, batch = read_body(text, AppendIn)
    except TopicsError:
        assert slow(text) is None
        return True
    expected = slow(text)
    assert expected is not None
    if batch is not None:
        for name in Prepared.__slots__:
            assert getattr(batch, name) == getattr(expected, name), name
        assert body.records == []
    return True


records = st.fixed_dictionaries(
    {"data": json_values}, optional={"tag": names, "node": names, "key": names, "meta": json_values}
)
bodies = st.fixed_dictionaries(
    {"records": st.lists(records, min_size=1, max_size=5)},
    optional={"node": names, "idempotency_key": names, "create": st.none() | st.booleans(), "other": json_values},
)


@given(body=bodies, spaced=st.booleans())
def test_both_ways_give_the_same_frames(body: dict[str, Any], spaced: bool) -> None:
    text = msgspec.json.encode(body)
    if spaced:
        text = msgspec.json.format(text, indent=2)
    assert_agrees(text)


@given(text=damaged(bodies.map(msgspec.json.encode)))
def test_damaged_bodies_are_never_taken_for_others(text: bytes) -> None:
    assert_agrees(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"records":[{"data":1}]}',
        b'{"records":[{"data":{"a":[1,2]},"tag":"t","node":"n","key":"k","meta":{"m":1}},{"data":null}]}',
        b' { "records" : [ { "data" : [ 1 , "a b" ] , "tag" : null } , { "data" : "x" } ] , "create" : true } ',
        b'{"records":[{"data":1,"tag":"","node":"","key":""}]}',
    ],
)
def test_usual_bodies_go_the_quick_way(text: bytes) -> None:
    assert assert_agrees(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"node":"n","records":[{"data":1}]}',
        b'{"records":[{"data":1,"extra":1}]}',
        b'{"records":[{"data":1,"tag":"\\n"}]}',
        b'{"records":[{"data":1,"data":2}]}',
        b'{"records":[{"tag":"a"}]}',
        b'{"records":[{"data":01}]}',
        b'{"records":[{"data":1}',
        b'{"records":[]}',
        b'{"records":[{}]}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":1,"tag":"' + b"t" * 257 + b'"}]}',
        b'{"records":[{"data":' + b"[" * 125 + b"]" * 125 + b"}]}",
        b'{"records":[{"data":1,"meta":{' + b",".join(b'"%d":1' % i for i in range(65)) + b"}}]}",
        b"",
        b"[]",
    ],
)
def test_unusual_bodies_go_the_slow_way(text: bytes) -> None:
    assert not assert_agrees(text)


def test_default_node_reaches_records_without_one() -> None:
    text = b'{"records":[{"data":1}],"node":"n"}'
    body, checked, batch = read_body(text, AppendIn)
    assert (batch, checked, body.node) == (None, True, "n")
    assert read_body(b'{"records":[{"data":1,"node":"m"}],"node":"n"}', AppendIn)[2] is not None


def test_repeated_records_are_refused_the_quick_way_too() -> None:
    with pytest.raises(TopicsError, match="twice"):
        read_body(b'{"records":[{"data":1}],"records":[{"data":2}]}', AppendIn)


@given(st.lists(st.tuples(bodies, st.booleans()), min_size=1, max_size=6), st.integers(0, 5))
def test_gathered_bodies_are_the_batches_one_behind_the_other(sent: list[tuple[dict[str, Any], bool]], at: int) -> None:
    gather, frames, counts = Gather(), bytearray(), []
    sizes, accounted, tags = [], 0, False
    for body, plain in sent:
        text = msgspec.json.encode({"records": body["records"]} if plain else body)
        quick = prepare_body(text, limits.RECORDS_PER_APPEND)
        taken = gather.add(b" " * at + text, at, limits.RECORDS_PER_APPEND)
        if quick is None or quick[1] != b'{"records":[]}':
            assert taken == 0
            continue
        batch = quick[0]
        assert taken == batch.count
        sizes += [length for _, length, *_ in ENTRY.iter_unpack(batch.entries)]
        frames += batch.frames
        counts.append(batch.count)
        accounted += batch.accounted
        tags = tags or batch.has_tags
    assert gather.size == len(frames)
    whole = gather.take()
    places = [(offset, length) for offset, length, *_ in ENTRY.iter_unpack(whole.entries)]
    assert places == list(zip(accumulate(sizes, initial=0), sizes, strict=False))
    assert (whole.frames, whole.count, whole.accounted, whole.has_tags) == (frames, sum(counts), accounted, tags)
    assert whole.ends == struct.pack(f"<{len(counts)}I", *accumulate(counts))
    assert (gather.size, gather.take().count) == (0, 0)


def test_gather_takes_no_more_records_than_asked_for() -> None:
    gather = Gather()
    text = b'{"records":[{"data":1},{"data":2}]}'
    assert [gather.add(text, 0, most) for most in (1, 2, 1, 3)] == [0, 2, 0, 2]
    assert gather.take().count == 4


@pytest.mark.parametrize("start", [-1, 3])
def test_gather_reads_nothing_outside_the_text(start: int) -> None:
    for kind in (Gather, reference.Gather):
        with pytest.raises(ValueError, match="outside"):
            kind().add(b"{}", start, 1)
