"""When a checkpoint is due, and when a writer waits for those behind it."""

from __future__ import annotations

from itertools import product

import pytest

from topics.rules.catchup import FROM_BURSTS, NS_PER_BYTE, SNAPSHOTS, due_bytes, hold_back_ns

MIB = 1 << 20
BURST = 1 << 28
FROM = FROM_BURSTS * BURST


@pytest.mark.parametrize(
    ("least", "burst", "snapshot"), list(product((MIB, 64 * MIB, 8192 * MIB), (MIB, BURST), (0, MIB, 600 * MIB)))
)
def test_a_checkpoint_that_is_due_stays_due_as_time_goes_by(least: int, burst: int, snapshot: int) -> None:
    assert due_bytes(True, least, burst, snapshot) <= due_bytes(False, least, burst, snapshot)


def test_a_store_that_rested_needs_no_burst() -> None:
    assert due_bytes(True, 64 * MIB, BURST, 0) == 64 * MIB
    assert due_bytes(False, 64 * MIB, BURST, 0) == BURST


def test_whoever_wants_fewer_checkpoints_gets_no_more_of_them_in_a_burst() -> None:
    assert due_bytes(False, 8192 * MIB, BURST, 0) == 8192 * MIB


@pytest.mark.parametrize("rested", [False, True])
def test_a_large_snapshot_is_not_written_for_little_wal(rested: bool) -> None:
    assert due_bytes(rested, 64 * MIB, BURST, 600 * MIB) == SNAPSHOTS * 600 * MIB


@pytest.mark.parametrize(
    ("rested", "least", "snapshot"), list(product((False, True), (MIB, 8192 * MIB), (0, 600 * MIB)))
)
def test_nobody_waits_before_a_checkpoint_is_due(rested: bool, least: int, snapshot: int) -> None:
    due = due_bytes(rested, least, BURST, snapshot)
    start = max(due, FROM)
    assert hold_back_ns(MIB, start, BURST, due) == 0
    assert hold_back_ns(MIB, start + BURST, BURST, due) == MIB * NS_PER_BYTE


def test_nobody_waits_while_the_checkpoints_keep_up() -> None:
    assert hold_back_ns(1 << 20, 0, BURST, BURST) == 0
    assert hold_back_ns(1 << 20, FROM, BURST, BURST) == 0


def test_a_writer_waits_the_longer_the_more_it_writes_and_the_more_is_waiting() -> None:
    assert hold_back_ns(1000, FROM + BURST // 2, BURST, BURST) == 1000 * NS_PER_BYTE // 2
    assert hold_back_ns(2000, FROM + BURST // 2, BURST, BURST) == 2000 * NS_PER_BYTE // 2
    assert hold_back_ns(1000, FROM + BURST, BURST, BURST) == 1000 * NS_PER_BYTE


def test_there_is_an_end_to_how_long_a_writer_waits() -> None:
    assert hold_back_ns(1000, FROM + 100 * BURST, BURST, BURST) == 1000 * NS_PER_BYTE


def test_a_small_append_waits_for_next_to_nothing() -> None:
    assert hold_back_ns(165, FROM + BURST, BURST, BURST) < 1000
