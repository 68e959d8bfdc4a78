"""SeededLoop: many tasks, one thread, and a seed that says who goes next.

A task is a generator. Each `yield` is a point where others may run: a bare `yield` means "go on whenever", `yield test`
means "go on once `test()` is true". The same seed and the same tasks give the same interleaving, so a failure found
once is found again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from random import Random
from typing import Any

Wait = Callable[[], bool] | None
Steps = Generator[Wait, None, Any]


class Stuck(Exception):
    """Tasks are left, and every one of them waits."""


class Task:
    """A spawned generator. `result` is what it returned, once `done`."""

    def __init__(self, steps: Steps, name: str) -> None:
        self.name = name
        self.done = False
        self.result: Any = None
        self._steps = steps
        self._wait: Wait = None

    @property
    def runnable(self) -> bool:
        return not self.done and (self._wait is None or self._wait())

    def step(self) -> None:
        try:
            self._wait = next(self._steps)
        except StopIteration as stop:
            self.done = True
            self.result = stop.value
        except BaseException:
            self.done = True
            raise

    def drop(self) -> None:
        self.done = True
        # The generator's clean-up may touch what died with it.
        with suppress(Exception):
            self._steps.close()


class SeededLoop:
    def __init__(self, seed: int | Random) -> None:
        self.rng = seed if isinstance(seed, Random) else Random(seed)
        self.steps = 0
        self._tasks: list[Task] = []

    def spawn(self, steps: Steps, name: str = "") -> Task:
        """Add a task; also from inside a running one."""
        task = Task(steps, name or f"task-{self.steps}.{len(self._tasks)}")
        self._tasks.append(task)
        return task

    def step(self) -> bool:
        """Let one runnable task, drawn at random, go to its next yield. False if no task is left.

        What a task raises comes out here: that task is over, the others may go on.
        """
        if not self._tasks:
            return False
        runnable = [task for task in self._tasks if task.runnable]
        if not runnable:
            raise Stuck("all wait: " + ", ".join(task.name for task in self._tasks))
        task = self.rng.choice(runnable)
        self.steps += 1
        try:
            task.step()
        finally:
            if task.done:
                self._tasks.remove(task)
        return True

    def run(self) -> None:
        """Until every task is done."""
        while self.step():
            pass

    def drop(self) -> None:
        """End all tasks where they stand, as a crash does."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.drop()
