"""Our own engine with one mistake each: the simulation has to find every one of them.

A mutant is a patch of the running engine, applied and undone around a seed. `python -m tests.crash.mutants` measures
how many seeds see each of them; the table is in docs/internals/testing.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.crash import file_mistakes, group_mistakes, mistakes, queue_mistakes, stage_mistakes
from tests.crash.simulation import run_seed


@dataclass(frozen=True)
class Mutant:
    apply: Callable[[mistakes.Patches], None]
    aim: dict[str, Any] = field(default_factory=dict)
    """Options that lead the simulation to where the mistake matters; the seeds of `make test` draw them by chance."""

    @property
    def name(self) -> str:
        return self.apply.__name__.replace("_", " ")


_BUSY = {"checkpoint_rate": 0.3, "clean_rate": 0.0}
_FALLBACK = {"fallback_rate": 0.7, "checkpoint_rate": 0.2}
_FAULTS = {"fault_rate": 1.0, "power_rate": 1.0, "clean_rate": 0.0}
_STAGES: dict[str, Any] = {"stages": True, "clean_rate": 0.0, "staged_ttl_ms": 1 << 30, "drops": False, "caps": False}
_SEVERAL = {
    **_STAGES,
    "topics": 3,
    "wal_shards": (3,),
    "power_rate": 1.0,
    "durabilities": ("fsync", "disk"),
    "stages_everywhere": True,
    "deletes": False,
    "config_changes": False,
}
_FILLED = {"wal_filled_bytes": 4 << 20}
_RESERVED: dict[str, Any] = {"wal_file_bytes": 4096, "wal_filled_bytes": 1024}
_HURRIED: dict[str, Any] = {"wal_file_bytes": 1024, "wal_filled_bytes": 1024, "clock_ms": (0, 1)}
_STALE: dict[str, Any] = {
    # A record is as long as the mark of a checkpoint with one topic: old frames often begin where new ones end.
    "equal_sizes": True,
    "payload_max": 56,
    "batch_max": 1,
    "evidence_ms": 1 << 30,
    "wal_file_bytes": 4096,
    **_FILLED,
    "wal_shards": (1,),
    "topics": 2,
    "durabilities": ("memory",),
    "caps": False,
    "deletes": False,
    "keys": False,
    "drops": True,
    "config_changes": False,
    "checkpoint_rate": 0.1,
    "operations": 80,
    "lives": 6,
}
_DISK = {"durabilities": ("disk",), "power_rate": 1.0}

_QUEUES = {"queues": True, "clean_rate": 0.0, "caps": False, "drops": False, "operations": 40, "broken_rate": 0.0}
_GROUPS = {
    "groups": True,
    "queues": False,
    "routers": 0,
    "stages": False,
    "clean_rate": 0.0,
    "caps": False,
    "drops": False,
    "operations": 60,
    "topics": 1,
    "broken_rate": 0.0,
    "salvage_rate": 0.0,
    "fault_rate": 0.0,
}
# An answer, and a cut right behind it, in the call that should have come before.
_ANSWERED: dict[str, Any] = {
    "power_rate": 1.0,
    "durabilities": ("fsync",),
    "wait_rate": 0.9,
    "preempt_rate": 0.3,
    "mid_call_rate": 1.0,
    "checkpoint_rate": 0.0,
    "fault_rate": 0.0,
    "deletes": False,
    "config_changes": False,
    "lives": 10,
}

MUTANTS = [
    Mutant(mistakes.no_fsync, {"power_rate": 1.0}),
    Mutant(mistakes.ack_before_sync, {"power_rate": 1.0, "durabilities": ("fsync",)}),
    Mutant(mistakes.no_directory_sync, {"power_rate": 1.0}),
    Mutant(
        mistakes.retry_after_failed_fsync,
        {
            **_FAULTS,
            **_FILLED,
            "faults": (("sync", "EIO", "/wal/"), ("dsync", "EIO", "/wal/")),
            "fault_reach": 12,
            "lives": 8,
        },
    ),
    Mutant(
        mistakes.two_syncs_of_one_file_at_once,
        {
            # Bytes that only the background syncs, beside writes that sync: the first of the two to fail is soon there.
            **_FAULTS,
            **_FILLED,
            "faults": (("sync", "EIO", "/wal/"),),
            "fault_reach": 12,
            "preempt_rate": 0.2,
            "sync_ms": 0,
            "wal_file_bytes": 4096,
            "wal_shards": (1,),
            "payload_max": 700,
            "durabilities": ("memory", "fsync"),
            "checkpoint_rate": 0.0,
            "routers": 0,
            "queues": False,
            "groups": False,
            "stages": False,
            "drops": False,
            "lives": 8,
            "fallback_rate": 0.0,
            "derived_rate": 0.0,
            "open_crash_rate": 0.0,
            "mid_call_rate": 0.0,
            "rot_rate": 0.0,
            "salvage_rate": 0.0,
            "broken_rate": 0.0,
        },
    ),
    Mutant(mistakes.publish_before_durable, {"preempt_rate": 0.3, "durabilities": ("fsync",)}),
    Mutant(
        mistakes.torn_tail_kept,
        {
            "power_rate": 1.0,
            "clean_rate": 0.0,
            "mid_call_rate": 1.0,
            "batch_max": 30,
            "payload_max": 120,
            "fault_rate": 0.0,
            "checkpoint_rate": 0.0,
            "lives": 8,
            "evidence_ms": 0,
            "routers": 0,
            "queues": False,
            "groups": False,
            "stages": False,
            "drops": False,
            "fallback_rate": 0.0,
            "derived_rate": 0.0,
            "open_crash_rate": 0.0,
            "rot_rate": 0.0,
            "salvage_rate": 0.0,
            "broken_rate": 0.0,
        },
    ),
    Mutant(mistakes.floor_not_logged, {"caps": True, "checkpoint_rate": 0.0}),
    Mutant(mistakes.skip_by_head_of_the_snapshot, _BUSY),
    Mutant(mistakes.range_sync_over_unsynced_bytes),
    Mutant(mistakes.append_after_zeros_without_a_new_file),
    Mutant(mistakes.recycled_file_not_zeroed, _STALE),
    Mutant(file_mistakes.reserved_file_not_synced_before_use, {**_RESERVED, "power_rate": 1.0}),
    Mutant(file_mistakes.recycled_file_reserved_and_not_zeroed, {**_STALE, **_HURRIED, "checkpoint_rate": 0.3}),
    Mutant(file_mistakes.blanked_file_not_synced_before_use, {**_HURRIED, "power_rate": 1.0, "checkpoint_rate": 0.3}),
    Mutant(
        file_mistakes.long_file_read_to_the_usual_length,
        {**_RESERVED, "batch_max": 8, "payload_max": 700, "operations": 60, "checkpoint_rate": 0.0, "clean_rate": 0.0},
    ),
    Mutant(mistakes.replay_by_name, {"drops": True, "topics": 1, "checkpoint_rate": 0.0}),
    Mutant(
        mistakes.trim_by_the_newest_snapshot, {**_FALLBACK, "wal_file_bytes": 4096, "batch_max": 8, "payload_max": 700}
    ),
    Mutant(mistakes.second_fsync_of_data_believed, {**_FAULTS, "faults": (("sync", "EIO", ".data"),), **_BUSY}),
    Mutant(mistakes.whole_pairs_not_synced, {"power_rate": 1.0, "segment_max_events": 2, "checkpoint_rate": 0.3}),
    Mutant(mistakes.delete_without_bound, {"deletes": True, "checkpoint_rate": 0.0}),
    Mutant(mistakes.lost_range_not_logged, _DISK),
    Mutant(mistakes.idempotency_key_not_logged, {"keys": True, "checkpoint_rate": 0.0}),
    Mutant(mistakes.batch_bit_ignored, {"power_rate": 1.0, "batch_max": 30}),
    Mutant(mistakes.unlink_before_manifest, {"deletes": True, "segment_max_events": 2, "checkpoint_rate": 0.3}),
    Mutant(
        mistakes.failed_checkpoint_removes_all_that_it_wrote_to,
        {**_FAULTS, "faults": (("sync", "ENOSPC", ".data"),), **_BUSY},
    ),
    Mutant(mistakes.zeros_taken_as_a_clean_end, {"rot_rate": 0.7, "evidence_ms": 0}),
    Mutant(mistakes.snapshot_captured_after_the_mark, _BUSY),
    Mutant(mistakes.append_to_an_old_file_after_a_clean_stop, {"clean_rate": 0.5, "mid_call_rate": 0.0}),
    Mutant(mistakes.boot_identity_stored_at_open, {**_DISK, "power_rate": 0.5, "open_crash_rate": 0.7}),
    Mutant(
        mistakes.trusted_length_applied_to_a_pair_sealed_since,
        {"segment_max_events": 5, "checkpoint_rate": 0.3, "fallback_rate": 0.5},
    ),
    Mutant(
        mistakes.progress_of_routers_captured_after_the_mark,
        {
            "routers": 3,
            "topics": 3,
            "durabilities": ("disk",),
            "power_rate": 1.0,
            "preempt_rate": 0.5,
            "operations": 24,
            "lives": 10,
            "sync_ms": 60_000,
            "wait_rate": 0.0,
            "caps": False,
            "config_changes": False,
            "queues": False,
            "groups": False,
            "stages": False,
            "salvage_rate": 0.0,
            "fault_rate": 0.0,
            "open_crash_rate": 0.0,
            "broken_rate": 0.0,
            **_BUSY,
        },
    ),
    Mutant(
        mistakes.create_that_failed_is_forgotten,
        {
            "fault_rate": 1.0,
            "faults": (("sync", "EIO", "/wal/"), ("dsync", "EIO", "/wal/")),
            "fault_reach": 12,
            "queues": False,
            "groups": False,
            "stages": False,
            "routers": 0,
            "salvage_rate": 0.0,
            "broken_rate": 0.0,
            "drops": True,
            "topics": 5,
            "wal_shards": (4,),
            "operations": 120,
            "lives": 6,
            "power_rate": 0.0,
            **_BUSY,
        },
    ),
    Mutant(
        mistakes.half_a_salvage_taken_for_a_whole_one,
        {"salvage_rate": 0.8, "open_crash_rate": 0.9, "fallback_rate": 0.9, "fault_rate": 0.0, "lives": 12},
    ),
    Mutant(
        mistakes.seqs_of_a_lost_tail_handed_out_again,
        {
            "durabilities": ("fsync",),
            "topics": 8,
            "operations": 24,
            "routers": 0,
            "stages": False,
            "checkpoint_rate": 0.0,
            "evidence_ms": 0,
            "salvage_rate": 0.8,
            "power_rate": 0.0,
            "clean_rate": 0.0,
            "fault_rate": 0.0,
            "lives": 8,
        },
    ),
    Mutant(queue_mistakes.lease_ids_given_out_before_they_are_reserved, {**_QUEUES, "power_rate": 1.0}),
    Mutant(
        queue_mistakes.ack_before_its_delete_is_synced,
        {**_QUEUES, **_ANSWERED, "topics": 1, "groups": False, "routers": 0, "stages": False, "salvage_rate": 0.0},
    ),
    Mutant(queue_mistakes.delivery_counts_not_logged, {**_QUEUES, "power_rate": 0.2}),
    Mutant(queue_mistakes.delays_replayed_as_due_at_once, {**_QUEUES, "power_rate": 0.2}),
    Mutant(queue_mistakes.leases_left_out_of_the_snapshot, {**_QUEUES, "checkpoint_rate": 0.3}),
    Mutant(
        queue_mistakes.lease_ids_go_on_at_once_behind_damage,
        {
            # Of claims in RAM the log hears nothing but the reservations of their ids.
            **_QUEUES,
            "durabilities": ("ephemeral",),
            "topics": 1,
            "routers": 0,
            "stages": False,
            "config_changes": False,
            "deletes": False,
            "evidence_ms": 0,
            "salvage_rate": 0.8,
            "lives": 8,
            "checkpoint_rate": 0.0,
            "fault_rate": 0.0,
        },
    ),
    Mutant(group_mistakes.group_acks_not_logged, {**_GROUPS, "power_rate": 0.2}),
    Mutant(group_mistakes.group_seeks_not_logged, {**_GROUPS, "power_rate": 0.2}),
    Mutant(group_mistakes.group_drops_not_logged, {**_GROUPS, "power_rate": 0.2}),
    Mutant(group_mistakes.group_acks_answered_before_their_sync, {**_GROUPS, **_ANSWERED, "open_crash_rate": 0.0}),
    Mutant(group_mistakes.groups_left_out_of_the_snapshot, {**_GROUPS, "checkpoint_rate": 0.3}),
    Mutant(group_mistakes.group_position_logged_without_its_records, {**_GROUPS, "power_rate": 0.2}),
    Mutant(group_mistakes.leaving_settles_what_a_member_held, {**_GROUPS, "power_rate": 0.2}),
    Mutant(group_mistakes.calls_that_travel_together_log_the_first_alone, {**_GROUPS, "power_rate": 0.2}),
    Mutant(
        group_mistakes.calls_that_travel_together_are_answered_before_their_sync,
        {**_GROUPS, **_ANSWERED, "open_crash_rate": 0.0},
    ),
    Mutant(group_mistakes.retention_does_not_ask_the_groups, {**_GROUPS, "caps": True}),
    Mutant(group_mistakes.retention_waits_only_for_what_nobody_was_given, {**_GROUPS, "caps": True}),
    Mutant(
        group_mistakes.groups_of_a_topic_that_leaves_ram_not_logged,
        {
            **_GROUPS,
            "durabilities": ("disk", "ephemeral"),
            "config_changes": True,
            "operations": 120,
            "deletes": False,
            "keys": False,
            "checkpoint_rate": 0.0,
            "power_rate": 0.0,
        },
    ),
    Mutant(stage_mistakes.put_refused_after_commit, _STAGES),
    Mutant(stage_mistakes.abort_forgets_a_commit, _STAGES),
    Mutant(
        stage_mistakes.abort_leaves_what_earlier_attempts_left,
        {
            **_STAGES,
            "staged_ttl_ms": 20,
            "topics": 1,
            "durabilities": ("fsync",),
            "operations": 60,
            "writers": 1,
            "checkpoint_rate": 0.0,
            "fault_rate": 0.7,
            "faults": (("sync_dir", "EIO", "staged"),),
        },
    ),
    Mutant(stage_mistakes.prepare_without_first_seq_match, {**_SEVERAL, "checkpoint_rate": 0.0}),
    Mutant(
        stage_mistakes.part_unlinked_when_the_newest_snapshot_covers_it,
        {**_STAGES, "fallback_rate": 0.9, "checkpoint_rate": 0.3, "topics": 1},
    ),
    Mutant(stage_mistakes.commit_answered_before_its_sync, {**_STAGES, "power_rate": 1.0, "topics": 1}),
    Mutant(stage_mistakes.verdict_before_the_prepares_are_synced, _SEVERAL),
    Mutant(stage_mistakes.part_not_synced_before_its_answer, {**_STAGES, "power_rate": 1.0}),
    Mutant(stage_mistakes.mark_passes_an_undecided_prepare, {**_SEVERAL, "checkpoint_rate": 0.5}),
    Mutant(
        stage_mistakes.lost_verdict_taken_for_none,
        {
            **_SEVERAL,
            "topics": 2,
            "wal_shards": (1,),
            "operations": 24,
            "keys": False,
            "routers": 0,
            "queues": False,
            "groups": False,
            "evidence_ms": 0,
            "salvage_rate": 0.8,
            "power_rate": 0.0,
            "checkpoint_rate": 0.0,
            "fault_rate": 0.0,
            "open_crash_rate": 0.0,
            "mid_call_rate": 0.0,
            "lives": 12,
        },
    ),
    Mutant(
        stage_mistakes.aborted_records_counted_on,
        {
            # A Prepare that fails in one shard, and appends to a full topic behind it in another.
            **_SEVERAL,
            "caps": True,
            "durabilities": ("fsync",),
            "operations": 60,
            "writers": 5,
            "wait_rate": 0.0,
            "keys": False,
            "routers": 0,
            "queues": False,
            "groups": False,
            "checkpoint_rate": 0.0,
            "fault_rate": 1.0,
            "faults": (("write", "EIO", "/wal/shard"), ("dsync", "EIO", "/wal/shard")),
            "fault_reach": 20,
            "open_crash_rate": 0.0,
            "mid_call_rate": 0.0,
            "fallback_rate": 0.0,
            "derived_rate": 0.0,
            "rot_rate": 0.0,
            "salvage_rate": 0.0,
            "broken_rate": 0.0,
            "lives": 8,
        },
    ),
]


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    patches = mistakes.Patches()
    try:
        mutant.apply(patches)
        yield
    finally:
        patches.undo()


def sees(mutant: Mutant, seed: int, aimed: bool = True) -> bool:
    """Whether this seed finds the mistake: it fails, and without the mistake it does not."""
    fixed = mutant.aim if aimed else None
    with mutated(mutant):
        if _passes(seed, fixed):
            return False
    return _passes(seed, fixed)


def _passes(seed: int, fixed: dict[str, Any] | None) -> bool:
    try:
        run_seed(seed, fixed)
    except Exception:
        return False
    return True


def hunt(mutant: Mutant, first: int, seeds: int) -> int | None:
    """How many seeds it takes to find the mistake; None if that many do not."""
    return next((count for count in range(1, seeds + 1) if sees(mutant, first + count - 1)), None)


# -- measuring ---------------------------------------------------------------------------------------------------------


def _measure(task: tuple[int, int, int, bool]) -> list[bool]:
    index, start, seeds, aimed = task
    return [sees(MUTANTS[index], seed, aimed) for seed in range(start, start + seeds)]


def _median_wait(seen: list[bool]) -> str:
    """The median number of seeds until one sees the mistake, of the waits in this run."""
    waits, waited = [], 0
    for hit in seen:
        waited += 1
        if hit:
            waits.append(waited)
            waited = 0
    return f"{statistics.median(waits):g}" if waits else "-"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aimed", type=int, default=60, help="seeds per mutant with its own options (default 60)")
    parser.add_argument("--drawn", type=int, default=150, help="seeds per mutant as make test draws them (default 150)")
    parser.add_argument("--start", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    kinds = ((True, given.aimed), (False, given.drawn))
    tasks = [(index, given.start, seeds, aimed) for index in range(len(MUTANTS)) for aimed, seeds in kinds]
    print("| mutant | aimed: share of seeds | median seed | drawn: share of seeds | median seed |")
    print("|---|--:|--:|--:|--:|")
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        results = pool.imap(_measure, tasks)
        for mutant in MUTANTS:
            columns = []
            for seen in (next(results), next(results)):
                columns.append(f"{100 * sum(seen) / len(seen):.1f} % | {_median_wait(seen)}")
            print(f"| {mutant.name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
