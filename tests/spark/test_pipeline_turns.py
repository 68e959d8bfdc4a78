"""Exporters and rebuilds that meet at one table: whoever comes late changes nothing, and nothing is thrown away that
somebody else finished."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.conftest import Server
from tests.spark.in_process import in_process
from tests.spark.test_pipeline import exported, options, served
from tests.spark.test_pipeline_races import HEAD, export, rows, write
from topics.cli.ending import Ending
from topics.cli.output import make_console
from topics.cli.pipeline import _session as session_of
from topics.host.fs import OsFile, OsFs
from topics.host.turns import take_turn
from topics.model.errors import Conflict, StorageError
from topics.spark import pipeline
from topics.spark.aside import Aside, leftovers
from topics.spark.history import History
from topics.spark.parts import Written
from topics.spark.pipeline import Exported, PipelineOptions, read_status, rebuild, run_round
from topics.spark.turns import LOCK, turn_at


def run(asked: PipelineOptions, during: Callable[[], object] = lambda: None) -> Exported:
    """A round of one topic, in which something happens when Spark starts."""
    (done,) = run_round(lambda: (during(), in_process())[1], asked)
    return done


def rebuilt(asked: PipelineOptions, during: Callable[[], object] = lambda: None) -> Exported:
    (done,) = rebuild(lambda: (during(), in_process())[1], asked)
    return done


def test_round_that_a_rebuild_overtakes_puts_nothing_into_the_new_table(
    server: Server, topic: str, tmp_path: Path
) -> None:
    asked = options(server, topic, tmp_path, tail=True)
    server.fill(topic, 0, 100)
    run(asked)
    server.fill(topic, 100, 100)
    late = run(asked, lambda: rebuilt(asked))  # the new table's next version is the one that the late round wants
    assert "was not changed, somebody else wrote it anew" in str(late.error)
    assert exported(tmp_path, topic) == served(server, topic)
    assert (run(asked).rows, rebuilt(asked).error) == (0, None)


def test_joining_that_a_rebuild_overtakes_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tmp_path)
    late = History.load(str(tmp_path), "orders")
    monkeypatch.setattr("topics.spark.history.choose", lambda files: [files] * bool(files))

    def overtaken(*_: Any) -> Written:
        Aside.put(History.load(str(tmp_path), "orders")).drop()
        export(tmp_path)
        return write(History.load(str(tmp_path), "orders"), 1, 41)

    monkeypatch.setattr(History, "_joined", overtaken)
    assert late.tidy() == 0
    assert (rows(tmp_path), DeltaTable(str(tmp_path / "orders")).version()) == (40, 1)


def test_table_that_grew_since_it_was_loaded_is_not_put_aside(tmp_path: Path) -> None:
    History.load(str(tmp_path), "orders").create(HEAD, ())
    late = History.load(str(tmp_path), "orders")
    export(tmp_path)
    with pytest.raises(Conflict, match="was not put aside, somebody else did so first"):
        Aside.put(late)
    assert rows(tmp_path) == 40


def test_rounds_and_rebuilds_at_once_leave_each_record_once(server: Server, topic: str, tmp_path: Path) -> None:
    asked = options(server, topic, tmp_path, tail=True)
    server.fill(topic, 0, 40)
    assert run(asked).error is None
    ended = threading.Event()

    def again(do: Callable[[PipelineOptions], Exported]) -> set[str | None]:
        found = set()
        while not ended.is_set():
            found.add(do(asked).error)
        return found

    with ThreadPoolExecutor(4) as pool:
        at_work = [pool.submit(again, do) for do in (run, rebuilt, run, rebuilt)]
        for number in range(20):
            server.fill(topic, 40 + 10 * number, 10)
        ended.set()
        told = set().union(*(one.result() for one in at_work))
    assert None in told
    assert (run(asked).error, run(asked).lag) == (None, 0)
    assert exported(tmp_path, topic) == served(server, topic)
    assert [one.name for one in tmp_path.iterdir() if one.name != topic] == [LOCK]


def test_table_that_others_filled_after_the_round_began_is_not_ahead_of_its_topic(
    server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options(server, topic, tmp_path, tail=True, recreated="rebuild")
    server.fill(topic, 0, 10)
    real = pipeline.chosen

    def chosen(*given: Any) -> Any:
        found = real(*given)
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, "chosen", real)
            server.fill(topic, 100, 10)
            assert run(asked).error is None
        return found

    monkeypatch.setattr(pipeline, "chosen", chosen)
    made = [run(asked).error, DeltaTable(str(tmp_path / topic)).metadata().id]
    assert made[0] is None
    assert (run(asked).error, DeltaTable(str(tmp_path / topic)).metadata().id) == (None, made[1])
    assert read_status(asked)[0].problem is None
    assert rebuilt(replace(asked, recreated="fail")).error is None


def test_rebuild_that_fails_leaves_the_table_that_another_one_finished_meanwhile(tmp_path: Path) -> None:
    export(tmp_path)
    late = History.load(str(tmp_path), "orders")
    aside = Aside.put(late)
    export(tmp_path)
    with pytest.raises(Conflict, match="was not made"):
        late.create(HEAD, ())
    aside.back(late.made)
    assert (rows(tmp_path), History(aside.path, "orders", DeltaTable(aside.path)).numbers()[0]) == (40, 40)


@pytest.mark.parametrize("filled", [False, True])
def test_rebuild_that_fails_takes_away_its_own_table_unless_somebody_filled_it(tmp_path: Path, filled: bool) -> None:
    export(tmp_path)
    late = History.load(str(tmp_path), "orders")
    aside = Aside.put(late)
    late.create(HEAD, ())
    if filled:
        export(tmp_path)
    aside.back(late.made)
    assert (rows(tmp_path), os.path.exists(aside.path)) == (40, filled)
    assert DeltaTable(str(tmp_path / "orders")).version() == 1


def test_table_that_was_never_made_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    export(tmp_path)
    aside = Aside.put(History.load(str(tmp_path), "orders"))
    (tmp_path / "orders" / "_delta_log").mkdir(parents=True)
    aside.back(None)
    assert rows(tmp_path) == 40


@pytest.mark.parametrize("step", ["tidy", "tell"])
def test_interrupt_behind_the_commit_of_a_rebuild_leaves_the_finished_table(
    server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    asked = options(server, topic, tmp_path, tail=True)
    server.fill(topic, 0, 30)
    run(asked)
    server.client.delete(topic, tag="eu")
    with monkeypatch.context() as patched:

        def interrupted(*_: Any, committed: bool = step == "tidy") -> None:
            if committed:
                raise KeyboardInterrupt

        patched.setattr(History if step == "tidy" else pipeline.Marks, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            rebuilt(asked)
    assert exported(tmp_path, topic) == served(server, topic)
    assert (leftovers(str(tmp_path / topic), topic), run(asked).error) == (None, None)


def test_topic_whose_table_a_killed_rebuild_put_aside_waits_until_it_is_back(
    server: Server, topic: str, tmp_path: Path
) -> None:
    asked = options(server, topic, tmp_path, tail=True, hold=True)
    server.fill(topic, 0, 100)
    run(asked)
    Aside.put(History.load(str(tmp_path), topic))
    server.fill(topic, 100, 100)
    for do in (run, rebuilt):
        refused = do(asked)
        assert "Nothing is exported before that is settled" in str(refused.error)
        assert refused.note is None
    assert server.client.group(topic, "export").info().committed == 101
    (status,) = read_status(asked)
    remedy = re.search(r"put it back \((.*?)\), or", str(status.problem))
    assert remedy is not None
    subprocess.run(remedy[1], shell=True, check=True)
    assert (run(asked).rows, read_status(asked)[0].problem) == (100, None)
    assert exported(tmp_path, topic) == served(server, topic)


def test_nobody_is_told_to_remove_a_table_that_was_written_beside_the_one_put_aside(tmp_path: Path) -> None:
    export(tmp_path)
    aside = Aside.put(History.load(str(tmp_path), "orders"))
    export(tmp_path)
    told = str(leftovers(str(tmp_path / "orders"), "orders"))
    assert "rm -rf" not in told
    remedy = re.search(r"keep the old one \((.*?)\), or", told)
    assert remedy is not None
    subprocess.run(remedy[1], shell=True, check=True)
    assert leftovers(str(tmp_path / "orders"), "orders") is None
    assert (tmp_path / f"orders.kept-{aside.mark}").is_dir()


def test_rebuild_of_several_topics_goes_on_behind_one_that_fails(server: Server, tmp_path: Path) -> None:
    for name in ("many.a", "many.b"):
        server.fill(name, 0, 10, durability="fsync")
    asked = options(server, "many.*", tmp_path, tail=True)
    assert [one.error for one in run_round(in_process, asked)] == [None, None]
    (tmp_path / "many.a" / "_delta_log" / "00000000000000000001.json").write_text("{rot\n")
    bad, good = rebuild(in_process, asked)
    assert "many.a cannot be read" in str(bad.error)
    assert (good.error, good.rows) == (None, 10)


def test_table_behind_a_link_is_removed_with_what_the_link_leads_to(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    real = (tmp_path / "orders").rename(tmp_path / "elsewhere" / "orders")
    (tmp_path / "orders").symlink_to(real)
    Aside.put(History.load(str(tmp_path), "orders")).drop()
    assert (list(tmp_path.glob("orders*")), real.exists()) == ([], False)


def test_exporter_that_hangs_at_the_tables_is_named(tmp_path: Path) -> None:
    held = take_turn(str(tmp_path / LOCK), 0)
    with (
        pytest.raises(Conflict, match=rf"holding {tmp_path}/{re.escape(LOCK)}: if it hangs, end it"),
        turn_at(str(tmp_path / "orders"), 0.05),
    ):
        pass
    held.release()
    with turn_at(str(tmp_path / "orders"), 0):
        pass
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).mkdir()
    with pytest.raises(StorageError, match="cannot be locked"), turn_at(str(tmp_path / "orders")):
        pass


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is synced below the folder, told to the server and removed, in that order."""
    found: list[str] = []

    def noted(what: str, owner: Any, name: str, path_of: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **more: Any) -> Any:
            path = Path(path_of(*given))
            if path.is_relative_to(tmp_path):
                found.append(f"{what} {re.sub(r'[0-9a-f]{8}$', 'X', str(path.relative_to(tmp_path)))}")
            return real(*given, **more)

        monkeypatch.setattr(owner, name, call)

    noted("sync", OsFile, "sync", lambda file: file.path)
    noted("sync", OsFs, "sync_dir", lambda _, path: path)
    noted("remove", shutil, "rmtree", lambda path: path)
    noted("tell", pipeline.Marks, "tell", lambda _, name, head, mark, *more, **known: f"{tmp_path}/{name} {mark}")
    return found


