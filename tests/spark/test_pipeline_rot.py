"""Segments that rot on disk: an export stops and says what can be done, or goes on and notes exactly what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import topics
from tests.spark.test_pipeline import exported, options, run
from topics.cli import pipeline as commands
from topics.model.errors import RecordsLost
from topics.spark.parts import Writer, Written
from topics.spark.pipeline import PipelineOptions, read_status, rebuild, run_round
from topics.spark.places import Loss, ServerPlace, Span, joined_losses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Server

SIZE = 50
"""Records of a segment."""


class Rotting:
    """A directory at rest with a topic `bad` of three segments, some records of which rot; and a topic `good`."""

    def __init__(self, root: Path) -> None:
        with topics.open(root / "data", segment_max_events=SIZE) as log:
            for name, count in (("bad", 3 * SIZE), ("good", SIZE)):
                log.create(name)
                log.append(name, [{"data": {"of": name, "n": n}} for n in range(1, count + 1)])
        self.tables = root / "tables"
        self.options = PipelineOptions(str(self.tables), path=str(root / "data"), topics="bad", tail=True)
        self.file = next(one for one in root.glob("data/topics/*/seg-*.data") if b'"bad","n":60}' in one.read_bytes())
        self._whole = self.file.read_bytes()

    def rot(self, *seqs: int) -> None:
        data = bytearray(self._whole)
        for seq in seqs:
            data[data.index(f'"bad","n":{seq}}}'.encode()) + 2] ^= 1
        self.file.write_bytes(data)

    def restore(self) -> None:
        self.file.write_bytes(self._whole)

    def exported(self) -> list[int]:
        return [seq for seq, _ in exported(self.tables, "bad")]


@pytest.fixture
def rotting(tmp_path: Path) -> Rotting:
    return Rotting(tmp_path)


def test_rotten_record_stops_its_own_topic_and_the_error_names_file_offset_and_remedies(
    spark: SparkSession, rotting: Rotting
) -> None:
    rotting.rot(60)
    bad, good = run_round(lambda: spark, replace(rotting.options, topics="*"))
    assert (good.error, good.rows) == (None, SIZE)
    told = str(bad.error)
    assert f"{rotting.file} is damaged at byte " in told
    assert "record 60 of topic 'bad'" in told
    assert "restore the file from a backup and run again, or export the rest with --on-corrupt report" in told
    assert "Traceback" not in told
    assert read_status(rotting.options)[0].next_seq == 1
    rotting.restore()
    assert run(spark, rotting.options).rows == 3 * SIZE


def test_rest_is_exported_on_request_and_the_lost_ranges_are_noted_until_a_rebuild_after_the_restore(
    spark: SparkSession, rotting: Rotting
) -> None:
    rotting.rot(60, 61, 62, 77)
    asked = replace(rotting.options, report_corrupt=True, gap_fails=True)  # rot that is to be told is no gap to fail at
    done = run(spark, asked)
    lost = ((60, 62, "corrupt"), (77, 77, "corrupt"))
    assert (done.error, done.rows, done.lag, done.gaps) == (None, 3 * SIZE - 4, 0, lost)
    there = [seq for seq in range(1, 3 * SIZE + 1) if seq not in (60, 61, 62, 77)]
    assert rotting.exported() == there
    (status,) = read_status(rotting.options)
    assert (status.gaps, status.problem) == (lost, None)
    (refused,) = rebuild(lambda: spark, rotting.options)
    assert "on-corrupt report" in str(refused.error)
    (again,) = rebuild(lambda: spark, replace(rotting.options, report_corrupt=True))
    assert (again.rows, again.gaps) == (done.rows, lost)
    rotting.restore()
    assert run(spark, rotting.options).rows == 0  # the table is past them
    assert rotting.exported() == there
    (whole,) = rebuild(lambda: spark, rotting.options)
    assert (whole.rows, whole.gaps, read_status(rotting.options)[0].gaps) == (3 * SIZE, (), ())
    assert not list(rotting.tables.glob("*.*-*"))


def test_table_that_holds_what_has_rotted_since_is_not_replaced_by_one_that_lacks_it(
    spark: SparkSession, rotting: Rotting
) -> None:
    run(spark, rotting.options)
    rotting.rot(60)
    asked = replace(rotting.options, report_corrupt=True)
    (refused,) = rebuild(lambda: spark, asked)
    assert "holds records 60 to 60, which its topic has lost since (corrupt)" in str(refused.error)
    assert rotting.exported() == list(range(1, 3 * SIZE + 1))
    assert not list(rotting.tables.glob("*.*-*"))
    (done,) = rebuild(lambda: spark, replace(asked, drop_lost=True))
    assert done.gaps == ((60, 60, "corrupt"),)


@pytest.mark.parametrize("size", [None, 400])
def test_segment_that_is_missing_or_cut_is_refused_and_salvage_makes_it_a_gap(
    spark: SparkSession, rotting: Rotting, size: int | None
) -> None:
    if size is None:
        rotting.file.unlink()
    else:
        rotting.file.write_bytes(rotting.file.read_bytes()[:size])
    asked = replace(rotting.options, report_corrupt=True)  # a file that is not whole is for the store to judge
    told = str(run(spark, asked).error)
    assert f"{rotting.file} is damaged at byte {size or 0}: " in told
    assert "restore it from a backup, or start the store once with recovery=salvage" in told
    topics.open(str(asked.path), segment_max_events=SIZE, recovery="salvage").close()
    done = run(spark, rotting.options)
    assert done.error is None
    assert {reason for _, _, reason in done.gaps} == {"corrupt"}
    assert done.rows + sum(high + 1 - low for low, high, _ in done.gaps) == 3 * SIZE


def rotten(server: Server, topic: str) -> Path:
    """Record 70 of what `fill` made rots; the file it is in."""
    topic_id = server.client.heads({topic: 1}).topics[topic].epoch
    (file,) = server.data.glob(f"topics/{topic_id:08X}/seg-{51:016d}.data")
    data = bytearray(file.read_bytes())
    data[data.index(b'"name":"n69"') + 9] ^= 1
    file.write_bytes(data)
    return file


def test_rot_under_a_running_server_is_told_and_noted_the_same_way(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 120)
    server.checkpoint()
    file = rotten(server, topic)
    asked = options(server, topic, tmp_path)
    assert f"{file} is damaged at byte " in str(run(spark, asked).error)
    done = run(spark, replace(asked, report_corrupt=True))
    assert (done.error, done.rows, done.end_seq, done.gaps) == (None, 99, 101, ((70, 70, "corrupt"),))


def test_rebuild_that_is_refused_does_not_let_retention_go_past_what_the_old_table_has(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 100)
    server.checkpoint()
    asked = options(server, topic, tmp_path, hold=True, report_corrupt=True)
    assert run(spark, asked).end_seq == 101
    server.fill(topic, 100, 100)
    server.checkpoint()
    rotten(server, topic)
    (refused,) = rebuild(lambda: spark, asked)
    assert "holds records 70 to 70" in str(refused.error)
    assert read_status(asked)[0].next_seq == 101
    assert server.client.group(topic, "export").info().committed <= 101


def test_loss_that_only_reading_finds_stops_an_export_that_takes_none(
    spark: SparkSession, rotting: Rotting, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Written("", losses=(Loss("bad", 5, 9, "cap"),))]
    monkeypatch.setattr("topics.spark.pipeline.write_files", lambda *_: found)
    refused = run(spark, replace(rotting.options, gap_fails=True))
    assert "records 5 to 9 of topic 'bad' are lost (cap) before they were exported" in str(refused.error)
    assert read_status(rotting.options)[0].next_seq == 1
    assert run(spark, rotting.options).gaps == ((5, 9, "cap"),)


class Reading:
    """An origin whose server found rot, and went on reading."""

    def read(self, *_: Any) -> Iterator[Loss]:
        yield Loss("t", 3, 3, "corrupt")
        yield Loss("t", 4, 4, "corrupt")


def test_rot_that_the_server_has_read_over_is_not_taken_for_an_ordinary_gap(tmp_path: Path) -> None:
    spans = [Span("t", 1, 1, 10, 100, ServerPlace())]
    origin: Any = Reading()
    with pytest.raises(RecordsLost, match="records 3 to 3 of topic 't' fail their check on the server"):
        Writer(str(tmp_path), origin, ()).write(spans)
    (done,) = Writer(str(tmp_path), origin, (), True).write(spans)
    assert done.losses == (Loss("t", 3, 4, "corrupt"),)


def test_losses_that_follow_each_other_for_one_reason_are_one() -> None:
    losses = [Loss("t", 8, 9, "cap"), Loss("t", 1, 3, "cap"), Loss("t", 4, 4, "cap"), Loss("t", 5, 7, "corrupt")]
    assert joined_losses(losses) == [Loss("t", 1, 4, "cap"), Loss("t", 5, 7, "corrupt"), Loss("t", 8, 9, "cap")]


@pytest.mark.parametrize("word", ["fail", "report"])
def test_commands_say_whether_rot_is_to_be_reported(monkeypatch: pytest.MonkeyPatch, word: Any) -> None:
    asked: list[PipelineOptions] = []

    def none(_session: Any, options: PipelineOptions, _doing: Any) -> Iterator[Any]:
        asked.append(options)
        return iter(())

    monkeypatch.setattr("topics.spark.pipeline.run_round", none)
    monkeypatch.setattr("topics.spark.pipeline.rebuild", none)
    commands.run(once=True, on_corrupt=word)
    commands.rebuild(topics="*", on_corrupt=word)
    assert [one.report_corrupt for one in asked] == [word == "report"] * 2
