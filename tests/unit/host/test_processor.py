"""Giving way: always to those who are quick, seldom to those who are not."""

from __future__ import annotations

from topics.host.clock import SystemClock
from topics.host.processor import PATIENCE, Courtesy
from topics.testing.clock import FakeClock


class Other:
    """Somebody who keeps the processor for so long whenever he gets it."""

    def __init__(self, keeps_ms: int) -> None:
        self.clock = FakeClock()
        self.keeps_ms = keeps_ms
        self.turns = 0
        self.courtesy = Courtesy(self.clock, self.take)

    def take(self) -> None:
        self.turns += 1
        self.clock.advance(self.keeps_ms)


def test_quick_ones_get_it_every_time() -> None:
    other = Other(keeps_ms=1)
    for _ in range(10):
        other.courtesy.give_way()
    assert other.turns == 10


def test_slow_ones_are_left_to_the_kernel_for_a_while() -> None:
    other = Other(keeps_ms=3)
    for _ in range(PATIENCE):
        other.courtesy.give_way()
        other.clock.advance(2)
    assert other.turns == 1
    other.clock.advance(PATIENCE)
    other.courtesy.give_way()
    assert other.turns == 2


def test_quick_again_is_treated_as_quick() -> None:
    other = Other(keeps_ms=2)
    other.courtesy.give_way()
    other.keeps_ms = 0
    other.clock.advance(2 * PATIENCE)
    for _ in range(3):
        other.courtesy.give_way()
    assert other.turns == 4


def test_real_processor_comes_back() -> None:
    Courtesy(SystemClock()).give_way()
