"""Exporters that die or come too late: each live record is in the table once."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from tests.spark.proxy import WAIT_S, kill_session, proxied
from tests.spark.test_pipeline import exported, options, run, served
from topics.model.errors import Conflict
from topics.spark.history import History
from topics.spark.pipeline import read_status, rebuild, run_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Server


def run_until(
    url: str, pattern: str, table: Path, stop: Callable[[], bool], command: tuple[str, ...] = ("run", "--once")
) -> bool:
    """An exporter on the command line, killed with all its processes as soon as `stop` says so; False if it ended
    before."""
    exporter = subprocess.Popen(
        [sys.executable, "-m", "topics.cli.main", "pipeline", *command, "--tail", "--topics", pattern,
         "--table", str(table)],
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "TOPICS_URL": url},
    )  # fmt: skip
    end = time.monotonic() + WAIT_S
    try:
        while not stop() and exporter.poll() is None:
            assert time.monotonic() < end, "the exporter does nothing"
            time.sleep(0.001)
        return exporter.poll() is None
    finally:
        kill_session(exporter.pid)
        exporter.wait()


def kill_exporters(spark: SparkSession, server: Server, table: Path, prefix: str, chance: random.Random) -> None:
    """Three exporters, each killed at another moment; the fourth one completes what they left."""
    topics = [f"{prefix}.{name}" for name in "abc"]
    for topic in topics:
        server.fill(topic, 0, 120, durability="fsync")
    with proxied(server) as proxy:
        requests = chance.randint(1, 4)
        assert run_until(proxy.url, f"{prefix}.*", table, lambda: len(proxy.seen) >= requests)
        # A file is there that no commit names: at once, or a little later, in the middle of a topic or between two.
        files, pause_s = chance.randint(1, 3), chance.random() / 4
        assert run_until(proxy.url, f"{prefix}.*", table, lambda: len(list(table.glob("*/*.parquet"))) >= files)
        server.fill(topics[0], 120, 40)
        done = threading.Event()
        commits = len(list(table.glob("*/_delta_log/*.json")))

        def later() -> bool:
            if len(list(table.glob("*/_delta_log/*.json"))) > commits:
                done.wait(pause_s)
                return True
            return False

        run_until(proxy.url, f"{prefix}.*", table, later)
    asked = options(server, f"{prefix}.*", table, tail=True)
    assert [one.error for one in run_round(lambda: spark, asked) if one.error is not None] == []
    for topic in topics:
        assert exported(table, topic) == served(server, topic)


def test_exporter_killed_three_times_leaves_a_table_that_is_completed(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    kill_exporters(spark, server, tmp_path, "killed", random.Random(7))


def test_table_that_a_killed_rebuild_put_aside_is_named_with_its_remedy_and_stays(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    server.fill(topic, 0, 60)
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    before = exported(tmp_path, topic)
    assert run_until(server.url, topic, tmp_path, lambda: any(tmp_path.glob("*.old-*")), ("rebuild",))
    (aside,) = tmp_path.glob("*.old-*")
    table = tmp_path / topic
    remedies = (f"remove it (rm -r {aside})", f"put it back (rm -rf {table} && mv {aside} {table})")

    def named(words: str | None) -> bool:
        return all(str(words).count(remedy) == 1 for remedy in remedies)

    assert named(read_status(asked)[0].problem)
    assert named(run(spark, asked).error)
    (again,) = rebuild(lambda: spark, asked)
    assert named(again.error)
    assert exported(tmp_path, aside.name) == before
    shutil.rmtree(table, ignore_errors=True)
    aside.rename(table)
    assert exported(tmp_path, topic) == before
    (status,) = read_status(asked)
    assert (status.problem, status.lag) == (None, 0)
    assert run(spark, asked).error is None


def overtaken(spark: SparkSession, server: Server, topic: str, table: Path) -> str | None:
    """An exporter that another one overtakes just before its commit; what it says of that."""
    real = History.commit
    asked = options(server, topic, table, tail=True)
    late = threading.Event()

    def commit(self: History, *args: Any) -> None:
        if not late.is_set():
            late.set()
            assert run(spark, asked).error is None
        real(self, *args)

    with patch.object(History, "commit", commit):
        return run(spark, asked).error


def commit_again_after_a_reload(real: Callable[..., None]) -> Callable[..., None]:
    """A mistake."""

    def commit(self: History, *args: Any) -> None:
        try:
            real(self, *args)
        except Conflict:
            self.table = History.load(str(Path(self.folder).parent), self.topic).table
            real(self, *args)

    return commit


@pytest.mark.parametrize("mistaken", [False, True])
def test_exporter_that_was_overtaken_writes_nothing_and_a_retry_after_a_reload_is_noticed(
    spark: SparkSession, server: Server, tmp_path: Path, mistaken: bool
) -> None:
    topic = f"overtaken.{mistaken}"
    server.fill(topic, 0, 30, durability="fsync")
    assert run(spark, options(server, topic, tmp_path, tail=True)).error is None
    server.fill(topic, 30, 30)
    if mistaken:
        with patch.object(History, "commit", commit_again_after_a_reload(History.commit)):
            assert overtaken(spark, server, topic, tmp_path) is None
        assert exported(tmp_path, topic) != served(server, topic)
    else:
        assert "was not changed" in str(overtaken(spark, server, topic, tmp_path))
        assert exported(tmp_path, topic) == served(server, topic)


def test_file_of_a_dead_round_goes_after_a_day(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    topic = "orphans"
    server.fill(topic, 0, 20, durability="fsync")
    asked = options(server, topic, tmp_path, tail=True)
    run(spark, asked)
    old, young = (tmp_path / topic / f"part-{name}.parquet" for name in ("old", "young"))
    for file in (old, young):
        file.write_bytes(b"")
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    server.fill(topic, 20, 20)
    assert run(spark, asked).error is None
    assert (old.exists(), young.exists()) == (False, True)
    assert exported(tmp_path, topic) == served(server, topic)


def test_tidying_that_another_exporter_disturbs_does_not_fail_the_round(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    from deltalake.exceptions import CommitFailedError

    topic = "disturbed"
    server.fill(topic, 0, 20, durability="fsync")
    asked = options(server, topic, tmp_path, tail=True)
    with patch.object(History, "_join", side_effect=CommitFailedError("somebody else was first")):
        assert run(spark, asked).error is None
    assert exported(tmp_path, topic) == served(server, topic)
