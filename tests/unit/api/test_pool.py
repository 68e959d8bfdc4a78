from __future__ import annotations

import threading

import pytest

from topics.api.pool import Pool
from topics.testing.clock import FakeClock


def test_pool_tells_how_long_work_waited_for_a_thread() -> None:
    clock = FakeClock()
    pool = Pool(1, "test", clock)
    entered, go = threading.Event(), threading.Event()

    def hold() -> int:
        entered.set()
        go.wait(10)
        return 1

    try:
        first = pool.submit(hold)
        assert entered.wait(10)
        clock.advance(100)
        assert pool.take_waiting() == 0.0
        second = pool.submit(lambda: 2)
        clock.advance(25)
        third = pool.submit(lambda: 3)
        clock.advance(75)
        assert pool.take_waiting() == pytest.approx(1.0)
        clock.advance(30)
        go.set()
        assert [first.result(10), second.result(10), third.result(10)] == [1, 2, 3]
        clock.advance(70)
        assert pool.take_waiting() == pytest.approx(0.3)
        assert pool.take_waiting() == 0.0
    finally:
        go.set()
        pool.shutdown()


def test_work_refused_by_a_closed_pool_does_not_count_as_waiting() -> None:
    clock = FakeClock()
    pool = Pool(1, "test", clock)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(lambda: 1)
    clock.advance(100)
    assert pool.take_waiting() == 0.0
