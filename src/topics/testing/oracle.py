"""The oracle: told of every operation when it is ordered, it says what a reader may see, now and after any crash.

Per topic it keeps the state at the last recovery and the operations since, in the order they were handed to the WAL.
A crash cuts the log somewhere, so recovery must give the state behind some prefix of them that holds at least

    after a kill        everything acknowledged
    after a power cut   everything whose class promises it, and everything that was synced

Records handed out in RAM alone are in no prefix. Seqs of a `disk` topic that were reserved are skipped and, after a
power cut, reported; the acknowledged ones among them must lie in what is reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from topics.model.config import Durability, TopicConfig
from topics.model.record import Gap, GapReason, Record
from topics.storage.submission import State as TokenState
from topics.storage.submission import Submission
from topics.testing.honest import Memory, dishonest, silent, state_of
from topics.testing.plain import (
    Appended,
    Change,
    Created,
    Deleted,
    Dropped,
    Evicted,
    Missed,
    Progress,
    Staged,
    State,
    fold,
)
from topics.testing.routes import RouterOracle, progress_difference
from topics.testing.view import View

Skip = Literal["reported", "silent", "either"]
_SEQS_KEPT = (Durability.DISK, Durability.FSYNC)


class Violation(AssertionError):
    """The engine broke a promise."""


@dataclass(slots=True, eq=False)
class Step:
    """One ordered operation."""

    change: Change
    token: Submission | None
    """None: it took effect at once and nothing of it reached the disk."""
    durability: Durability = Durability.FSYNC
    """Its topic's class when it was ordered."""

    @property
    def acked(self) -> bool:
        return self.token is None or self.token.state == TokenState.DONE

    @property
    def unknown(self) -> bool:
        return self.token is not None and self.token.state == TokenState.FAILED and self.token.file is not None

    @property
    def withdrawn(self) -> bool:
        return self.token is not None and self.token.state == TokenState.FAILED and self.token.file is None

    @property
    def promised(self) -> bool:
        """Its acknowledgement says that it outlives a power cut. An eviction by the timer promises nothing."""
        if isinstance(self.change, Appended | Deleted):
            return self.durability in (Durability.FSYNC, Durability.EPHEMERAL)
        if isinstance(self.change, Missed):
            return bool(self.change.seqs)
        return not isinstance(self.change, Evicted)

    @property
    def synced(self) -> bool:
        """The engine itself takes it for durable."""
        token = self.token
        if token is None or token.file is None or token.state not in (TokenState.WRITTEN, TokenState.DONE):
            return False
        return token.end <= token.file.synced

    def must_survive(self, power: bool) -> bool:
        if self.change.ram:
            return False
        return self.synced or (self.acked and (self.promised or not power))


