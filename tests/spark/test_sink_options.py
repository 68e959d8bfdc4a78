from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from topics.model.errors import InvalidRequest
from topics.spark.sink_options import parse_sink_options
from topics.spark.sink_rows import make_rows

URL = {"url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("given", "stream", "words"),
    [
        ({}, False, "option url"),
        ({**URL, "topics": "a"}, False, "unknown option 'topics'"),
        ({**URL, "dataFormat": "xml"}, False, "json or string"),
        ({**URL, "txn": "a b"}, False, "option txn"),
        ({**URL, "txn": "a", "txnAppId": "b", "txnVersion": "1"}, False, "not both"),
        ({**URL, "txnAppId": "b"}, False, "together"),
        ({**URL, "txnAppId": "b", "txnVersion": "-1"}, False, "txnVersion"),
        ({**URL, "txn": "a"}, True, "for batches"),
        ({**URL, "txnAppId": "a", "txnVersion": "1"}, True, "for batches"),
        ({**URL, "create": "maybe"}, False, "create"),
        ({**URL, "topic": "not a name"}, False, "name"),
        ({"url": "127.0.0.1:4000"}, False, "not the URL of a server"),
        ({**URL, "path": "/some/path"}, False, r"option path is '/some/path'.* argument of save\(\) or start\(\)"),
        ({**URL, "Path": "/some/path"}, True, "option path is '/some/path'"),
        ({**URL, "timeout": "0s"}, False, "500ms, 30s"),
        ({**URL, "timeout": "30"}, True, "500ms, 30s"),
    ],
)
def test_wrong_option_is_named_with_its_remedy(given: dict[str, str], stream: bool, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_sink_options(given, stream, {})


def test_options_are_found_in_any_case_and_the_key_in_the_environment() -> None:
    options = parse_sink_options(
        {**URL, "TxnAppId": "job", "txnversion": "7", "TimeOut": "5s", "checkpointLocation": "x"},
        False,
        {"TOPICS_TOKEN": "secret"},
    )
    assert (options.app, options.version, options.token, options.timeout_ms) == ("job", 7, "secret", 5000)
    assert "secret" not in repr(options)


def schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def holding(kind: DataType) -> StructType:
    return StructType().add("in", ArrayType(kind))


@pytest.mark.parametrize(
    ("columns", "topic", "wraps", "words"),
    [
        ({"data": StringType(), "price": LongType()}, "t", False, "no column 'price'"),
        ({"tag": StringType()}, "t", False, "named data"),
        ({"data": StringType(), "tag": LongType()}, "t", False, "column tag is bigint"),
        ({"data": BinaryType()}, "t", False, "base64"),
        ({"data": VariantType()}, "t", False, r"column data is variant.* to_json\(data\)"),
        ({"data": holding(VariantType())}, "t", False, r"data\.in\[\] is variant"),
        ({"meta": holding(YearMonthIntervalType()), "data": StringType()}, "t", False, r"meta\.in\[\] is interval"),
        ({"data": MapType(holding(LongType()), LongType())}, "t", False, "keys of data are struct"),
        ({"data": StringType(), "meta": LongType()}, "t", False, "column meta"),
        ({"data": LongType()}, "t", True, "dataFormat=string"),
        ({"data": StringType()}, None, False, "option topic"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    columns: dict[str, Any], topic: str | None, wraps: bool, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        make_rows(schema(**columns), topic, wraps)
