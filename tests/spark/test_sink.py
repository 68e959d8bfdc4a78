"""Writing DataFrames and streams into topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from topics.client.sync import Client
from topics.model.errors import InvalidRequest
from topics.model.record import Record
from topics.spark.sink import PART_RECORDS, commit_parts, store_parts
from topics.spark.sink_options import SinkOptions
from topics.spark.sink_rows import make_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Server

_names = iter(range(1_000_000))


@pytest.fixture
def topic() -> str:
    return f"sink{next(_names)}"


def records(server: Server, topic: str) -> Iterator[Record]:
    for item in server.client.records(topic):
        assert isinstance(item, Record)
        yield item


def values(server: Server, topic: str) -> list[Any]:
    return [record.data for record in records(server, topic)]


def write(frame: DataFrame, server: Server, topic: str | None = None, **options: str) -> None:
    writer = frame.write.format("topics").mode("append").option("url", server.url).options(**options)
    (writer.option("topic", topic) if topic else writer).save()


def test_rows_become_records_with_all_their_fields(spark: SparkSession, server: Server, topic: str) -> None:
    frame = spark.createDataFrame(
        [('{"a": 1.50}', "eu", "n1", "k1", '{"m":1}'), ("null", None, None, None, None)],
        "data string, tag string, node string, key string, meta string",
    ).coalesce(1)
    write(frame, server, topic)
    first, second = records(server, topic)
    assert (first.raw, first.tag, first.node, first.key, first.meta) == (b'{"a":1.50}', "eu", "n1", "k1", {"m": 1})
    assert (second.raw, second.tag, second.node, second.key, second.meta) == (b"null", None, None, None, None)
    assert (first.seq, second.seq) == (1, 2)


def test_structs_maps_and_plain_text_become_json(spark: SparkSession, server: Server, topic: str) -> None:
    frame = spark.sql(
        "select named_struct('id', 7, 'when', timestamp'2026-01-02 03:04:05', 'price', cast(1.20 as decimal(5,2)),"
        " 'tags', map('a', 1), 'list', array(1, 2), 'none', map(), 'empty', array()) as data, map('x', 'y') as meta"
    )
    write(frame, server, topic)
    (record,) = records(server, topic)
    assert b'"price":1.20' in record.raw
    data = record.data
    assert (data["id"], data["tags"], data["list"], data["none"], data["empty"]) == (7, {"a": 1}, [1, 2], {}, [])
    assert data["when"].startswith("2026-01-02T03:04:05")
    assert record.meta == {"x": "y"}
    write(spark.createDataFrame([('not "json',)], "data string"), server, topic, dataFormat="string")
    assert values(server, topic)[-1] == 'not "json'


def test_order_inside_a_partition_is_kept_and_partitions_follow_each_other(
    spark: SparkSession, server: Server, topic: str
) -> None:
    write(spark.range(0, 500, 1, 4).selectExpr("cast(id as string) as data"), server, topic)
    assert values(server, topic) == list(range(500))


def test_rows_may_name_their_topics_and_appear_in_all_of_them_at_once(
    spark: SparkSession, server: Server, topic: str
) -> None:
    frame = spark.createDataFrame(
        [(f"{topic}.a", "1"), (f"{topic}.b", "2"), (None, "3"), (f"{topic}.a", "4")], "topic string, data string"
    ).coalesce(1)
    write(frame, server, f"{topic}.rest")
    assert [values(server, f"{topic}.{name}") for name in ("a", "b", "rest")] == [[1, 4], [2], [3]]


def test_run_that_is_repeated_appends_nothing(spark: SparkSession, server: Server, topic: str) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) as data")
    for _ in range(2):
        write(frame, server, topic, txnAppId="nightly", txnVersion="5")
    assert sorted(values(server, topic)) == list(range(10))
    write(frame, server, topic, txnAppId="nightly", txnVersion="6")
    assert len(values(server, topic)) == 20
    write(frame, server, topic, txn="by-hand")
    write(frame, server, topic, txn="by-hand")
    assert len(values(server, topic)) == 30


def test_run_that_is_repeated_with_one_topic_more_appends_to_that_alone(
    spark: SparkSession, server: Server, topic: str
) -> None:
    def run(topics: int) -> None:
        frame = spark.range(6).coalesce(1)
        write(
            frame.selectExpr("cast(id as string) data", f"concat('{topic}.', id % {topics}) topic"), server, txn=topic
        )

    run(2)
    run(3)
    assert [values(server, f"{topic}.{number}") for number in range(3)] == [[0, 2, 4], [1, 3, 5], [2, 5]]


def test_table_that_spark_s_catalog_keeps_says_what_to_do(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    spark.sql(f"CREATE DATABASE kept LOCATION '{tmp_path}/kept'")
    try:
        writer = spark.range(3).selectExpr("cast(id as string) as data").write.format("topics").mode("append")
        writer.options(url=server.url, topic=topic).saveAsTable("kept.numbers")
        assert len(values(server, topic)) == 3
        with pytest.raises(Exception, match=r"a table that Spark's catalog kept .* DROP TABLE"):
            spark.table("kept.numbers").collect()
    finally:
        spark.sql("DROP DATABASE kept CASCADE")


def test_empty_frame_asks_the_server_for_nothing(spark: SparkSession, server: Server, topic: str) -> None:
    write(spark.createDataFrame([], "data string"), server, topic)
    assert topic not in {one.topic for one in server.client.topics()}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("1",), (None,)], "row 1 of partition 0: data is null"),
        ([("1",), ("{bad",)], "row 1 of partition 0: the server refused it .* 'data' is not JSON.*dataFormat=string"),
        ([("1",), (json.dumps("x" * 1_100_000),)], "row 1 of partition 0: the server refused it .* limit is 1048576"),
        ([("1",), (json.dumps("x" * 40_000_000),)], "row 1 of partition 0: it has 4[0-9]+ bytes.* at most 1048576"),
    ],
)
def test_bad_row_fails_the_query_and_nothing_is_visible(
    spark: SparkSession, server: Server, topic: str, rows: list[tuple[str | None]], words: str
) -> None:
    server.client.create(topic)
    frame = spark.createDataFrame(rows, "data string").coalesce(1)
    with pytest.raises(Exception, match=words):
        write(frame, server, topic)
    assert values(server, topic) == []


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["struct(cast(X'ff41' as string) as s) as data"], "data holds text that is no UTF-8: make_valid_utf8"),
        (["'1' as data", "cast(X'ff41' as string) as tag"], "tag holds text that is no UTF-8: make_valid_utf8"),
        (
            ["map(double('NaN'), 1, double('Infinity'), 2) as data"],
            "data holds a map with two keys that are 'null' in JSON: cast its keys to string",
        ),
    ],
)
def test_value_that_json_cannot_hold_is_named_with_its_row(
    spark: SparkSession, server: Server, topic: str, columns: list[str], words: str
) -> None:
    server.client.create(topic)
    with pytest.raises(Exception, match=f"row 0 of partition 0: {words}"):
        write(spark.range(3).coalesce(1).selectExpr(*columns), server, topic)
    assert values(server, topic) == []


def test_bad_row_is_named_however_rows_are_split_into_parts(server: Server, topic: str) -> None:
    names = [f"{topic}.{'ab'[row % 2]}" for row in range(PART_RECORDS * 3)]
    texts = ["1"] * len(names)
    bad = len(names) - 11
    texts[bad] = "{bad"
    schema = StructType().add("data", StringType()).add("topic", StringType())
    half = len(names) // 2
    halves = (slice(half), slice(half, None))
    batches = [pa.record_batch([texts[part], names[part]], ["data", "topic"]) for part in halves]
    rows, options = make_rows(schema, None, False), SinkOptions(server.url)
    with pytest.raises(
        InvalidRequest, match=f"row {bad} of partition 0: .* for topic '{names[bad]}': 'data' is not JSON"
    ):
        store_parts(options, rows, "run", None, iter(batches))


def test_task_with_rows_for_many_topics_holds_a_bounded_part_of_them(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.spark.sink.TASK_BYTES", 20_000)
    sent: list[int] = []
    stage = Client.stage_arrow

    def staged(self: Client, name: str, txn: str, part: str, body: bytes, **options: Any) -> Any:
        sent.append(len(body))
        return stage(self, name, txn, part, body, **options)

    monkeypatch.setattr(Client, "stage_arrow", staged)
    names = [f"{topic}.{row * 7 % 5}" for row in range(3000)]
    texts = [str(row) for row in range(3000)]
    schema = StructType().add("data", StringType()).add("topic", StringType())
    parts = [slice(at, at + 20) for at in range(0, 3000, 20)]
    batches = [pa.record_batch([texts[part], names[part]], ["data", "topic"]) for part in parts]
    rows, options = make_rows(schema, None, False), SinkOptions(server.url)
    commit_parts(options, [store_parts(options, rows, topic, None, iter(batches))])
    assert (len(sent) > 5, max(sent) < 20_000) == (True, True)
    for name in set(names):
        assert values(server, name) == [row for row in range(3000) if names[row] == name]


@pytest.mark.parametrize(
    ("mode", "words"), [("complete", "only ever appended to.*foreachBatch"), ("update", "does not support Update mode")]
)
def test_streams_write_in_append_mode_alone(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, mode: str, words: str
) -> None:
    """The second is Spark's own word: it lets no source written in Python take updates."""
    server.fill(topic, 0, 3)
    counts = spark.readStream.format("topics").options(**server.options(topic)).load().groupBy("tag").count()
    writer = counts.selectExpr("struct(tag, count) as data").writeStream.outputMode(mode).format("topics")
    writer = writer.options(url=server.url, topic=f"{topic}.out", checkpointLocation=str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=words):
        writer.trigger(availableNow=True).start().awaitTermination()


