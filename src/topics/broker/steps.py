"""A use case that may have to wait, as a generator: it yields what it waits for and returns its result.

Whoever drives it decides how to wait: an event loop parks it, a test writes the shard in place. A use case takes the
store's lock itself, for short moments, and never holds it across a `yield`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from topics.model.errors import Throttled
from topics.storage.store import Store
from topics.storage.submission import Submission, Waiter, WaitFirst, fresh_error
from topics.storage.topic import Topic

T = TypeVar("T")


class Nap:
    """Sleep until one of some topics gets an append or goes, at most `wait_ms`. Made before the read it follows, so
    that nothing that happens in between is missed."""

    __slots__ = ("_topics", "refused", "sleeper", "wait_ms", "woken")

    def __init__(self, wait_ms: int) -> None:
        self.wait_ms = wait_ms
        self.woken = False
        self.refused = False
        """Nobody sleeps any more, the server is stopping: answer with what there is."""
        self.sleeper: Waiter | None = None
        """Who is to be released; set under the store's lock by the driver."""
        self._topics: list[Topic] = []

    def watch(self, topic: Topic) -> None:
        """Under the store's lock."""
        topic.waiters.append(self)
        self._topics.append(topic)

    def release(self) -> None:
        """Called by a topic, under the store's lock."""
        self.woken = True
        if self.sleeper is not None:
            sleeper, self.sleeper = self.sleeper, None
            sleeper.release()

    def leave(self) -> None:
        """Under the store's lock: nobody sleeps any more."""
        self.sleeper = None
        for topic in self._topics:
            if self in topic.waiters:
                topic.waiters.remove(self)
        self._topics = []


Wait = Submission | Nap
Steps = Generator[Wait, None, T]


def settled(submission: Submission | None) -> Steps[None]:
    """Wait for a submission of our own; raise if it failed."""
    if submission is None:
        return
    if not submission.settled:
        yield submission
    if submission.error is not None:
        raise fresh_error(submission.error)


def asked(store: Store, ask: Callable[[], T]) -> Steps[T]:
    """Ask the store under its lock; where the answer depends on something under way, wait and ask again."""
    while True:
        try:
            with store.lock:
                return ask()
        except WaitFirst as first:
            waited_for: Submission | None = first.submission
        except Throttled as refused:
            waited_for = fills_queue(store, refused)
        if waited_for is not None:
            yield waited_for


def fills_queue(store: Store, refused: Throttled) -> Submission | None:
    """What to wait for before asking again, None = there is room by now. Raises `refused` where it is for a limit, or
    nobody is to wait."""
    if not store.waits_for_room or not is_queue_full(refused):
        raise refused
    return last_queued(store, refused)


def last_queued(store: Store, refused: Throttled) -> Submission | None:
    """The last one in the queue that had no room: once it is through there is some."""
    with store.lock:
        queue = store.shards[refused.facts["shard"]].queue
        return queue[-1] if queue and not queue[-1].settled else None


def is_queue_full(refused: Throttled) -> bool:
    """It was for want of room in a queue, not for a limit or a quota."""
    return "shard" in refused.facts
