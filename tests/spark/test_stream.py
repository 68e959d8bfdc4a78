"""Streams: which seqs each batch gets, what a replay gets, and what happens when a topic is not the same any more."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.spark.conftest import Server
from tests.spark.readers import Item, items_of_batches, schema_of, seqs
from topics.model.errors import InvalidRequest, RecordsLost, StoreLocked, TopicNotFound
from topics.spark.places import Head
from topics.spark.server_origin import ServerOrigin
from topics.spark.stream import StreamReader, stream_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()


class Stream:
    """A query without Spark: it asks for offsets, keeps them as text, and reads what lies between two."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self.reader = self.restarted()
        self.offset = self._kept(self.reader.initialOffset())

    def restarted(self) -> StreamReader:
        return stream_reader(self._options, schema_of(self._options))

    @staticmethod
    def _kept(offset: Any) -> Any:
        """As Spark's checkpoint keeps it."""
        text = json.dumps(offset)
        assert text == json.dumps(offset, sort_keys=True), "offsets are compared as text"
        return json.loads(text)

    def next(self, limit: Any = None) -> tuple[Any, Any]:
        """(start, end) of the next batch."""
        start = self.offset
        self.offset = self._kept(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))
        return start, self.offset

    def read(self, start: Any, end: Any, reader: StreamReader | None = None) -> list[Item]:
        reader = reader or self.reader
        worker = pickle.loads(pickle.dumps(reader))
        parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions(start, end)]
        return items_of_batches(batch for part in parts for batch in worker.read(part))

    def batch(self) -> list[Item]:
        return self.read(*self.next())


class Undecided(ServerOrigin):
    """A server whose last records are not synced yet."""

    def heads(self, asked: dict[str, int], wait_ms: int = 0) -> dict[str, Head]:
        return {name: replace(head, durable_seq=7) for name, head in super().heads(asked, 0).items()}


def test_batches_follow_each_other_and_a_replay_gives_the_same(server: Server) -> None:
    server.fill("flow", 0, 120, durability="fsync")
    stream = Stream(server.options("flow", maxRecordsPerTrigger=50))
    first = stream.next()
    assert seqs(stream.read(*first)) == list(range(1, 51))
    second = stream.next()
    assert seqs(stream.read(*second)) == list(range(51, 101))
    server.checkpoint()
    server.fill("flow", 120, 30)
    assert seqs(stream.read(*second, stream.restarted())) == list(range(51, 101)), "the split may differ, the seqs not"
    server.client.delete("flow", tag="eu", before_seq=61)
    assert seqs(stream.read(*second, stream.restarted())) == [
        seq for seq in range(51, 101) if seq > 60 or (seq - 1) % 3
    ]
    assert seqs(stream.batch()) == list(range(101, 151))
    start, end = stream.next()
    assert start == end
    assert stream.reader.reportLatestOffset() == end


def test_a_stream_starts_where_it_is_told(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.fill("starts", 0, 40, durability="fsync")
    assert Stream(server.options("starts", startSeq=11)).offset["starts"]["next"] == 11
    latest = Stream(server.options("starts", startingOffsets="latest"))
    assert latest.batch() == []
    server.fill("starts", 40, 5)
    assert seqs(latest.batch()) == list(range(41, 46))
    assert caplog.messages == []
    latest.reader = latest.restarted()  # its checkpoint says where to go on, and the option nothing any more
    assert latest.batch() == []
    assert latest.batch() == []
    (told,) = caplog.messages
    assert told.startswith("the stream goes on from its checkpoint ({'starts': ")


def test_a_limit_in_bytes_takes_a_part(server: Server) -> None:
    server.fill("weights", 0, 200, durability="fsync")
    stream = Stream(server.options("weights", maxBytesPerTrigger=1000))
    found: list[int] = []
    while len(found) < 200:
        batch = seqs(stream.batch())
        assert 0 < len(batch) < 100
        found += batch
    assert found == list(range(1, 201))


def test_few_records_wait_for_company_until_the_delay_is_over(server: Server) -> None:
    server.fill("few", 0, 5, durability="fsync")
    options = server.options("few", minOffsetsPerTrigger=10, maxTriggerDelay="60s")
    stream = Stream(options)
    now = [100.0]
    stream.reader = StreamReader(stream.reader._options, stream.reader._projection, lambda: now[0])
    assert stream.batch() == []
    now[0] += 61
    assert len(stream.batch()) == 5
    server.fill("few", 5, 10)
    assert len(stream.batch()) == 10


def test_available_now_ends_at_the_head_of_its_beginning(server: Server) -> None:
    server.fill("now", 0, 60, durability="fsync")
    stream = Stream(server.options("now", maxRecordsPerTrigger=40))
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.batch()) == 40
    server.fill("now", 60, 30)
    assert seqs(stream.batch()) == list(range(41, 61))
    start, end = stream.next()
    assert start == end