@dataclass(slots=True, eq=False)
class Instance:
    """One life of a topic name: from its create to its drop."""

    name: str
    id: int
    base: State | None = None
    """As of the last recovery; None = created since."""
    steps: list[Step] = field(default_factory=list)
    published: State | None = None
    done: int = 0
    """How many steps are in the published state."""
    ordered: State | None = None
    handed: int = 0
    """Highest seq that was acknowledged in a class that never hands one out again."""
    dropped: bool = False
    """Its drop was acknowledged."""
    shard: int = 0
    """The WAL shard it was created on."""
    soft: bool = False
    """It was ephemeral once: an older snapshot may know less of those times."""

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self.soft = self.soft or step.change.ram
        before = set(self.ordered.records) if step.change.ram and self.ordered is not None else set()
        self.ordered = fold(self.ordered, step.change)
        if self.ordered is not None and before - self.ordered.records.keys() - self.ordered.ram:
            raise Violation(f"{self}: records on disk ended without a frame that says so, by {step.change}")
        if step.token is None:
            self.settle()

    def pass_over(self, progress: Progress) -> None:
        """A router into a topic in RAM went on without a copy: nothing of that is ordered anywhere."""
        self.soft = True
        for state in (self.published, self.ordered):
            if state is not None:
                progress.apply(state)

    @property
    def pending(self) -> bool:
        return self.done < len(self.steps)

    def settle(self) -> None:
        """Publish, in order, what was acknowledged since; forget what was given back."""
        while self.done < len(self.steps) and self.steps[self.done].acked:
            step = self.steps[self.done]
            self.done += 1
            self.published = fold(self.published, step.change)
            change = step.change
            if isinstance(change, Appended) and step.durability in _SEQS_KEPT:
                self.handed = max(self.handed, change.records[-1].seq)
            if isinstance(change, Staged):
                self.handed = max([self.handed, *(record.seq for record in change.records)])
                if not change.committed:
                    self._reorder(self.steps[self.done :])
            self.dropped = self.dropped or isinstance(change, Dropped)
        left = self.steps[self.done :]
        if any(step.acked for step in left):
            raise Violation(f"{self}: an operation was acknowledged before an earlier one of its topic")
        kept = [step for step in left if not step.withdrawn]
        if len(kept) < len(left):
            self._reorder(kept)

    def _reorder(self, kept: list[Step]) -> None:
        """Of what was ordered only `kept` is still to come."""
        del self.steps[self.done :]
        self.ordered = self.published.copy() if self.published is not None else None
        for step in kept:
            self.add(step)

    def unsettled(self) -> list[Step]:
        return self.steps[self.done :]

    @property
    def in_ram(self) -> set[int]:
        found: set[int] = set()
        for change in (step.change for step in self.steps if step.change.ram):
            if isinstance(change, Appended):
                found.update(record.seq for record in change.records)
            elif isinstance(change, Missed):
                found.update(change.seqs)
        return found

    def __str__(self) -> str:
        return f"topic {self.name!r} (id {self.id})"


