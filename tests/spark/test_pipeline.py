"""From topics to history tables: every live record once, whatever happens to the exporter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from topics.model.errors import InvalidRequest, StorageError, Unreachable
from topics.model.record import Record
from topics.spark.history import History
from topics.spark.joining import JOIN_FILES
from topics.spark.options import parse_options
from topics.spark.parts import parse_shreds
from topics.spark.pipeline import Exported, PipelineOptions, folder_of, read_status, rebuild, run_round
from topics.spark.table import check_instance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Server


def options(server: Server, topic: str, table: Path, **more: Any) -> PipelineOptions:
    return PipelineOptions(table=str(table), url=server.url, topics=topic, **more)


def run(spark: SparkSession, asked: PipelineOptions) -> Exported:
    (done,) = run_round(lambda: spark, asked)
    return done


def exported(table: Path, topic: str) -> list[tuple[int, str]]:
    """(seq, data) as the table's own reader gives them, in the order of the files."""
    import polars

    frame = polars.read_delta(str(table / topic)).sort("seq")
    return list(zip(frame["seq"].to_list(), frame["data"].to_list(), strict=True))


def served(server: Server, topic: str) -> list[tuple[int, str]]:
    return [(one.seq, one.raw.decode()) for one in server.client.records(topic) if isinstance(one, Record)]


