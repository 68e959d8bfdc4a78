"""One seed: the real engine on a disk that forgets, writers that do not wait for each other, crash after crash.

A life is: open (sometimes crashing inside it), compare everything with the oracle, let writers, the shards' writers,
their syncs, the makers of spare files, the checkpointer, readers and the clock run in an order that the seed draws,
and end: by a kill or a power cut, between two steps or in the middle of a file call, or by a clean stop. Where the
engine works without its lock, every file call is a point at which others may run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.crash.client import Client
from tests.crash.device import check_broken
from tests.crash.groups import GroupLedger
from tests.crash.jobs import JobLedger
from tests.crash.machine import SimulatedDisk, SimulatedLock
from tests.crash.probe import ROOT, manifest_firsts, probe_rot
from tests.crash.profile import Profile, draw_profile
from tests.crash.readers import slow_read
from tests.crash.salvage import Damage, spoil_proven
from tests.crash.staging import StageBook, Stages
from tests.crash.trouble import draw_faults, note_torn_batches, spoil
from tests.crash.workers import Workers
from topics.host.fs import Fs
from topics.model.errors import DiskFull, ReadOnly, StorageError, Throttled, TopicsError
from topics.storage.opening import open_store
from topics.storage.store import Store
from topics.storage.submission import WaitFirst
from topics.storage.topic import Topic
from topics.testing.clock import FakeClock
from topics.testing.disk import CrashKind, PowerOff
from topics.testing.faults import FaultFs
from topics.testing.honest import gone
from topics.testing.ids import FakeIds
from topics.testing.loop import SeededLoop, Steps
from topics.testing.oracle import Oracle, Skip, Violation
from topics.testing.order import OrderFs
from topics.testing.routes import view_routes
from topics.testing.view import View, view_store, view_topic

_STEPS_PER_OPERATION = 400
_PREEMPT_DEPTH = 2


@dataclass(slots=True)
class Result:
    seed: int
    profile: Profile
    counts: Counter[str] = field(default_factory=Counter)


class Simulation:
    def __init__(self, seed: int, fixed: dict[str, Any] | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.profile = draw_profile(self.rng, fixed)
        self.disk = SimulatedDisk(seed, log_max=60)
        self.disk.before_call = self.preempt
        self.clock = FakeClock()
        self.oracle = Oracle()
        self.jobs = JobLedger()
        self.groups = GroupLedger()
        self.counts: Counter[str] = Counter()
        self.loop = SeededLoop(self.rng)
        self.store: Store | None = None
        self.client: Client | None = None
        self.faults: FaultFs | None = None
        self.armed = False
        """True while the running task is where threads would really interleave."""
        self.depth = 0
        self.writers_left = 0
        self.workers: Workers | None = None
        self.power = False
        """The power was cut since the store was last open."""
        self.killed = False
        """The process was killed since."""
        self.doubt = False
        """A sync failed: whether skipped seqs are reported depends on how far the store got in saying so."""
        self.clean = False
        self.fallback = False
        """The newest snapshot rotted since."""
        self.damage: Damage | None = None
        """What was spoilt since, below a proven sync: the next start is a salvage."""
        self.life = 0
        self.crashes = 0
        self.checkpoints = 0
        self.layouts: list[int] = []
        """Shard counts of the lives so far, each change of them one entry."""
        self.serial = 0
        self.stages = StageBook()

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        try:
            self._run()
        except PowerOff as error:
            raise Violation(f"the power went where nobody cut it: {error}") from error
        for what, count in self.disk.counters.items():
            self.counts[f"cut: {what}"] += count
        return Result(self.seed, self.profile, self.counts)

    def _run(self) -> None:
        while self.life < self.profile.lives or self.crashes < 3 or self.counts["operation"] < 50:
            self.open()
            self.live()
            self.life += 1
            if self.life > 30:
                raise Violation("thirty lives were not enough for fifty operations and three crashes")
        self.open(final=True)
        self._kill()
        self.disk.restart()
        self.open(final=True)
        self.counts["recovered twice"] += 1
        if self.rng.random() < self.profile.broken_rate:
            self._break_device()

    def _break_device(self) -> None:
        """One more life, whose power cut keeps no promise about synced bytes."""
        profile = self.profile
        self.profile = replace(
            profile, power_rate=1.0, clean_rate=0.0, fallback_rate=0.0, derived_rate=0.0, rot_rate=0.0, salvage_rate=0.0
        )
        self.disk.keep_synced = False
        self.live()
        self.disk.keep_synced = True
        options = profile.options(self.life)
        check_broken(self.disk, options, self.clock, self.oracle.memory, self.counts)

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(self, final: bool = False) -> None:
        rng, profile = self.rng, self.profile
        options = profile.options(self.life)
        damage, interrupted = self.damage, False
        if damage is not None or rng.random() < profile.salvage_rate / 2:
            options = replace(options, recovery="salvage")
            self.counts["salvage without damage"] += damage is None
        for attempt in range(6):
            crash_in_open = not final and attempt < 3 and rng.random() < profile.open_crash_rate
            if crash_in_open:
                kind: CrashKind = "power" if rng.random() < profile.power_rate else "kill"
                self.disk.crash_at(self.disk.calls + rng.choice((rng.randint(1, 12), rng.randint(1, 60))), kind)
            fs: Fs = OrderFs(self.disk, manifest_firsts)
            self.faults = None
            if not final and rng.random() < profile.fault_rate:
                self.faults = fs = FaultFs(fs)
                if attempt < 3 and rng.random() < 0.3:
                    for fault in draw_faults(rng, profile, opening=True):
                        self.faults.add(fault)
            try:
                self.armed = False
                self.store = open_store(fs, ROOT, options, self.clock, FakeIds(self.seed), SimulatedLock(self))
            except PowerOff:
                self._crashed("open", kind)
                self.disk.restart()
                interrupted = True
                continue
            except (StorageError, DiskFull) as error:
                if self.faults is None or not self.faults.fired:
                    raise Violation(f"the store does not open: {error}") from error
                self._note_faults()
                self.counts["open failed by a fault"] += 1
                self.doubt = interrupted = True
                self.disk.crash_at(None)
                self.disk.restart()
                continue
            self.disk.crash_at(None)
            break
        else:
            raise Violation("six attempts did not open the store")
        self._note_faults()
        if self.faults is not None:
            self.faults.heal()
        self._note_layout(options.wal_shards)
        if damage is not None and not interrupted and not any(damage.path in line for line in self._store().report):
            raise Violation(f"{damage.what}, {damage.path}, was salvaged in silence: {self._store().report}")
        self._check_opened()

    def _note_layout(self, shards: int) -> None:
        if self.layouts[-1:] != [shards]:
            self.counts["reshard"] += bool(self.layouts)
            self.counts["reshard there and back"] += shards in self.layouts
            self.layouts.append(shards)

    def _check_opened(self) -> None:
        store = self._store()
        skip: Skip = "either" if self.doubt else "reported" if self.power else "silent"
        views = view_store(store)
        damage, self.damage = self.damage, None
        damaged = damage.topics if damage is not None else frozenset()
        if damage is not None and self.power:
            # A salvage goes on behind what the cut tore, too, in any file: what is found there is found, and told.
            damaged |= frozenset(store.by_id)
        elif damage is not None:
            damaged |= self._doubted(damage, views)
        self.stages.resolve(store, self.counts, damaged)
        self.oracle.check_recovered(
            views,
            power=self.power,
            skip=skip,
            clean=self.clean,
            fallback=self.fallback,
            damaged=damaged,
            astray=damage.cursors if damage is not None else frozenset(),
        )
        routes = view_routes(store)
        self.counts["router over a crash"] += len(routes) if self.power or self.killed else 0
        why = self.oracle.routers.check_recovered(routes, views, damage is not None and damage.routers)
        if why is not None:
            raise Violation(why)
        counts, leases = self.jobs.check_recovered(store, self.power, self.doubt, damage is not None, self.fallback)
        self.counts["queue count over a restart"] += counts
        self.counts["queue lease over a restart"] += leases
        self.counts["group settled over a restart"] += self.groups.check_recovered(
            store, self.power, self.doubt, damage is not None, self.fallback
        )
        self.stages.check_recovered(store, damaged)
        if store.report and damage is None and not self.counts_allow(store.report):
            raise Violation(f"recovery reports {store.report}")
        self.power = self.killed = self.doubt = self.clean = self.fallback = False
        self.serial = self.client.serial if self.client is not None else 0
        self.client = Client(store, self.oracle, self.profile, self.rng, self.counts, self.jobs, self.groups)
        self.client.serial = self.serial
        if self.profile.stages:
            store.staging.ttl_ms = self.profile.staged_ttl_ms
            self.client.stages = Stages(self.client, self.stages)

    def _doubted(self, damage: Damage, views: dict[int, View]) -> frozenset[int]:
        """Topics of which nothing was spoilt, though no start can know it: what they had is there."""
        doubted = frozenset(filter(damage.doubts, self.oracle.instances)) - damage.topics
        for topic_id in doubted & views.keys():
            missing = gone(views[topic_id], self.oracle.instances[topic_id])
            if missing:
                raise Violation(f"topic {topic_id}, beside {damage.what}, {damage.path}, lost {sorted(missing)}")
        return doubted

    @staticmethod
    def counts_allow(report: list[str]) -> bool:
        """Only a spoiled snapshot is worth a word here; anything else means something was thrown away."""
        return all("is not a valid snapshot" in line or "belongs to no known topic" in line for line in report)

    def _store(self) -> Store:
        assert self.store is not None
        return self.store

    # -- one life ------------------------------------------------------------------------------------------------------

    def live(self) -> None:
        rng, profile, store = self.rng, self.profile, self._store()
        self.loop = SeededLoop(rng)
        self.writers_left = profile.writers
        share = max(profile.operations // profile.writers, 1)
        for index in range(profile.writers):
            self.loop.spawn(self._writer(share), f"writer {index}")
        self.workers = Workers(self, store)
        self.workers.spawn(self.loop)
        self.loop.spawn(self._reader(), "reader")
        self.loop.spawn(self._clock(), "clock")
        clean = rng.random() < profile.clean_rate
        kind: CrashKind = "power" if rng.random() < profile.power_rate else "kill"
        early = rng.random() < 0.5
        limit = rng.randint(1, profile.operations * 12) if early else profile.operations * _STEPS_PER_OPERATION
        if not clean and rng.random() < profile.mid_call_rate:
            self.disk.crash_at(self.disk.calls + rng.randint(1, profile.operations * 5), kind)
        if self.faults is not None:
            for fault in draw_faults(rng, profile):
                self.faults.add(fault)
        steps = 0
        try:
            while self.writers_left and steps < limit:
                self.loop.step()
                steps += 1
            if self.writers_left and not early:
                raise Violation(f"writers wait for ever: {[task.name for task in self.loop._tasks]}")
            self._compare()
            if clean and self._close():
                return
        except PowerOff:
            self._crashed("call", kind)
            self.disk.restart()
            self._spoil()
            return
        self.disk.crash_at(None)
        if kind == "power":
            self.disk.power_cut()
        else:
            self.disk.kill()
        self._crashed("step", kind)
        self.disk.restart()
        self._spoil()

    def _kill(self) -> None:
        self.loop.drop()
        self.disk.kill()
        self.store = None

    def _crashed(self, where: str, kind: str) -> None:
        self.loop.drop()
        self.armed = False
        self.depth = 0
        self.crashes += 1
        self.counts["checkpoint between crashes"] += self.checkpoints > 0
        self.checkpoints = 0
        self.counts[f"crash: {kind} in a {where}"] += 1
        if kind == "power":
            # A recovery that began after a kill may have said, durably, that the seqs were merely skipped.
            self.doubt = self.doubt or (where == "open" and self.killed and not self.power)
            self.power = True
            note_torn_batches(self.disk, self.counts)
        else:
            self.killed = True
        self._note_life()
        self.store = None

    def _note_life(self) -> None:
        store = self.store
        if store is None:
            return
        self._note_faults()
        self.counts["rotation"] += sum(max(shard.stats.rotations - 1, 0) for shard in store.shards)
        self.counts["read-only shard"] += sum(shard.failed is not None for shard in store.shards)
        self.faults = None

    def _note_faults(self) -> None:
        """Count the calls that failed since it was last asked."""
        if self.faults is not None:
            for what, count in self.faults.hits.items():
                self.counts[f"fault: {what}"] += count
            self.faults.hits.clear()
            self.doubt = self.doubt or bool(self.faults.fired)

    def _spoil(self) -> None:
        before = self.counts["snapshot fallback"]
        spoil(self.disk, self.rng, self.profile, self.counts, self.profile.options(self.life + 1).wal_shards)
        self.fallback = self.fallback or self.counts["snapshot fallback"] > before
        if self.rng.random() < self.profile.rot_rate:
            options = self.profile.options(self.life + 1)
            self.counts["rot below proven sync"] += probe_rot(self.disk, self.rng, options, self.clock)
        if self.rng.random() < self.profile.salvage_rate:
            self.damage = spoil_proven(self.disk, self.rng, self.profile.options(self.life + 1), self.clock)
            if self.damage is not None:
                self.counts[f"salvage of {self.damage.what}"] += 1

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def preempt(self) -> None:
        """Where the running task holds no lock, others may go first."""
        if not self.armed or self.depth >= _PREEMPT_DEPTH or self.rng.random() >= self.profile.preempt_rate:
            return
        self.armed = False
        self.depth += 1
        for _ in range(self.rng.randint(1, 4)):
            self.loop.step()
        self.depth -= 1
        self.armed = True

    def _writer(self, operations: int) -> Steps:
        rng = self.rng
        client = self.client
        assert client is not None
        while operations:
            operation = client.draw()
            while True:
                try:
                    token = operation()
                    break
                except WaitFirst as first:
                    waits = first.submission
                    if waits.settled:
                        raise Violation("a call waits for something that is settled: it would do so for ever") from None
                    yield lambda waits=waits: waits.settled  # type: ignore[misc]
                except Throttled:
                    yield None
                except (ReadOnly, DiskFull, StorageError, OSError) as error:
                    self.expect_trouble(error)
                    token = None
                    break
            self.counts["operation"] += 1
            operations -= 1
            if token is not None and rng.random() < self.profile.wait_rate:
                yield lambda token=token: token.settled  # type: ignore[misc]
            else:
                yield None
        self.writers_left -= 1

    def expect_trouble(self, error: Exception) -> None:
        if self.faults is None or not self.faults.fired:
            raise Violation(f"a call failed on a healthy disk: {error!r}") from error
        self.counts[f"refused: {type(error).__name__}"] += 1

    def _clock(self) -> Steps:
        while True:
            self.clock.advance(self.rng.choice(self.profile.clock_ms))
            if self.rng.random() < 0.02:
                self.clock.step_wall(self.rng.choice((-500, -5, 20)))
            yield None

    def _reader(self) -> Steps:
        store = self._store()
        while True:
            yield None
            if store.topics and self.faults is None and self.rng.random() < 0.1:
                topic = self.rng.choice(list(store.topics.values()))
                self.counts["slow read"] += bool((yield from slow_read(store, self.oracle.instances[topic.id], topic)))
            if store.topics and self.rng.random() < 0.2:
                topic = self.rng.choice(list(store.topics.values()))
                try:
                    view = view_topic(store, topic)
                except (OSError, TopicsError) as error:
                    self.expect_trouble(error)
                    continue
                if not self._stopped(topic):
                    self.oracle.check_live([view])

    def _stopped(self, topic: Topic) -> bool:
        """Its shard stopped, perhaps because a committed change could not be applied: only a restart shows it whole."""
        return topic.frozen is not None or self._store().shard_for(topic).failed is not None

    def _compare(self) -> None:
        """Everything the store shows, against everything that was acknowledged."""
        if self.faults is not None:
            self.faults.heal()
        store = self._store()
        views = [view_topic(store, topic) for topic in store.all_topics() if not self._stopped(topic)]
        whole = not any(shard.failed for shard in store.shards)
        self.oracle.check_live(views, complete=whole)
        why = self.oracle.routers.check_live(view_routes(store), store.by_id) if whole else None
        if why is not None:
            raise Violation(why)

    # -- a clean stop --------------------------------------------------------------------------------------------------

    def _close(self) -> bool:
        """What `Log.close` does. False if trouble made it an ordinary stop."""
        store = self._store()
        workers = self.workers
        assert workers is not None
        workers.stopping = True
        for task in list(self.loop._tasks):
            if task.name.startswith(("writer", "reader")):
                task.drop()
                self.loop._tasks.remove(task)
        for _ in range(5000):
            working = any(s.writing or s.syncing or ((s.queue or s.waiting) and not s.failed) for s in store.shards)
            if not working and not workers.busy:
                break
            self.loop.step()
        else:
            raise Violation("the store does not come to rest")
        self.loop.drop()
        self._compare()
        stopped = any(shard.failed is not None or shard.refusing is not None for shard in store.shards)
        if stopped or not store.checkpoint(clean=True):
            return False
        store.release()
        self.oracle.settle()
        self.counts["clean stop"] += 1
        self._note_life()
        if self.rng.random() < 0.5:
            self.disk.power_cut()
        self.disk.restart()
        self.clean = True
        self.store = None
        return True


def run_seed(seed: int, fixed: dict[str, Any] | None = None) -> Result:
    """Run one seed; a Violation says what went wrong and carries the seed and its options."""
    simulation = Simulation(seed, fixed)
    try:
        return simulation.run()
    except Exception as error:
        error.add_note(f"seed {seed}, life {simulation.life}, {simulation.profile}")
        error.add_note("last file calls:\n  " + "\n  ".join(simulation.disk.log))
        error.add_note(f"again: python -m tests.crash.soak --start {seed} --seeds 1")
        raise
