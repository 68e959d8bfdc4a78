"""prepare_columns: columns of text become the frames that their records become, or nothing does."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import assert_same, json_values, names, needs_kernel
from topics.format.append_columns import ArrowText, ColumnBatch
from topics.format.prepared import Prepared
from topics.model import limits

FIELDS = ("data", "tag", "node", "key", "meta")


def column(values: Sequence[str | None], start: int = 0) -> ArrowText:
    """As Arrow holds it, with `start` rows before it that are not meant."""
    array = pa.array([*["before"] * start, *values], pa.utf8())[start:]
    bits, offsets, text = array.buffers()
    return (
        None if bits is None else bits.to_pybytes(),
        offsets.to_pybytes(),
        b"" if text is None else text.to_pybytes(),
        array.offset,
    )


def batch(records: list[dict[str, str | None]], start: int = 0) -> ColumnBatch:
    found: list[ArrowText | None] = []
    for name in FIELDS:
        is_there = any(record.get(name) is not None for record in records)
        found.append(column([record.get(name) for record in records], start) if is_there or name == "data" else None)
    return (len(records), *found)  # type: ignore[return-value]


def slots(prepared: Prepared | None) -> dict[str, Any]:
    assert prepared is not None
    return {name: getattr(prepared, name) for name in Prepared.__slots__}


texts = json_values.map(lambda value: msgspec.json.encode(value).decode()) | st.sampled_from(
    ["null", " null ", '{"a": [1, 2]}\n', " 1", '"x y"', "{", "", "01", '{"m":1}', "[" * 129 + "]" * 129]
)
rows = st.fixed_dictionaries(
    {"data": texts | st.none()}, optional={"tag": names, "node": names, "key": names, "meta": texts}
)


@needs_kernel
@given(
    batches=st.lists(st.tuples(st.lists(rows, max_size=5), st.integers(0, 9)), max_size=3),
    node=st.sampled_from([None, "", "n", "n" * (limits.NODE_BYTES + 1), "\ud800"]),
)
def test_twins_make_the_same_of_columns(batches: list[tuple[list[dict[str, str | None]], int]], node: str) -> None:
    assert_same("prepare_columns", [batch(records, start) for records, start in batches], node)


@needs_kernel
@given(
    rows=st.integers(-2, 12),
    bits=st.none() | st.binary(max_size=3),
    offsets=st.lists(st.integers(-3, 12), max_size=12),
    text=st.binary(max_size=10) | st.just(b"1234567890"),
    start=st.integers(-2, 5) | st.just((1 << 62) - 1),
    place=st.integers(0, 4),
)
def test_twins_do_not_leave_the_buffers_they_are_given(
    rows: int, bits: bytes | None, offsets: list[int], text: bytes, start: int, place: int
) -> None:
    given: list[ArrowText | None] = [None] * 5
    given[0] = column(["1"] * max(rows, 0))
    given[place] = (bits, b"".join(value.to_bytes(4, "little", signed=True) for value in offsets), text, start)
    assert_same("prepare_columns", [(rows, *given)])


def test_columns_become_what_their_records_become(ops: ModuleType) -> None:
    records: list[dict[str, str | None]] = [
        {"data": ' {"a": 1} ', "tag": "t", "node": "n", "key": "k", "meta": '{"m": 1}'},
        {"data": None, "tag": "", "key": ""},
        {"data": "[1]", "meta": "null"},
    ]
    expected = ops.prepare(
        [
            {"data": b'{"a":1}', "tag": "t", "node": "n", "key": "k", "meta": b'{"m":1}'},
            {"data": None, "tag": "", "key": ""},
            {"data": b"[1]"},
        ],
        default_node="d",
    )
    assert slots(ops.prepare_columns([batch(records)], "d")) == slots(expected)
    assert slots(ops.prepare_columns([batch(records[:1], 3), batch(records[1:], 8)], "d")) == slots(expected)
    assert ops.prepare_columns([]).count == 0


@pytest.mark.parametrize(
    "record",
    [
        {"data": "{"},
        {"data": ""},
        {"data": "1 2"},
        {"data": "1", "key": 'k"'},
        {"data": "1", "key": "k\n"},
        {"data": "1", "meta": "x"},
        {"data": "1", "tag": "t" * (limits.TAG_BYTES + 1)},
        {"data": "1", "node": "n" * (limits.NODE_BYTES + 1)},
        {"data": "1", "key": "k" * (limits.KEY_BYTES + 1)},
        {"data": "1", "meta": '"' + "m" * limits.META_BYTES + '"'},
        {"data": "1", "meta": "{" + ",".join(f'"{number}":1' for number in range(limits.META_KEYS + 1)) + "}"},
        {"data": '"' + "d" * limits.RECORD_BYTES + '"'},
    ],
)
def test_row_that_is_not_usual_leaves_all_to_the_slow_way(ops: ModuleType, record: dict[str, str | None]) -> None:
    assert ops.prepare_columns([batch([{"data": "1"}]), batch([{"data": "2"}, record])]) is None
    assert ops.prepare_columns([batch([{"data": "1"}])]) is not None


def test_names_must_be_text_by_themselves(ops: ModuleType) -> None:
    bits, offsets, _, start = column(["ab", "cd"])
    halves = (bits, offsets, b"a\xc3\xa4d", start)
    assert ops.prepare_columns([(2, column(["1", "2"]), halves, None, None, None)]) is None
    assert ops.prepare_columns([(2, halves, None, None, None, None)]) is None
