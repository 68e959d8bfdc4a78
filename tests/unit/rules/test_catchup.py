"""When a writer waits for the checkpoints behind it."""

from __future__ import annotations

from topics.rules.catchup import FROM_BURSTS, NS_PER_BYTE, hold_back_ns

BURST = 1 << 28
FROM = FROM_BURSTS * BURST


def test_nobody_waits_while_the_checkpoints_keep_up() -> None:
    assert hold_back_ns(1 << 20, 0, BURST) == 0
    assert hold_back_ns(1 << 20, FROM, BURST) == 0


def test_a_writer_waits_the_longer_the_more_it_writes_and_the_more_is_waiting() -> None:
    assert hold_back_ns(1000, FROM + BURST // 2, BURST) == 1000 * NS_PER_BYTE // 2
    assert hold_back_ns(2000, FROM + BURST // 2, BURST) == 2000 * NS_PER_BYTE // 2
    assert hold_back_ns(1000, FROM + BURST, BURST) == 1000 * NS_PER_BYTE


def test_there_is_an_end_to_how_long_a_writer_waits() -> None:
    assert hold_back_ns(1000, FROM + 100 * BURST, BURST) == 1000 * NS_PER_BYTE


def test_a_small_append_waits_for_next_to_nothing() -> None:
    assert hold_back_ns(165, FROM + BURST, BURST) < 1000
