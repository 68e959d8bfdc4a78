from __future__ import annotations

import pytest

from topics.cli.pipeline import _line
from topics.spark.pipeline import Exported


@pytest.mark.parametrize(
    ("tail", "lag", "line"),
    [
        (False, 0, "orders: nothing new, 0 records behind"),
        (True, 7, "orders: nothing new, 7 records behind"),
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


def test_failed_export_is_told_with_what_was_noted() -> None:
    failed = Exported("orders", 0, 0, error="no room", note="the old table lies beside it")
    assert _line(failed, True) == "orders: failed: no room; the old table lies beside it"
