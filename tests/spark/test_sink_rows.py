"""Rows as records: what each type of Spark becomes as JSON, and which row is named where one cannot."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from topics.model.errors import InvalidRequest
from topics.spark.sink_rows import Rows


def texts(column: pa.Array) -> list[str]:
    """The JSON of a column `data`."""
    rows = Rows("orders", False, False)
    ((_, piece),) = rows.split(pa.record_batch([column], ["data"]), 0)
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
    with pytest.raises(InvalidRequest, match="row 13 of this partition: data holds a time or date beyond"):
        list(Rows("orders", False, False).split(pa.record_batch([column], ["data"]), 10))


def test_row_with_a_name_that_no_topic_has_is_named() -> None:
    batch = pa.record_batch([["1", "2", "3"], ["a", "b c", "b c"]], ["data", "topic"])
    with pytest.raises(InvalidRequest, match="row 11 of this partition: topic name 'b c' is not valid"):
        list(Rows(None, True, False).split(batch, 10))
