"""What goes wrong around an export: it is told in one line, stops nothing else and loses nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from pyspark.errors import StreamingQueryException

import topics
from tests.contract.http.live import ServerProcess
from tests.spark.test_pipeline import exported, options, run, served
from topics.cli.ending import Ending
from topics.cli.output import make_console
from topics.cli.pipeline import _session as session_of
from topics.cli.pipeline import run as command
from topics.client.sync import Client
from topics.model.errors import InvalidConfig, InvalidRequest, StorageError, Unauthorized, Unreachable
from topics.spark.history import History
from topics.spark.parts import Writer, parse_shreds
from topics.spark.pipeline import Exported, PipelineOptions, _each, read_status, rebuild, run_round
from topics.spark.places import Head, Loss
from topics.spark.server_origin import ServerOrigin
from topics.spark.words import FLAGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Server


def test_named_topic_without_history_is_told_beside_the_others(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    server.fill("named", 0, 20, durability="fsync")
    server.fill("fleeting", 0, 5, durability="ephemeral")
    asked = options(server, "nowhere, named,fleeting", tmp_path, tail=True)
    told = {one.topic: (one.rows, one.error) for one in run_round(lambda: spark, asked)}
    assert told == {
        "nowhere": (0, "topic 'nowhere' does not exist"),
        "fleeting": (0, "topic 'fleeting' is ephemeral: it has no history"),
        "named": (20, None),
    }
    assert {one.topic: one.problem for one in read_status(asked)} == {name: why for name, (_, why) in told.items()}
    with pytest.raises(InvalidRequest, match="'nowhere' does not exist"):
        next(rebuild(lambda: spark, asked))
    for alone in ("fleeting", "fleet*", "nowhere"):
        with pytest.raises(InvalidRequest, match=r"ephemeral|does not exist"):
            run(spark, options(server, alone, tmp_path))
    assert len(exported(tmp_path, "named")) == 20


def test_ephemeral_topic_at_rest_is_refused_as_a_running_one_is(spark: SparkSession, tmp_path: Path) -> None:
    with topics.open(tmp_path / "data") as log:
        log.create("fleeting", durability="ephemeral")
        log.append("fleeting", [{"data": 1}])
        log.create("lasting", durability="fsync")
        log.append("lasting", [{"data": 1}])
    asked = PipelineOptions(table=str(tmp_path / "tables"), path=str(tmp_path / "data"), topics="*", tail=True)
    assert [one.topic for one in run_round(lambda: spark, asked)] == ["lasting"]
    with pytest.raises(InvalidRequest, match="topic 'fleeting' is ephemeral: it has no history"):
        run(spark, replace(asked, topics="fleeting"))
    assert not (tmp_path / "tables" / "fleeting").exists()
    stream = spark.readStream.format("topics").options(path=str(tmp_path / "data"), topic="fleeting").load()
    with pytest.raises(StreamingQueryException, match="is ephemeral: nothing of it is durable"):
        stream.writeStream.format("noop").start().awaitTermination(60)
    read = spark.read.format("topics").options(path=str(tmp_path / "data"), topic="fleeting")
    assert read.load().count() == 0  # what it held went with its store


def test_table_that_holds_more_than_its_topic_is_not_rebuilt_by_chance(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    server.fill("kept", 0, 60, cap_records=100, durability="fsync")
    asked = options(server, "kept", tmp_path, tail=True)
    run(spark, asked)
    server.fill("kept", 60, 140)
    assert run(spark, asked).gaps == ((61, 100, "cap"),)
    before = exported(tmp_path, "kept")
    (refused,) = rebuild(lambda: spark, asked)
    assert "holds records 1 to 60, which its topic has lost since" in str(refused.error)
    assert exported(tmp_path, "kept") == before
    (done,) = rebuild(lambda: spark, replace(asked, drop_lost=True))
    assert (done.rows, done.gaps) == (100, ((1, 100, "cap"),))
    server.client.delete("kept", tag="eu")
    (again,) = rebuild(lambda: spark, asked)  # what was missing before is no reason
    assert exported(tmp_path, "kept") == served(server, "kept")
    assert again.gaps == ((1, 100, "cap"),)
    server.client.drop("kept")
    server.fill("kept", 0, 5, durability="fsync")
    (refused,) = rebuild(lambda: spark, asked)
    assert "dropped and made again" in str(refused.error)
    assert len(exported(tmp_path, "kept")) == again.rows
    assert not list(tmp_path.glob("*.old-*"))


def test_table_that_cannot_be_read_is_told_beside_the_others(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    for name in ("torn.a", "torn.b"):
        server.fill(name, 0, 10, durability="fsync")
    asked = options(server, "torn.*", tmp_path, tail=True)
    assert [one.error for one in run_round(lambda: spark, asked)] == [None, None]
    (tmp_path / "torn.a" / "_delta_log" / "00000000000000000001.json").write_text("{rot\n")
    server.fill("torn.b", 10, 10)
    bad, good = run_round(lambda: spark, asked)
    assert (good.error, good.rows) == (None, 10)
    assert f"the table {tmp_path}/torn.a cannot be read" in str(bad.error)
    assert [one.problem is None for one in read_status(asked)] == [False, True]
    with pytest.raises(StorageError, match="written anew"):
        topics.spark.table(spark, str(tmp_path / "torn.a"))


def test_place_where_no_table_can_be_is_told_beside_the_others(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    for name in ("place.a", "place.b"):
        server.fill(name, 0, 10, durability="fsync")
    (tmp_path / "place.a").write_text("")
    bad, good = run_round(lambda: spark, options(server, "place.*", tmp_path, tail=True))
    assert (good.error, good.rows) == (None, 10)
    assert f"the folder {tmp_path}/place.a cannot be read" in str(bad.error)
    assert "\n" not in str(bad.error)


def test_reason_why_a_task_could_not_write_is_told(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fill(topic, 0, 10)
    monkeypatch.setattr("topics.spark.pipeline.Writer", lambda folder, *rest: Writer("/dev/null/table", *rest))
    done = run(spark, options(server, topic, tmp_path, tail=True))
    assert re.search("were not written: NotADirectoryError: .*Not a directory", str(done.error))


def test_server_that_goes_while_files_are_written_is_told_with_the_remedy(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fill(topic, 0, 10)
    gone = ServerOrigin("http://127.0.0.1:9", None, timeout_ms=500, words=FLAGS)
    monkeypatch.setattr("topics.spark.pipeline.Writer", lambda folder, _, *rest: Writer(folder, gone, *rest))
    done = run(spark, options(server, topic, tmp_path, tail=True))
    assert "were not written: no answer from http://127.0.0.1:9" in str(done.error)
    assert str(done.error).endswith("the next round asks again, --url names another server")


@pytest.mark.parametrize("step", ["create", "create_write_transaction"])
def test_full_disk_is_not_taken_for_another_exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    head = Head("store-1", 1, 10, 10, 1)
    history = History.load(str(tmp_path), "t")

    def full(*_: Any, **__: Any) -> None:
        raise OSError("Generic error\n \x1b[31m↳\x1b[0m No space left on device (os error 28)")

    monkeypatch.setattr(f"deltalake.DeltaTable.{step}", full)
    told = r"was not (made|changed) \(Generic error No space left on device \(os"
    if step == "create":
        with pytest.raises(StorageError, match=told):
            history.create(head, ())
        return
    history.create(head, ())
    with pytest.raises(StorageError, match=told):
        history.commit(head, 5, [], [])


def test_table_whose_name_leaves_no_room_for_another_stays_when_it_is_rebuilt(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    name = "n" * 255
    server.fill(name, 0, 5, durability="fsync")
    asked = options(server, name, tmp_path, tail=True)
    assert run(spark, asked).rows == 5
    (refused,) = rebuild(lambda: spark, asked)
    assert re.search("cannot be put aside .*nothing was changed", str(refused.error))
    assert len(exported(tmp_path, name)) == 5


def test_table_that_cannot_be_removed_once_its_successor_is_complete_stops_nothing(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    name = "n" * 242  # the names that it is given in the end are one byte longer than the first
    for topic in (name, "z.behind"):
        server.fill(topic, 0, 5, durability="fsync")
    asked = options(server, f"{name},z.behind", tmp_path, tail=True)
    assert [one.rows for one in run_round(lambda: spark, asked)] == [5, 5]
    first, second = rebuild(lambda: spark, asked)
    (aside,) = tmp_path.glob("*.old-*")
    assert (first.rows, first.error, second.rows) == (5, None, 5)
    assert str(first.note).startswith(f"the table before {tmp_path}/{name}, which is {aside}, was not removed (")
    assert len(exported(tmp_path, name)) == len(exported(tmp_path, aside.name)) == 5


def test_table_and_live_rest_take_their_key_from_the_environment_and_pass_gaps_on_request(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerProcess(tmp_path, TOPICS_API_KEYS="all")
    url = f"http://127.0.0.1:{server.port}"
    with Client(url, token="all") as client:
        client.create("locked", durability="fsync", cap_records=10)
        client.append("locked", [{"data": n} for n in range(10)])
        (done,) = run_round(lambda: spark, PipelineOptions(str(tmp_path / "tables"), url, token="all", tail=True))
        assert (done.error, done.rows) == (None, 10)
        client.append("locked", [{"data": n} for n in range(30)])
    folder = str(tmp_path / "tables" / "locked")
    monkeypatch.delenv("TOPICS_TOKEN", raising=False)
    with pytest.raises(Unauthorized, match="argument token, else from the variable TOPICS_TOKEN"):
        topics.spark.table(spark, folder, url)
    monkeypatch.setenv("TOPICS_TOKEN", "all")
    with pytest.raises(Exception, match="records 11 to 30 of topic 'locked' are lost"):
        topics.spark.table(spark, folder, url).count()
    assert topics.spark.table(spark, folder, url, gap_policy="skip").count() == 20
    server.stop()


@contextmanager
def exporting(*arguments: str, **environ: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """An exporter on the command line, and what it says next."""
    exporter = subprocess.Popen(
        [sys.executable, "-m", "topics", "pipeline", "run", "--json", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environ},
    )  # fmt: skip
    assert exporter.stdout is not None
    lines = exporter.stdout
    try:
        yield lambda: dict(json.loads(lines.readline()))
    finally:
        exporter.kill()
        exporter.wait()
        lines.close()


def test_exporter_outlives_its_server(spark: SparkSession, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with Client(f"http://127.0.0.1:{server.port}") as client:
        client.create("steady", durability="fsync")
        client.append("steady", [{"data": 1}])
    asked = PipelineOptions(str(tmp_path / "tables"), f"http://127.0.0.1:{server.port}", tail=True)
    assert run(spark, asked).rows == 1
    # Nothing is left to export, so this one needs no Spark of its own.
    with exporting("--every", "1s", "--tail", "--table", asked.table, TOPICS_URL=str(asked.url)) as told:
        assert told()["lag"] == 0
        server.kill()
        while "error" not in (said := told()) or said["error"] is None:
            assert said["lag"] == 0
        server = ServerProcess(tmp_path, TOPICS_PORT=str(server.port))
        while "topic" not in (said := told()) or said["error"] is not None:
            pass
        assert (said["topic"], said["lag"]) == ("steady", 0)
    server.stop()


def test_server_that_is_gone_is_not_waited_for_again_for_each_topic(tmp_path: Path) -> None:
    asked_for: list[str] = []

    def export(name: str) -> Exported:
        asked_for.append(name)
        if name == "b":
            raise Unreachable("no answer from http://127.0.0.1:9")
        return Exported(name, 1, 2)

    told = {one.topic: one.error for one in _each(PipelineOptions(str(tmp_path)), ["d", "c", "b", "a"], export)}
    gone = "no answer from http://127.0.0.1:9: the next round asks again, --url names another server"
    assert told == {"a": None} | dict.fromkeys("bcd", gone)
    assert asked_for == ["a", "b"]


def test_exporter_goes_on_whatever_ended_a_later_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[object] = [[], InvalidRequest("no topic matches"), StorageError("no space left"), KeyboardInterrupt()]

    def one(*_: Any) -> Iterator[Exported]:
        now = rounds.pop(0)
        if isinstance(now, BaseException):
            raise now
        return iter(())

    monkeypatch.setattr("topics.spark.pipeline.run_round", one)
    monkeypatch.setattr("topics.cli.pipeline.time.sleep", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        command(table=str(tmp_path), url="http://127.0.0.1:9")
    assert capsys.readouterr().err.splitlines() == ["error: no topic matches", "error: no space left"]
    rounds.append(InvalidRequest("no topic matches"))
    with pytest.raises(InvalidRequest):  # the first one: somebody is there to read it
        command(table=str(tmp_path), url="http://127.0.0.1:9")


def test_rebuilt_table_goes_as_far_as_the_one_before(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 130)
    server.checkpoint()  # two sealed segments, and a rest that only --tail exports
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    before = exported(tmp_path, topic)
    server.fill(topic, 130, 10)
    (done,) = rebuild(lambda: spark, replace(asked, tail=False))
    assert (done.rows, done.end_seq, done.lag) == (130, 131, 10)
    assert exported(tmp_path, topic) == before


def test_table_of_a_topic_made_again_is_kept_aside_or_replaced_or_stays(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    def made_again(count: int) -> None:
        server.client.drop(topic)
        server.client.create(topic, durability="fsync")
        server.fill(topic, 0, count)

    server.fill(topic, 0, 10)
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    made_again(4)
    new = run(spark, replace(asked, recreated="new"))
    (aside,) = tmp_path.glob("*.kept-*")
    assert (new.error, new.rows, new.note) == (None, 4, f"the table before it is {aside}")
    assert len(exported(tmp_path, aside.name)) == 10
    assert read_status(asked)[0].problem is None  # it is there because somebody wants it
    made_again(0)
    emptied = run(spark, replace(asked, recreated="rebuild"))
    assert (emptied.error, emptied.rows) == (None, 0)
    assert exported(tmp_path, topic) == []
    made_again(3)

    def no_spark() -> SparkSession:
        raise InvalidConfig("Spark does not start")

    (failed,) = run_round(no_spark, replace(asked, recreated="rebuild"))
    assert failed.error == "Spark does not start"
    assert [*tmp_path.glob("*.old-*"), *tmp_path.glob("*.kept-*")] == [aside]
    assert read_status(asked)[0].exists
    assert run(spark, replace(asked, recreated="rebuild")).rows == 3


def test_typed_column_of_another_type_is_refused_and_nothing_is_written(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    import polars

    def shredded(text: str) -> PipelineOptions:
        return options(server, topic, tmp_path, tail=True, shreds=parse_shreds(text))

    server.fill(topic, 0, 10)
    assert run(spark, shredded("id:bigint,name:string")).rows == 10
    server.fill(topic, 10, 10)
    files = sorted((tmp_path / topic).rglob("*"))
    refused = run(spark, shredded("id:string,name:boolean"))
    assert "(id is bigint, not string, name is string, not boolean)" in str(refused.error)
    assert "give the same --shred, or rebuild" in str(refused.error)
    assert sorted((tmp_path / topic).rglob("*")) == files
    named = run(spark, shredded("id:bigint"))
    assert "(name): give the same --shred, or rebuild" in str(named.error)
    assert run(spark, shredded("name:string,id:bigint")).rows == 10  # in any order
    assert polars.read_delta(str(tmp_path / topic))["id"].sum() == sum(range(20))
    (anew,) = rebuild(lambda: spark, shredded("id:int,name:string"))
    assert (anew.rows, run(spark, shredded("id:int,name:string")).error) == (20, None)
    assert polars.read_delta(str(tmp_path / topic))["id"].sum() == sum(range(20))


def test_gaps_are_known_for_longer_than_delta_keeps_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Head("store-1", 1, 1000, 1000, 1)
    history = History.load(str(tmp_path), "t")
    history.create(head, ())

    def commit(next_seq: int, *losses: Loss) -> None:
        loaded = History.load(str(tmp_path), "t")
        loaded.commit(head, next_seq, [], list(losses))

    commit(10, Loss("t", 1, 4, "cap"))
    commit(20, Loss("t", 12, 12, "ttl"))
    commit(30)
    told = [entry for entry in History.load(str(tmp_path), "t").table.history() if "topics.gaps" in entry]  # type: ignore[union-attr]
    assert len(told) == 2  # again only when it is time
    monkeypatch.setattr("topics.spark.history.RESTATE_MS", 0)
    commit(40)
    for file in (tmp_path / "t" / "_delta_log").iterdir():
        os.utime(file, (0, 0))
    table = History.load(str(tmp_path), "t").table
    assert table is not None
    table.create_checkpoint()
    table.cleanup_metadata()
    assert not (tmp_path / "t" / "_delta_log" / "00000000000000000001.json").exists()
    assert History.load(str(tmp_path), "t").gaps() == [(1, 4, "cap"), (12, 12, "ttl")]


def test_small_files_that_cannot_be_joined_are_told_and_stop_no_export(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options(server, topic, tmp_path, tail=True)
    server.fill(topic, 0, 10)
    run(spark, asked)
    (first,) = (tmp_path / topic).glob("*.parquet")
    first.write_bytes(first.read_bytes()[:-4])
    monkeypatch.setattr("topics.spark.history.choose", lambda files: [sorted(files, key=lambda one: one.low)])
    server.fill(topic, 10, 10)
    done = run(spark, asked)
    assert (done.error, done.rows, done.joined) == (None, 10, 0)
    assert f"small files of the table {tmp_path}/{topic} cannot be joined" in str(done.note)
    assert read_status(asked)[0].next_seq == 21


def test_folder_of_a_table_may_have_any_name(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    server.fill("odd:name", 0, 5, durability="fsync")
    root = tmp_path / "é [old] {new} #1"
    assert run(spark, options(server, "odd:name", root, tail=True)).rows == 5
    assert topics.spark.table(spark, str(root / "odd:name"), server.url).count() == 5


class Session:
    """Its Java may die."""

    def __init__(self) -> None:
        self.alive = True
        self.stopped = 0

    @property
    def sparkContext(self) -> Any:
        return self

    @property
    def _jsc(self) -> Any:
        return self

    @property
    def _jvm(self) -> Any:
        return Mock()

    def sc(self) -> Any:
        return self

    def isStopped(self) -> bool:
        if not self.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        return self.stopped > 0

    def stop(self) -> None:
        self.stopped += 1
        if not self.alive:
            raise ConnectionRefusedError(111, "Connection refused")

    def parallelize(self, *_: Any) -> Any:
        self.alive = False
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Those that were started. Spark's own notes of what runs are as before in the end."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    started: list[Session] = []

    def start(*_: Any) -> Session:
        started.append(Session())
        return started[-1]

    monkeypatch.setattr("topics.spark.session", start)
    for owner, names in (
        (SparkContext, ("_gateway", "_jvm", "_active_spark_context")),
        (SparkSession, ("_instantiatedSession", "_activeSession")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    return started


def test_session_of_an_exporter_is_stopped_however_it_ends(sessions: list[Session]) -> None:
    exporter = session_of(None, make_console(stderr=True), Ending())
    session = exporter.__enter__()
    assert session() is session()
    assert exporter.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    assert [one.stopped for one in sessions] == [1]


def test_spark_that_died_is_told_and_another_one_is_started(
    sessions: list[Session], server: Server, topic: str, tmp_path: Path
) -> None:
    from pyspark import SparkContext

    server.fill(topic, 0, 10)
    asked = options(server, topic, tmp_path, tail=True)
    with session_of(None, make_console(stderr=True), Ending()) as session:
        (done,) = run_round(session, asked)
        assert re.search("Spark ended while .* perhaps for want of memory: the next round starts", str(done.error))
        assert [id(session()), id(session())] == [id(sessions[1])] * 2
        assert SparkContext._gateway is None  # or the next one would talk to nobody
        sessions[1].alive = False
    assert [one.stopped for one in sessions] == [1, 1]
