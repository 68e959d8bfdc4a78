"""The live server is killed with SIGKILL under mixed load, again and again: whatever it answered holds afterwards.

Each test is one data directory and a dozen kills; the shard count, the segment size and the pace of checkpoints change
between them. Seeds are new in every run and stand in every failure; `KILL_SEED` repeats one.
"""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.contract.http.client import Api
from tests.contract.http.live import Http1, ServerProcess
from tests.integration.server.load import Habits, Worker
from tests.integration.server.promises import WORKERS, Promises, configs, routers
from tests.integration.server.verify import check, repeat_some

pytestmark = [pytest.mark.slow, pytest.mark.realdisk]

CYCLES = 10


def random_settings(rng: Random) -> dict[str, str]:
    return {
        "TOPICS_WAL_SHARDS": rng.choice("1235"),
        "TOPICS_SEGMENT_MAX_EVENTS": rng.choice(("20", "200", "10000")),
        "TOPICS_WAL_FILE_BYTES": rng.choice(("16384", "131072", "1048576")),
        "TOPICS_CHECKPOINT_BYTES": rng.choice(("1024", "20000", "1048576")),
        "TOPICS_CHECKPOINT_MS": rng.choice(("20", "100", "60000")),
        "TOPICS_CHECKPOINT_GAP_MS": rng.choice(("0", "50", "5000")),
        "TOPICS_RESERVE_SEQS": rng.choice(("4", "64", "4096")),
        "TOPICS_SYNC_MS": rng.choice(("0", "1", "10")),
        "TOPICS_EVIDENCE_MS": rng.choice(("0", "5", "100")),
    }


class Victim:
    """A data directory, what was promised about it, and the servers that hold it one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seed = os.environ.get("KILL_SEED") or secrets.token_hex(4)
        self.rng = random.Random(self.seed)
        self.promises = Promises()
        self.runs = 0
        self.answered = 0

    def live_and_die(self, habits: Habits, **settings: str) -> None:
        self.runs += 1
        chosen = {**random_settings(self.rng), **settings}
        server = ServerProcess(self.directory, **chosen)
        try:
            self._work(server, habits)
        except BaseException as error:
            error.add_note(f"KILL_SEED={self.seed}, run {self.runs}, {chosen}\n{server.kill()}")
            raise

    def _work(self, server: ServerProcess, habits: Habits) -> None:
        self.check(server)
        workers = [
            Worker(server, self.promises, self.runs, number, habits, f"{self.seed} {self.runs} {number}")
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.thread.start()
        time.sleep(self.rng.uniform(0.05, 0.5))
        ended = server.process.poll()
        complaints = server.kill()
        for worker in workers:
            worker.thread.join(30)
            assert not worker.thread.is_alive(), "a worker waits for an answer that nobody will give"
        for worker in workers:
            if worker.fault is not None:
                raise worker.fault
        assert ended is None, f"the server ended by itself with {ended}: {complaints}"
        assert not complaints
        self.answered += sum(worker.done for worker in workers)

    def die_in_recovery(self) -> None:
        """Killed at any instant of its start."""
        server = ServerProcess(self.directory, False, **random_settings(self.rng))
        time.sleep(self.rng.uniform(0.3, 1.0))
        assert not server.kill()

    def check(self, server: ServerProcess) -> None:
        wire = Http1(server.host, server.port)
        api = Api(wire)
        if self.runs == 1:
            for name, config in configs().items():
                assert api.put(name, **config).status == 201
            for name, fields in routers().items():
                assert api.call("PUT", f"/v0/routers/{name.replace('>', '%3E')}", fields).status == 201
        check(api, self.promises)
        repeat_some(api, self.promises, self.rng)
        wire.close()

    def end(self) -> None:
        """After the last kill and after a clean stop everything is as promised."""
        for _ in range(2):
            self.runs += 1
            server = ServerProcess(self.directory)
            try:
                self.check(server)
            finally:
                status, _, complaints = server.stop()
            assert (status, complaints) == (0, "")
        assert self.answered > 20 * CYCLES, f"only {self.answered} operations were answered: that proves little"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Victim]:
    """On a file system without a disk where there is one: a kill leaves the same bytes, and tiny segments, each with
    its syncs, do not take minutes."""
    place = Path("/dev/shm")
    if not (place.is_dir() and os.access(place, os.W_OK)):
        yield Victim(tmp_path)
        return
    with tempfile.TemporaryDirectory(prefix="topics-test-", dir=place) as directory:
        yield Victim(Path(directory))


def test_every_answer_holds_when_shards_and_segments_change_between_kills(victim: Victim) -> None:
    for cycle in range(CYCLES):
        victim.live_and_die(Habits(), TOPICS_WAL_SHARDS="13254"[cycle % 5])
    victim.end()


def test_every_answer_holds_when_checkpoints_never_rest(in_memory: Victim) -> None:
    restless = {"TOPICS_CHECKPOINT_BYTES": "1024", "TOPICS_CHECKPOINT_MS": "10", "TOPICS_CHECKPOINT_GAP_MS": "0"}
    for cycle in range(CYCLES):
        in_memory.live_and_die(Habits(deletes=25), **restless, TOPICS_SEGMENT_MAX_EVENTS=("1", "4", "50")[cycle % 3])
    in_memory.end()


def test_every_answer_holds_when_the_server_dies_in_recovery_too(victim: Victim) -> None:
    for _ in range(CYCLES):
        victim.live_and_die(Habits(routed=60))
        if victim.rng.random() < 0.5:
            victim.die_in_recovery()
    victim.end()