class Oracle:
    def __init__(self) -> None:
        self.instances: dict[int, Instance] = {}
        self.names: dict[str, Instance] = {}
        """Name -> the instance that the next operation on it goes to."""
        self.routers = RouterOracle()
        self.memory = Memory()

    # -- while the store runs ------------------------------------------------------------------------------------------

    def create(self, name: str, config: TopicConfig, token: Submission) -> Instance:
        instance = Instance(name, token.lane)
        self.instances[instance.id] = instance
        self.memory.create(instance.id, name)
        instance.add(Step(Created(config), token))
        self.names[name] = instance
        return instance

    def settle(self) -> None:
        for instance in list(self.instances.values()):
            if not instance.pending:
                continue
            before = instance.published
            instance.settle()
            if before is None and instance.published is not None:
                self._outlive(instance)
            if not instance.steps and instance.base is None:  # the create was given back
                self._forget(instance)
            elif instance.dropped:
                self._unname(instance)
            elif instance.steps and instance.steps[0].unknown and isinstance(instance.steps[0].change, Created):
                self._unname(instance)  # it may be there after all, once the store is reopened

    def _outlive(self, instance: Instance) -> None:
        """A topic ends every earlier one of its name, also one whose create failed and may be in the log."""
        for other in self.instances.values():
            if other.name == instance.name and other.id < instance.id and other.published is None:
                other.dropped = True

    def _forget(self, instance: Instance) -> None:
        del self.instances[instance.id]
        self._unname(instance)

    def _unname(self, instance: Instance) -> None:
        if self.names.get(instance.name) is instance:
            del self.names[instance.name]

    def check_live(self, views: Iterable[View], complete: bool = False) -> None:
        """What the running store shows equals what was acknowledged, no more and no less."""
        self.settle()
        seen = set()
        for view in views:
            seen.add(view.id)
            instance = self.instances.get(view.id)
            if instance is None or instance.published is None:
                raise Violation(f"topic {view.name!r} (id {view.id}) is there, but nobody's create was acknowledged")
            why = self._difference(instance.published, view, set())
            if why is not None:
                raise Violation(f"{instance}, live: {why}")
        if complete:
            for instance in self.instances.values():
                if instance.published is not None and instance.id not in seen:
                    raise Violation(f"{instance} is not there, though its create was acknowledged")

    def _difference(self, state: State, view: View, ram: set[int]) -> str | None:
        return differs(state, view, ram) or progress_difference(state, view, self.routers.starts)

    # -- after a restart -----------------------------------------------------------------------------------------------

    def check_recovered(
        self,
        views: dict[int, View],
        *,
        power: bool,
        skip: Skip,
        clean: bool = False,
        fallback: bool = False,
        damaged: frozenset[int] = frozenset(),
        astray: frozenset[int] = frozenset(),
    ) -> None:
        """Compare what recovery gave with every state it may give, and go on from the one it chose. Of the topics of
        `damaged` bytes were spoilt that had been synced, and of the routers of `astray` what said how far they are."""
        self.settle()
        self.routers.astray = astray
        self._accept(views, damaged, power)
        for topic_id in views:
            if topic_id not in self.instances and topic_id not in damaged:
                raise Violation(f"recovery invented the topic {views[topic_id].name!r} (id {topic_id})")
        newest: dict[str, int] = {}
        for view in views.values():
            newest[view.name] = max(newest.get(view.name, 0), view.id)
        for instance in list(self.instances.values()):
            if instance.id in damaged:
                continue
            found = views.get(instance.id)
            if found is None:
                self._check_absent(instance, power, newest.get(instance.name, 0) > instance.id)
                self._forget(instance)
                continue
            if clean:
                self._check_clean(instance, found)
            else:
                self._check_prefix(instance, found, power, skip, fallback)
        self.routers.hear(views.values())
        self.names = {instance.name: instance for instance in self.instances.values()}
        if len(self.names) != len(self.instances):
            raise Violation("recovery gave two topics of one name")

    def _accept(self, views: dict[int, View], damaged: frozenset[int], power: bool) -> None:
        """Whatever honest state damage has left is the one to go on from."""
        for topic_id in damaged:
            known, view = self.instances.get(topic_id), views.get(topic_id)
            if known is not None:
                self._forget(known)
            if view is None:
                continue
            why = dishonest(view, self.memory) or silent(view, known, power)
            if why is not None:
                raise Violation(f"topic {view.name!r} (id {view.id}), salvaged: {why}")
            instance = self.instances[topic_id] = Instance(view.name, topic_id)
            self._adopt(instance, state_of(view), view)

    def _check_absent(self, instance: Instance, power: bool, replaced: bool) -> None:
        if any(isinstance(step.change, Dropped) for step in instance.steps) or instance.dropped:
            return
        needed = instance.base is not None or any(step.must_survive(power) for step in instance.steps)
        if needed and not replaced:
            raise Violation(f"{instance} was lost")

    def _check_clean(self, instance: Instance, view: View) -> None:
        """A clean stop loses nothing but RAM, and skips no seq."""
        if instance.published is None:
            raise Violation(f"{instance} came back after its drop")
        state = instance.published.copy()
        ram = instance.in_ram
        state.lose([seq for seq in ram if seq in state.records], "restart")
        state.keys = {key: row for key, row in state.keys.items() if row[0] not in ram}
        # The key of records that were deleted or evicted is kept or not: nobody can be answered wrongly by it.
        known = instance.published.keys
        state.keys |= {k: row for k, row in view.keys.items() if row == known.get(k) and row[0] not in state.lost}
        why = self._difference(state, view, set())
        if why is not None:
            raise Violation(f"{instance}, after a clean stop: {why}")
        self._adopt(instance, state, view)

    def _check_prefix(self, instance: Instance, view: View, power: bool, skip: Skip, fallback: bool) -> None:
        if instance.dropped:
            raise Violation(f"{instance} came back after its drop")
        least = 0
        for index, step in enumerate(instance.steps):
            if step.must_survive(power):
                least = index + 1
        whys: list[str] = []
        matched: State | None = None
        kept = 0
        state = instance.base.copy() if instance.base is not None else None
        for taken in range(len(instance.steps) + 1):
            if taken:
                step = instance.steps[taken - 1]
                if not step.change.ram:
                    state = fold(state, step.change)
            if state is None or taken < least:
                continue
            candidate = self._recovered_from(instance, state, view, skip, fallback)
            different = self._difference(candidate, view, instance.in_ram)
            if different is None:
                # An append and the delete of all of it leave no trace but the time: that tells which of them are there.
                if matched is None or candidate.last_ts <= view.last_ts or matched.last_ts > view.last_ts:
                    matched, kept = candidate, taken
            else:
                whys.append(f"with {taken} operations: {different}")
        if matched is None:
            whys.append(f"{len(instance.steps)} operations were ordered, at least {least} must be there")
            crash = "power cut" if power else "kill"
            raise Violation(f"{instance}, recovered after a {crash}: " + "\n  ".join(whys))
        if view.config.commit_class in _SEQS_KEPT and view.head < instance.handed:
            raise Violation(f"{instance}: head is {view.head}, but seq {instance.handed} was acknowledged")
        self._check_reported(instance, view, kept, power)
        self._adopt(instance, matched, view)

    def _recovered_from(self, instance: Instance, state: State, view: View, skip: Skip, fallback: bool) -> State:
        """`state` with what a restart adds to it: seqs that are skipped, and what a snapshot kept of RAM."""
        state = state.copy()
        ram = instance.in_ram
        self.routers.forgive(state, view, instance.soft)
        if fallback and instance.soft:
            _fall_back(state, view)
        if instance.published is not None and any(step.change.ram for step in instance.steps):
            state.raise_floors(
                min(view.evict_floor, instance.published.evict_floor),
                min(view.expiry_floor, instance.published.expiry_floor),
                min(view.delete_below, instance.published.delete_below),
            )
            if state.head < view.head <= max(ram, default=0):
                state.head = view.head
            # A retry is answered by its key also where the records were deleted since, but not where they were lost.
            state.keys |= {
                key: row
                for key, row in view.keys.items()
                if row[0] in ram and row == instance.published.keys.get(key) and not _in_gap(row[0], view, "restart")
            }
        if view.head > state.head and state.durability == Durability.DISK:
            skipped = range(state.head + 1, view.head + 1)
            said = skip == "reported" or (skip == "either" and any(gap.gap_to == view.head for gap in view.gaps))
            if said:
                state.lose(skipped, "crash")
            state.head = state.solid = view.head
        return state

    @staticmethod
    def _check_reported(instance: Instance, view: View, kept: int, power: bool) -> None:
        """Every acknowledged record of class `disk` that is gone against anyone's will lies in a reported range."""
        said = [(gap.gap_from, gap.gap_to) for gap in view.gaps]
        published = instance.published
        if published is None:
            return
        for step in instance.steps[kept : instance.done]:
            change = step.change
            if not isinstance(change, Appended) or step.durability != Durability.DISK:
                continue
            for record in change.records:
                if record.seq not in published.records:
                    continue
                if not power or not any(low <= record.seq <= high for low, high in said):
                    raise Violation(f"{instance}: the acknowledged record {record.seq} is gone, and nothing says so")

    @staticmethod
    def _adopt(instance: Instance, state: State, view: View) -> None:
        state.lost = {seq: gap.reason for gap in view.gaps for seq in _seqs(gap) if seq > state.involuntary_floor}
        state.last_ts = max(state.last_ts, view.last_ts)
        state.ram = set()
        state.progress = {router_id: (cursor, copies) for router_id, (cursor, copies, _) in view.routers.items()}
        instance.base = state
        instance.published = state.copy()
        instance.ordered = state.copy()
        instance.steps = []
        instance.done = 0


