"""Work that touches much data, done in a thread of the pool while the use case sleeps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from topics.broker.steps import Nap, Steps
from topics.storage.store import Store

T = TypeVar("T")

_LONG_MS: Final = 3_600_000


def away(store: Store, pool: Executor, work: Callable[[], T]) -> Steps[T]:
    """The result of `work`, or what it raises. Whoever may not sleep any more waits for it in place."""
    nap = Nap(_LONG_MS)

    def run() -> T:
        try:
            return work()
        finally:
            with store.lock:
                nap.release()

    done = pool.submit(run)
    while not nap.woken and not nap.refused:
        yield nap
    return done.result()
