"""Time that only tests move, and ids that come again."""

from __future__ import annotations

import pytest

from topics.testing.clock import FakeClock
from topics.testing.ids import FakeIds


def test_time_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(1000, 5)
    assert (clock.now_ms(), clock.monotonic_ns()) == (1000, 5)
    clock.advance(7)
    assert (clock.now_ms(), clock.monotonic_ns()) == (1007, 7_000_005)


def test_a_step_moves_the_wall_clock_alone() -> None:
    clock = FakeClock(1000, 5)
    clock.step_wall(-600)
    assert (clock.now_ms(), clock.monotonic_ns()) == (400, 5)


def test_monotonic_time_never_goes_back() -> None:
    with pytest.raises(AssertionError):
        FakeClock().advance(-1)


def test_fake_ids_come_again_with_their_seed() -> None:
    one, two, other = FakeIds(1), FakeIds(1), FakeIds(2)
    tokens = [one.token(8) for _ in range(3)]
    assert tokens == [two.token(8) for _ in range(3)]
    assert len(set(tokens)) == 3
    assert other.token(8) not in tokens
    assert len(tokens[0]) == 16