def test_nothing_beyond_the_durable_head_is_offered(server: Server) -> None:
    server.fill("soft", 0, 10, durability="disk")
    stream = Stream(server.options("soft"))
    stream.reader._origin = Undecided(server.url, None)
    assert seqs(stream.batch()) == list(range(1, 8))
    assert seqs(stream.batch()) == []
    server.client.create("vapour", durability="ephemeral")
    with pytest.raises(InvalidRequest, match="ephemeral"):
        Stream(server.options("vapour"))


def test_a_topic_made_again_is_a_gap(server: Server) -> None:
    server.fill("phoenix", 0, 30, durability="fsync")
    strict, shown = Stream(server.options("phoenix")), Stream(server.options("phoenix", gapPolicy="emit"))
    replayed = shown.next()
    assert len(shown.read(*replayed)) == len(strict.batch()) == 30
    server.client.drop("phoenix")
    with pytest.raises(TopicNotFound):
        strict.next()
    assert shown.batch() == []
    server.fill("phoenix", 0, 10, durability="fsync")
    with pytest.raises(RecordsLost, match="recreated"):
        strict.next()
    told = shown.batch()
    assert told[0] == ("gap", 31, 31, "recreated")
    assert seqs(told) == list(range(1, 11))
    assert shown.read(*replayed) == [("gap", 1, 30, "recreated")]
    assert shown.batch() == []


def test_evicted_records_are_a_gap_of_the_stream(server: Server) -> None:
    server.fill("short", 0, 30, durability="fsync", cap_records=20)
    stream = Stream(server.options("short", gapPolicy="emit"))
    assert seqs(stream.batch()) == list(range(11, 31))
    server.fill("short", 30, 50)
    assert [item[:3] if item[0] == "gap" else item[0] for item in stream.batch()] == [
        ("gap", 31, 60),
        *range(61, 81),
    ]


def test_topics_join_and_leave_by_pattern(server: Server) -> None:
    options = {"url": server.url, "subscribePattern": r"join\..*", "gapPolicy": "emit"}
    stream = Stream(options)
    assert stream.offset == {}
    server.fill("join.a", 0, 10, durability="fsync")
    assert len(stream.batch()) == 10
    server.fill("join.b", 0, 50, durability="fsync", cap_records=30)
    server.fill("join.a", 10, 5)
    assert len(stream.batch()) == 35
    server.client.drop("join.a")
    server.fill("join.b", 50, 5)
    assert len(stream.batch()) == 5
    assert list(stream.offset) == ["join.b"]


def test_a_topic_that_is_not_asked_for_any_more_keeps_its_place(server: Server) -> None:
    for name in ("stays", "pauses"):
        server.fill(name, 0, 10, durability="fsync")
    both, one = ({"url": server.url, "subscribe": names} for names in ("stays,pauses", "stays"))
    stream = Stream(both)
    assert len(stream.batch()) == 20
    for name in ("stays", "pauses"):
        server.fill(name, 10, 3)
    stream.reader = stream_reader(one, schema_of(one))
    assert len(stream.batch()) == 3
    stream.reader = stream_reader(both, schema_of(both))
    assert seqs(stream.batch()) == [11, 12, 13]


