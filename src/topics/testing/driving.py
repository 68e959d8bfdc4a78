"""Drives a use case of the broker to its end, without threads and without an event loop."""

from __future__ import annotations

from typing import TypeVar

from topics.broker.staging import Chore, Work
from topics.broker.steps import Nap
from topics.storage.store import Store

T = TypeVar("T")


def run_in_place(store: Store, work: Work[T]) -> T:
    """Write where it waits, do its chores at once; a nap ends before it began."""
    while True:
        try:
            wait = next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(wait, Chore):
            wait.run()
        elif isinstance(wait, Nap):
            wait.refused = True
        else:
            while not wait.settled:
                store.drive_once()
