"""How far a topic is safe: the largest seq with everything at or below it synced."""

from __future__ import annotations

import numpy as np

from topics.format.segment import ENTRY_DTYPE
from topics.model.config import Durability
from topics.storage.tail import ENTRY_SIZE, Chunk
from topics.storage.topic import Topic
from topics.storage.wal import Shard
from topics.storage.walfile import WalFile


def durable_seq(topic: Topic, shard: Shard) -> int | None:
    """None for an ephemeral topic, which keeps no such promise. Called under the store's lock."""
    if topic.durability == Durability.EPHEMERAL:
        return None
    file = shard.file
    if file is None or file.synced >= file.written:
        return topic.head
    # Older files were synced when they were left, so only records in the present one can be un-synced.
    for chunk in topic.tail.chunks:
        for position, (first, source) in enumerate(chunk.places):
            if source is file:
                end = chunk.places[position + 1][0] if position + 1 < len(chunk.places) else chunk.end_seq
                seq = _first_unsynced(chunk, first, min(end, topic.head + 1), file)
                if seq is not None:
                    return seq - 1
    return topic.head


def _first_unsynced(chunk: Chunk, first: int, end: int, file: WalFile) -> int | None:
    if first >= end:
        return None
    start = (first - chunk.first_seq) * ENTRY_SIZE
    column = np.frombuffer(chunk.buffer, dtype=ENTRY_DTYPE, count=end - first, offset=start)
    stop = int(np.searchsorted(column["offset"].astype(np.int64) + column["length"], file.synced, side="right"))
    return first + stop if stop < end - first else None
