"""Looking at every sealed record of a store, while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from topics.model.errors import CorruptFile, TopicNotFound
from topics.storage.reader import scrub_segment
from topics.storage.scan import check_there
from topics.storage.segment import Segment
from topics.storage.store import Store
from topics.storage.topic import Topic


@dataclass(slots=True)
class Scrub:
    topics: int = 0
    segments: int = 0
    records: int = 0
    damage: list[tuple[str, CorruptFile]] = field(default_factory=list)
    """(topic, what is wrong), in order."""


def scrub_store(store: Store, name: str | None, allowed: Callable[[str], bool]) -> Scrub:
    """Of one topic, or of all that are allowed. Without the store's lock; it takes as long as reading everything."""
    with store.lock:
        topics = [store.topic(name)] if name is not None else list(store.topics.values())
    found = Scrub()
    for topic in topics:
        if allowed(topic.name):
            found.topics += 1
            _scrub_topic(store, topic, found)
        elif name is not None:
            raise TopicNotFound(name)
    return found


def _scrub_topic(store: Store, topic: Topic, found: Scrub) -> None:
    with store.lock:
        segments = [segment for segment in topic.segments if segment.sealed]
    for segment in segments:
        with store.lock:
            try:
                check_there(store, topic)
            except TopicNotFound:
                return
            mask = topic.dead.mask(segment.first_seq, segment.count)
        try:
            damage = scrub_segment(store.handles, topic.id, segment, mask)
            found.segments += 1
            found.records += segment.count
        except FileNotFoundError:
            damage = [CorruptFile(segment.path("data"), 0, "it is missing")]
        if damage and _is_listed(store, topic, segment):
            found.damage += [(topic.name, error) for error in damage]


def _is_listed(store: Store, topic: Topic, segment: Segment) -> bool:
    """Whether it is in use still: of one that was dropped meanwhile, some files may be gone and others not yet."""
    with store.lock:
        return any(one.first_seq == segment.first_seq for one in topic.segments)
