"""Somebody dies at the worst moments of a write: each row is there once, and in order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from pyspark import TaskContext

from pyspark_topics import DefaultSource
from tests.spark.conftest import Server
from tests.spark.proxy import WAIT_S, Aim, Moment, Proxy, kill_session, proxied
from tests.spark.works import Kind, Work
from topics.spark.sink import BatchWriter, batch_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
ATTEMPTS = 4
"""What the session of the tests grants a task."""
_names = iter(range(1_000_000))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    server = Server(tmp_path_factory.mktemp("killed"))
    server.process.shared = True
    with proxied(server) as proxy:
        yield proxy
    server.stop()


def make_work(proxy: Proxy, kind: Kind, folder: Path) -> Work:
    work = Work(f"kill{next(_names)}", kind, proxy.url, folder)
    work.prepare(proxy.server.client)
    return work


def aborted(proxy: Proxy, work: Work) -> bool:
    return any(one.startswith("DELETE") and f"/staged/{work.app}@" in one for one in proxy.seen)


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        ("a part comes", "batch"),
        ("a part is stored", "stream"),
        ("the commit comes", "batch-of-two"),
        ("the commit is done", "stream-of-two"),
    ],
)
def test_server_killed_and_started_again_is_not_noticed_by_the_query(
    spark: SparkSession, proxy: Proxy, tmp_path: Path, moment: Moment, kind: Kind
) -> None:
    work = make_work(proxy, kind, tmp_path)
    aim = proxy.aim(work.app, moment, proxy.kill_server)
    work.run(spark)
    assert aim.met.is_set()
    assert work.found(proxy.server.client) == work.wanted


@pytest.mark.parametrize(("moment", "kind"), [("a part comes", "stream-of-two"), ("a part is stored", "batch")])
def test_worker_killed_while_it_stores_is_replaced_and_its_rows_come_once(
    spark: SparkSession, proxy: Proxy, tmp_path: Path, moment: Moment, kind: Kind
) -> None:
    work = make_work(proxy, kind, tmp_path)
    aim = proxy.aim(work.app, moment, proxy.kill_asker)
    work.run(spark)
    assert aim.met.is_set()
    assert work.found(proxy.server.client) == work.wanted


@pytest.mark.parametrize(
    ("moment", "kind"),
    [("the commit comes", "stream"), ("the commit is done", "batch-of-two"), ("the commit is done", "stream")],
)
def test_query_whose_commit_got_no_answer_fails_and_is_run_again_without_doubles(
    spark: SparkSession, proxy: Proxy, tmp_path: Path, moment: Moment, kind: Kind
) -> None:
    work = make_work(proxy, kind, tmp_path)
    aim = proxy.aim(work.app, moment, proxy.kill_asker)
    with pytest.raises(Exception, match=r"(?i)python worker"):
        work.run(spark)
    assert aim.met.is_set()
    assert aborted(proxy, work)
    assert work.found(proxy.server.client) == (
        work.wanted if moment == "the commit is done" else [[] for _ in work.topics]
    )
    work.run(spark)
    assert work.found(proxy.server.client) == work.wanted


def test_driver_killed_at_every_moment_is_followed_by_another_that_writes_the_rest(
    spark: SparkSession, proxy: Proxy, tmp_path: Path
) -> None:
    """One driver with a query at each moment, all of which wait there for its death."""
    dead = threading.Event()
    aims: dict[Work, Aim] = {}
    cases: list[tuple[Kind, Moment]] = [
        ("batch", "a part comes"),
        ("stream-of-two", "a part is stored"),
        ("batch-of-two", "the commit comes"),
        ("stream", "the commit is done"),
    ]
    for kind, moment in cases:
        work = make_work(proxy, kind, tmp_path)
        aims[work] = proxy.aim(work.app, moment, lambda _port, app=work.app: proxy.hold(app, dead))  # type: ignore[misc]
    complaints = tmp_path / "complaints"  # and no pipe, which a driver with much to say would fill
    with complaints.open("wb") as stderr:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.works", proxy.url, str(tmp_path), *(f"{w.app}={w.kind}" for w in aims)],
            cwd=ROOT, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
    try:
        end = time.monotonic() + 2 * WAIT_S
        assert driver.stdin is not None
        for aim in aims.values():
            if driver.poll() is not None:
                break
            driver.stdin.write(b"begin\n")
            driver.stdin.flush()
            while not aim.met.wait(1) and driver.poll() is None and time.monotonic() < end:
                pass
    finally:
        kill_session(driver.pid)
        dead.set()
        driver.communicate()
    missed = [work.kind for work, aim in aims.items() if not aim.met.is_set()]
    assert not missed, f"{missed}: {complaints.read_text()[-3000:]}"
    for work in aims:
        visible = work.wanted if aims[work].moment == "the commit is done" else [[] for _ in work.topics]
        assert work.found(proxy.server.client) == visible
    for work in aims:
        work.run(spark, partitions=3)
        assert work.found(proxy.server.client) == work.wanted


def test_part_names_by_attempt_are_noticed(spark: SparkSession, proxy: Proxy, tmp_path: Path) -> None:
    """A mistake: attempts are counted anew in every run, so a run meets the parts of one that died; where it splits its
    rows in another way, it can neither use them nor store its own."""

    class Mistaken(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "mistaken"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            real = batch_writer(self.options, schema, overwrite)

            class Writer(BatchWriter):
                def __init__(self) -> None:
                    self.__dict__.update(real.__dict__)

                def write(self, iterator: Iterator[Any]) -> Any:
                    context = TaskContext.get()
                    assert context is not None
                    attempt = context.attemptNumber()
                    with patch("topics.spark.sink.uuid", SimpleNamespace(uuid4=lambda: attempt)):
                        return super().write(iterator)

            return Writer()

    spark.dataSource.register(Mistaken)
    work = make_work(proxy, "batch", tmp_path)
    client = proxy.server.client
    for attempt in range(ATTEMPTS):
        client.stage(work.topics[0], f"{work.app}@1", f"0-{attempt}-0", [{"data": "left behind"}], create=True)
    with pytest.raises(Exception, match="is there with other bytes"):
        work.run(spark, "mistaken")
    assert work.found(client) == [[]]
    work.run(spark)
    assert work.found(client) == work.wanted
