"""Room on the disk that the next checkpoint needs.

A checkpoint is what frees WAL files, and it has to copy their records before. So the WAL leaves it that room: one that
took the last byte of a disk would keep the store from ever letting go of what its caps and deletes gave up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.format.snapshot import Position
from topics.storage.turn import copied

if TYPE_CHECKING:
    from topics.storage.store import Store
    from topics.storage.wal import Shard

_SLACK = 256 * 1024
"""For manifests, and for the last block of each file."""


def checkpoint_room(store: Store) -> int:
    """About the most that the next checkpoint writes: what is not in segments when the files at hand are full, and two
    snapshots. Called under the store's lock."""
    waiting = sum(_uncopied(shard, store.positions.get(shard.key)) for shard in store.shards)
    return copied(waiting) + 4 * store.snapshots.last_size + _SLACK


def _uncopied(shard: Shard, position: Position | None) -> int:
    """Bytes of this shard that no snapshot covers, counting what its present file and its spare still take."""
    files = [*shard.sealed, *([(shard.file.number, shard.file.capacity)] if shard.file is not None else [])]
    first, offset = (position.file, position.offset) if position is not None else (0, 0)
    size = sum(length - (min(offset, length) if number == first else 0) for number, length in files if number >= first)
    if shard.spare is not None:
        size += shard.spare.capacity
    return max(size, shard.wal_bytes)  # which counts staged parts, too
