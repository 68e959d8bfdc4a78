"""`topics.spark.table`: which losses fail it, and what it does not read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import topics.spark
from tests.spark.conftest import Server
from topics.model.errors import InvalidRequest, RecordsLost
from topics.spark.options import parse_options
from topics.spark.origin import open_origin
from topics.spark.pipeline import Exported, PipelineOptions, run_round
from topics.spark.table import check_gaps, check_instance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOBODY = "http://127.0.0.1:9"


def export(spark: SparkSession, server: Server, topic: str, table: Path) -> Exported:
    (done,) = run_round(lambda: spark, PipelineOptions(str(table), server.url, topics=topic, tail=True))
    assert (done.error, done.lag) == (None, 0)
    return done


def test_records_that_were_lost_before_their_export_fail_the_table(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 100)
    export(spark, server, topic, tmp_path)
    server.client.configure(topic, cap_records=60)
    server.fill(topic, 100, 100)
    assert export(spark, server, topic, tmp_path).gaps == ((101, 140, "cap"),)
    folder = str(tmp_path / topic)
    told = rf"records 101 to 140 of topic '{topic}' were lost \(cap\) before they were exported: .*gap_policy='skip'"
    for url in (None, server.url):
        with pytest.raises(RecordsLost, match=told):
            topics.spark.table(spark, folder, url)
        assert topics.spark.table(spark, folder, url, gap_policy="skip").count() == 160
    with pytest.raises(RecordsLost, match="records 101 to 120 of"):
        topics.spark.table(spark, folder, NOBODY, as_of_seq=120)
    assert topics.spark.table(spark, folder, NOBODY, as_of_seq=120, gap_policy="skip").count() == 100
    assert topics.spark.table(spark, folder, NOBODY, as_of_seq=100).count() == 100


def test_table_begins_where_the_topic_began_when_it_was_first_exported(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.client.configure(topic, cap_records=60)
    server.fill(topic, 0, 100)
    assert export(spark, server, topic, tmp_path).gaps == ((1, 40, "cap"),)
    server.fill(topic, 100, 10)
    folder = str(tmp_path / topic)
    for url, rows in ((None, 60), (server.url, 70)):
        assert topics.spark.table(spark, folder, url).count() == rows
    live = spark.read.format("topics").options(**server.options(topic)).load()
    assert live.count() == 60, "a read from the earliest record takes no offence either"


def test_table_without_a_record_is_followed_by_the_earliest_one(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 10)
    server.client.delete(topic, before_seq=11)
    export(spark, server, topic, tmp_path)
    server.client.configure(topic, cap_records=20)
    server.fill(topic, 10, 50)
    folder = str(tmp_path / topic)
    assert topics.spark.table(spark, folder, server.url).count() == 20
    for last, rows in ((5, 0), (20, 0), (50, 10), (99, 20)):
        assert topics.spark.table(spark, folder, server.url, as_of_seq=last).count() == rows


def test_nothing_behind_the_asked_seq_is_read(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    server.fill(topic, 0, 50)
    export(spark, server, topic, tmp_path)
    server.fill(topic, 50, 150)
    server.checkpoint()
    path = server.client.segments(topic).segments[-1].path
    assert path is not None
    data = Path(path)
    data.write_bytes(data.read_bytes().replace(b'"n199"', b'"x199"'))
    folder = str(tmp_path / topic)
    with pytest.raises(Exception, match=f"record 200 of topic '{topic}' fails its check"):
        topics.spark.table(spark, folder, server.url).count()
    for last, rows in ((199, 199), (60, 60), (50, 50), (7, 7), (0, 0)):
        assert topics.spark.table(spark, folder, server.url, as_of_seq=last).count() == rows
    with pytest.raises(Exception, match="fails its check"):
        topics.spark.table(spark, folder, server.url, as_of_seq=1_000).count()


def test_table_that_is_ahead_of_its_topic_is_not_joined_with_it(server: Server, topic: str) -> None:
    server.fill(topic, 0, 10)
    asked = parse_options(server.options(topic))
    instance = open_origin(asked).heads({topic: 1})[topic].id
    assert check_instance(asked, topic, instance, 11).head_seq == 10
    with pytest.raises(InvalidRequest, match=rf"ends at seq 11 but topic '{topic}' on the server .* at 10: .*backup"):
        check_instance(asked, topic, instance, 12)


def test_rot_before_the_first_record_is_told_and_what_a_cap_took_is_not() -> None:
    check_gaps("orders", [(1, 40, "cap")], 41, 100)
    check_gaps("orders", [(1, 40, "cap"), (60, 70, "ttl")], 41, 59)
    with pytest.raises(RecordsLost, match="records 60 to 65 of topic 'orders'"):
        check_gaps("orders", [(1, 40, "cap"), (60, 70, "ttl")], 41, 65)
    with pytest.raises(RecordsLost, match=r"records 1 to 3 of topic 'orders' were lost \(corrupt\)"):
        check_gaps("orders", [(1, 3, "corrupt")], 4, 100)
