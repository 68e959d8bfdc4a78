"""Retention of topics that nobody writes to or reads: whoever does looks at what became too old by itself."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from topics.model.errors import TopicsError

if TYPE_CHECKING:
    from topics.storage.store import Store
    from topics.storage.topic import Topic

_EVERY_NS: Final = 60_000_000_000
_SLICE: Final = 20
"""Topics looked at while others wait for the lock: at most about a millisecond, where all of them have to evict."""
_SLICES: Final = 10
"""In one go. Where there are very many topics, a round takes longer than a minute."""


class Idle:
    def __init__(self, now_ns: int) -> None:
        self._begun_ns = now_ns
        self._left: list[Topic] = []
        """Of the present round."""

    def tend(self, store: Store) -> None:
        """Now and then, without the lock. What is evicted is written like all else that nobody waits for, and the next
        checkpoint lets go of its files."""
        if not self._left:
            self._begin(store)
        for _ in range(_SLICES):
            part = self._left[-_SLICE:]
            del self._left[-_SLICE:]
            if not part:
                return
            with store.lock:
                for topic in part:
                    if not store.closed and store.by_id.get(topic.id) is topic:
                        with suppress(TopicsError, OSError):  # whoever reads it is told
                            store.sweep(topic)

    def _begin(self, store: Store) -> None:
        now_ns = store.clock.monotonic_ns()
        if now_ns - self._begun_ns >= _EVERY_NS:
            self._begun_ns = now_ns
            with store.lock:
                topics = list(store.all_topics())
            self._left = [topic for topic in topics if _may_hold_too_much(topic)]


def _may_hold_too_much(topic: Topic) -> bool:
    """Caps are kept with every append; what a group held back is let go of when the group went on, or was given up."""
    config = topic.config
    guarded = topic.groups is not None and (config.cap_records or config.cap_bytes)
    return bool(topic.live and (config.ttl_ms or guarded))
