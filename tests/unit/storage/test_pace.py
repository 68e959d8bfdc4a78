"""When a writer is hurried, and what its next WAL file is like."""

from __future__ import annotations

import pytest

from topics.storage.pace import Pace

USUAL = 64 * 1024 * 1024
MS = 1_000_000


def after(written: int, took_ms: int, syncs: int, usual: int = USUAL) -> Pace:
    pace = Pace(usual)
    pace.rotated(0, 1000 * MS, 10)
    pace.rotated(written, (1000 + took_ms) * MS, 10 + syncs)
    return pace


@pytest.mark.parametrize(
    ("written", "took_ms", "syncs", "hurried"),
    [
        (USUAL, 499, 50, True),
        (USUAL, 500, 50, False),  # slow
        (USUAL, 499, 51, False),  # synced too often for syncs to be dear
        (4 * USUAL, 1999, 200, True),  # a longer file has its share of both
        (4 * USUAL, 2000, 200, False),
        (4 * USUAL, 1999, 201, False),
        (USUAL // 2, 1, 0, False),  # left early: it tells nothing
    ],
)
def test_a_writer_that_fills_a_file_at_once_and_hardly_syncs_it_is_hurried(
    written: int, took_ms: int, syncs: int, hurried: bool
) -> None:
    pace = after(written, took_ms, syncs)
    assert pace.hurried is hurried
    assert pace.capacity() == (4 * USUAL if hurried else USUAL)


def test_the_first_file_of_a_life_makes_nobody_hurried() -> None:
    pace = Pace(USUAL)
    pace.rotated(0, 5 * MS, 0)
    assert not pace.hurried
    pace.rotated(4 * 1024 * 1024, 6 * MS, 0)
    assert not pace.hurried


def test_a_writer_that_slows_down_is_hurried_no_more() -> None:
    pace = after(USUAL, 10, 0)
    assert pace.hurried
    pace.rotated(4 * USUAL, 60_000 * MS, 500)
    assert not pace.hurried


def test_no_file_outgrows_the_offsets_of_an_index() -> None:
    assert after(1 << 30, 1, 0, usual=1 << 30).capacity() == 1 << 31
