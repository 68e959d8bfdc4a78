"""When a checkpoint is due. Asked under the store's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.rules import catchup

if TYPE_CHECKING:
    from topics.storage.store import Store

_FULL_GAP_MS = 200
"""Between two checkpoints while the disk is full."""


def is_due(store: Store) -> bool:
    options = store.options
    since_ms = _since_ms(store)
    if any(shard.refusing is not None for shard in store.shards):  # it may free the room that is missing
        return since_ms >= min(options.checkpoint_gap_ms, _FULL_GAP_MS)
    if store.trouble is not None and since_ms < options.checkpoint_gap_ms:
        return False  # what failed just now is not done all over again at once, however much waits
    # No checkpoint takes the WAL of a stuck shard along, so that is no reason for one.
    written = sum(shard.wal_bytes for shard in store.shards if not shard.stuck)
    if written >= due_bytes(store):
        return True
    return since_ms >= max(options.checkpoint_gap_ms, options.checkpoint_ms) and bool(
        written or store.graveyard or store.staging.spent or _aged(store)
    )


def due_bytes(store: Store) -> int:
    """How much WAL makes a checkpoint due now."""
    options = store.options
    rested = _since_ms(store) >= options.checkpoint_gap_ms
    return catchup.due_bytes(
        rested, options.checkpoint_bytes, options.checkpoint_burst_bytes, store.snapshots.last_size
    )  # fmt: skip


def _since_ms(store: Store) -> int:
    return (store.clock.monotonic_ns() - store.checkpointed_ns) // 1_000_000


def _aged(store: Store) -> bool:
    """Whether a pair is to be sealed for its age alone."""
    age_ms = store.options.segment_max_age_ms
    if not age_ms:
        return False
    oldest = store.clock.monotonic_ns() - age_ms * 1_000_000
    return any(
        topic.segments and not topic.segments[-1].sealed and topic.segments[-1].opened_ns <= oldest
        for topic in store.by_id.values()
    )
