"""The seeded power-cut simulation: new seeds in every run, and the ones that found something once.

The first seed of a run is printed in the head of the test report; a seed that fails prints its options, the last file
calls and the command that runs it again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import SEED
from tests.crash.simulation import run_seed
from tests.crash.trouble import OPENING
from topics.testing.faults import CALLS

SEEDS = 2000
BLOCK = 40

# What must have happened somewhere in the seeds of one run; otherwise the run proved less than it says.
EXPECTED = (
    "cut: all_kept",
    "cut: all_lost",
    "cut: garbled",
    "cut: later_survived_earlier_lost",
    "cut: name_lost",
    "cut: rename_both",
    "cut: size_lost",
    "cut: torn",
    "cut: zeroed",
    "cut: reserved_lost",
    "cut: reserved_later_survived_earlier_lost",
    "fault: allocate ENOSPC",
    "fault: dsync EIO",
    "fault: free ENOSPC",
    "fault: list EIO",
    "fault: lock EIO",
    "fault: map EIO",
    "fault: mkdir ENOSPC",
    "fault: open EIO",
    "fault: open ENOSPC",
    "fault: read EIO",
    "fault: remove EIO",
    "fault: rename EIO",
    "fault: rename ENOSPC",
    "fault: sync EIO",
    "fault: sync_dir EIO",
    "fault: truncate EIO",
    "fault: uncache EIO",
    "fault: write EIO",
    "fault: write ENOSPC",
    "fault: write SHORT",
    "crash: kill in a call",
    "crash: kill in a open",
    "crash: kill in a step",
    "crash: power in a call",
    "crash: power in a open",
    "crash: power in a step",
    "clean stop",
    "read-only shard",
    "rotation",
    "recycled WAL file",
    "recycled WAL file that was reserved",
    "recycled WAL file that was only blanked",
    "reserved WAL file, waited for",
    "reserved WAL file, made for a hurried writer",
    "reserved WAL file, longer than usual",
    "checkpoint between crashes",
    "snapshot fallback",
    "snapshot fallback over a reshard",
    "snapshot fallback over a seal",
    "snapshot fallback over a drop",
    "reshard there and back",
    "append together",
    "tear inside a batch",
    "re-create on another shard",
    "class change",
    "idempotent retry over a crash",
    "rot below proven sync",
    "slow read",
    "router put",
    "router drop",
    "router pass",
    "router pass in RAM",
    "router pass over a trim",
    "router pass without a copy",
    "router over a crash",
    "queue claim",
    "queue reclaim",
    "queue ack",
    "queue nack",
    "queue extend",
    "queue delay",
    "queue count over a restart",
    "queue lease over a restart",
    "group put",
    "group drop",
    "group seek",
    "group join",
    "group leave",
    "group fetch",
    "group refetch",
    "group ack",
    "group nack",
    "group extend",
    "group settled over a restart",
    "salvage of a rotten frame",
    "salvage of a lost segment",
    "salvage of a shortened segment",
    "salvage without damage",
    "cut: synced_damaged",
    "broken device: opened",
    "staged part",
    "staged part after its commit",
    "commit of staged parts",
    "commit over several topics",
    "crash between Prepare and Verdict",
    "repeated commit",
    "abort",
    "abort of a committed transaction",
    "stage expired",
)

# Classes of calls that no seed makes fail, each with its reason: none.
EXCUSED: dict[str, str] = {}


def test_every_class_of_calls_fails_somewhere_or_is_excused() -> None:
    met = {what.split()[1] for what in EXPECTED if what.startswith("fault: ")}
    assert met | EXCUSED.keys() == set(CALLS)
    assert not met & EXCUSED.keys()
    assert all(EXCUSED.values())


def test_every_fault_that_is_drawn_must_have_fired() -> None:
    assert {f"fault: {call} {error}" for call, error, _ in OPENING} <= set(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_crashed_store_keeps_every_promise(block: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """F-PROP-OPSEQ-CRASH-RECOVER, F-MONITOR-WAL-ORDER, sweep_concurrent_durable_crash_points_oracle: several
    writers, cut in any call, and every seed runs under the rules of write order."""
    counts: Counter[str] = Counter()
    for seed in range(SEED + block * BLOCK, SEED + (block + 1) * BLOCK):
        counts += run_seed(seed).counts
    check_counts(shared_directory(tmp_path_factory), block, counts)


def shared_directory(factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this run see."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"seeds-{SEED}"
    directory.mkdir(exist_ok=True)
    return directory


def check_counts(directory: Path, block: int, counts: Counter[str]) -> None:
    """Whoever finishes last finds the counts of all the others and judges the run."""
    written = directory / f"{block}.part"
    written.write_text(json.dumps(counts))
    written.rename(directory / f"{block}.json")
    done = sorted(directory.glob("*.json"))
    if len(done) < SEEDS // BLOCK:
        return
    total: Counter[str] = Counter()
    for path in done:
        total.update(json.loads(path.read_text()))
    never = [what for what in EXPECTED if not total[what]]
    assert not never, f"{SEEDS} seeds from {SEED} on never met {never}; all: {dict(sorted(total.items()))}"
