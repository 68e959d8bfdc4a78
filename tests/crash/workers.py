"""What works for the callers of a simulated store: writers, syncs, spare files, checkpoints, passes of routers.

Each is a task of the seeded loop. Where the engine works without its lock, every file call is a point at which others
may run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.crash.machine import Gate
from topics.model.errors import DiskFull, ReadOnly, StorageError, Throttled
from topics.storage.routers import Router
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst
from topics.storage.turn import SparePlan
from topics.storage.wal import Shard
from topics.testing.loop import SeededLoop, Steps
from topics.testing.oracle import Violation

if TYPE_CHECKING:
    from tests.crash.simulation import Simulation


class Workers:
    def __init__(self, simulation: Simulation, store: Store) -> None:
        self.simulation = simulation
        self.store = store
        self.usual = store.options.wal_file_bytes
        self.busy = 0
        """How many are in the middle of something."""
        self.stopping = False

    def spawn(self, loop: SeededLoop) -> None:
        for shard in self.store.shards:
            loop.spawn(self._shard_writer(shard), f"shard {shard.index}")
            loop.spawn(self._syncer(shard), f"sync {shard.index}")
            loop.spawn(self._spare_maker(shard), f"spare {shard.index}")
        loop.spawn(self._checkpointer(), "checkpoint")
        if self.simulation.profile.routers:
            loop.spawn(self._forwarder(), "router")

    @contextmanager
    def _io(self, gate: Gate) -> Iterator[None]:
        """The engine works without its lock."""
        simulation = self.simulation
        before, simulation.armed, gate.busy = simulation.armed, True, True
        self.busy += 1
        yield
        self.busy -= 1
        simulation.armed, gate.busy = before, False

    def _leave_io(self, gate: Gate) -> None:
        """An I/O section that ended by an error."""
        gate.busy = False
        self.simulation.armed = False
        self.busy -= 1

    def _shard_writer(self, shard: Shard) -> Steps:
        gate = Gate()
        while True:
            yield lambda: bool(shard.queue) and not shard.writing and shard.failed is None
            write = shard.take()
            if write is None:
                continue
            if write.rotation is not None and write.rotation.plan is not None:
                self._note_reserved(write.rotation.plan, "waited for")
            yield gate.free
            with self._io(gate):
                shard.run(write)
            yield gate.free
            shard.finish(write)

    def _syncer(self, shard: Shard) -> Steps:
        gate = Gate()
        while True:
            yield lambda: shard.sync_due(self.simulation.clock.monotonic_ns())
            sync = shard.take_sync()
            if sync is None:
                continue
            yield gate.free
            with self._io(gate):
                sync.run()
            yield gate.free
            shard.finish_sync(sync)

    def _spare_maker(self, shard: Shard) -> Steps:
        gate = Gate()
        while True:
            yield shard.wants_spare
            plan = shard.plan_spare()
            self._note_reserved(plan, "made for a hurried writer")
            yield gate.free
            try:
                with self._io(gate):
                    spare = plan.run()
            except OSError:
                self._leave_io(gate)
                yield gate.free
                continue
            yield gate.free
            shard.adopt_spare(spare)

    def _note_reserved(self, plan: SparePlan, why: str) -> None:
        counts, disk = self.simulation.counts, self.simulation.disk
        counts[f"reserved WAL file, {why}"] += not plan.fill
        counts["reserved WAL file, longer than usual"] += not plan.fill and plan.capacity > self.usual
        if plan.old is not None:
            counts["recycled WAL file"] += 1
            counts["recycled WAL file that was only blanked"] += not plan.fill
            counts["recycled WAL file that was reserved"] += disk.exists(plan.old) and disk.is_reserved(plan.old)

    def _checkpointer(self) -> Steps:
        gate, store, simulation = Gate(), self.store, self.simulation
        while True:
            yield None
            due = store.checkpoint_due() or simulation.rng.random() < simulation.profile.checkpoint_rate
            if self.stopping or not due:
                continue
            self.busy += 1
            checkpoint = store.begin_checkpoint()
            while not checkpoint.captured:
                yield None
            yield gate.free
            with self._io(gate):
                done = checkpoint.run()
            self.busy -= 1
            if done:
                simulation.counts["checkpoint"] += 1
                simulation.checkpoints += 1
            elif simulation.faults is None or not simulation.faults.fired:
                raise Violation(f"a checkpoint failed on a healthy disk: {store.trouble!r}") from store.trouble

    # -- routers -------------------------------------------------------------------------------------------------------

    def _forwarder(self) -> Steps:
        rng = self.simulation.rng
        while True:
            yield None
            routers = list(self.store.routers.by_name.values())
            if self.stopping or not routers or rng.random() < 0.5:
                continue
            token = yield from self._pass(rng.choice(routers))
            if token is not None and rng.random() < 0.5:
                yield _settled(token)

    def _pass(self, router: Router) -> Steps:
        """One pass; returns what is to be waited for."""
        simulation = self.simulation
        assert simulation.client is not None
        while True:
            try:
                return simulation.client.routes.advance(router)
            except WaitFirst as first:
                if first.submission.settled:
                    raise Violation("a pass waits for something that is settled: it would do so for ever") from None
                yield _settled(first.submission)
                if self.stopping:
                    return None
            except Throttled:
                yield None
            except (ReadOnly, DiskFull, StorageError, OSError) as error:
                simulation.expect_trouble(error)
                return None


def _settled(token: Submission) -> Callable[[], bool]:
    return lambda: token.settled
