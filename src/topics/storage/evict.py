"""Which of the oldest records go when there are too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topics.rules.retention import evict_count
from topics.storage.alive import last_live
from topics.storage.columns import live_sizes
from topics.storage.tail import ENTRY_SIZE
from topics.storage.topic import Topic


@dataclass(slots=True)
class EvictPlan:
    floor: int
    live: int = 0
    bytes: int = 0


def find_evict_floor(topic: Topic, records: int, size: int, head: int) -> EvictPlan:
    """The lowest floor that removes `records` records and `size` bytes of the oldest live ones of the ordered view.

    It is the seq of the last of them: a floor tells readers of a loss, and what was deleted behind it was none.
    """
    overlay = topic.ordered.overlay
    start = max(topic.ordered.floor, topic.dead.floor) + 1
    plan = EvictPlan(topic.ordered.evict_floor)
    for segment in topic.segments_between(start, head + 1):
        low = max(start, segment.first_seq)
        topic.count(segment)
        if overlay is None and low == segment.first_seq and (segment.live <= records or segment.bytes < size):
            records, size = records - segment.live, size - segment.bytes
            plan.live += segment.live
            plan.bytes += segment.bytes
            if segment.live:
                plan.floor = last_live(topic, low, segment.end_seq - 1)
        else:
            view = topic.handles.entries(segment, low - segment.first_seq, segment.end_seq - low)
            records, size = _evict_from(topic, plan, view, low, segment.end_seq - low, records, size)
        if records <= 0 and size <= 0:
            return plan
    for chunk, low, high in topic.tail.between(max(start, topic.copied + 1), head + 1):
        at = (low - chunk.first_seq) * ENTRY_SIZE
        view = memoryview(chunk.buffer)[at : at + (high - low) * ENTRY_SIZE]
        records, size = _evict_from(topic, plan, view, low, high - low, records, size)
        if records <= 0 and size <= 0:
            break
    return plan


def _evict_from(
    topic: Topic, plan: EvictPlan, entries: memoryview, first: int, count: int, records: int, size: int
) -> tuple[int, int]:
    """Take what is needed from `count` entries beginning at seq `first`."""
    mask = topic.gone_mask(first, count, topic.ordered.overlay)
    sizes = live_sizes(entries, mask)
    taken = evict_count(sizes, max(records, 0), max(size, 0))
    if not taken:
        return records, size
    removed = int(sizes[:taken].sum())
    plan.live += taken
    plan.bytes += removed
    plan.floor = first + _position_of_live(mask, taken, count)
    return records - taken, size - removed


def _position_of_live(mask: bytes | None, nth: int, count: int) -> int:
    """Index of the nth live one (from 1) among `count`."""
    if mask is None:
        return nth - 1
    position = int(np.flatnonzero(np.frombuffer(mask, dtype=np.uint8) == 0)[nth - 1])
    assert position < count
    return position
