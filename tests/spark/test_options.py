"""Options and schemas: what is asked for, and what is said where it cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from topics.format.decode import COLUMN_DATA, COLUMN_TAG
from topics.model.errors import InvalidRequest
from topics.spark.options import EARLIEST, LATEST, NAMES, Bound, Options, parse_options
from topics.spark.schema import columns_of, make_projection
from topics.spark.source import batch_reader
from topics.spark.stream import stream_reader

URL = {"url": "http://127.0.0.1:1", "topic": "orders"}


def parsed(**given: str) -> Options:
    return parse_options({**URL, **given}, {})


def refused(ask: Callable[[], Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        ask()
    return caught.value.message


def test_defaults_read_everything_and_verify_it() -> None:
    options = parsed()
    assert (options.topics, options.start, options.end) == (("orders",), EARLIEST, LATEST)
    assert (options.gap_policy, options.verify, options.report_corrupt, options.kafka) == ("fail", True, False, False)


def test_kafkas_names_mean_the_same() -> None:
    options = parse_options(
        {
            "url": "http://h:1", "subscribe": "a, b", "startingoffsets": '{"a": 5, "b": {"0": -2}}',
            "endingOffsets": "latest", "maxoffsetspertrigger": "7", "failondataloss": "false",
        },
        {},
    )  # fmt: skip
    assert options.topics == ("a", "b")
    assert (options.start_of("a"), options.start_of("b"), options.end_of("a")) == (Bound("seq", 5), EARLIEST, LATEST)
    assert (options.max_records, options.gap_policy) == (7, "skip")
    times = parsed(startingOffsetsByTimestamp='{"orders": 1700000000000}')
    assert times.start_of("orders") == Bound("ts", 1_700_000_000_000)


def test_times_are_numbers_or_iso() -> None:
    assert parsed(startTs="1970-01-01T00:00:01Z", endTs="1970-01-01 00:00:02").start == Bound("ts", 1000)
    assert parsed(endTs="1970-01-01 00:00:02").end == Bound("ts", 2000)
    assert "such as 2025-01-31T12:00:00Z" in refused(lambda: parsed(startTs="yesterday"))


def test_a_directory_may_be_written_as_a_file_url() -> None:
    for path in ("/data", "file:/data", "file:///data"):
        assert parse_options({"path": path, "topic": "orders"}, {}).path == "/data"


def test_the_token_comes_from_the_environment_and_is_never_shown() -> None:
    options = parse_options(URL, {"TOPICS_TOKEN": "hush"})
    assert options.token == "hush"
    assert "hush" not in repr(options)
    assert parse_options({**URL, "token": "own"}, {"TOPICS_TOKEN": "hush"}).token == "own"
    at_rest = {"path": "/data", "topic": "orders"}
    assert parse_options(at_rest, {"TOPICS_TOKEN": "hush"}).token is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tpic": "x"}, "unknown option 'tpic'; known: path, url, token"),
        ({"hold": "true"}, "name one with option group"),
        ({"group": "no name"}, "option group 'no name' is not valid"),
        ({"group": "g", "hold": "maybe"}, "option hold is 'maybe'"),
        ({"path": "/x"}, "give either option path"),
        ({"subscribe": "a"}, "give one of topic, subscribe"),
        ({"topic": "no/slash"}, "is not valid"),
        ({"startSeq": "-1"}, "option startSeq is '-1': give a whole number"),
        ({"startSeq": "1", "startTs": "1"}, "startSeq and startTs say the same thing"),
        ({"startingOffsets": '{"other": 1}'}, "'other', which is not read"),
        ({"startingOffsets": '{"orders": {"1": 1}}'}, "names partitions ['1']"),
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"gapPolicy": "ignore"}, "give fail or emit or skip"),
        ({"gapPolicy": "skip", "failOnDataLoss": "true"}, "say the same thing"),
        ({"verify": "maybe"}, "option verify is 'maybe'"),
        ({"maxTriggerDelay": "soon"}, "write it as 500ms, 30s, 15m or 1h"),
        ({"maxOffsetsPerTrigger": "1", "maxRecordsPerTrigger": "1"}, "is given twice"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"url": "127.0.0.1:4000"}, "'127.0.0.1:4000' is not the URL of a server"),
        ({"timeout": "0ms"}, "option timeout is '0ms'"),
        ({"tag": ""}, "option tag is empty: leave it out to read everything"),
        ({"key": ""}, "option key is empty"),
        ({"allowLive": "true"}, "option allowLive is for a directory (option path)"),
        ({"provider": "topics"}, "CREATE TEMPORARY VIEW orders USING topics"),
        ({"startTs": "2026-02-01", "endTs": "2026-01-01"}, "ends at 2026-01-01, before it begins at 2026-02-01"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(given: dict[str, str], told: str) -> None:
    assert told in refused(lambda: parsed(**given))


def test_table_of_spark_s_catalog_is_recognised_by_what_it_lacks() -> None:
    told = refused(lambda: parse_options({}, {}))
    assert "a table that Spark's catalog kept (saveAsTable, writeTo) has no options: DROP TABLE" in told
    assert "DROP TABLE" not in refused(lambda: parsed(path="/x"))


def test_every_known_option_is_understood_in_any_case() -> None:
    assert len({name.lower() for name in NAMES}) == len(NAMES)
    assert parse_options({"URL": "http://h:1", "TOPIC": "a", "MINPARTITIONS": "3"}, {}).min_partitions == 3


def one(name: str, kind: DataType, nullable: bool = True) -> StructType:
    return StructType().add(name, kind, nullable)


def test_only_the_columns_of_the_schema_are_decoded() -> None:
    schema = StructType().add("data", StringType()).add("seq", LongType()).add("tag", StringType())
    projection = make_projection(parsed(), schema)
    assert (projection.names, projection.want) == (("data", "seq", "tag"), COLUMN_DATA | COLUMN_TAG)


@pytest.mark.parametrize(
    ("schema", "given", "told"),
    [
        (one("colour", StringType()), {}, "column 'colour'; there are: topic, seq, ts"),
        (one("offset", LongType()), {}, "compat=kafka has Kafka's names"),
        (one("seq", StringType()), {}, "'seq' as string; it can be had as bigint"),
        (one("ts", LongType()), {}, "'ts' as bigint; it can be had as timestamp"),
        (one("data", VariantType()), {}, "parse_json(data)"),
        (one("data", BinaryType()), {}, "as string, a struct or an array"),
        (one("data", one("day", DateType())), {}, "data.day as date"),
        (one("seq", LongType()), {"gapPolicy": "emit"}, "needs the columns kind, gap_from, gap_to"),
        (one("seq", LongType()), {"onCorrupt": "report"}, "with onCorrupt=report"),
        (one("tag", StringType(), False), {}, "'tag' as not null, and not every record has one: leave NOT NULL out"),
        (one("data", one("id", LongType()), False), {}, "'data' as not null"),
        (one("data", one("id", LongType(), False)), {}, "data.id as not null, and JSON may leave it out"),
        (one("seq", LongType(), False), {"gapPolicy": "emit"}, "'seq' as not null, and the row of a gap has none"),
    ],
)
def test_a_schema_that_cannot_be_had_is_told(schema: StructType, given: dict[str, str], told: str) -> None:
    assert told in refused(lambda: make_projection(parsed(**given), schema))


def test_gap_columns_come_where_gaps_are_rows() -> None:
    assert list(columns_of(parsed()))[-1] == "meta"
    assert list(columns_of(parsed(gapPolicy="emit")))[-4:] == ["kind", "gap_from", "gap_to", "reason"]
    assert list(columns_of(parsed(compat="kafka")))[:2] == ["key", "value"]
    nested = one("data", ArrayType(one("when", TimestampType())))
    assert make_projection(parsed(), nested).names == ("data",)


def test_what_every_record_has_is_never_null_unless_gaps_are_rows() -> None:
    assert [name for name, kind in columns_of(parsed()).items() if kind.endswith(" not null")] == [
        "topic", "seq", "ts", "data",
    ]  # fmt: skip
    assert columns_of(parsed(compat="kafka"))["key"] == "binary"
    assert not any("not null" in kind for kind in columns_of(parsed(gapPolicy="emit")).values())
    assert not any("not null" in kind for kind in columns_of(parsed(onCorrupt="report")).values())
    schema = one("seq", LongType(), False).add("tag", StringType()).add("data", StringType(), False)
    assert make_projection(parsed(), schema).schema.field("data").nullable is False


def test_batch_and_stream_refuse_what_is_for_the_other() -> None:
    schema = one("seq", LongType())
    assert "is for streams" in refused(lambda: batch_reader({**URL, "maxRecordsPerTrigger": "5"}, schema))
    assert "maxTriggerDelay is for streams" in refused(lambda: batch_reader({**URL, "maxTriggerDelay": "5s"}, schema))
    assert "cannot start at latest" in refused(lambda: batch_reader({**URL, "startingOffsets": "latest"}, schema))
    assert "a stream has no end" in refused(lambda: stream_reader({**URL, "endSeq": "5"}, schema))
    assert "is for streams" in refused(lambda: batch_reader({**URL, "group": "readers"}, schema))
    live = {"path": "/x", "topic": "a", "allowLive": "true"}
    assert "give its url" in refused(lambda: stream_reader(live, schema))
