from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.rules.gap import floor_gap, floor_reason
from topics.rules.retention import evict_count, excess, reserve_ahead


def test_a_cap_of_zero_is_off() -> None:
    assert excess(1_000_000, 0) == 0
    assert excess(5, 5) == 0
    assert excess(7, 5) == 2


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 40), st.integers(0, 400))
def test_no_more_of_the_oldest_go_than_needed(sizes: list[int], records: int, accounted: int) -> None:
    count = evict_count(np.array(sizes, dtype=np.uint32), records, accounted)
    naive = next(
        (n for n in range(len(sizes) + 1) if n >= records and sum(sizes[:n]) >= accounted),
        len(sizes),
    )
    assert count == naive


def test_a_busy_topic_reserves_twice_as_much_and_a_slow_one_falls_back() -> None:
    assert reserve_ahead(1, 4096, 0, 0) == 4096
    assert reserve_ahead(5000, 4096, 0, 0) == 20_000
    assert reserve_ahead(1, 4096, 8192, 50) == 16_384
    assert reserve_ahead(1, 4096, 8192, 100) == 8192
    assert reserve_ahead(1, 4096, 8192, 1000) == 4096
    assert reserve_ahead(1, 4096, 1 << 20, 1) == 1 << 20


@pytest.mark.parametrize("per_ms", [50, 300, 1000, 3000, 8000])
def test_a_topic_that_writes_steadily_asks_long_before_it_needs_more(per_ms: int) -> None:
    """Whatever its rate: a sync that takes 50 ms holds nobody up, once the topic is known to be busy."""
    ceiling = previous = asked_ms = 0
    for ms in range(5000):
        left = ceiling - ms * per_ms
        if left >= max(previous, 4096) // 2:
            continue
        assert ms < 1000 or left >= 50 * per_ms, (ms, left)
        previous = reserve_ahead(min(per_ms, 1000), 4096, previous, ms - asked_ms)
        ceiling, asked_ms = ms * per_ms + previous, ms


def test_the_reason_of_a_gap_is_the_floor_that_reaches_it() -> None:
    assert floor_reason(5, 10, 0) == "cap"
    assert floor_reason(5, 0, 10) == "ttl"
    assert floor_reason(5, 9, 10) == "mixed"
    assert floor_reason(5, 4, 10) == "ttl"
    assert floor_reason(5, 0, 0) == "source_trim"


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_reader_below_a_floor_is_told_and_one_at_it_is_not(cursor: int, evict: int, expiry: int, trim: int) -> None:
    gap = floor_gap(cursor, evict, expiry, trim)
    floor = max(evict, expiry, trim)
    if cursor >= floor:
        assert gap is None
    else:
        assert gap is not None
        assert (gap.gap_from, gap.gap_to) == (cursor + 1, floor)