def version(topic: str, number: int) -> list[str]:
    return [f"sync {topic}/_delta_log/{number:020d}.json", f"sync {topic}/_delta_log", f"sync {topic}", "sync ."]


def test_table_outlasts_a_power_cut_before_anybody_relies_on_it(
    server: Server, topic: str, tmp_path: Path, steps: list[str]
) -> None:
    asked = options(server, topic, tmp_path, tail=True)
    server.fill(topic, 0, 10)
    assert run(asked).error is None
    (part,) = [path.name for path in (tmp_path / topic).glob("*.parquet")]
    made = [*version(topic, 0), f"sync {topic}/{part}", *version(topic, 1)]
    assert steps == [f"tell {topic} 1", *made, f"tell {topic} 11"]
    steps.clear()
    assert run(asked).error is None  # whoever committed that mark may have died before it was durable
    assert steps == [*version(topic, 1), f"tell {topic} 11"]
    steps.clear()
    assert rebuilt(asked).error is None
    (part,) = [path.name for path in (tmp_path / topic).glob("*.parquet")]
    made = [*version(topic, 0), f"sync {topic}/{part}", *version(topic, 1)]
    gone = ["sync .", f"remove {topic}.gone-X"]
    assert steps == [f"tell {topic} 1", *made, *gone, f"tell {topic} 11"]


