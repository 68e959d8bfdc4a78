"""Frames as the JSON of an answer, and the closer look at a body's names."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.test_entries import segment, stamped
from tests.unit.format.twins import NOW, assert_same, batches, damaged, json_values, needs_kernel
from topics.format import batchops
from topics.format.batchops import SEGMENT_LAYOUT, WAL_LAYOUT
from topics.format.render import AS_DELIVERY, AS_JOB, COMMA, NEWLINE, WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.model.leaserows import LeaseRow, LeaseRun

ALL = WITH_TAGS | WITH_META | WITH_KEYS | WITH_DATA
FAR = 1 << 40

BATCH: list[dict[str, Any]] = [
    {"data": {"n": 1}, "tag": 'a"\\\n\x01', "node": "n1"},
    {"data": "two", "key": 'k"', "meta": {"x": [1]}},
    {"data": [3], "tag": "é", "node": "n2"},
    {"data": None},
]


def render(
    ops: ModuleType,
    batch: list[dict[str, Any]],
    *,
    dead: bytes | None = None,
    want: int = ALL,
    exclude: tuple[bytes, ...] = (),
    limit: int = 100,
    budget: int = FAR,
    forced: bool = True,
) -> tuple[list[dict[str, Any]], int, int, int]:
    frames, entries = stamped(ops, batch)
    text, delivered, size, walked = ops.render_json(
        frames, entries, 0, len(batch), 10, WAL_LAYOUT, 0, dead, want, exclude, limit, budget, forced, COMMA
    )
    return msgspec.json.decode(b"[" + text + b"]"), delivered, size, walked


def test_records_come_with_what_they_have(ops: ModuleType) -> None:
    records, delivered, size, walked = render(ops, BATCH)
    assert records == [
        {"$seq": 10, "$ts": NOW, "$node": "n1", "$tag": 'a"\\\n\x01', "data": {"n": 1}},
        {"$seq": 11, "$ts": NOW, "$key": 'k"', "data": "two", "meta": {"x": [1]}},
        {"$seq": 12, "$ts": NOW, "$node": "n2", "$tag": "é", "data": [3]},
        {"$seq": 13, "$ts": NOW, "data": None},
    ]
    assert (delivered, walked) == (4, 4)
    assert size == len(b'{"n":1}') + len(b'"two"{"x":[1]}') + len(b"[3]") + len(b"null")


def test_what_is_not_wanted_is_left_out(ops: ModuleType) -> None:
    records = render(ops, BATCH, want=0)[0]
    assert [sorted(record) for record in records] == [
        ["$node", "$seq", "$ts"],
        ["$seq", "$ts"],
        ["$node", "$seq", "$ts"],
        ["$seq", "$ts"],
    ]


def test_dead_and_filtered_records_use_up_no_limit(ops: ModuleType) -> None:
    records, delivered, _, walked = render(ops, BATCH, dead=b"\0\1\0\0", exclude=(b"n1",), limit=1)
    assert [record["$seq"] for record in records] == [12]
    assert (delivered, walked) == (1, 3)


def test_first_record_is_delivered_whatever_the_budget(ops: ModuleType) -> None:
    assert render(ops, BATCH, budget=1)[1:] == (1, 7, 1)
    assert render(ops, BATCH, budget=1, forced=False)[1:] == (0, 0, 0)
    assert render(ops, BATCH, budget=7 + 14)[1:] == (2, 21, 2)
    assert render(ops, BATCH, limit=0)[1:] == (0, 0, 0)


def test_lines_are_separated_as_asked(ops: ModuleType) -> None:
    frames, entries = segment(ops, BATCH)
    text, *_ = ops.render_json(frames, entries, 1, 3, 11, SEGMENT_LAYOUT, 0, None, ALL, (), 100, FAR, False, NEWLINE)
    assert [msgspec.json.decode(line)["$seq"] for line in text.split(b"\n")] == [11, 12, 13]


def test_jobs_say_their_lease_and_hide_who_sent_them(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH[:2])
    leases = [(10, 0, 0, 1), (11, (1 << 64) - 1, 0, 7)]
    text, *_ = ops.render_json(
        frames, entries, 0, 2, 10, WAL_LAYOUT, 0, None, ALL | AS_JOB, (), 9, FAR, True, NEWLINE, leases, NOW
    )
    first, second = text.split(b"\n")
    start = b'{"$seq":10,"lease_id":"lease_0","deadline":%d,"deliveries":1,"$ts":%d,"$tag":' % (NOW, NOW)
    assert first.startswith(start)
    job = msgspec.json.decode(second)
    assert (job["lease_id"], job["deliveries"], job["data"]) == ("lease_" + "f" * 16, 7, "two")


def test_deliveries_end_with_their_lease(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH[:2])
    want, leases = ALL | AS_DELIVERY, [(10, 5, 0, 1), (11, 6, 0, 2)]
    text, *_ = ops.render_json(
        frames, entries, 0, 2, 10, WAL_LAYOUT, 0, b"\1\0", want, (), 9, FAR, True, COMMA, leases, NOW
    )
    assert msgspec.json.decode(text) == {
        "$seq": 11, "$ts": NOW, "$key": 'k"', "data": "two", "meta": {"x": [1]},
        "delivery": {"count": 2, "token": 6, "deadline": NOW},
    }  # fmt: skip
    with pytest.raises(ValueError, match="1 leases do not go with 2 records"):
        ops.render_json(frames, entries, 0, 2, 10, WAL_LAYOUT, 0, None, want, (), 9, FAR, True, COMMA, leases[:1], NOW)


@needs_kernel
@given(
    batch=batches,
    in_segment=st.booleans(),
    want=st.integers(0, 63),
    limit=st.integers(0, 9),
    budget=st.integers(0, 200),
    forced=st.booleans(),
    dead=st.none() | st.binary(min_size=8, max_size=8),
    lease=st.tuples(*[st.integers(0, (1 << 64) - 1)] * 3),
    data=st.data(),
)
def test_twins_render_the_same_json(
    batch: list[dict[str, Any]],
    in_segment: bool,
    want: int,
    limit: int,
    budget: int,
    forced: bool,
    dead: bytes | None,
    lease: tuple[int, int, int],
    data: st.DataObject,
) -> None:
    from topics.format.ops import reference

    token, deliveries, deadline = lease
    leases: Sequence[LeaseRow] = [(10 + at, token >> at, 0, deliveries >> at) for at in range(len(batch))]
    if data.draw(st.booleans()):
        leases = LeaseRun(range(10, 10 + len(batch)), token >> 1, 0, deliveries)
    frames, entries = segment(reference, batch) if in_segment else stamped(reference, batch)
    frames = data.draw(damaged(st.just(frames)))
    nodes = tuple(str(record.get("node") or "").encode() for record in batch[:2])
    layout = SEGMENT_LAYOUT if in_segment else WAL_LAYOUT
    assert_same(
        "render_json", frames, entries, 0, len(batch), 10, layout, 0, dead, want, nodes, limit, budget, forced, COMMA,
        leases, deadline,
    )  # fmt: skip


NAMES = (b"data", b"tag", b"records")


@pytest.mark.parametrize(
    ("text", "doubtful"),
    [
        (b'{"records":[{"data":1,"tag":"a"},{"data":2}]}', False),
        (b'{"records":[{"data":1,"data":2}]}', True),
        (b'{"records":[],"records":[]}', True),
        (b'{"other":1,"other":2}', False),
        (b'{"records":[{"data":{"data":1,"data":2}}]}', False),
        (b'{"records":[{"data":"data","tag":"data"}]}', False),
        (b'{"records":[{"d\\u0061ta":1}]}', True),
        (b'{"a":{"data":1,"data":2}}', False),
        (b'[["data","data"]]', False),
        (b'"data"', False),
    ],
)
def test_repeated_names_of_body_and_records_ask_for_a_closer_look(ops: ModuleType, text: bytes, doubtful: bool) -> None:
    assert ops.compact_body(text, 127, NAMES) == (text, doubtful)
    assert ops.compact_body(text.replace(b",", b" , "), 127, NAMES)[0] == text


@needs_kernel
@given(
    value=st.recursive(
        json_values,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(st.tuples(st.sampled_from(["data", "tag", "records", "x", 'q"']), inner), max_size=4)
        ),
        max_leaves=10,
    ),
    depth=st.integers(0, 6),
)
def test_twins_take_the_same_closer_look(value: Any, depth: int) -> None:
    def text(item: Any) -> bytes:
        if isinstance(item, list) and item and all(isinstance(pair, tuple) for pair in item):
            return b"{" + b", ".join(msgspec.json.encode(name) + b":" + text(inner) for name, inner in item) + b"}"
        if isinstance(item, list):
            return b"[" + b",".join(map(text, item)) + b"]"
        return msgspec.json.encode(item)

    assert_same("compact_body", text(value), depth, NAMES)
    assert_same("compact_body", text([[value]]), depth, NAMES)


def test_too_many_names_or_nodes_are_refused(ops: ModuleType) -> None:
    with pytest.raises(ValueError, match="more than"):
        ops.compact_body(b"{}", 127, (b"x",) * 33)
    frames, entries = stamped(ops, BATCH)
    with pytest.raises(ValueError, match="more than"):
        ops.render_json(frames, entries, 0, 4, 10, WAL_LAYOUT, 0, None, ALL, (b"n",) * 65, 1, 1, True, COMMA)


def test_columns_hold_what_the_records_hold(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    rows, seqs, times, texts = ops.collect_columns(frames, entries, 0, 4, 10, WAL_LAYOUT, 0, b"\0\0\1\0")
    assert rows == 3
    assert (memoryview(seqs).cast("q").tolist(), memoryview(times).cast("q").tolist()) == ([10, 11, 13], [NOW] * 3)
    found = [
        pa.StringArray.from_buffers(
            3, pa.py_buffer(offsets), pa.py_buffer(text), bits and pa.py_buffer(bits)
        ).to_pylist()
        for bits, offsets, text in texts
    ]
    assert found == [
        ['a"\\\n\x01', None, None],
        ["n1", None, None],
        [None, 'k"', None],
        ['{"n":1}', '"two"', "null"],
        [None, '{"x":[1]}', None],
    ]


@needs_kernel
@given(batch=batches, in_segment=st.booleans(), dead=st.none() | st.binary(min_size=8, max_size=8), data=st.data())
def test_twins_collect_the_same_columns(
    batch: list[dict[str, Any]], in_segment: bool, dead: bytes | None, data: st.DataObject
) -> None:
    from topics.format.ops import reference

    frames, entries = segment(reference, batch) if in_segment else stamped(reference, batch)
    frames = data.draw(damaged(st.just(frames)))
    layout = SEGMENT_LAYOUT if in_segment else WAL_LAYOUT
    assert_same("collect_columns", frames, entries, 0, len(batch), 10, layout, 0, dead)


few_names = st.sampled_from([None, "", "a", "b", "ab", "é"])


@needs_kernel
@given(
    st.lists(st.fixed_dictionaries({"data": st.just(1), "tag": few_names, "node": few_names}), min_size=1, max_size=12),
    st.sampled_from([0, ALL]),
    st.binary(min_size=12, max_size=12),
)
def test_neighbours_that_share_their_names_are_rendered_the_same(
    batch: list[dict[str, Any]], want: int, dead: bytes
) -> None:
    frames, entries = stamped(batchops, batch)
    dead = bytes(byte & 1 for byte in dead)
    count = len(batch)
    assert_same("render_json", frames, entries, 0, count, 1, WAL_LAYOUT, 0, dead, want, (b"a",), 10, FAR, True, COMMA)