def _fall_back(state: State, view: View) -> None:
    """An older snapshot knows less of what was in RAM alone: seqs, floors and keys of it may be those of before."""
    if state.solid <= view.head < state.head:
        state.head = view.head
        state.lost = {seq: reason for seq, reason in state.lost.items() if seq <= view.head}
    if all(seq > max(view.evict_floor, view.expiry_floor, view.delete_below - 1) for seq in state.records):
        state.evict_floor = min(state.evict_floor, view.evict_floor)
        state.expiry_floor = min(state.expiry_floor, view.expiry_floor)
        state.delete_below = min(state.delete_below, view.delete_below)
    said = {seq for gap in view.gaps if gap.reason == "restart" for seq in _seqs(gap)}
    state.lost = {seq: reason for seq, reason in state.lost.items() if reason != "restart"}
    state.lost |= {seq: "restart" for seq in said if seq not in state.records}
    state.last_ts = max([view.last_ts, *(record.ts for record in state.records.values())])
    state.keys = {key: row for key, row in state.keys.items() if row[0] in state.records or key in view.keys}


def _in_gap(seq: int, view: View, reason: GapReason) -> bool:
    return any(gap.gap_from <= seq <= gap.gap_to and gap.reason == reason for gap in view.gaps)


def _seqs(gap: Gap) -> range:
    return range(gap.gap_from, gap.gap_to + 1)


