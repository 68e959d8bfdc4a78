"""How fast a group falls behind, and when it will lose something."""

from __future__ import annotations

import pytest

from topics.rules.lag import Look, Trend


def test_the_lag_grows_by_what_comes_less_what_is_settled() -> None:
    trend = Trend()
    for second in range(10):
        trend.add(Look(second * 1000, 1 + 2 * second, 10 * second, 0))
    now = Look(10_000, 21, 100, 0)
    assert trend.per_s(now) == pytest.approx(8.0, rel=0.1)
    assert trend.loss_eta_s(now) is None


def test_the_time_until_loss_is_the_way_of_the_floor_at_its_speed() -> None:
    trend = Trend()
    trend.add(Look(0, 101, 1000, 0))
    assert trend.loss_eta_s(Look(2000, 101, 1020, 20)) == pytest.approx(8.0)
    assert trend.loss_eta_s(Look(2000, 201, 1020, 20)) is None, "the group is faster"


def test_a_blink_of_an_eye_tells_no_speed() -> None:
    trend = Trend()
    trend.add(Look(0, 101, 1000, 0))
    now = Look(5, 101, 1020, 20)
    assert trend.per_s(now) == 0.0
    assert trend.loss_eta_s(now) is None
    assert trend.per_s(Look(100, 101, 1020, 20)) == pytest.approx(200.0)


def test_a_step_back_begins_anew() -> None:
    trend = Trend()
    trend.add(Look(0, 101, 1000, 0))
    trend.add(Look(5000, 1, 1000, 0))
    assert trend.per_s(Look(6000, 1, 1010, 0)) == pytest.approx(10.0)
