"""Trust in the disk: lapsed by silence, lost by slowness, brought back by a quick write."""

from __future__ import annotations

from itertools import pairwise

from topics.api.pace import DISTRUST_NS, LONG_NS, SLOW_MAX, TRUST_NS, Pace

QUICK, SLOW = 1000, 1001


def test_unknown_disk_is_not_trusted_until_one_write() -> None:
    pace = Pace(QUICK)
    assert not pace.is_quick(0)
    pace.took(10, QUICK)
    assert pace.is_quick(11)


def test_trust_lapses_without_writes() -> None:
    pace = Pace(QUICK)
    for at in range(10):
        pace.took(at, QUICK)
    assert pace.is_quick(9 + TRUST_NS - 1)
    assert not pace.is_quick(9 + TRUST_NS)
    pace.took(9 + TRUST_NS, QUICK)
    assert pace.is_quick(9 + TRUST_NS + 1)


def test_long_write_takes_the_trust_for_many_times_its_length() -> None:
    pace = Pace(QUICK)
    now = 10 * LONG_NS
    pace.took(now, LONG_NS + 1)
    while now < 10 * LONG_NS + 20 * LONG_NS:
        assert not pace.is_quick(now + 1)
        now += TRUST_NS // 2
        pace.took(now, SLOW)


def test_slow_writes_now_and_then_are_no_reason_for_distrust() -> None:
    pace = Pace(QUICK)
    for at in range(100):
        pace.took(at, QUICK if at % SLOW_MAX == 0 else SLOW)
        assert pace.is_quick(at + 1)


def test_disk_that_stays_slow_is_tried_less_and_less() -> None:
    pace = Pace(QUICK)
    now, tried = 0, []
    while now < 10 * DISTRUST_NS[1]:
        now += 1_000_000
        if pace.is_quick(now):
            tried.append(now)
        pace.took(now, SLOW)
    gaps = [later - at for at, later in pairwise(tried)][SLOW_MAX - 2 :]
    assert gaps[0] < 2 * DISTRUST_NS[0]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= DISTRUST_NS[1]


def test_quick_write_brings_the_trust_back_at_once() -> None:
    pace = Pace(QUICK)
    for at in range(SLOW_MAX):
        pace.took(at, SLOW)
    assert not pace.is_quick(SLOW_MAX)
    pace.took(SLOW_MAX, QUICK)
    assert pace.is_quick(SLOW_MAX + 1)
    pace.took(20, LONG_NS + 1)
    pace.took(21, QUICK)
    assert pace.is_quick(22)
