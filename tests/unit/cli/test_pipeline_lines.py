from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from topics.cli.ending import Ending
from topics.cli.output import Output
from topics.cli.pipeline import Teller, Watched, _line
from topics.spark.doing import Doing
from topics.spark.pipeline import Exported


@pytest.mark.parametrize(
    ("tail", "lag", "line"),
    [
        (False, 0, "orders: nothing new, 0 records behind"),
        (True, 7, "orders: nothing new, 7 records behind"),
        (True, 1, "orders: nothing new, 1 record behind"),
        (
            False,
            7,
            "orders: nothing new, 7 records behind, in a segment that is not sealed yet (--tail exports them, too)",
        ),
    ],
)
def test_round_without_anything_to_export_says_why_records_are_behind(tail: bool, lag: int, line: str) -> None:
    assert _line(Exported("orders", 1, 1, lag=lag), tail) == line


def test_small_export_is_told_in_small_units_and_a_large_one_with_its_rate() -> None:
    small = Exported("orders", 1, 11, rows=10, files=1, bytes=3964, seconds=2.0)
    assert _line(small, True) == "orders: 10 records to seq 10 in 2.0 s (5/s), 4.0 kB in 1 file, 0 behind"
    large = Exported("orders", 1, 11, rows=10, files=2, bytes=5_000_000, seconds=2.0, gaps=((3, 4, "corrupt"),))
    told = "orders: 10 records to seq 10 in 2.0 s (5/s), 5.0 MB in 2 files (2.5 MB/s), 0 behind; lost 3-4 (corrupt)"
    assert _line(large, True) == told


@pytest.mark.parametrize("json", [False, True])
def test_that_there_is_nothing_new_is_said_once_until_it_changes(json: bool) -> None:
    out = io.StringIO()
    teller = Teller(Output(json, Console(file=out), Console(file=io.StringIO())), Console(file=io.StringIO()), True,
                    Doing(), Ending())  # fmt: skip
    idle, behind = Exported("a", 1, 1), Exported("a", 1, 1, lag=3)
    wrong, done = Exported("a", 0, 0, error="x"), Exported("a", 1, 9, rows=8)
    said = []
    for one in (idle, idle, behind, behind, wrong, wrong, behind, done, idle, Exported("b", 1, 1), idle):
        at = out.tell()
        teller.tell(iter([one]))
        said.append(out.tell() > at)
    quiet = {1, 3, 10}
    assert said == [json or number not in quiet for number in range(11)]


def test_failed_export_is_told_with_what_was_noted() -> None:
    failed = Exported("orders", 0, 0, error="no room", note="the old table lies beside it")
    assert _line(failed, True) == "orders: failed: no room; the old table lies beside it"


def test_terminal_shows_what_a_long_export_has_written_so_far(tmp_path: Path) -> None:
    (tmp_path / "part-1.parquet").write_bytes(bytes(9_000_000))
    now = [0.0]
    doing = Doing()
    watched = Watched(doing, lambda: now[0])
    assert str(watched.__rich__()) == "exporting"
    with doing.writing("orders", 12_000_000, str(tmp_path)):
        assert str(watched.__rich__()) == "exporting"  # it looks once a second
        now[0] += 1
        assert str(watched.__rich__()) == "exporting orders: 12,000,000 records"
        (tmp_path / "part-2.parquet").write_bytes(bytes(5_000_000))
        now[0] += 1
        line = r"exporting orders: 12,000,000 records, 5\.0 MB written \([\d.]+ MB/s\)"
        assert re.fullmatch(line, str(watched.__rich__()))
        terminal = io.StringIO()
        with Console(file=terminal, force_terminal=True, width=100).status(Watched(doing)):
            time.sleep(0.2)
        assert "5.0 MB written" in terminal.getvalue()
        (tmp_path / "part-1.parquet").unlink()
        tmp_path.rename(tmp_path.with_name("away"))
        now[0] += 1
        assert str(watched.__rich__()) == "exporting orders: 12,000,000 records"
    now[0] += 1
    assert str(watched.__rich__()) == "exporting"