def test_commit_that_may_not_outlast_a_power_cut_is_not_told_and_takes_no_table_away(
    server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options(server, topic, tmp_path, tail=True, hold=True)
    server.fill(topic, 0, 10)
    run(asked)
    server.fill(topic, 10, 10)
    real = OsFs.sync_dir
    failing = OSError(errno.EIO, "Input/output error")

    def sync_dir(self: OsFs, path: str) -> None:
        if path.endswith("_delta_log") and DeltaTable(str(tmp_path / topic)).version() in at:
            raise failing
        real(self, path)

    monkeypatch.setattr(OsFs, "sync_dir", sync_dir)
    at = {2}
    done = run(asked)
    assert "outlasts a power cut is unknown (Input/output error)" in str(done.error)
    assert server.client.group(topic, "export").info().committed == 11
    at = set()
    assert (run(asked).end_seq, server.client.group(topic, "export").info().committed) == (21, 21)
    at = {1}
    done = rebuilt(asked)
    assert "power cut" in str(done.error)
    assert "each of the two may hold records" in str(done.note)
    failing.errno, at = errno.EINVAL, {0, 1, 2, 3}  # a file system that keeps names by itself
    (aside,) = tmp_path.glob("*.old-*")
    shutil.rmtree(aside)
    assert (run(asked).error, rebuilt(asked).error) == (None, None)
    assert exported(tmp_path, topic) == served(server, topic)


def test_rebuild_that_is_told_to_end_puts_the_table_back(
    server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.cli.ending.end_java", lambda: None)  # that of all tests
    asked = options(server, topic, tmp_path, tail=True)
    server.fill(topic, 0, 100)
    run(asked)
    before = exported(tmp_path, topic)
    handler = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, session_of(None, make_console(stderr=True), Ending()):
        rebuilt(asked, lambda: signal.raise_signal(signal.SIGTERM))
    assert (ended.value.code, signal.getsignal(signal.SIGTERM)) == (143, handler)
    assert exported(tmp_path, topic) == before
    assert read_status(asked)[0].problem is None
