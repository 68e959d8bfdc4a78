"""An append as an Arrow stream: columns of text go the quick way, with the bytes of the slow one."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import json_values, names
from topics.api.arrow_in import prepare_texts, read_arrow, records_of_arrow
from topics.format.ops import prepare
from topics.format.prepared import Prepared
from topics.model.errors import TopicsError

TEXTS = ("tag", "node", "key")


def stream(*batches: dict[str, Any], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for columns in batches:
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue()


def slow(table: Any, node: str | None) -> Prepared:
    return prepare(records_of_arrow(table), default_node=node, checked=True, strict_fields=False)  # type: ignore[arg-type]


def slots(prepared: Prepared | None) -> dict[str, Any]:
    return {} if prepared is None else {name: getattr(prepared, name) for name in Prepared.__slots__}


texts = json_values.map(lambda value: msgspec.json.encode(value).decode()) | st.sampled_from(["{", "", " [1, 2] "])
rows = st.fixed_dictionaries(
    {"data": texts | st.none(), "tag": names, "node": names, "key": names, "meta": texts | st.none()}
)


@given(
    batches=st.lists(st.lists(rows, max_size=4), max_size=3),
    left_out=st.sets(st.sampled_from(["tag", "node", "key", "meta"])),
    blank=st.sets(st.sampled_from(["tag", "node", "key", "meta"])),
    node=st.none() | st.just("n"),
)
def test_both_ways_give_the_same_frames(
    batches: list[list[dict[str, str | None]]], left_out: set[str], blank: set[str], node: str | None
) -> None:
    fields = [name for name in ("meta", "data", *TEXTS) if name not in left_out]
    schema = pa.schema([(name, pa.null() if name in blank else pa.utf8()) for name in fields])
    columns = [{name: [None if name in blank else row[name] for row in batch] for name in fields} for batch in batches]
    table = read_arrow(stream(*columns, schema=schema))
    quick = prepare_texts(table, node)
    try:
        expected = slow(table, node)
    except TopicsError:
        assert quick is None
    else:
        assert quick is None or slots(quick) == slots(expected)


@pytest.mark.parametrize(
    "columns",
    [
        {"data": ["1", None, '{"a": 1}']},
        {"data": ["1"], "tag": ["t"], "node": [None], "key": ["k"], "meta": ['{"m":1}'], "other": [5]},
        {"data": ["1"], "tag": pa.nulls(1)},
    ],
)
def test_columns_of_text_go_the_quick_way(columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    twice = pa.concat_tables([table, table])
    assert slots(prepare_texts(twice, None)) == slots(slow(twice, None)) != {}


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"data": [{"a": 1}]}),
        pa.table({"data": pa.nulls(2)}),
        pa.table({"data": pa.array(["1"], pa.large_utf8())}),
        pa.table({"data": ["1"], "delay_ms": [5]}),
        pa.table({"data": ["1"], "tag": [5]}),
        pa.table({"data": ["1"], "key": ['"']}),
        pa.table({"data": ["{"]}),
        pa.Table.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["data", "data"]),
    ],
)
def test_other_columns_go_the_slow_way(table: Any) -> None:
    assert prepare_texts(table, None) is None


def test_batch_without_rows_may_be_without_buffers() -> None:
    nothing = pa.Array.from_buffers(pa.utf8(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    batches = [pa.record_batch({"data": column}) for column in (pa.array(["1"]), nothing, pa.array(["2"]))]
    taken = prepare_texts(pa.Table.from_batches(batches), None)
    assert slots(taken) == slots(slow(pa.table({"data": ["1", "2"]}), None))
