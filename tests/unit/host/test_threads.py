"""The weight of our own threads, and a pool that has none."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from topics.host.threads import STEP_BACK, LastingPool, step_back


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a weight of its own")
def test_thread_that_steps_back_leaves_every_other_as_it_was() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    found: list[int] = []

    def work() -> None:
        step_back()
        step_back()
        found.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [min(before + STEP_BACK, 19)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_work_for_which_no_thread_can_be_started_is_done_once_and_before_its_submitter_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    go = threading.Event()

    def work(name: str) -> str:
        if name == "first":
            go.wait()
        done.append(name)
        return name

    pool = LastingPool(2)
    first = pool.submit(work, "first")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    second = pool.submit(work, "second")
    assert second.result(0) == "second"
    go.set()
    assert first.result() == "first"
    pool.shutdown()
    assert done == ["second", "first"], "what the pool had queued all the same was not done again"


def test_pool_that_has_ended_does_its_work_in_place_and_tells_what_went_wrong() -> None:
    pool = LastingPool(1)
    pool.shutdown()
    assert pool.submit(int, "7").result(0) == 7
    assert isinstance(pool.submit(int, "no number").exception(0), ValueError)
