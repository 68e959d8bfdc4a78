"""What a query sees: through Spark itself, from one running server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import topics
from tests.spark.conftest import Loader, Server
from tests.spark.readers import item_of, item_of_row, place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def orders(server: Server) -> str:
    """200 records in segments, 100 behind them."""
    server.fill("orders", 0, 200, durability="fsync")
    server.checkpoint()
    server.fill("orders", 200, 100)
    server.client.append(
        "orders", [{"data": "text", "key": 'k"1', "meta": {"m": 1}, "node": "n1"}, {"data": [1, {"deep": None}]}]
    )
    return "orders"


def failure(action: Any) -> str:
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


def test_a_query_sees_what_the_server_serves(load: Loader, server: Server, orders: str) -> None:
    found = sorted((item_of_row(row.asDict()) for row in load(orders).collect()), key=place)
    assert found == [item_of(record) for record in server.client.records(orders)]
    assert {row.topic for row in load(orders, "topic string").distinct().collect()} == {orders}


def test_two_filters_on_one_frame_do_not_mix(load: Loader, orders: str) -> None:
    frame = load(orders)
    assert frame.filter("seq > 250").count() == 52
    assert frame.count() == 302
    assert frame.filter("seq <= 10").count() == 10
    assert frame.filter("tag = 'eu'").count() == 100


def test_a_delete_between_two_actions_shows_in_the_second(load: Loader, server: Server) -> None:
    server.fill("deleted", 0, 120, durability="fsync")
    server.checkpoint()
    frame = load("deleted")
    server.fill("deleted", 120, 30)  # the first action fixes the head
    assert frame.count() == 150
    server.client.append("deleted", [{"data": "behind the head of the frame"}])
    server.client.delete("deleted", tag="eu")
    assert frame.count() == 100
    server.checkpoint()
    server.client.delete("deleted", before_seq=50)
    assert [row.seq for row in frame.select("seq").orderBy("seq").collect()] == [
        seq for seq in range(50, 151) if (seq - 1) % 3
    ]


def test_a_schema_is_the_projection(load: Loader, orders: str) -> None:
    rows = load(orders, "tag string, seq bigint", endSeq=4).orderBy("seq").collect()
    assert [tuple(row) for row in rows] == [("eu", 1), ("us", 2), ("us", 3)]
    parsed = load(orders, "seq bigint, data struct<id:bigint,name:string,other:double>")
    assert parsed.selectExpr("sum(data.id)", "count(data.name)", "count(data.other)").collect()[0][:] == (44850, 300, 0)
    # What does not fit is null, whole.
    assert [row.data for row in parsed.filter("seq > 300").collect()] == [None, None]
    assert "does not fit" in failure(lambda: load(orders, "data struct<id:bigint>", onBadJson="fail").collect())


def test_kafkas_columns_are_there_on_request(load: Loader, orders: str) -> None:
    rows = load(orders, compat="kafka", startingOffsets="301", endingOffsets="302").collect()
    assert rows[0].asDict() | {"timestamp": None} == {
        "key": b'k"1', "value": b'"text"', "topic": orders, "partition": 0, "offset": 301, "timestamp": None,
        "timestampType": 1,
    }  # fmt: skip


def test_what_cannot_be_read_is_told_through_spark(load: Loader, server: Server, spark: SparkSession) -> None:
    secret = failure(lambda: load("nothing", token="hush-hush").collect())
    assert "topic 'nothing' does not exist" in secret
    assert "hush" not in secret
    refused = failure(lambda: spark.read.format("topics").options(path=str(server.data), topic="any").load().collect())
    assert "read through its server with option url" in refused


def test_a_rotted_segment_fails_the_query_and_names_itself(spark: SparkSession, tmp_path: Path) -> None:
    with topics.open(tmp_path, segment_max_events=50) as log:
        log.create("orders")
        for _ in range(3):
            log.append("orders", [{"data": {"n": n}} for n in range(50)])
    (rotten,) = tmp_path.glob("topics/*/seg-*51.data")
    data = bytearray(rotten.read_bytes())
    place_of_rot = data.index(b'{"n":7}')
    data[place_of_rot + 5] ^= 1
    rotten.write_bytes(data)
    reader = spark.read.format("topics").options(path=str(tmp_path), topic="orders")
    told = failure(lambda: reader.load().collect())
    assert str(rotten) in told
    assert "record 58" in told
    assert "onCorrupt=report" in told
    rows = reader.option("onCorrupt", "report").load()
    assert rows.filter("kind = 'record'").count() == 149
    (gap,) = rows.filter("kind = 'gap'").collect()
    assert (gap.gap_from, gap.gap_to, gap.reason, gap.seq) == (58, 58, "corrupt", None)


def test_a_segment_that_is_missing_under_a_server_is_named(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.fill("orders", 0, 150, durability="fsync")
    server.checkpoint()
    missing = server.client.segments("orders").segments[1].path
    assert missing is not None
    Path(missing).unlink()
    told = failure(spark.read.format("topics").options(**server.options("orders")).load().count)
    file = "/".join(missing.split("/")[-2:])
    assert f"{file} of {server.url} is damaged at byte 0: the server has no whole file for topic 'orders'" in told
    assert "from seq 51 on: restore it from a backup, or start the store once with recovery=salvage" in told
    assert spark.read.format("topics").options(**server.options("orders", endSeq=51)).load().count() == 50
    server.stop()


def test_a_lost_range_is_a_row_on_request(load: Loader, server: Server) -> None:
    server.fill("capped", 0, 300, durability="fsync", cap_records=100)
    shown = load("capped", startSeq=1, gapPolicy="emit")
    (gap,) = shown.filter("kind = 'gap'").collect()
    assert (gap.topic, gap.gap_from, gap.gap_to, gap.reason) == ("capped", 1, 200, "cap")
    assert shown.filter("kind = 'record'").count() == 100
