"""Rows as records: what each type of Spark becomes as JSON, and which row is named where one cannot."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from topics.model.errors import InvalidRequest
from topics.spark.sink_rows import Rows, Spot


def texts(column: pa.Array) -> list[str]:
    """The JSON of a column `data`."""
    rows = Rows("orders", False, False)
    ((_, piece),) = rows.split(pa.record_batch([column], ["data"]), Spot(0, 0))
    found: list[str] = piece.records.column("data").to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "key", "name"),
    [
        (pa.string(), 'quo"te', r"quo\"te"),
        (pa.bool_(), True, "true"),
        (pa.int64(), 7, "7"),
        (pa.float64(), 1.5, "1.5"),
        (pa.decimal128(5, 2), Decimal("1.20"), "1.20"),
        (pa.date32(), datetime.date(2024, 1, 2), "2024-01-02"),
        (pa.timestamp("us", tz="UTC"), datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), "2024-01-02T00:00:00Z"),
        (pa.binary(), b"\x00\xff", "AP8="),
    ],
)
def test_keys_of_a_map_are_written_as_values_of_their_type_are(kind: pa.DataType, key: Any, name: str) -> None:
    column = pa.array([[(key, 1)], [], None], pa.map_(kind, pa.int64())).slice(0, 2)
    assert texts(column) == [f'{{"{name}":1}}', "{}"]


def test_moment_is_written_in_utc_whatever_the_time_zone_of_the_session() -> None:
    """The offset of Berlin had seconds until 1893, which a time in JSON cannot tell."""
    moments = pa.array([-2_524_525_568_000_000, 1_729_989_000_000_000, None], pa.timestamp("us", tz="Europe/Berlin"))
    told = ["1889-12-31T22:53:52Z", "2024-10-27T00:30:00Z"]
    assert texts(moments[:2]) == [f'"{text}"' for text in told]
    assert texts(pa.array([{"at": moments.to_pylist()}], pa.struct({"at": pa.list_(moments.type)}))) == [
        f'{{"at":["{told[0]}","{told[1]}",null]}}'
    ]
    assert texts(moments.cast(pa.timestamp("us"))[1:2]) == ['"2024-10-27T00:30:00"'], "no zone, no moment"


def test_float_has_as_many_digits_as_it_needs() -> None:
    column = pa.array([0.1, 1e-30, 3.4028235e38, float("nan"), -0.0, 16777216.0], pa.float32())
    assert texts(column) == ["0.1", "1e-30", "3.4028235e38", "null", "-0.0", "16777216.0"]
    assert pa.array(map(float, ("0.1", "1e-30", "3.4028235e38")), pa.float32()).equals(column[:3])
    assert texts(pa.array([{"v": [0.1, None]}], pa.struct({"v": pa.list_(pa.float32())}))) == ['{"v":[0.1,null]}']


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.date32()])
def test_row_with_a_time_that_no_calendar_has_is_named(kind: pa.DataType) -> None:
    far = pa.array([0, 1, 2, 3, 4], pa.int32() if kind == pa.date32() else pa.int64()).to_pylist()
    far[3] = 4_000_000 if kind == pa.date32() else 1 << 60
    plain = pa.array(far, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    column = pa.StructArray.from_arrays([plain], ["at"])
    with pytest.raises(InvalidRequest, match="row 13 of partition 4: data holds a time or date beyond"):
        list(Rows("orders", False, False).split(pa.record_batch([column], ["data"]), Spot(4, 10)))


def test_row_with_a_name_that_no_topic_has_is_named() -> None:
    batch = pa.record_batch([["1", "2", "3"], ["a", "b c", "b c"]], ["data", "topic"])
    with pytest.raises(InvalidRequest, match="row 11 of partition 4: topic name 'b c' is not valid"):
        list(Rows(None, True, False).split(batch, Spot(4, 10)))


def refused(batch: pa.RecordBatch, rows: Rows) -> str:
    with pytest.raises(InvalidRequest) as caught:
        list(rows.split(batch, Spot(4, 10)))
    return caught.value.message


@pytest.mark.parametrize("depth", ["list", "map", "struct"])
def test_row_is_named_however_deep_its_value_lies(depth: str) -> None:
    days = pa.array([0, 1, 2, 4_000_000, 4], pa.int32()).cast(pa.date32())
    each = pa.array(range(6), pa.int32())
    inside = {
        "list": pa.ListArray.from_arrays(each, days),
        "map": pa.MapArray.from_arrays(each, pa.array(["a"] * 5), days),
        "struct": pa.StructArray.from_arrays([pa.ListArray.from_arrays(each, days)], ["days"]),
    }[depth]
    told = refused(pa.record_batch([inside], ["data"]), Rows("orders", False, False))
    assert told.startswith("row 13 of partition 4: data holds a time or date beyond")
    assert [text.count("1970-01-0") for text in texts(inside.slice(1, 2))] == [1, 1]


TORN = pa.array([b"a", b"b", b"\xffA", b"d"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (TORN, "data"),
        (TORN, "tag"),
        (TORN, "meta"),
        (TORN, "topic"),
        (pa.StructArray.from_arrays([TORN], ["s"]), "data"),
        (pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), TORN), "data"),
        (pa.MapArray.from_arrays(pa.array(range(5), pa.int32()), TORN, pa.array(range(4))), "data"),
    ],
)
@pytest.mark.parametrize("wraps", [True, False])
def test_row_with_text_that_is_no_utf8_is_named(column: pa.Array, name: str, wraps: bool) -> None:
    columns = {"data": pa.array(["1"] * 4), name: column}
    told = refused(pa.record_batch(list(columns.values()), list(columns)), Rows("a", name == "topic", wraps))
    assert told.startswith(f"row 12 of partition 4: {name} holds text that is no UTF-8: make_valid_utf8(…)")


def test_map_whose_keys_have_one_name_in_json_is_refused() -> None:
    nan, inf = float("nan"), float("inf")
    column = pa.array([[(1.5, 1), (nan, 2)], [], [(nan, 1), (inf, 2), (-inf, 3)]], pa.map_(pa.float64(), pa.int64()))
    assert texts(column[:2]) == ['{"1.5":1,"null":2}', "{}"]
    told = refused(pa.record_batch([column], ["data"]), Rows("orders", False, False))
    assert (
        told == "row 12 of partition 4: data holds a map with two keys that are 'null' in JSON: cast its keys to string"
    )
