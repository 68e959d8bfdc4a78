"""Streams and tables tell the server how far they are: as a group, for its lag and for retention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.http.live import ServerProcess
from tests.spark.conftest import Server
from tests.spark.readers import seqs
from tests.spark.test_pipeline import exported, options, run, served
from tests.spark.test_stream import Stream
from topics.client.sync import Client
from topics.model.errors import Conflict, Denied, InvalidRequest
from topics.spark.pipeline import GROUP, PipelineOptions
from topics.spark.progress import ALIVE_S, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_stream_tells_what_is_done_with_and_nothing_beyond(server: Server) -> None:
    server.fill("told", 0, 60, durability="fsync")
    stream = Stream(server.options("told", maxRecordsPerTrigger=25, group="reader"))
    group = server.client.group("told", "reader")
    stream.next()
    found = group.info()
    assert (found.mode, found.committed, found.lag.records, found.config.retention_guard) == ("stream", 1, 60, False)
    stream.next()
    assert group.info().committed == 26, "the first batch is done with where the next one is asked for"
    stream.reader = stream.restarted()
    stream.next()
    stream.next()
    assert (group.info().committed, group.info().lag.records) == (61, 0)
    again = Stream(server.options("told", startSeq=11, group="reader"))
    again.next()
    assert group.info().committed == 11, "a new checkpoint puts the group where its reader is"


def test_retention_waits_for_a_stream_that_holds(server: Server) -> None:
    server.fill("held", 0, 30, durability="fsync", cap_records=20)
    stream = Stream(server.options("held", group="keeper", hold="true"))
    assert seqs(stream.batch()) == list(range(11, 31))
    stream.next()
    server.fill("held", 30, 50)
    assert seqs(stream.batch()) == list(range(31, 81)), "nothing of it is lost"
    stream.next()
    server.fill("held", 80, 1)
    assert server.client.heads({"held": 1}).topics["held"].earliest_seq == 62
    released = Stream(server.options("held", group="keeper", hold="false"))
    released.next()
    assert server.client.group("held", "keeper").info().config.retention_guard is False


def test_topics_that_join_are_told_and_dropped_ones_forgotten(server: Server) -> None:
    stream = Stream(
        {"url": server.url, "subscribePattern": r"marks\..*", "gapPolicy": "skip", "group": "all", "hold": "true"}
    )
    server.fill("marks.a", 0, 10, durability="fsync")
    stream.next()
    assert server.client.group("marks.a", "all").info().committed == 1
    stream.next()
    assert server.client.group("marks.a", "all").info().committed == 11
    server.client.drop("marks.a")
    server.fill("marks.a", 0, 4, durability="fsync")
    stream.next()
    stream.next()
    assert server.client.group("marks.a", "all").info().committed == 5


def test_group_that_is_not_for_streams_is_refused(server: Server) -> None:
    server.fill("taken", 0, 5, durability="fsync")
    server.client.group("taken", "workers").create(mode="queue")
    with pytest.raises(Conflict, match="name another group"):
        Stream(server.options("taken", group="workers")).next()
    others = server.client.group("taken", "others")
    others.create(mode="stream", start={"seq": 5})
    others.join("somebody")
    with pytest.raises(Conflict, match="has members"):
        Stream(server.options("taken", group="others")).next()


def test_group_is_kept_alive_and_made_again_where_it_was_dropped(server: Server) -> None:
    server.fill("alive", 0, 5, durability="fsync")
    now = [0.0]
    progress = Progress(lambda: server.client, "steady", True, lambda: now[0])
    progress.tell("alive", "one", 6)
    server.client.group("alive", "steady").drop()
    progress.tell("alive", "one", 6)
    assert list(server.client.groups("alive")) == []
    now[0] += ALIVE_S
    progress.tell("alive", "one", 6)
    assert server.client.group("alive", "steady").info().committed == 6
    progress.tell("alive", "one", 99)  # as a topic that was made again a moment ago would have it
    progress.tell("absent", "one", 1)
    assert server.client.group("alive", "steady").info().committed == 6


def test_mark_of_a_table_is_a_group_of_its_topic(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    server.fill("marked", 0, 30, durability="fsync", cap_records=20)
    asked = options(server, "marked", tmp_path, tail=True, hold=True)
    done = run(spark, asked)
    assert (done.error, done.note, done.end_seq) == (None, None, 31)
    group = server.client.group("marked", GROUP)
    assert (group.info().committed, group.info().lag.records, group.info().config.retention_guard) == (31, 0, True)
    server.fill("marked", 30, 50)
    assert group.info().lag.records == 50
    before = served(server, "marked")
    assert run(spark, options(server, "marked", tmp_path, tail=True)).gaps == ()
    assert exported(tmp_path, "marked")[-50:] == before[-50:]
    assert (group.info().committed, group.info().config.retention_guard) == (81, True)
    other = run(spark, options(server, "marked", tmp_path / "other", tail=True))
    assert (other.error, group.info().committed) == (None, 81)
    at_rest = PipelineOptions(str(tmp_path), path=str(tmp_path / "data"), hold=True)
    with pytest.raises(InvalidRequest, match="give its --url"):
        run(spark, at_rest)


def test_key_that_may_only_read_exports_without_a_mark_on_the_server(spark: SparkSession, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, TOPICS_API_KEYS="all,looks:read")
    url = f"http://127.0.0.1:{server.port}"
    with Client(url, token="all") as client:
        client.create("quiet", durability="fsync")
        client.append("quiet", [{"data": 1}])
    asked = PipelineOptions(str(tmp_path / "tables"), url, token="looks", tail=True)
    held = run(spark, replace(asked, hold=True))
    assert "admin to make the group" in str(held.error)
    done = run(spark, asked)
    assert (done.error, done.rows) == (None, 1)
    assert "does not know the mark" in str(done.note)
    with pytest.raises(Denied, match="admin to make the group"):
        Stream({"url": url, "topic": "quiet", "token": "looks", "group": "reader"}).next()
    server.stop()
