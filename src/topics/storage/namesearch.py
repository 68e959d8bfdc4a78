"""Searching a topic by tag or key without holding up anybody: files are read without the store's lock.

What is done here first need not be done under the lock later. It may be out of date by then; then the little that is
missing is found under the lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topics.format.control import Selector, SelectorOp
from topics.model.errors import StorageError
from topics.model.record import Gap
from topics.storage.names import (
    KEYS,
    Found,
    Names,
    Seqs,
    find_named,
    first_slice,
    name_tail,
    not_gone,
    sealed_segments,
    search_segment,
)
from topics.storage.reader import fetch
from topics.storage.scan import check_there
from topics.storage.store import Store
from topics.storage.topic import Topic

_LITTLE = 1024
"""Records that may be looked at under the lock: some 0.1 ms."""
_ALL = 1 << 62


def search(store: Store, topic: Topic, kind: Names, selector: Selector) -> Seqs:
    """Live published seqs whose name matches, ascending."""
    found = search_sealed(store, topic, kind, selector)
    catch_up(store, topic, kind)
    with store.lock:
        check_there(store, topic)
        return find_named(store.handles, topic, kind, selector, found)


@dataclass(slots=True)
class Search:
    """What was found ahead of a delete, and in which topic."""

    topic: Topic
    found: Found


def is_quick(topic: Topic, kind: Names) -> bool:
    """True if a search needs no file of a sealed segment and looks at few records. Under the store's lock."""
    if sealed_segments(topic):
        return False
    tail, start = name_tail(topic, kind)
    return topic.head - max(start, tail.through + 1) < _LITTLE


def search_ahead(store: Store, topic: Topic, kind: Names, selector: Selector) -> Search:
    found = search_sealed(store, topic, kind, selector)
    catch_up(store, topic, kind)
    return Search(topic, found)


def search_sealed(store: Store, topic: Topic, kind: Names, selector: Selector) -> Found:
    """Hits in the sealed segments of now."""
    with store.lock:
        check_there(store, topic)
        segments = sealed_segments(topic)
    found: Found = {}
    for segment in segments:
        try:
            found[segment.first_seq] = search_segment(store.handles, topic, segment, kind, selector)
        except FileNotFoundError:
            continue  # dropped meanwhile
    return found


def catch_up(store: Store, topic: Topic, kind: Names) -> None:
    """Bring the index of the unsealed part so far that only a little is left to look at."""
    while True:
        with store.lock:
            check_there(store, topic)
            tail, start = name_tail(topic, kind)
            first, seen = max(start, tail.through + 1), tail.through
            if topic.head - first < _LITTLE:
                return
            part = first_slice(topic, first)
        if part is None:
            return
        try:
            items = [
                item if isinstance(item, Gap) else (item.first_seq, tail.names_of(item))
                for item in fetch(store.handles, part, _ALL)
            ]
        except (OSError, StorageError):
            return  # it moved, or it is damaged: under the lock it shows which
        with store.lock:
            for item in items:
                if isinstance(item, Gap):
                    return
                if tail.through != seen:
                    break  # somebody else was here
                tail.add(*item)
                seen = tail.through


def latest(store: Store, topic: Topic, key: str) -> int | None:
    """The newest live record with this key. Segments are asked from the newest on, and no further than needed."""
    catch_up(store, topic, KEYS)
    selector = Selector(SelectorOp.EQ, key)
    with store.lock:
        check_there(store, topic)
        tail, start = name_tail(topic, KEYS)
        tail.extend(store.handles, topic, start)
        seqs = _live(topic, *tail.find(selector, start))
        segments = sealed_segments(topic)
    while not len(seqs) and segments:
        segment = segments.pop()
        try:
            hits = search_segment(store.handles, topic, segment, KEYS, selector)
        except FileNotFoundError:
            continue
        with store.lock:
            check_there(store, topic)
            seqs = _live(topic, hits)
    return int(seqs[-1]) if len(seqs) else None


def _live(topic: Topic, *found: Seqs) -> Seqs:
    return not_gone(topic, found[0]) if found else np.empty(0, dtype=np.uint64)