def test_overwriting_and_unknown_columns_are_refused(spark: SparkSession, server: Server, topic: str) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) as data", "id as price")
    with pytest.raises(Exception, match="no column 'price'"):
        write(frame, server, topic)
    with pytest.raises(Exception, match="only ever appended"):
        frame.select("data").write.format("topics").mode("overwrite").options(url=server.url, topic=topic).save()


def test_folder_to_write_to_is_refused(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    server.fill(topic, 0, 3)
    asked = {"url": server.url, "topic": f"{topic}.out", "checkpointLocation": str(tmp_path)}
    writer = spark.range(1).selectExpr("cast(id as string) as data").write.format("topics").mode("append")
    with pytest.raises(Exception, match="option path is '/some/path'"):
        writer.options(**asked).save("/some/path")
    stream = spark.readStream.format("topics").options(**server.options(topic)).load().select("data")
    query = stream.writeStream.format("topics").options(**asked).trigger(availableNow=True).start("/some/path")
    with pytest.raises(Exception, match="option path is '/some/path'"):
        query.awaitTermination(60)
    assert f"{topic}.out" not in {one.topic for one in server.client.topics()}


def test_server_that_is_gone_is_named(spark: SparkSession, topic: str) -> None:
    """Every try of Spark's waits for the server to come back, here only for a moment."""
    gone = {"url": "http://127.0.0.1:9", "timeout": "200ms"}
    frame = spark.range(1).selectExpr("cast(id as string) as data").coalesce(1)
    told = (
        r"127\.0\.0\.1:9: Connection refused: start it with `topics serve`, or name another with option url; a longer "
    )
    with pytest.raises(Exception, match=told):
        frame.write.format("topics").mode("append").options(**gone, topic=topic).save()
    with pytest.raises(Exception, match=told):
        spark.read.format("topics").options(**gone, topic=topic).load().count()
    query = spark.readStream.format("topics").options(**gone, topic=topic).load().writeStream.format("noop").start()
    with pytest.raises(Exception, match=told):
        query.awaitTermination(60)


def test_stream_copies_a_topic_once_over_restarts(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    def run() -> None:
        source = spark.readStream.format("topics").options(**server.options(topic)).load()
        query = (
            source.selectExpr("data", "tag", "cast(seq as string) as key")
            .writeStream.format("topics")
            .options(url=server.url, topic=f"{topic}.copy", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    server.fill(topic, 0, 120)
    run()
    server.fill(topic, 120, 30)
    run()
    run()
    copies = list(records(server, f"{topic}.copy"))
    assert [record.data["id"] for record in copies] == list(range(150))
    assert [record.key for record in copies] == [str(seq) for seq in range(1, 151)]


def test_micro_batch_that_is_replayed_after_its_commit_appears_once(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        source = spark.readStream.format("topics").options(**server.options(topic)).load()
        writer = source.select("data").writeStream.format("topics").trigger(availableNow=True)
        writer.options(
            url=server.url, topic=f"{topic}.copy", checkpointLocation=str(checkpoint)
        ).start().awaitTermination()

    server.fill(topic, 0, 50)
    run()
    for entry in (checkpoint / "commits").iterdir():
        entry.unlink()
    run()
    assert [value["id"] for value in values(server, f"{topic}.copy")] == list(range(50))


def test_each_batch_of_foreach_batch_is_written_once(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    def put(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            write(frame.select("data"), server, f"{topic}.copy", txnAppId=f"{topic}-copy", txnVersion=str(batch))

    server.fill(topic, 0, 20)
    source = spark.readStream.format("topics").options(**server.options(topic)).load()
    query = source.writeStream.foreachBatch(put).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert len(values(server, f"{topic}.copy")) == 20
