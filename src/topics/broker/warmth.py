"""Reading what only the disk holds: a thread brings it into memory, so that the event loop never waits for it."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Final

from topics.broker.away import away
from topics.broker.reading import Query, read_page
from topics.broker.steps import Steps
from topics.model.errors import TopicsError
from topics.storage.store import Store
from topics.storage.topic import Topic

_SURE_NS: Final = 250_000_000
"""What was in memory is taken to be there for so long: asking costs some 10 µs, and many read the same pages."""
_SURE_MAX: Final = 1024


class Warmth:
    def __init__(self, store: Store, pool: Executor) -> None:
        self._store = store
        self._pool = pool
        self._sure: dict[str, tuple[int, int, int]] = {}
        """By path of a segment: entries from, to, known to be in memory until."""

    def warmed(self, topic: Topic, query: Query) -> Steps[None]:
        """The page that `query` asks for can be read at once afterwards. Trouble with it shows when it is read."""
        if self.is_cold(topic, query):
            with suppress(TopicsError):
                yield from away(self._store, self._pool, partial(read_page, self._store, topic, query))

    def is_cold(self, topic: Topic, query: Query) -> bool:
        """True if the page may have to come from the disk, as far as its first segment goes. What was written lately
        is in memory."""
        if query.from_seq >= topic.copied:
            return False
        store = self._store
        with store.lock:
            first = topic.dead.next_live(query.from_seq + 1, topic.copied + 1)
            segment = topic.segment_of(first) if first <= topic.copied else None
        if segment is None or not segment.sealed:
            return False
        start = first - segment.first_seq
        end = min(start + query.limit, segment.count)
        now, path = store.clock.monotonic_ns(), segment.path("data")
        low, high, until = self._sure.get(path, (0, 0, 0))
        if now < until and low <= start and end <= high:
            return False
        if not store.handles.is_warm(segment, start, end - start, query.bytes_max):
            return True
        if len(self._sure) >= _SURE_MAX:
            self._sure.clear()
        self._sure[path] = start, end, now + _SURE_NS
        return False
