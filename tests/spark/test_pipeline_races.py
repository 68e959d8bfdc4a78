"""Two exporters at one table, step by step: whatever lies between two steps of one of them, the other may do."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import topics
from tests.spark.in_process import in_process
from topics.model.errors import Conflict, InvalidRequest, StorageError
from topics.spark.aside import Aside, leftovers, put_aside
from topics.spark.history import History, open_table
from topics.spark.parts import COLUMNS, Writer, Written, open_parquet
from topics.spark.pipeline import PipelineOptions, check_folder, run_round
from topics.spark.places import Head, Span

HEAD = Head("store-1", 1, 40, 40, 1, 0)


def write(history: History, start: int, end: int) -> Written:
    """A file of those seqs, as a task writes it."""
    count = end - start
    times = pa.array([0] * count, pa.timestamp("us", tz="UTC"))
    columns = [pa.array(range(start, end)), times, *[pa.nulls(count, pa.string())] * 5]
    path = Path(history.folder) / f"part-{start:019d}-{id(history)}.parquet"
    with open_parquet(str(path), COLUMNS, 3) as writer:
        writer.write_batch(pa.record_batch(columns, schema=COLUMNS))
    stats = {"numRecords": count, "minValues": {"seq": start}, "maxValues": {"seq": end - 1}, "nullCount": {}}
    return Written(path.name, path.stat().st_size, count, json.dumps(stats))


def export(root: Path) -> None:
    """A whole round of another exporter, from the mark to the head."""
    history = History.load(str(root), "orders")
    mark = history.mark(HEAD)
    if history.table is None:
        history.create(HEAD, ())
    history.commit(HEAD, 41, [write(history, mark, 41)], [])


def rows(root: Path) -> int:
    return History.load(str(root), "orders").numbers()[0]


def test_many_exporters_try_the_folder_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check_folder, [str(tmp_path)] * 400))
    assert not list(tmp_path.iterdir())


def test_table_that_somebody_else_made_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    late = History.load(str(tmp_path), "orders")
    export(tmp_path)
    with pytest.raises(Conflict, match="was not made"):
        late.create(HEAD, ())
    assert rows(tmp_path) == 40


def test_table_that_another_writer_changed_as_soon_as_it_was_made_is_a_conflict(tmp_path: Path) -> None:
    real = DeltaTable.create

    def create(*args: Any, **kwargs: Any) -> DeltaTable:
        made = real(*args, **kwargs)
        made.create_write_transaction([], "append", made.schema())
        return DeltaTable(str(tmp_path / "orders"))

    with patch.object(DeltaTable, "create", create), pytest.raises(Conflict, match="as soon as it was made"):
        export(tmp_path)
    assert DeltaTable(str(tmp_path / "orders")).version() == 1


def test_two_that_make_the_table_at_once_leave_one_first_version(tmp_path: Path) -> None:
    for number in range(20):
        root = tmp_path / str(number)
        late = [History.load(str(root), "orders") for _ in range(2)]

        def create(history: History) -> bool:
            try:
                history.create(HEAD, ())
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(create, late)) == [False, True]
        assert DeltaTable(str(root / "orders")).version() == 0


def test_folder_of_a_table_that_is_being_made_is_no_foreign_one(tmp_path: Path) -> None:
    log = tmp_path / "orders" / "_delta_log"
    log.mkdir(parents=True)
    (log / "_commit_of_somebody.json.tmp").write_text("")
    export(tmp_path)
    assert rows(tmp_path) == 40
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letters.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match="not a Delta table"):
        History.load(str(tmp_path), "other")


@pytest.mark.parametrize("arrives", [True, False])
def test_commit_whose_answer_was_lost_is_looked_up(tmp_path: Path, arrives: bool) -> None:
    real = DeltaTable.create_write_transaction

    def commit(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        if arrives:
            real(self, *args, **kwargs)
        raise OSError("the answer was lost")

    with patch.object(DeltaTable, "create_write_transaction", commit):
        if arrives:
            export(tmp_path)
        else:
            with pytest.raises(StorageError, match="was not changed"):
                export(tmp_path)
    assert rows(tmp_path) == (40 if arrives else 0)


@pytest.mark.parametrize("fails", ["a task", "the commit", "what follows the commit"])
def test_files_of_a_round_that_failed_go_at_once_unless_the_table_names_them(tmp_path: Path, fails: str) -> None:
    with topics.open(tmp_path / "data") as log:
        log.create("orders", durability="fsync")
        log.append("orders", [{"data": n} for n in range(10)])
    asked = PipelineOptions(str(tmp_path / "tables"), path=str(tmp_path / "data"), topics="orders", tail=True)

    def tasks(_: object, writer: Writer, spans: list[Span]) -> list[Written]:
        first = writer.write(spans)
        if fails == "a task":
            raise StorageError("another one failed")
        return first

    real = History.commit

    def commit(self: History, *args: Any) -> None:
        if fails == "the commit":
            raise Conflict("somebody else did so first")
        real(self, *args)
        raise StorageError("nobody knows whether it is durable")

    with patch("topics.spark.pipeline.write_files", tasks), patch.object(History, "commit", commit):
        (done,) = run_round(in_process, asked)
    assert done.error is not None
    assert len(list((tmp_path / "tables" / "orders").glob("*.parquet"))) == (fails == "what follows the commit")
    (after,) = run_round(in_process, asked)
    assert (after.error, History.load(asked.table, "orders").numbers()[0]) == (None, 10)


def test_table_that_is_renamed_while_it_is_looked_at_is_looked_at_again(tmp_path: Path) -> None:
    export(tmp_path)
    real = open_table
    seen: list[str] = []

    def moved(folder: str) -> DeltaTable:
        seen.append(folder)
        if len(seen) == 1:
            Aside.put(History(folder, "orders", real(folder)))
        return real(folder)

    with patch("topics.spark.history.open_table", moved):
        assert History.load(str(tmp_path), "orders").table is None
    assert len(seen) == 1


def test_table_that_is_gone_before_it_is_durable_is_not_taken_for_a_broken_disk(tmp_path: Path) -> None:
    export(tmp_path)
    history = History.load(str(tmp_path), "orders")
    Aside.put(History.load(str(tmp_path), "orders"))
    with pytest.raises(Conflict, match="was moved away by somebody else, who writes it anew"):
        history.sync()


def test_two_that_put_a_table_aside_do_so_once(tmp_path: Path) -> None:
    export(tmp_path)
    first, second = (History.load(str(tmp_path), "orders") for _ in range(2))
    Aside.put(first)
    with pytest.raises(Conflict, match="moved away"):
        Aside.put(second)


def test_folder_beside_a_table_is_named_only_if_it_was_put_aside(tmp_path: Path) -> None:
    export(tmp_path)
    folder = str(tmp_path / "orders")
    History.load(str(tmp_path), "orders.old-0a1b2c3d").create(HEAD, ())  # the table of a topic that is called so
    (tmp_path / "orders.old-01234567").mkdir()
    assert leftovers(folder, "orders") is None
    aside = Aside.put(History.load(str(tmp_path), "orders"))
    told = str(leftovers(folder, "orders"))
    assert (told.count(aside.path), told.count("is the table of")) == (3, 1)
    assert put_aside(folder, "orders") == told
    with patch("shutil.rmtree", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        aside.drop()
    half = f"{folder}.gone-{aside.mark}"
    assert leftovers(folder, "orders") == (
        f"{half} is the rest of a table of topic 'orders' that was being removed: rm -r {half}"
    )
    assert put_aside(folder, "orders") is None
    assert leftovers(str(tmp_path / "nowhere" / "orders"), "orders") is None


def test_folder_put_aside_that_cannot_be_read_is_named_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "orders.old-01234567").write_text("")
    assert f"{tmp_path}/orders.old-01234567 is the table of topic 'orders'" in str(
        leftovers(str(tmp_path / "orders"), "orders")
    )