def test_a_topic_outside_the_pattern_keeps_its_place(server: Server) -> None:
    for name in ("wide.a", "wide.b"):
        server.fill(name, 0, 10, durability="fsync")
    wide, narrow = ({"url": server.url, "subscribePattern": text} for text in (r"wide\..", r"wide\.a"))
    stream = Stream(wide)
    assert len(stream.batch()) == 20
    for name in ("wide.a", "wide.b"):
        server.fill(name, 10, 3)
    stream.reader = stream_reader(narrow, schema_of(narrow))
    assert len(stream.batch()) == 3
    stream.reader = stream_reader(wide, schema_of(wide))
    assert seqs(stream.batch()) == [11, 12, 13]


def test_a_directory_at_rest_is_streamed_to_its_end(tmp_path: Path) -> None:
    import topics

    with topics.open(tmp_path) as log:
        log.create("orders")
        log.append("orders", [{"data": n} for n in range(25)])
    stream = Stream({"path": str(tmp_path), "topic": "orders", "maxRecordsPerTrigger": "20"})
    assert [len(stream.batch()), len(stream.batch()), len(stream.batch())] == [20, 5, 0]
    with topics.open(tmp_path) as log:
        log.append("orders", [{"data": n} for n in range(3)])
    assert seqs(stream.read(*stream.next(ReadMaxRows(2)))) == [26, 27]


def test_a_stream_over_a_directory_in_use_is_not_sent_to_an_option_that_streams_refuse(tmp_path: Path) -> None:
    import topics

    with topics.open(tmp_path) as log:
        log.create("orders")
        with pytest.raises(StoreLocked, match=r"with option url or stop it$"):
            Stream({"path": str(tmp_path), "topic": "orders"})


def test_spark_runs_the_stream_and_goes_on_from_its_checkpoint(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    server.fill("through", 0, 70, durability="fsync")
    table = str(tmp_path / "out")

    def run() -> Any:
        query = (
            spark.readStream.format("topics")
            .options(**server.options("through", maxRecordsPerTrigger=30, group="spark"))
            .load()
            .select("seq", "data")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(table)
        )
        assert query.awaitTermination(120)
        return query

    query = run()
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [30, 30, 10]
    (source,) = query.recentProgress[-1]["sources"]
    assert json.loads(source["endOffset"])["through"]["next"] == 71
    server.fill("through", 70, 10)
    run()
    found = [row.seq for row in spark.read.parquet(table).orderBy("seq").collect()]
    assert found == list(range(1, 81))
    told = server.client.group("through", "spark").info()
    assert (told.mode, told.committed, told.lag.records) == ("stream", 81, 0)


@pytest.mark.parametrize(
    ("schema", "given", "told"),
    [
        (None, {"endSeq": "99"}, "a stream has no end"),
        (None, {"path": "/nowhere", "allowLive": "true"}, "a stream cannot read beside a running store"),
        ("seq int", {}, "'seq' as int; it can be had as bigint"),
        ("tag string not null", {}, "'tag' as not null"),
        ("seq bigint", {"gapPolicy": "emit"}, "needs the columns kind, gap_from, gap_to"),
    ],
)
def test_what_no_stream_can_give_is_refused_in_our_words(
    spark: SparkSession, schema: str | None, given: dict[str, str], told: str
) -> None:
    options = {"topic": "orders", **({} if "path" in given else {"url": "http://127.0.0.1:1"}), **given}
    reader = spark.readStream.format("topics").options(**options)
    writer = (reader if schema is None else reader.schema(schema)).load().writeStream.format("noop")
    # The first question differs: where to begin, or where availableNow ends.
    query = (writer if schema is None else writer.trigger(availableNow=True)).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    assert told in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)
