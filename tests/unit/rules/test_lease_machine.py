"""Random lives of a queue by the lease rules, against a plain model that walks over everything it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.rules.lease import FAR_MS, Leases
from topics.rules.lease_columns import pack, unpack
from topics.rules.lease_values import Ask, Claimed, Cut, Extended, Kind, Released
from topics.rules.tokens import Tokens

HOUR_MS = 3_600_000
MAX_DELIVERIES = 3
HOLDERS = st.sampled_from(["a", "b", "c"])


@dataclass
class Job:
    state: str = "fresh"
    holder: str = ""
    token: int = 0
    until: int = 0
    deliveries: int = 0


@dataclass
class UnderWay:
    """What was handed to the log and is not written yet."""

    event: Callable[[Leases, int, int], None]
    """(state, now by the state's clock, what to add to a time of the process for that clock)."""
    seqs: list[int]
    model: Callable[[], None]


@dataclass
class Logged:
    event: Callable[[Leases, int, int], None]
    wall_ms: int
    shift_ms: int


@dataclass
class World:
    leases: Leases = field(default_factory=Leases)
    tokens: Tokens = field(default_factory=Tokens)
    jobs: dict[int, Job] = field(default_factory=dict)
    """Those that are live."""
    log: list[Logged] = field(default_factory=list)
    base: Cut = field(default_factory=lambda: Cut({}, 1))
    base_wall: int = 0


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.now = 1000
        self.wall = 1_800_000_000_000
        self.shift = self.wall - self.now
        """From the clock of this life to the one that is logged: fixed at the start, so that a wall clock that is set
        meanwhile changes nothing."""
        self.head = 0
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.evicted: set[int] = set()
        self.tokens_seen: set[int] = set()
        self.ended_tokens: set[int] = set()
        self.under_way: list[UnderWay] = []
        self.durable = False

    @initialize(durable=st.booleans())
    def begin(self, durable: bool) -> None:
        self.durable = durable
        self._reserve(0)

    # -- the log, as a store keeps it ----------------------------------------------------------------------------------

    def _submit(self, seqs: list[int], event: Callable[[Leases, int, int], None], model: Callable[[], None]) -> None:
        self.world.leases.hold(seqs, event)
        self.under_way.append(UnderWay(event, seqs, model))

    def _write(self, event: Callable[[Leases, int, int], None]) -> None:
        self.world.log.append(Logged(event, self.now + self.shift, self.shift))
        event(self.world.leases, self.now, 0)

    @precondition(lambda self: self.under_way)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def finish(self, fails: bool) -> None:
        done = self.under_way.pop(0)
        live = [seq for seq in done.seqs if seq in self.world.jobs]
        if fails:
            self.world.leases.give_back(live, self.now)
            for seq in live:
                if self.world.jobs[seq].state == "fresh":
                    self.world.jobs[seq].state = "ready"
            return
        self._write(done.event)
        done.model()

    def _in_hand(self) -> set[int]:
        return {seq for one in self.under_way for seq in one.seqs}

    def _reserve(self, count: int) -> None:
        ceiling = self.world.tokens.wanted(count)
        if ceiling is not None:
            self.world.tokens.ask(ceiling)
            self.world.tokens.apply_ceiling(ceiling)

    # -- what users do -------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5), delay_ms=st.sampled_from([0, 0, 50, 5000]))
    def enqueue(self, count: int, delay_ms: int) -> None:
        seqs = range(self.head + 1, self.head + count + 1)
        self.head += count
        for seq in seqs:
            self.world.jobs[seq] = Job()
        if delay_ms:
            ready_at = self.now + delay_ms
            for seq in seqs:
                self.world.jobs[seq] = Job("delayed", until=ready_at)
            self._write(
                lambda leases, now, shift: leases.apply_released(
                    [Released(seq, 0, ready_at + shift, 0) for seq in seqs if seq in self.world.jobs], now
                )
            )

    def _sweep(self) -> None:
        hand = self._in_hand()
        expired = self.world.leases.sweep(self.now)
        plain = []
        for seq, job in self.world.jobs.items():
            if seq in hand:
                continue
            if job.state == "leased" and self.now > job.until:
                plain.append((seq, job.token))
                job.state = "ready"
            elif job.state == "delayed" and job.until <= self.now:
                job.state = "ready"
        assert sorted(expired) == sorted(plain)
        self.ended_tokens.update(token for _, token in expired)
        if expired:
            rows = [Released(seq, token, 0, self.world.jobs[seq].deliveries) for seq, token in expired]
            self._write(lambda leases, now, shift: leases.apply_released(rows, now))

    @rule(
        asks=st.lists(
            st.tuples(HOLDERS, st.integers(1, 4), st.sampled_from([100, 1000, HOUR_MS])), min_size=1, max_size=3
        ),
        in_turn=st.booleans(),
    )
    def claim(self, asks: list[tuple[str, int, int]], in_turn: bool) -> None:
        self._sweep()
        world, hand = self.world, self._in_hand()
        free = [seq for seq in sorted(world.jobs) if seq not in hand]
        again = [seq for seq in free if world.jobs[seq].state == "ready"]
        spent = [seq for seq in again if world.jobs[seq].deliveries >= MAX_DELIVERIES]
        wanted = sum(most for _, most, _ in asks)
        order = [seq for seq in again if seq not in spent] + [seq for seq in free if world.jobs[seq].state == "fresh"]
        last_wanted = order[wanted - 1] if len(order) >= wanted else None
        deal = world.leases.deal(
            [Ask(*ask) for ask in asks],
            iter([seq for seq in sorted(world.jobs) if seq >= world.leases.position]),
            MAX_DELIVERIES,
            in_turn,
        )
        assert sorted(grant.seq for hand in deal.grants for grant in hand) == sorted(order[:wanted])
        assert all(seq in spent for seq in deal.spent)
        if last_wanted is None:
            assert deal.spent == spent
        for (_, most, _), grants in zip(asks, deal.grants, strict=True):
            assert len(grants) <= most
            assert grants == sorted(grants)
            if in_turn:
                assert sorted(order[:most]) == [grant.seq for grant in grants]
                del order[:most]
        for (holder, _, lease_ms), grants in zip(asks, deal.grants, strict=True):
            self._reserve(len(grants))
            first = world.tokens.take(len(grants))
            until = self.now + lease_ms
            rows = [Claimed(grant.seq, first + n, until, grant.deliveries) for n, grant in enumerate(grants)]
            assert not self.tokens_seen & {row.token for row in rows}
            self.tokens_seen.update(row.token for row in rows)
            self._submit_claim(holder, rows)
        for seq in deal.spent:
            self._submit_settled([seq], self.dead)

    def _submit_claim(self, holder: str, rows: list[Claimed]) -> None:
        def event(leases: Leases, now: int, shift: int) -> None:
            live = [row._replace(until=row.until + shift) for row in rows if row.seq in self.world.jobs]
            leases.apply_claimed(holder, live, now)

        self._submit([row.seq for row in rows], event, lambda: self._leased(holder, rows))

    def _leased(self, holder: str, rows: list[Claimed]) -> None:
        for row in rows:
            if row.seq in self.world.jobs:
                self.world.jobs[row.seq] = Job("leased", holder, row.token, row.until, row.deliveries)

    def _submit_settled(self, seqs: list[int], into: set[int]) -> None:
        def event(leases: Leases, now: int, shift: int) -> None:
            leases.apply_settled(seqs)

        def model() -> None:
            into.update(seq for seq in seqs if self.world.jobs.pop(seq, None) is not None)

        self._submit(seqs, event, model)

    def _mine(self, holder: str, seqs: list[int], wrong_token: bool) -> list[int]:
        """What the rules let the holder act on, checked against the model."""
        self._sweep()
        mine = []
        for seq in dict.fromkeys(seqs):
            if seq in self._in_hand():
                continue
            job = self.world.jobs.get(seq)
            token = (job.token if job else 0) + wrong_token
            why = self.world.leases.judge(seq, holder, token, self.now)
            if job is None:
                assert why == ("settled" if 0 < seq < self.world.leases.position else "unknown")
            elif job.state == "leased" and job.holder == holder and not wrong_token:
                assert why is None
                mine.append(seq)
            else:
                assert why is not None
        tokens = [self.world.jobs[seq].token for seq in mine]
        assert not mine or self.world.leases.holds_all(holder, mine, tokens)
        for seq in {*seqs, *mine[:1]}:
            if seq in mine:  # named twice
                assert not self.world.leases.holds_all(holder, [*mine, seq], [*tokens, None])
            else:
                given = self.world.jobs[seq].token + wrong_token if seq in self.world.jobs else None
                assert not self.world.leases.holds_all(holder, [seq, *mine], [given, *tokens])
        return mine

    @rule(holder=HOLDERS, seqs=st.lists(st.integers(1, 30), max_size=8), wrong_token=st.booleans())
    def ack(self, holder: str, seqs: list[int], wrong_token: bool) -> None:
        mine = self._mine(holder, seqs, wrong_token)
        self._submit_settled(mine, self.acked)

    @rule(holder=HOLDERS, seqs=st.lists(st.integers(1, 30), max_size=8), delay_ms=st.sampled_from([0, 10, HOUR_MS]))
    def nack(self, holder: str, seqs: list[int], delay_ms: int) -> None:
        mine = self._mine(holder, seqs, False)
        ready_at = self.now + delay_ms
        rows = [(seq, self.world.jobs[seq].token, self.world.jobs[seq].deliveries) for seq in mine]

        def event(leases: Leases, now: int, shift: int) -> None:
            at = ready_at + shift if delay_ms else 0
            leases.apply_released([Released(seq, token, at, count) for seq, token, count in rows], now)

        def model() -> None:
            for seq in mine:
                if seq in self.world.jobs:
                    job = self.world.jobs[seq]
                    self.ended_tokens.add(job.token)
                    job.state = "delayed" if ready_at > self.now else "ready"
                    job.until = ready_at

        self._submit(mine, event, model)

    @rule(holder=HOLDERS, seqs=st.lists(st.integers(1, 30), max_size=8), lease_ms=st.sampled_from([100, HOUR_MS]))
    def extend(self, holder: str, seqs: list[int], lease_ms: int) -> None:
        mine = self._mine(holder, seqs, False)
        until = self.now + lease_ms
        rows = [(seq, self.world.jobs[seq].token) for seq in mine]

        def event(leases: Leases, now: int, shift: int) -> None:
            leases.apply_extended([Extended(seq, token, until + shift) for seq, token in rows], now)

        def model() -> None:
            for seq in mine:
                if seq in self.world.jobs:
                    self.world.jobs[seq].until = until

        self._submit(mine, event, model)

    @rule(first=st.integers(1, 30), count=st.sampled_from([1, 2, 100]))
    def evict(self, first: int, count: int) -> None:
        """A cap, a TTL or a delete by tag: whatever is under way for these records finds them gone."""
        last = first + count - 1

        def event(leases: Leases, now: int, shift: int) -> None:
            leases.forget(first, last)

        self._write(event)
        for seq in range(first, min(last, self.head) + 1):
            if self.world.jobs.pop(seq, None) is not None:
                self.evicted.add(seq)

    # -- what happens to them ------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 99, 100, 101, 1000, 60_000]))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.wall += ms

    @rule(ms=st.sampled_from([-HOUR_MS, HOUR_MS]))
    def set_wall_clock(self, ms: int) -> None:
        self.wall += ms

    @rule()
    def checkpoint(self) -> None:
        self.world.base = unpack(pack(self.world.leases.cut(), self.shift)).cut()
        self.world.base_wall = self.now + self.shift
        self.world.log = []

    @rule(mono=st.integers(0, 10_000), again=st.booleans())
    def crash(self, mono: int, again: bool) -> None:
        world = self.world
        leases = Leases(world.base.position)
        leases.keep(dict(world.base.entries))
        for _ in range(1 + again):
            for one in world.log:
                one.event(leases, one.wall_ms, one.shift_ms)
        then = max([self.wall, world.base_wall, *(one.wall_ms for one in world.log)])
        leases.restart(then, mono, self.durable)
        world.tokens.restart(None)
        world.leases = leases
        self.under_way = []
        for seq, job in world.jobs.items():
            left = job.until + self.shift - then
            if job.state == "leased" and (not self.durable or left < 0):
                self.ended_tokens.add(job.token)
                job.state = "ready"
            elif job.state == "delayed" and left <= 0:
                job.state = "ready"
            elif job.state == "ready" and not job.deliveries:
                # Nobody logs that a delay is over, nor that a fresh record came back: either may be so again.
                entry = leases.entries.get(seq)
                job.state = "fresh" if entry is None else "delayed" if entry.kind == Kind.DELAYED else "ready"
            elif job.state == "ready" and leases.entries[seq].kind == Kind.DELAYED:
                job.state = "delayed"
            job.until = mono + min(left, FAR_MS)
        self.now, self.shift = mono, then - mono
        self.checkpoint()

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    def every_job_is_somewhere(self) -> None:
        states = [job.state for job in self.world.jobs.values()]
        leases = self.world.leases
        assert (leases.leased, leases.delayed) == (states.count("leased"), states.count("delayed"))
        assert len(states) + len(self.acked) + len(self.dead) + len(self.evicted) == self.head
        assert not self.acked & self.world.jobs.keys()
        assert not self.acked & leases.entries.keys()

    @invariant()
    def no_ended_lease_lives(self) -> None:
        live = [entry.token_of(seq) for seq, entry in self.world.leases.entries.items() if entry.kind == Kind.LEASED]
        assert len(live) == len(set(live))
        assert not self.ended_tokens & set(live)

    @invariant()
    def entries_are_what_the_model_has(self) -> None:
        for seq, entry in self.world.leases.entries.items():
            job = self.world.jobs[seq]
            assert entry.deliveries == job.deliveries, (seq, entry, job)
            if entry.kind == Kind.LEASED:
                assert (entry.holder, entry.token_of(seq), entry.until) == (job.holder, job.token, job.until)

    @invariant()
    def nothing_unsettled_lies_below_the_lowest(self) -> None:
        assert all(seq >= self.world.leases.lowest() for seq in self.world.jobs)


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
