"""One Parquet file of a history table: what a task writes of the rows that an origin gives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from topics.model.errors import CorruptFile
from topics.spark import parts
from topics.spark.frames import Wanted
from topics.spark.parts import Writer
from topics.spark.places import Damage, Loss, ServerPlace, Span
from topics.spark.rows import TIME, Rows

SPAN = Span("orders", 1, 1, 1000, 1, ServerPlace())


class Given:
    """An origin whose spans hold these items."""

    def __init__(self, *items: Rows | Loss | Damage) -> None:
        self._items = items

    def read(self, spans: list[Span], wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        yield from self._items


def rows(first: int, count: int) -> Rows:
    seqs = range(first, first + count)
    texts = {"data": pa.array([f'{{"n":{seq}}}' for seq in seqs]), "tag": pa.array([None] * count, pa.string())}
    times = pa.array([seq * 1_000_000 for seq in seqs], TIME)
    return Rows("orders", count, pa.array(seqs, pa.int64()), times, texts)


def writer(folder: Path, *items: Rows | Loss | Damage) -> Writer:
    origin: Any = Given(*items)
    return Writer(str(folder), origin, ())


def test_small_segments_share_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [rows(1 + 10 * number, 10) for number in range(7)]
    (one,) = writer(tmp_path, *items).write([SPAN])
    assert pq.read_metadata(tmp_path / one.path).num_row_groups == 1
    table = pq.read_table(tmp_path / one.path)
    monkeypatch.setattr(parts, "ROW_GROUP_BYTES", 1000)
    (several,) = writer(tmp_path, *items).write([SPAN])
    assert 1 < pq.read_metadata(tmp_path / several.path).num_row_groups < 7
    assert pq.read_table(tmp_path / several.path) == table
    assert table["seq"].to_pylist() == list(range(1, 71))


def test_numbers_of_a_file_cover_all_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_BYTES", 1)
    lost = Loss("orders", 21, 25, "evicted")
    (done,) = writer(tmp_path, rows(11, 10), lost, rows(26, 3)).write([SPAN])
    assert (done.rows, done.losses, done.size) == (13, (lost,), (tmp_path / done.path).stat().st_size)
    stats = json.loads(done.stats)
    assert (stats["numRecords"], stats["minValues"]["seq"], stats["maxValues"]["seq"]) == (13, 11, 28)
    assert (stats["nullCount"]["tag"], stats["nullCount"]["data"]) == (13, 0)


def test_file_of_damaged_records_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="record 11 of topic 'orders'"):
        writer(tmp_path, rows(1, 10), Damage("orders", 11, "seg.data", 7)).write([SPAN])
    assert list(tmp_path.iterdir()) == []
    (nothing,) = writer(tmp_path).write([SPAN])
    assert nothing.path == ""


def noise(first: int, count: int) -> Rows:
    """Records that do not shrink."""
    chance = random.Random(first)
    texts = {"data": pa.array([f'"{chance.randbytes(500).hex()}"' for _ in range(count)])}
    return Rows("orders", count, pa.array(range(first, first + count)), pa.array([first] * count, TIME), texts)


def test_records_that_hardly_shrink_go_into_several_files_none_of_them_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_BYTES", 80_000)
    monkeypatch.setattr(parts, "FILE_BYTES", 500_000)
    lost = [Loss("orders", 241, 280, "evicted"), Loss("orders", 3161, 3200, "cap")]
    items = [noise(1 + 40 * number, 40) for number in range(79) if number != 6]
    found = writer(tmp_path, *items[:6], lost[0], *items[6:], lost[1]).write([SPAN])
    assert len(found) == 4
    assert max(one.size for one in found) < 600_000  # in so small files the footer is large
    assert min(one.size for one in found[:-1]) > 300_000
    assert [one.losses for one in found] == [()] * (len(found) - 1) + [tuple(lost)]
    assert sum(one.rows for one in found) == 3120
    behind = 0
    for one in found:
        seqs = pq.read_table(tmp_path / one.path)["seq"].to_pylist()
        stats = json.loads(one.stats)
        assert (stats["minValues"]["seq"], stats["maxValues"]["seq"], one.rows) == (seqs[0], seqs[-1], len(seqs))
        assert one.path.startswith(f"part-{seqs[0]:019d}-")
        assert seqs == sorted(seqs)
        assert seqs[0] > behind
        behind = seqs[-1]


def test_no_file_is_left_behind_by_a_task_that_fails_at_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(parts, "FILE_BYTES", 1)
    with pytest.raises(CorruptFile):
        writer(tmp_path, noise(1, 10), noise(11, 10), Damage("orders", 21, "seg.data", 7)).write([SPAN])
    assert list(tmp_path.iterdir()) == []
    sync = OSError("no")
    monkeypatch.setattr(parts, "_sync", lambda path: (_ for _ in ()).throw(sync))
    with pytest.raises(OSError, match="no"):
        writer(tmp_path, noise(1, 10), noise(11, 10)).write([SPAN])
    assert list(tmp_path.iterdir()) == []
