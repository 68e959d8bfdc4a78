"""Which record came when: times never go back within a topic, so every layer is searched by halves."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from topics.format.segment import ENTRY_DTYPE
from topics.storage.tail import ENTRY_SIZE
from topics.storage.topic import Topic


def first_at(topic: Topic, ts: int) -> int:
    """The first seq above the floor whose time is `ts` or later, live or not; head + 1 if there is none. Called under
    the store's lock."""
    start = topic.dead.floor + 1
    segments = topic.segments
    at = bisect_left(segments, True, key=lambda s: s.end_seq > start and _time(topic, s.end_seq - 1) >= ts)
    if at < len(segments):
        segment = segments[at]
        low = max(start, segment.first_seq)
        view = topic.handles.entries(segment, low - segment.first_seq, segment.end_seq - low)
        return low + _first(view, ts)
    for chunk, low, high in topic.tail.between(max(start, topic.copied + 1), topic.head + 1):
        view = memoryview(chunk.buffer)[(low - chunk.first_seq) * ENTRY_SIZE : (high - chunk.first_seq) * ENTRY_SIZE]
        position = _first(view, ts)
        if position < high - low:
            return low + position
    return topic.head + 1


def time_of(topic: Topic, seq: int) -> int | None:
    """When the record came, if its place is known. Called under the store's lock."""
    if topic.segment_of(seq) is not None:
        return _time(topic, seq)
    chunk = topic.tail.find(seq)
    if chunk is None:
        return None
    at = (seq - chunk.first_seq) * ENTRY_SIZE
    return int.from_bytes(chunk.buffer[at + 8 : at + 16], "little")


def _time(topic: Topic, seq: int) -> int:
    segment = topic.segment_of(seq)
    assert segment is not None
    return int.from_bytes(topic.handles.entries(segment, seq - segment.first_seq, 1)[8:16], "little")


def _first(entries: memoryview, ts: int) -> int:
    times = np.frombuffer(entries, dtype=ENTRY_DTYPE)["ts"]
    return bisect_left(times, ts)
