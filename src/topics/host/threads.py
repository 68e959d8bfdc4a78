"""How much a thread of ours may claim of the machine, and threads that must not be missing when there are none."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STEP_BACK: Final = 5
"""A third of the weight of a caller's thread. Much more would let a thread that holds the interpreter's lock wait long
for a core on a busy machine, and everybody else for that lock."""


def step_back() -> None:
    """From now on this thread lets others go first where cores are scarce, and pushes none off its core when it wakes.
    Threads that it starts inherit that, and may say so again. Only Linux gives each thread a weight of its own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + STEP_BACK, 19))


class LastingPool(ThreadPoolExecutor):
    """Does in place what it has no thread for.

    A usual pool refuses all work from when the main thread is through, be there other threads that go on or a handler
    of `atexit`. And where the system starts no further thread it says so, and does the work all the same, later.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        work = _Work(lambda: fn(*args, **kwargs))
        try:
            super().submit(work.run)
        except RuntimeError:
            work.run()
        return work.done


class _Work:
    """Something that is done once, however many come to do it."""

    __slots__ = ("_free", "_work", "done")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._free = threading.Lock()
        self.done: Future[Any] = Future()

    def run(self) -> None:
        if not self._free.acquire(blocking=False) or not self.done.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:
            trace = error.__traceback__
            # Without this frame: it holds `done`, and such a ring would wait for the collector.
            self.done.set_exception(error.with_traceback(None if trace is None else trace.tb_next))
        else:
            self.done.set_result(result)
        finally:
            del self._work  # a file of the WAL may hang on it
