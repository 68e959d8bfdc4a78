"""Exports past seqs that are in no segment any more: what was deleted never holds back what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.spark.conftest import Server
from tests.spark.test_pipeline import exported, options, run, served
from topics.spark.pipeline import PipelineOptions
from topics.spark.places import ServerPlace
from topics.spark.server_origin import ServerOrigin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def holed(tmp_path: Path) -> Iterator[Server]:
    """`log` without its middle segment, by a tag; `jobs` without one, since all of its jobs but the first are done."""
    server = Server(tmp_path / "server")
    server.client.create("log", durability="fsync")
    server.client.create("jobs", type="queue", durability="fsync")
    for first in (1, 51, 101, 151):
        records = [{"data": seq, "tag": f"from{first}"} for seq in range(first, first + 50)]
        for name in ("log", "jobs"):
            server.client.append(name, records)
    server.checkpoint()
    jobs = server.client.queue("jobs")
    (slow,) = jobs.claim("slow", max=1, lease_ms=3_600_000)
    assert slow.seq == 1
    jobs.ack("quick", jobs.claim("quick", max=129))
    server.client.delete("log", tag="from51")
    server.checkpoint()
    for name in ("log", "jobs"):
        found = [one.first_seq for one in server.client.segments(name).segments if one.sealed]
        assert found == [1, 101, 151], name
    yield server
    server.stop()


@pytest.mark.parametrize("name", ["log", "jobs"])
def test_export_goes_on_behind_a_segment_that_deletes_emptied(
    spark: SparkSession, holed: Server, tmp_path: Path, name: str
) -> None:
    there = served(holed, name)
    done = run(spark, options(holed, name, tmp_path / "served"))
    again = run(spark, options(holed, name, tmp_path / "served"))
    holed.stop()
    rest = run(spark, PipelineOptions(table=str(tmp_path / "rest"), path=str(holed.data), topics=name))
    assert (done.error, done.end_seq, done.rows, done.lag) == (None, 201, len(there), 0)
    assert (again.start_seq, again.end_seq, again.lag) == (201, 201, 0)
    assert (rest.end_seq, rest.rows, rest.lag) == (done.end_seq, done.rows, done.lag)
    assert exported(tmp_path / "served", name) == exported(tmp_path / "rest", name) == there


def test_only_seqs_behind_the_segments_are_asked_of_the_server(holed: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    holed.client.append("log", [{"data": seq} for seq in range(201, 211)])
    origin = ServerOrigin(holed.url, None)
    head = origin.heads({"log": 1})["log"]

    def asked(start: int, end: int) -> list[tuple[int, int]]:
        spans = origin.plan("log", head.topic_id, start, end).spans
        return [(span.start_seq, span.end_seq) for span in spans if isinstance(span.place, ServerPlace)]

    assert asked(1, 211) == [(201, 211)]
    assert asked(60, 90) == []
    assert asked(205, 208) == [(205, 208)]
    listing = origin.client.segments

    def without_tail(*names: Any, **more: Any) -> Any:
        return msgspec.structs.replace(listing(*names, **more), tail=None)

    # A server that does not say what its tail is may have any seq there.
    monkeypatch.setattr(origin.client, "segments", without_tail)
    assert asked(1, 211) == [(51, 101), (201, 211)]