def differs(state: State, view: View, ram: set[int]) -> str | None:
    """What of `view` is not as `state` says; None = all is. Seqs of `ram` may be reported as lost with the process."""
    expected: list[tuple[str, object, object]] = [
        ("config", state.config, view.config),
        ("head", state.head, view.head),
        ("evict_floor", state.evict_floor, view.evict_floor),
        ("expiry_floor", state.expiry_floor, view.expiry_floor),
        ("delete_below", state.delete_below, view.delete_below),
        ("count", len(state.records), view.count),
        ("bytes", state.bytes, view.bytes),
        ("earliest_seq", state.earliest_seq, view.earliest_seq),
    ]
    for what, want, got in expected:
        if want != got:
            return f"{what} is {got}, expected {want}; {_outline(state, view)}"
    if state.records != view.records:
        return _record_difference(state.records, view.records)
    said = {seq: gap.reason for gap in view.gaps for seq in _seqs(gap)}
    known = {seq: gap.reason for gap in state.items(0) if isinstance(gap, Gap) for seq in _seqs(gap)}
    may: set[int] = {seq for seq in ram if said.get(seq) in ("restart", "source_trim")}
    wrong = sorted(seq for seq in said.keys() | known.keys() if said.get(seq) != known.get(seq) and seq not in may)
    if wrong:
        seq = wrong[0]
        return f"seq {seq} is reported as {said.get(seq)}, expected {known.get(seq)}; {_outline(state, view)}"
    over = next((seq for seq in said if seq in view.records), None)
    if over is not None:
        return f"the live record {over} lies in a reported range"
    places = [item.seq for item in view.items if isinstance(item, Record)]
    if places != sorted(places):
        return f"records come out of order: {places}"
    times = [record.ts for record in view.records.values()]
    if times != sorted(times):
        return f"times go back: {times}"
    if state.txns != view.txns:
        return f"committed transactions are {view.txns}, expected {state.txns}"
    window = state.config.idempotency_window_ms
    keys = {key: row for key, row in state.keys.items() if view.now_ms - row[2] <= window}
    return None if keys == view.keys else f"idempotency keys are {view.keys}, expected {keys}"


def _record_difference(want: dict[int, Record], got: dict[int, Record]) -> str:
    for seq in sorted(want.keys() | got.keys()):
        if want.get(seq) != got.get(seq):
            return f"record {seq} is {got.get(seq)}, expected {want.get(seq)}"
    return "records differ"


def _outline(state: State, view: View) -> str:
    mine, theirs = list(state.records), list(view.records)
    gaps = [(g.gap_from, g.gap_to, g.reason) for g in view.gaps]
    return (
        f"expected head {state.head} live {mine[:3]}..{mine[-3:]} ({len(mine)}) {state.durability.name}, "
        f"got head {view.head} live {theirs[:3]}..{theirs[-3:]} ({len(theirs)}) gaps {gaps}"
    )


__all__ = ["Instance", "Oracle", "Skip", "State", "Step", "Violation", "differs"]
