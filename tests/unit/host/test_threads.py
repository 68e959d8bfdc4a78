"""The weight of our own threads."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from topics.host.threads import STEP_BACK, step_back


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
