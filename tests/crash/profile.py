"""What a seed decides before it starts: the options of the store, the shape of the records, the kinds of trouble."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from topics.storage.options import StoreOptions


@dataclass(frozen=True, slots=True)
class Profile:
    """One seed's choices. `fixed` fields of a targeted run replace what the seed drew."""

    wal_file_bytes: int = 8192
    wal_filled_bytes: int = 4 << 20
    """Larger files are only reserved where a writer waits or is hurried."""
    checkpoint_bytes: int = 4096
    reserve_seqs: int = 16
    sync_ms: int = 10
    evidence_ms: int = 0
    segment_max_events: int = 8
    segment_max_bytes: int = 1 << 20
    segment_max_age_ms: int = 0
    ttl_grace_ms: int = 0
    wal_shards: tuple[int, ...] = (1,)
    """One for each life; a change between two is a reshard."""
    lives: int = 4
    operations: int = 16
    """Per life."""
    writers: int = 3
    topics: int = 3
    equal_sizes: bool = True
    """Records of one length: only then does a stale frame ever stand where a new one would."""
    payload_max: int = 200
    batch_max: int = 5
    durabilities: tuple[str, ...] = ("disk", "fsync", "memory", "ephemeral")
    caps: bool = True
    deletes: bool = True
    config_changes: bool = True
    drops: bool = True
    keys: bool = True
    routers: int = 0
    """Names that routers are made under."""
    queues: bool = False
    """Every other topic is one."""
    groups: bool = False
    """Topics that are no queues have consumer groups."""
    stages: bool = False
    """Parts are staged, committed and aborted."""
    staged_ttl_ms: int = 2000
    stages_everywhere: bool = False
    """Every transaction goes to all topics, and the next one begins when it is committed in all of them."""
    clock_ms: tuple[int, ...] = (0, 1, 3, 10, 60, 150)
    """What the clock goes on by at its turns, each time one of these. Where it is little all writers are in a hurry."""
    checkpoint_rate: float = 0.05
    """How likely the checkpointer, when it has its turn, begins though nothing is due."""
    preempt_rate: float = 0.1
    """How likely a file call of one task lets others run first."""
    wait_rate: float = 0.4
    """How likely a writer waits for its acknowledgement before it goes on."""
    power_rate: float = 0.6
    clean_rate: float = 0.12
    mid_call_rate: float = 0.5
    """How likely a crash comes in the middle of a file call."""
    open_crash_rate: float = 0.25
    fallback_rate: float = 0.15
    """How likely the newest snapshot rots while the store is down."""
    derived_rate: float = 0.15
    """How likely a file that can be rebuilt is lost or rots while the store is down."""
    rot_rate: float = 0.1
    """How likely a frame of the WAL rots while the store is down; it is healed once the store has refused."""
    salvage_rate: float = 0.0
    """How likely bytes that were synced are spoilt while the store is down, for good: the next start is a salvage."""
    broken_rate: float = 0.5
    """How likely the last crash damages bytes that were synced."""
    fault_rate: float = 0.25
    """How likely a life has a disk whose calls fail."""
    faults: tuple[tuple[str, str, str], ...] = ()
    """(call, error, part of the path) that fail; none = any."""
    fault_reach: int = 40
    """The failing call is one of so many, where it is of a class that a life makes many of."""

    def options(self, life: int) -> StoreOptions:
        return StoreOptions(
            wal_shards=self.wal_shards[life % len(self.wal_shards)],
            wal_file_bytes=self.wal_file_bytes,
            wal_filled_bytes=self.wal_filled_bytes,
            checkpoint_bytes=self.checkpoint_bytes,
            checkpoint_ms=1000,
            checkpoint_gap_ms=0,
            reserve_seqs=self.reserve_seqs,
            sync_ms=self.sync_ms,
            evidence_ms=self.evidence_ms,
            segment_max_events=self.segment_max_events,
            segment_max_bytes=self.segment_max_bytes,
            segment_max_age_ms=self.segment_max_age_ms,
            ttl_grace_ms=self.ttl_grace_ms,
        )


_LAYOUTS = ((1,), (1,), (2,), (3,), (4,), (1, 2), (2, 1), (3, 2), (1, 4, 1), (2, 4, 3, 2), (1, 1, 3, 3, 1))


def _peek(rng: Random, nth: int = 1) -> float:
    """What it would draw as its nth from now, and still will: so that a new choice changes no other of a seed."""
    other = Random()
    other.setstate(rng.getstate())
    return [other.random() for _ in range(nth)][-1]


def draw_profile(rng: Random, fixed: dict[str, Any] | None = None) -> Profile:
    shards = rng.choice(_LAYOUTS)
    profile = Profile(
        wal_file_bytes=rng.choice((4096, 4096, 8192, 16384, 32768)),
        checkpoint_bytes=rng.choice((1024, 4096, 16384)),
        reserve_seqs=rng.choice((4, 8, 16, 64)),
        sync_ms=rng.choice((0, 5, 10, 50)),
        evidence_ms=rng.choice((0, 0, 10, 100)),
        segment_max_events=rng.choice((1, 2, 3, 5, 8, 20)),
        segment_max_bytes=rng.choice((300, 2000, 1 << 20, 1 << 20)),
        segment_max_age_ms=rng.choice((0, 0, 200)),
        ttl_grace_ms=rng.choice((0, 0, 50)),
        wal_shards=shards,
        lives=rng.choice((4, 4, 5, 6)),
        operations=rng.choice((13, 16, 24)),
        writers=rng.choice((1, 2, 3, 5)),
        topics=rng.choice((1, 2, 3, 5)),
        equal_sizes=rng.random() < 0.5,
        payload_max=rng.choice((20, 120, 120, 700)),
        batch_max=rng.choice((1, 4, 8, 8, 30)),
        durabilities=rng.choice(
            (
                ("disk", "fsync", "memory", "ephemeral"),
                ("disk", "fsync", "memory", "ephemeral"),
                ("disk",),
                ("fsync",),
                ("disk", "fsync"),
                ("memory",),
                ("disk", "ephemeral"),
            )
        ),
        caps=rng.random() < 0.6,
        deletes=rng.random() < 0.8,
        config_changes=rng.random() < 0.6,
        drops=rng.random() < 0.6,
        keys=rng.random() < 0.6,
        routers=rng.choice((0, 0, 1, 2, 3)),
        queues=rng.random() < 0.35,
        checkpoint_rate=rng.choice((0.0, 0.02, 0.1, 0.3)),
        preempt_rate=rng.choice((0.0, 0.0, 0.1, 0.3)),
        wait_rate=rng.choice((0.0, 0.3, 0.9)),
        power_rate=rng.choice((0.2, 0.6, 0.6, 1.0)),
        mid_call_rate=rng.choice((0.2, 0.5, 0.9)),
        open_crash_rate=rng.choice((0.0, 0.2, 0.5)),
        salvage_rate=rng.choice((0.0, 0.0, 0.0, 0.3)),
        fault_rate=rng.choice((0.0, 0.0, 0.0, 0.7)),
        stages=rng.random() < 0.35,
        staged_ttl_ms=rng.choice((300, 2000, 1 << 30)),
        groups=_peek(rng) < 0.35,
        stages_everywhere=_peek(rng) > 0.7,
        wal_filled_bytes=(1024, 4096, 4 << 20)[int(_peek(rng, 2) * 3)],
    )
    return replace(profile, **(fixed or {}))
