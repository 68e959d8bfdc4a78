"""Small files of a table become large ones: which, in what order, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.test_pipeline_races import HEAD, write
from topics.spark import joining
from topics.spark.history import History
from topics.spark.joining import FILE_BYTES, JOIN_FILES, SMALL_BYTES, TableFile, _fitted, choose, join
from topics.spark.parts import COLUMNS, TIME, PartFile, open_parquet

MB = 1 << 20


def files(*sizes: int) -> list[TableFile]:
    return [TableFile(f"{n}", size, 10 * n + 1, 10 * n + 10) for n, size in enumerate(sizes)]


def names(runs: list[list[TableFile]]) -> list[list[int]]:
    return [[int(file.path) for file in run] for run in runs]


def test_few_small_files_are_left_alone() -> None:
    assert choose(files(*[MB] * (JOIN_FILES - 1))) == []
    assert names(choose(files(*[MB] * JOIN_FILES))) == [list(range(JOIN_FILES))]


def test_large_files_are_never_touched_and_part_the_small_ones() -> None:
    found = files(*[MB] * 9, SMALL_BYTES, *[MB] * 9)
    assert names(choose(found)) == [list(range(9)), list(range(10, 19))]


def test_file_that_outweighs_those_behind_it_waits_for_them() -> None:
    assert names(choose(files(40 * MB, *[MB] * JOIN_FILES))) == [list(range(1, JOIN_FILES + 1))]
    assert names(choose(files(10 * MB, *[MB] * JOIN_FILES))) == [list(range(JOIN_FILES + 1))]


def test_file_without_bounds_is_left_alone() -> None:
    unknown = TableFile("99", MB, None, None)
    assert names(choose([unknown, *files(*[MB] * JOIN_FILES)])) == [list(range(JOIN_FILES))]


@given(st.lists(st.integers(1, 80).map(lambda size: size * MB), max_size=60), st.randoms())
def test_joined_files_follow_each_other_and_are_not_too_large(sizes: list[int], chance: object) -> None:
    known = files(*sizes)
    shuffled = sorted(known, key=lambda _: chance.random())  # type: ignore[attr-defined]
    for run in choose(shuffled):
        numbers = [int(file.path) for file in run]
        assert numbers == list(range(numbers[0], numbers[0] + len(run)))
        assert sum(file.size for file in run) <= FILE_BYTES
        assert max(file.size for file in run) < SMALL_BYTES


def test_record_is_written_again_a_few_times_only() -> None:
    """Rounds of one megabyte each: what all joining writes is the logarithm of what there is, not its square."""
    sizes: list[int] = []
    written = 0
    for _ in range(1000):
        sizes.append(MB)
        for run in reversed(choose(files(*sizes))):
            first, total = int(run[0].path), sum(file.size for file in run)
            sizes[first : first + len(run)] = [total]
            written += total
    assert len(sizes) < 1000 * MB // SMALL_BYTES + 2 * JOIN_FILES
    assert written < 5 * 1000 * MB


def test_joining_keeps_the_order_and_every_file_that_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History.load(str(tmp_path), "orders")
    history.create(HEAD, ())
    large = write(history, 1, 3001)
    history.commit(HEAD, 3001, [large], [])
    monkeypatch.setattr(joining, "SMALL_BYTES", large.size)
    for number in range(JOIN_FILES):
        history = History.load(str(tmp_path), "orders")
        low = 3001 + 10 * number
        history.commit(HEAD, low + 10, [write(history, low, low + 10)], [])
    assert history.tidy() == JOIN_FILES - 1
    table = DeltaTable(history.folder)
    kept, joined = sorted(table.file_uris())
    assert kept.endswith(large.path)
    assert pq.read_table(joined, columns=["seq"]).column("seq").to_pylist() == list(range(3001, 3001 + 10 * JOIN_FILES))
    assert History.load(str(tmp_path), "orders").numbers()[:2] == (3000 + 10 * JOIN_FILES, 2)
    assert history.tidy() == 0


def test_joining_holds_one_row_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else so many rows of whatever size: of records of 50 kB three gigabytes."""
    rows = pa.table({"seq": [1, 2, 3], "ts": pa.array([0] * 3, TIME)}).to_batches()[0]
    batch = _fitted(rows, COLUMNS)
    with open_parquet(str(tmp_path / "few"), COLUMNS, 3) as writer:
        for _ in range(5):
            writer.write_batch(batch)
    held: list[int] = []
    real = PartFile.add

    def add(self: PartFile, batch: pa.RecordBatch) -> None:
        held.append(batch.num_rows)
        real(self, batch)

    monkeypatch.setattr(PartFile, "add", add)
    done = join(str(tmp_path), [TableFile("few", 1, 1, 3)] * 2)
    assert (done.rows, held) == (30, [3] * 10)


def test_joining_that_another_exporter_overtakes_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    History.load(str(tmp_path), "orders").create(HEAD, ())
    for low in range(1, 1 + 10 * JOIN_FILES, 10):
        history = History.load(str(tmp_path), "orders")
        history.commit(HEAD, low + 10, [write(history, low, low + 10)], [])
    before = set(DeltaTable(history.folder).file_uris())
    real = joining.join

    def overtaken(folder: str, run: list[TableFile], mark: str) -> object:
        other = History.load(str(tmp_path), "orders")
        other.commit(HEAD, 999, [], [])
        return real(folder, run, mark)

    monkeypatch.setattr("topics.spark.history.join", overtaken)
    assert history.tidy() == 0
    assert set(DeltaTable(history.folder).file_uris()) == before
    assert len(list((tmp_path / "orders").glob("*.parquet"))) == len(before)
