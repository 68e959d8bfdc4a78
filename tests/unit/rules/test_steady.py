"""One bad reading of the wall clock moves nothing; a real change is followed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.rules.steady import HOLD_MS, STEP_MS_MAX, Steady

START = 1_700_000_000_000
HOUR = 3_600_000


def ns(ms: int) -> int:
    return ms * 1_000_000


def test_the_first_reading_is_believed() -> None:
    assert Steady().read(START, ns(5)) == START


def test_time_passes_with_both_clocks() -> None:
    steady = Steady()
    for ms in range(0, 10 * HOUR, HOUR):
        assert steady.read(START + ms, ns(ms)) == START + ms


def test_a_small_step_is_followed_at_once() -> None:
    steady = Steady()
    steady.read(START, 0)
    assert steady.read(START + STEP_MS_MAX, 0) == START + STEP_MS_MAX
    assert steady.read(START, 0) == START


def test_one_wild_reading_changes_nothing() -> None:
    for wild in (START + 10 * HOUR, START - 10 * HOUR, 0, 1 << 63):
        steady = Steady()
        steady.read(START, 0)
        assert steady.read(wild, ns(10)) == START + 10
        assert steady.read(START + 20, ns(20)) == START + 20


def test_a_step_that_holds_is_adopted() -> None:
    for step in (HOUR, -HOUR):
        steady = Steady()
        steady.read(START, 0)
        assert steady.read(START + step + 1_000, ns(1_000)) == START + 1_000
        almost = 1_000 + HOLD_MS - 1
        assert steady.read(START + step + almost, ns(almost)) == START + almost
        assert steady.read(START + step + almost + 1, ns(almost + 1)) == START + step + almost + 1
        assert steady.read(START + step + almost + 2, ns(almost + 2)) == START + step + almost + 2


def test_a_step_that_goes_back_in_between_begins_to_wait_anew() -> None:
    steady = Steady()
    steady.read(START, 0)
    steady.read(START + HOUR, 0)
    steady.read(START + 30_000, ns(30_000))
    assert steady.read(START + HOUR + 61_000, ns(61_000)) == START + 61_000
    assert steady.read(START + HOUR + 121_000, ns(121_000)) == START + HOUR + 121_000


def test_a_clock_that_keeps_jumping_is_never_believed() -> None:
    steady = Steady()
    steady.read(START, 0)
    for n in range(1, 50):
        assert steady.read(START + n * HOUR, ns(n * 50_000)) == START + n * 50_000


def test_a_frozen_wall_clock_is_outrun_by_monotonic_time() -> None:
    steady = Steady()
    assert steady.read(START, 0) == START
    assert steady.read(START, ns(HOUR)) == START + HOUR


@given(st.lists(st.tuples(st.integers(0, 1 << 63), st.integers(0, 30_000)), max_size=20))
def test_wild_readings_within_a_minute_never_move_time_by_more_than_one_step_each(
    readings: list[tuple[int, int]],
) -> None:
    steady = Steady()
    steady.read(START, 0)
    now = 0
    before = START
    for wall, passed in readings:
        now += passed
        if now >= HOLD_MS:
            break
        after = steady.read(wall, ns(now))
        assert abs(after - before - passed) <= STEP_MS_MAX
        before = after
