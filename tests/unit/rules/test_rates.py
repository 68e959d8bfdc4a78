"""Rates and percentiles from samples."""

from __future__ import annotations

import pytest

from topics.rules.rates import Rates, percentile


def test_one_sample_tells_nothing_yet() -> None:
    rates = Rates(2)
    rates.sample(1000, {1: 500}, [3, 4])
    assert (rates.per_second(), rates.counts(), rates.span_ms) == ({}, [0, 0], 0)


def test_rates_are_averages_over_each_window() -> None:
    rates = Rates(1)
    for second in range(61):
        rates.sample(1000 * second, {1: 10 * second, 2: 0 if second < 60 else 600, 3: 7}, [second])
    found = rates.per_second()
    assert found[1] == (10.0, 10.0, 10.0)
    assert found[2] == (600.0, 60.0, 10.0)
    assert 3 not in found
    assert rates.counts() == [60]


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    rates = Rates(1)
    rates.sample(0, {1: 0}, [0])
    rates.sample(1000, {1: 1000}, [5])
    rates.sample(70_000, {1: 1000}, [5])
    assert (rates.per_second(), rates.counts()) == ({}, [0])


def test_new_counters_begin_at_zero_and_reset_ones_are_passed_over() -> None:
    rates = Rates(1)
    rates.sample(0, {1: 100}, [9])
    rates.sample(2000, {1: 5, 2: 30}, [1])
    assert rates.per_second() == {2: (15.0, 15.0, 15.0)}
    assert rates.counts() == [0]


def test_two_samples_at_one_moment_count_as_one() -> None:
    rates = Rates(1)
    rates.sample(1000, {1: 0}, [0])
    rates.sample(1000, {1: 50}, [0])
    rates.sample(2000, {1: 60}, [0])
    assert rates.per_second()[1][0] == 60.0


@pytest.mark.parametrize(
    ("counts", "half", "most"),
    [([0, 0, 0], None, None), ([10, 0, 0], 1.0, 1.0), ([98, 1, 1], 1.0, 5.0), ([0, 0, 3], 5.0, 5.0)],
)
def test_percentile_is_the_bound_that_most_stay_below(
    counts: list[int], half: float | None, most: float | None
) -> None:
    assert (percentile(counts, [1.0, 5.0], 0.5), percentile(counts, [1.0, 5.0], 0.99)) == (half, most)
