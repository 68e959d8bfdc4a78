"""A real process is killed with SIGKILL at random instants, again and again: nothing acknowledged is lost or doubled,
nothing deleted comes back, nothing is reported lost.

Each test is one store and a dozen kills. The next process, with other options, checks everything before it goes on;
the last check is made here. Seeds are new in every run and stand in every failure; `KILL_SEED` repeats one.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import topics
from tests.integration.ledger import Ledger, check
from topics.format.ops import scan_wal

ROOT = Path(__file__).resolve().parents[2]
CYCLES = 11
SEED = os.environ.get("KILL_SEED")

pytestmark = [pytest.mark.slow, pytest.mark.realdisk]


@pytest.fixture
def rng() -> Random:
    return random.Random(SEED or secrets.token_hex(4))


def random_options(rng: Random, before: dict[str, Any]) -> dict[str, Any]:
    """Another shard count and other segment sizes than `before`: what a life left is never read as it was written."""

    def other(name: str, *values: int) -> int:
        return rng.choice([value for value in values if value != before.get(name)])

    return {
        "wal_shards": other("wal_shards", 1, 2, 3, 5),
        "wal_file_bytes": rng.choice((4096, 16_384, 131_072)),
        "segment_max_events": other("segment_max_events", 1, 3, 20, 10_000),
        "segment_max_bytes": other("segment_max_bytes", 500, 20_000, 1 << 20),
        "checkpoint_bytes": rng.choice((1024, 20_000, 1 << 20)),
        "checkpoint_ms": rng.choice((0, 100, 60_000)),
        "checkpoint_gap_ms": rng.choice((0, 50, 5_000)),
        "reserve_seqs": rng.choice((4, 64, 4096)),
        "sync_ms": rng.choice((0, 1, 10)),
        "evidence_ms": rng.choice((0, 5, 100)),
    }


class Victim:
    """A store, its journals, and the processes that work on it one after the other."""

    def __init__(self, directory: Path, rng: Random) -> None:
        self.data = directory / "data"
        self.journals = directory / "journals"
        self.journals.mkdir()
        self.rng = rng
        self.runs = 0
        self.ready = 0
        self.options: dict[str, Any] = {}
        """Those of the last life."""

    def live_and_die(self, habits: str = "-", in_recovery: bool = False, **fixed: Any) -> None:
        """Start a process and kill it: after some work, or at any instant of its start."""
        self.runs += 1
        options = self.options = {**random_options(self.rng, self.options), **fixed}
        seed = self.rng.getrandbits(32)
        command = [
            sys.executable, "-m", "tests.integration.kill_child", str(self.data), str(self.journals),
            str(self.runs), str(seed), habits, json.dumps(options),
        ]  # fmt: skip
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert child.stdout is not None
            said_ready = bool(
                select.select([child.stdout], [], [], self.rng.uniform(0.2, 0.6) if in_recovery else 60)[0]
            )
            if said_ready and not in_recovery:
                time.sleep(self.rng.uniform(0.01, 0.3))
            ended = child.poll()
            child.send_signal(signal.SIGKILL)
            out, err = child.communicate(timeout=120)
        finally:
            child.kill()
            child.wait()
        about = f"run {self.runs}, seed {seed}, options {options}"
        assert ended is None, f"the process ended by itself with {ended}; {about}\n{err.decode()}"
        assert not err, f"the process complained; {about}\n{err.decode()}"
        assert in_recovery or out.startswith(b"ready"), f"the process never became ready; {about}"
        self.ready += said_ready

    def check(self, options: dict[str, Any]) -> None:
        """Open it here, twice: after the kill, and after a clean close."""
        ledger = Ledger(self.journals)
        assert any(batch.first_seq is not None for batch in ledger.batches.values()), "nothing was ever acked"
        for _ in range(2):
            with topics.open(self.data, **options) as log:
                check(log, ledger)


@pytest.fixture
def victim(tmp_path: Path, rng: Random) -> Victim:
    return Victim(tmp_path, rng)


def test_nothing_is_lost_when_the_shard_count_changes_between_kills(victim: Victim) -> None:
    """sigkill_durable_writes_survive_with_identical_state, kill_during_durable_write_survives_sigkill_restart: the
    writes of class fsync, some in flight when the kill comes, are all there, each as it was acknowledged."""
    for cycle in range(CYCLES):
        victim.live_and_die(wal_shards=(1, 3, 2, 5, 4)[cycle % 5])
    victim.check({"wal_shards": 2})


def test_nothing_is_lost_when_tiny_segments_seal_during_the_run(victim: Victim) -> None:
    tiny: dict[str, Any] = {"checkpoint_bytes": 1024, "checkpoint_gap_ms": 0, "checkpoint_ms": 0}
    for cycle in range(CYCLES):
        victim.live_and_die(segment_max_events=(1, 2, 7)[cycle % 3], **tiny)
    victim.check({"segment_max_events": 4})


def test_nothing_is_lost_by_crash_after_crash_before_a_snapshot(victim: Victim) -> None:
    """sigkill_during_nondurable_burst_recovers_clean_prefix: classes memory and disk, from the WAL alone."""
    never: dict[str, Any] = {"checkpoint_bytes": 1 << 40, "checkpoint_ms": 1 << 40, "wal_shards": 2}
    for _ in range(CYCLES):
        victim.live_and_die("no-checkpoints", **never)
    assert len(list((victim.data / "meta").glob("snapshot-*.bin"))) == 1, "a snapshot was written after all"
    victim.check(never)


def test_nothing_deleted_comes_back_when_deletes_stand_between_kills(victim: Victim) -> None:
    for _ in range(CYCLES):
        victim.live_and_die("deletes")
    victim.check({"wal_shards": 1})


def test_nothing_is_lost_by_kills_inside_recovery(victim: Victim) -> None:
    for _ in range(CYCLES // 2):
        victim.live_and_die()
        victim.live_and_die(in_recovery=True)
    victim.check(random_options(victim.rng, victim.options))


JUNK = (b"\xff\xff\xff\xff" + b"x" * 60, b"\0\0\0\0junk", b"\x30\0\0\0\x01torn")


def put_junk_behind_the_tail(data: Path, junk: bytes) -> int:
    """Write junk where the WAL of each shard ends; how many there are."""
    groups: dict[Path, Path] = {}
    for path in sorted(data.glob("wal/**/wal-*.log")):
        if any(path.read_bytes()[:4]):
            groups[path.parent] = path
    for path in groups.values():
        written = path.read_bytes()
        end = scan_wal(memoryview(written), 0, len(written), bytearray()).end
        with path.open("r+b") as file:
            file.seek(end)
            file.write(junk[: max(len(written) - end, 8)])
    return len(groups)


def test_junk_behind_the_tail_of_a_killed_process_is_cut_and_nothing_else(victim: Victim) -> None:
    """torn_tail_on_subprocess_wal_recovers_clean: the next one has every acknowledged record, and writes."""
    options: dict[str, Any] = {
        "wal_shards": 2,
        "wal_file_bytes": 131_072,
        "checkpoint_ms": 60_000,
        "checkpoint_bytes": 1 << 20,
    }
    for junk in JUNK:
        victim.live_and_die(**options)
        assert put_junk_behind_the_tail(victim.data, junk)
        if junk == JUNK[-1]:
            victim.check(options)
