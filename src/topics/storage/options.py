"""What can be set on the engine. Each field tells its unit and what larger or smaller costs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from topics.model import limits
from topics.model.errors import InvalidRequest

MIB = 1024 * 1024
INTERNAL = "internal"
"""In the metadata of a field that nobody has a reason to set but tests: it is in no list of options."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    wal_shards: int = 1
    """WAL writers. More isolate topics from each other's syncs and cost a file each. May change between opens."""
    wal_file_bytes: int = 64 * MIB
    """Size of a WAL file. Smaller rotates more often; larger keeps more disk busy with zeros."""
    wal_filled_bytes: int = field(default=4 * MIB, metadata={INTERNAL: True})
    """WAL files up to this size are full of zeros whoever waits for them; the first one of a life is no larger, so that
    opening a store does not write `wal_file_bytes` per shard. Larger keeps waiting writers longer."""
    checkpoint_bytes: int = 64 * MIB
    """WAL written since the last checkpoint that starts the next. Larger recovers slower, copies in larger runs."""
    checkpoint_ms: int = 60_000
    """Age of un-checkpointed WAL that starts a checkpoint."""
    checkpoint_gap_ms: int = 5_000
    """Least time between two checkpoints, so that a burst is copied in large runs."""
    checkpoint_burst_bytes: int = 256 * MIB
    """WAL written since the last checkpoint that starts the next before that time is over. Larger keeps more WAL, on
    disk and in memory, and recovers slower; smaller copies a burst in more and smaller runs."""
    reserve_seqs: int = 4096
    """Seqs a `disk` topic reserves ahead. Larger syncs less often and skips more seqs after a crash."""
    sync_ms: int = 10
    """Un-synced bytes are synced at most this long after the first of them."""
    queue_submissions: int = limits.SHARD_QUEUE_SUBMISSIONS
    """What may wait in front of one WAL shard. Beyond it appends wait, or at full pressure are answered with 429.
    Smaller says so sooner, larger holds more in memory."""
    queue_bytes: int = limits.SHARD_QUEUE_BYTES
    """The same in bytes. One submission is always taken, whatever its size."""
    evidence_ms: int = 100
    """Least time between two marks in the WAL that state what was synced. Smaller tells rot from a torn tail sooner."""
    segment_max_events: int = 10_000
    """Records in a segment before it is sealed."""
    segment_max_bytes: int = 64 * MIB
    """`.data` bytes in a segment before it is sealed."""
    segment_max_age_ms: int = 3_600_000
    """Time since this process opened a segment before it is sealed; 0 = never by age."""
    ttl_grace_ms: int = 60_000
    """TTL evicts nothing this long after open where records of an earlier process live: one bad reading of the clock
    must not empty a topic. A topic all of whose records are of this process is judged by the one clock they share."""
    recovery: str = "strict"
    """`strict` refuses to start on damage inside proven data; `salvage` sets it aside and reports what was lost."""
    max_topics: int = 100_000
    """Topics in the store; 0 = no limit."""

    def __post_init__(self) -> None:
        self._bound("wal_shards", 1, limits.WAL_SHARDS)
        self._bound("wal_file_bytes", 1024, 1 << 31)
        self._bound("wal_filled_bytes", 1024, 1 << 31)
        self._bound("checkpoint_bytes", 1024, 1 << 40)
        self._bound("checkpoint_burst_bytes", 1024, 1 << 40)
        for name in ("checkpoint_ms", "checkpoint_gap_ms", "evidence_ms", "segment_max_age_ms", "ttl_grace_ms"):
            self._bound(name, 0, 1 << 40)
        self._bound("max_topics", 0, 1 << 40)
        self._bound("reserve_seqs", 1, 1 << 32)
        self._bound("sync_ms", 0, 60_000)
        self._bound("queue_submissions", 1, 1 << 20)
        self._bound("queue_bytes", 1, 1 << 40)
        self._bound("segment_max_events", 1, 10_000_000)
        self._bound("segment_max_bytes", 1, 2 << 30)
        if self.recovery not in ("strict", "salvage"):
            raise InvalidRequest(f"option 'recovery' is {self.recovery!r}; it must be 'strict' or 'salvage'")

    def _bound(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest(f"option {name!r} is {value!r}; it must be a whole number from {low} to {high}")


def make_options(given: dict[str, Any]) -> StoreOptions:
    unknown = sorted(set(given) - {f.name for f in fields(StoreOptions)})
    if unknown:
        known = sorted(f.name for f in fields(StoreOptions) if INTERNAL not in f.metadata)
        raise InvalidRequest(f"unknown option {unknown[0]!r}; known: {', '.join(known)}")
    return StoreOptions(**given)
