"""JSON as typed values, each text by itself, however many beside it do not fit; and typed values as JSON."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.model.errors import InvalidRequest
from topics.spark import payload
from topics.spark.parts import parse_shreds, shredded
from topics.spark.payload import parse_texts
from topics.spark.sink_rows import plain

LEAVES = [
    pa.string(), pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("us", "UTC"),
    pa.list_(pa.int64()), pa.struct([("x", pa.bool_())]),
]  # fmt: skip
VALUES = [
    "null", "true", "false", "0", "-0", "-0.0", "1.0", "1.5", "1e3", "1E-2", "127", "128", "-129",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e400", "-1e400", "1" * 400,
    '"2025-01-01"', '"2025-01-01T00:00:00Z"', '"2025-01-01 00:00:00.5"', '"x"', '"1"', '"true"', '""', '"\u00e9"',
    '"\\ud800"', "[]", "[1]", "[null]", '["x"]', "{}", '{"x":true}', '{"x":1}',
]  # fmt: skip
MISFIT = "5"
"""Beside it every text is looked at twice, since every kind here is a struct."""

leaves = st.sampled_from(LEAVES)
names = st.sampled_from(["a", "with-dash", "class", ""])


def structs(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.dictionaries(names, kinds, min_size=1, max_size=3).map(lambda fields: pa.struct(list(fields.items())))


kinds = structs(st.recursive(leaves, lambda inner: structs(inner) | inner.map(pa.list_), max_leaves=3))
scalars = st.sampled_from(VALUES)


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(names, inner), max_size=3)
    objects = pairs.map(lambda items: "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in items) + "}")
    return objects | st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")


texts = st.none() | joined(st.recursive(scalars, joined, max_leaves=4)) | scalars


def alone(text: str | None, kind: pa.DataType) -> Any:
    """What Arrow makes of one text."""
    try:
        return payload._parsed(pa.array([text], pa.string()), kind).to_pylist()[0]
    except pa.ArrowInvalid:
        return None


@given(kind=kinds, given_texts=st.lists(texts, min_size=1, max_size=8))
@example(pa.struct([("a", pa.int64())]), ['{"a":1,"a":"x"}', '{"a":"x","a":1}', '{"a":2}'])
def test_a_text_is_read_alike_alone_and_beside_misfits(kind: pa.DataType, given_texts: list[str | None]) -> None:
    check_alike([MISFIT, *given_texts], kind)


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_any_value_of_any_type_is_read_alike_alone_and_beside_misfits(leaf: pa.DataType) -> None:
    check_alike([MISFIT, *(f'{{"a":{value}}}' for value in VALUES)], pa.struct([("a", leaf)]))


def check_alike(texts: list[str | None], kind: pa.DataType) -> None:
    found = parse_texts(pa.array(texts, pa.string()), kind, fail=False)
    assert repr(found.to_pylist()) == repr([alone(text, kind) for text in texts])


def test_many_misfits_cost_no_reading_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = payload._parsed, []

    def counted(texts: pa.Array, kind: pa.DataType) -> pa.Array:
        calls.append(len(texts))
        return real(texts, kind)

    monkeypatch.setattr(payload, "_parsed", counted)
    kind = pa.struct([("id", pa.int32()), ("name", pa.string())])
    bad = {1: '{"id": "x"}', 2: '{"id": 1.5}', 3: '{"id": 3000000000}', 4: '{"name": 1}', 5: "[]", 6: '{"id": {}}'}
    found = parse_texts(pa.array([bad.get(n % 7, f'{{"id": {n}}}') for n in range(700)]), kind, fail=False)
    assert [value and value["id"] for value in found.to_pylist()] == [None if n % 7 else n for n in range(700)]
    assert len(calls) == 2


def test_a_shred_is_null_only_where_its_own_value_is_of_another_type() -> None:
    rows = [
        '{"a":{"b":1},"c":2.5}',
        '{"a":{"b":"x"},"c":3.5}',
        '{"a":4,"c":4.5}',
        '{"a":{"b":5},"c":"y"}',
        "null",
        "[]",
    ]
    found = shredded(pa.array(rows), parse_shreds("a.b:bigint,c:double"))
    assert [column.to_pylist() for column in found] == [
        [1, None, None, 5, None, None],
        [2.5, 3.5, 4.5, None, None, None],
    ]


written_leaves = st.sampled_from([pa.string(), pa.bool_(), pa.int64(), pa.float64(), pa.date32()])
written = st.recursive(
    written_leaves,
    lambda inner: structs(inner) | inner.map(pa.list_) | inner.map(lambda kind: pa.map_(pa.string(), kind)),
    max_leaves=5,
)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """As JSON has them."""
    if pa.types.is_struct(kind):
        found: st.SearchStrategy[Any] = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_map(kind):
        found = st.dictionaries(st.sampled_from("xyz"), values(kind.item_type), max_size=3)
    elif pa.types.is_list(kind):
        found = st.lists(values(kind.value_type), max_size=3)
    else:
        leaf = {pa.string(): st.text("aé", max_size=2), pa.bool_(): st.booleans(), pa.int64(): st.integers(-9, 9)}
        found = leaf.get(kind, st.dates() if kind == pa.date32() else st.floats(-9, 9))
    return st.none() | found


def as_arrow(value: Any, kind: pa.DataType) -> Any:
    """Arrow takes a map as its pairs."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: as_arrow(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(name, as_arrow(item, kind.item_type)) for name, item in value.items()]
    return [as_arrow(item, kind.value_type) for item in value] if pa.types.is_list(kind) else value


@given(data=st.data(), kind=written, cut=st.integers(0, 4))
def test_columns_become_the_values_they_were_made_of(data: st.DataObject, kind: pa.DataType, cut: int) -> None:
    rows = data.draw(st.lists(values(kind), max_size=6))
    column = pa.array([as_arrow(row, kind) for row in rows], kind)
    assert plain(column) == rows
    assert plain(column.slice(cut)) == rows[cut:]
    assert plain(column.slice(0, cut)) == rows[:cut]


def test_a_struct_with_two_fields_of_one_name_is_refused() -> None:
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InvalidRequest, match="two fields of one name"):
        plain(column)
