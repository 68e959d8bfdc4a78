"""The machine that a simulated store runs on: one thread that behaves like many, and a disk that tells of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topics.testing.disk import FakeDisk


class Scheduler(Protocol):
    armed: bool

    def preempt(self) -> None: ...


class Gate:
    """Closed while its task is inside an I/O call, so that the loop does not run that task again."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False

    def free(self) -> bool:
        return not self.busy


class SimulatedDisk(FakeDisk):
    """Tells the simulation of every mutating call before it happens."""

    before_call: Callable[[], None] | None = None

    def _count(self, what: str, detail: str) -> bool:
        if self.before_call is not None:
            self.before_call()
        return super()._count(what, detail)


class SimulatedLock:
    """The store's lock with one thread: taking it is a point where others run; holding it keeps them out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._armed: list[bool] = []

    def __enter__(self) -> None:
        self._scheduler.preempt()
        self._armed.append(self._scheduler.armed)
        self._scheduler.armed = False

    def __exit__(self, *_: object) -> None:
        self._scheduler.armed = self._armed.pop()
