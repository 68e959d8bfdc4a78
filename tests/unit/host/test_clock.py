"""The machine's clocks, and the one that doubts them."""

from __future__ import annotations

import pytest

from topics.host.clock import WALL_MS_MAX, Clock, SteadyClock, SystemClock
from topics.rules.steady import Steady
from topics.testing.clock import FakeClock


def test_the_system_clock_tells_time_in_the_promised_units() -> None:
    clock: Clock = SystemClock()
    assert 1_600_000_000_000 < clock.now_ms() < 1 << 43
    first = clock.monotonic_ns()
    assert clock.monotonic_ns() >= first


def test_a_steady_clock_outlives_a_bad_reading_and_follows_a_real_change() -> None:
    fake = FakeClock(1_000_000)
    clock: Clock = SteadyClock(fake, Steady())
    assert clock.now_ms() == 1_000_000
    fake.step_wall(3_600_000)
    fake.advance(10)
    assert clock.now_ms() == 1_000_010
    fake.advance(60_000)
    assert clock.now_ms() == 4_660_010
    assert clock.monotonic_ns() == 60_010 * 1_000_000


@pytest.mark.parametrize(("wall_ms", "told"), [(-500, 0), (-(1 << 70), 0), (0, 0), (1 << 63, WALL_MS_MAX)])
def test_a_steady_clock_tells_no_time_that_a_file_cannot_hold(wall_ms: int, told: int) -> None:
    fake = FakeClock(wall_ms)
    clock: Clock = SteadyClock(fake, Steady())
    assert clock.now_ms() == told
    fake.step_wall(1_700_000_000_000 - wall_ms)
    assert clock.now_ms() == told, "a leap back to sense is doubted like any other"
    fake.advance(60_000)
    assert clock.now_ms() == 1_700_000_060_000