def test_rounds_export_each_sealed_record_once(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    server.fill(topic, 0, 220)
    server.client.delete(topic, tag="eu")
    server.checkpoint()
    asked = options(server, topic, tmp_path)
    first = run(spark, asked)
    assert (first.error, first.start_seq, first.lag) == (None, 1, 221 - first.end_seq)
    assert 0 < first.end_seq <= 221
    server.fill(topic, 220, 100)
    server.checkpoint()
    second = run(spark, asked)
    assert second.start_seq == first.end_seq
    again = run(spark, asked)
    assert (again.rows, again.end_seq) == (0, again.start_seq)
    rest = run(spark, options(server, topic, tmp_path, tail=True))
    assert rest.lag == 0
    assert exported(tmp_path, topic) == served(server, topic)
    (status,) = read_status(asked)
    assert (status.rows, status.lag, status.problem) == (len(served(server, topic)), 0, None)


def test_other_engines_read_the_table(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    import duckdb
    import polars
    from deltalake import DeltaTable

    server.fill(topic, 0, 120)
    done = run(spark, options(server, topic, tmp_path, tail=True, shreds=parse_shreds("id:bigint,name:string")))
    assert (done.error, done.rows) == (None, 120)
    folder = str(tmp_path / topic)
    by_polars = polars.read_delta(folder).sort("seq")
    assert by_polars["id"].to_list() == list(range(120))
    files = DeltaTable(folder).file_uris()
    query = (
        f"select count(*), sum(id), min(ts) > timestamp '2020-01-01', count(distinct tag) from read_parquet({files})"
    )
    found = duckdb.sql(query)
    assert found is not None
    assert found.fetchall() == [(120, sum(range(120)), True, 2)]


def test_table_and_live_rest_are_one_frame_without_a_seam(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    import topics.spark

    server.fill(topic, 0, 130)
    server.checkpoint()
    run(spark, options(server, topic, tmp_path))
    server.fill(topic, 130, 70)
    frame = topics.spark.table(spark, str(tmp_path / topic), server.url)
    seqs = [row.seq for row in frame.select("seq").collect()]
    assert sorted(seqs) == list(range(1, 201))
    part = topics.spark.table(spark, str(tmp_path / topic), server.url, as_of_seq=150)
    assert part.count() == 150
    with pytest.raises(InvalidRequest, match="no history table"):
        topics.spark.table(spark, str(tmp_path / "nothing"), server.url)
    with pytest.raises(InvalidRequest, match="gap_policy is 'emit': give fail or skip"):
        topics.spark.table(spark, str(tmp_path / topic), server.url, gap_policy="emit")  # type: ignore[arg-type]
    nobody = parse_options({"url": "http://127.0.0.1:9", "topic": topic, "timeout": "200ms"})
    with pytest.raises(Unreachable, match="start it with `topics serve`, or name another as server_url"):
        check_instance(nobody, topic, "any")


def test_table_in_a_store_that_nobody_may_look_at_is_told_in_one_line(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    import topics.spark

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    with pytest.raises(
        StorageError, match=r"the folder s3://b/x cannot be read \(.+\): an object store wants its"
    ) as told:
        topics.spark.table(spark, "s3://b/x")
    assert not {"\n", "\x1b"} & set(told.value.message)


def test_records_lost_before_their_export_are_noted(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 60, cap_records=100, durability="fsync")
    asked = options(server, topic, tmp_path, tail=True)
    assert run(spark, asked).gaps == ()
    server.fill(topic, 60, 200)
    refused = run(spark, options(server, topic, tmp_path, tail=True, gap_fails=True))
    assert refused.error is not None
    assert "61 to 160" in refused.error
    done = run(spark, asked)
    assert done.gaps == ((61, 160, "cap"),)
    assert read_status(asked)[0].gaps == ((61, 160, "cap"),)
    assert [seq for seq, _ in exported(tmp_path, topic)] == [*range(1, 61), *range(161, 261)]


def test_table_of_another_or_a_new_topic_is_refused(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 10)
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    shutil.copytree(tmp_path / topic, tmp_path / f"{topic}x")
    server.fill(f"{topic}x", 0, 5, durability="fsync")
    other = run(spark, options(server, f"{topic}x", tmp_path, tail=True))
    assert other.error is not None
    assert f"holds topic '{topic}'" in other.error
    server.client.drop(topic)
    server.fill(topic, 100, 5, durability="fsync")
    stale = run(spark, asked)
    assert stale.error is not None
    assert "--recreated" in stale.error
    assert len(exported(tmp_path, topic)) == 10
    fresh = run(spark, options(server, topic, tmp_path, tail=True, recreated="rebuild"))
    assert (fresh.error, fresh.rows) == (None, 5)
    assert len(exported(tmp_path, topic)) == 5
    assert not list(tmp_path.glob("*.old-*"))


def test_rebuilt_table_holds_what_the_topic_holds(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 60)
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    server.client.delete(topic, tag="eu")
    (done,) = rebuild(lambda: spark, asked)
    assert done.rows == 40
    assert exported(tmp_path, topic) == served(server, topic)


def test_two_exporters_at_once_export_each_record_once(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 100)
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    for round_number in range(3):
        server.fill(topic, 100 + 40 * round_number, 40)
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda _: run(spark, asked), range(2)))
        assert sum(one.rows for one in found if one.error is None) == 40, found
    assert exported(tmp_path, topic) == served(server, topic)


def test_commit_planned_on_an_older_version_fails_and_is_not_tried_again(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 20)
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    late = History.load(str(tmp_path), topic)
    server.fill(topic, 20, 20)
    run(spark, asked)
    head = asked.origin().heads({topic: 1})[topic]
    with pytest.raises(Exception, match="was not changed"):
        late.commit(head, 41, [], [])
    assert exported(tmp_path, topic) == served(server, topic)


def test_many_small_files_become_few_in_seq_order(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    asked = options(server, topic, tmp_path, tail=True)
    joined = 0
    for number in range(JOIN_FILES):
        server.fill(topic, number * 10, 10)
        joined += run(spark, asked).joined
    assert joined == JOIN_FILES - 1
    assert exported(tmp_path, topic) == served(server, topic)
    after = run(spark, asked)
    assert (after.error, after.rows) == (None, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id", "path:type"),
        ("id:blob", "types"),
        ("a\tb:int", "path:type"),
        ("seq:bigint", "two columns the name 'seq'"),
        ("Data:string", "two columns the name 'Data'"),
        ("id:bigint,ID:bigint", "two columns the name 'ID'"),
        ("a_b:int,a.b:int", "two columns the name 'a_b'"),
        ("a.b:string,a:string", "takes 'a' as a value and 'a.b' from inside it"),
    ],
)
def test_wrong_typed_columns_are_named(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_shreds(text)


def test_typed_column_has_a_name_that_every_engine_takes() -> None:
    (shred,) = parse_shreds("line items.net (EUR):double")
    assert (shred.path, shred.name) == (("line items", "net (EUR)"), "line_items_net__EUR_")


def test_tables_are_folders_and_an_object_store_is_refused(tmp_path: Path) -> None:
    assert folder_of(f"file://{tmp_path}/history") == folder_of(f"{tmp_path}/history") == str(tmp_path / "history")
    assert folder_of("history") == str(Path.cwd() / "history")
    for url in ("s3://bucket/history", "gs://bucket/history", "abfss://box@account/history"):
        with pytest.raises(InvalidRequest, match="not to object stores"):
            folder_of(url)
    assert folder_of("100%/é #1?") == str(Path.cwd() / "100%" / "é #1?")
    for name in ("a%20b", "a\\b", "a\nb"):
        with pytest.raises(InvalidRequest, match="Delta cannot keep a table below"):
            folder_of(name)


def test_folder_of_tables_may_be_named_as_spark_names_it(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    import topics.spark

    assert folder_of(f"file:{tmp_path}/history") == str(tmp_path / "history")
    server.fill(topic, 0, 10)
    run(spark, options(server, topic, tmp_path, tail=True))
    for scheme in ("file:", "file://"):
        assert topics.spark.table(spark, f"{scheme}{tmp_path}/{topic}").count() == 10


def test_command_line_exports_and_tells(server: Server, topic: str, tmp_path: Path) -> None:
    server.fill(topic, 0, 30)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "topics.cli.main", "pipeline", *arguments, "--table", str(tmp_path / "history")],
            capture_output=True, text=True, check=False, env={**os.environ, "TOPICS_URL": server.url},
        )  # fmt: skip

    nothing = command("run", "--once", "--topics", "nobody.*")
    assert (nothing.returncode, "no topic matches" in nothing.stderr) == (1, True)
    wrong = command("run", "--every", "soon", "--topics", topic)
    assert (wrong.returncode, "30s" in wrong.stderr) == (2, True)
    untyped = command("run", "--shred", "id", "--topics", topic)
    assert (untyped.returncode, "path:type" in untyped.stderr) == (2, True)
    done = command("run", "--once", "--tail", "--topics", topic, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["topic"], told["rows"], told["lag"]) == (topic, 30, 0)
    at_rest = command("run", "--once", "--path", str(tmp_path / "nowhere"))  # a flag outweighs TOPICS_URL
    assert (at_rest.returncode, "is not a directory on this machine" in at_rest.stderr) == (1, True)
    for words in (("run", "--once"), ("rebuild", "--topics", "nobody.*")):  # before it is known whether Spark is needed
        nowhere = command(*words, "--master", "sc://127.0.0.1")
        assert (nowhere.returncode, "is no Spark master" in nowhere.stderr) == (2, True)
    at_work = command("run", "--once", "--path", str(server.data))
    assert at_work.returncode == 1
    assert at_work.stderr.endswith("is open in a running process: read through its server with --url or stop it\n")
    status = command("status", "--topics", topic)
    assert (status.returncode, topic in status.stdout, "30 " in status.stdout) == (0, True, True)
    (tmp_path / "file").write_text("")
    blocked = subprocess.run(
        [sys.executable, "-m", "topics.cli.main", "pipeline", "run", "--once", "--table", str(tmp_path / "file" / "x")],
        capture_output=True, text=True, check=False, env={**os.environ, "TOPICS_URL": server.url},
    )  # fmt: skip
    assert (blocked.returncode, "cannot be written" in blocked.stderr) == (1, True)
