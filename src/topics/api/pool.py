"""Threads for file I/O that know how much work waited for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from topics.host.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


class Pool(ThreadPoolExecutor):
    """Busy threads alone are no trouble, somebody is reading history; work that finds none free is."""

    def __init__(self, threads: int, name: str, clock: Clock) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._now_ns = clock.monotonic_ns
        self._lock = threading.Lock()
        self._waiting = 0
        self._waited_ns = 0
        """Time during which at least one piece of work waited, up to `_changed_ns`."""
        self._changed_ns = self._asked_ns = self._now_ns()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self._count(+1)

        def run() -> T:
            self._count(-1)
            return fn(*args, **kwargs)

        try:
            future = super().submit(run)
        except BaseException:
            self._count(-1)
            raise
        return future

    def _count(self, more: int) -> None:
        with self._lock:
            self._pass()
            self._waiting += more

    def _pass(self) -> None:
        now = self._now_ns()
        if self._waiting:
            self._waited_ns += now - self._changed_ns
        self._changed_ns = now

    def take_waiting(self) -> float:
        """The share of the time since this was last asked in which work waited, 0 to 1."""
        with self._lock:
            self._pass()
            passed = self._changed_ns - self._asked_ns
            share = self._waited_ns / passed if passed > 0 else 0.0
            self._waited_ns, self._asked_ns = 0, self._changed_ns
        return min(share, 1.0)
