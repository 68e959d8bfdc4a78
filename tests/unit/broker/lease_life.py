"""A store on a fake disk and the same on paper: calls, crashes in their middle, and what may be left of them.

Of a kill everything that was written is left. Of a power cut: what was synced, and of the rest a beginning. So the
paper is kept as it was after every written step since the last sync, and what a start shows has to be one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.unit.broker.engine import Bench
from tests.unit.broker.plain_leases import FRESH, SETTLED, Item, Paper, Shown, Steps
from topics.format.control import Selector, SelectorOp
from topics.format.ops import prepare
from topics.model.config import TopicConfig
from topics.model.leaserows import LeaseRow
from topics.rules.lease import Leases
from topics.rules.lease_values import Entry, Kind
from topics.storage.topic import Topic
from topics.testing.cut import Mode
from topics.testing.disk import CrashKind, PowerOff

T = TypeVar("T")

HOUR_MS = 3_600_000
KINDS: st.SearchStrategy[CrashKind] = st.sampled_from(("kill", "power"))
THEN: st.SearchStrategy[CrashKind | None] = st.sampled_from((None, None, "kill", "power", "power"))
"""How the process ends behind a promise: what was synced is all that a cut leaves."""
TAGS = st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=6)
PICKS = st.lists(st.integers(0, 60), min_size=1, max_size=5)
_SIZE = len('"0123456789"')
_KINDS = {Kind.READY: "ready", Kind.LEASED: "leased", Kind.DELAYED: "delayed", Kind.PARKED: "parked"}


class LeaseLife(RuleBasedStateMachine):
    name = "t"
    tag: str | None = None
    """The records that count, where not all do."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(reserve_seqs=8, segment_max_events=5)
        self.bench.clock.advance(100 * HOUR_MS)  # a machine that runs: a time of 0 is none
        self.paper = Paper(0)
        self.since: list[Paper] = []
        """As it was after each step since the last sync."""
        self.doom: tuple[int, CrashKind] | None = None
        self.last_number = 0
        """Of tokens and generations: each is above all before it."""
        self.config = TopicConfig()

    def set_up(self, config: TopicConfig) -> None:
        self.config = config
        self.bench.run(self.bench.broker.put_topic(self.name, config))
        self.paper = Paper(self.bench.clock.now_ms() - self.now)
        self.since = [self.paper.copy()]

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.bench.clock.monotonic_ns() // 1_000_000

    @property
    def wall(self) -> int:
        return self.bench.clock.now_ms()

    @property
    def topic(self) -> Topic:
        return self.bench.store.topics[self.name]

    @property
    def fsync(self) -> bool:
        return self.config.durability == "fsync"

    def leases(self) -> Leases:
        raise NotImplementedError

    def is_settled(self, seq: int) -> bool:
        """Of a record that is there and has no entry."""
        raise NotImplementedError

    def members(self) -> dict[str, int]:
        return {}

    def live(self) -> list[int]:
        dead, end = self.topic.dead, self.topic.head + 1
        seqs, seq = [], dead.next_live(1, end)
        while seq < end:
            seqs.append(seq)
            seq = dead.next_live(seq + 1, end)
        return seqs

    def view(self, paper: Paper) -> dict[int, Shown]:
        """What the engine has, of the records that the paper says count."""
        shown = {}
        for seq in self.live():
            record = paper.live.get(seq)
            if record is None or (self.tag is not None and record.tag != self.tag):
                continue
            entry = self.leases().entries.get(seq)
            shown[seq] = (SETTLED if self.is_settled(seq) else FRESH) if entry is None else self._shown(seq, entry)
        return shown

    def _shown(self, seq: int, entry: Entry) -> Shown:
        item = Item(_KINDS[Kind(entry.kind)], entry.holder, entry.token_of(seq), entry.until, entry.deliveries)
        return item.shown(self.now)

    def difference(self, paper: Paper) -> str:
        """What the engine and the paper do not agree on; empty = nothing."""
        if not paper.head <= self.topic.head or (self.config.durability != "disk" and paper.head < self.topic.head):
            return f"head {self.topic.head}, expected {paper.head}"
        live, wanted = self.live(), sorted(paper.live)
        if live != wanted:
            return f"records {live} are there, expected {wanted}"
        seen, expected = self.view(paper), paper.view(self.now, self.tag)
        for seq, shown in expected.items():
            if seen[seq] != shown:
                return f"record {seq} is {seen[seq]}, expected {shown}"
        present = self.members()
        known = {name: generation for name, (generation, _) in paper.members.items()}
        if present.keys() != known.keys() or any(known[name] not in (0, present[name]) for name in known):
            return f"members {present}, expected {known}"
        return ""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def do(self, call: Callable[[], T], steps: Callable[[Paper], Steps]) -> T | None:
        """The call and what it should do. None = it was never answered, and the store was started again."""
        after, states = self.paper.copy(), []
        for synced in steps(after):
            states.append((after.copy(), synced))
        doom, self.doom = self.doom, None
        disk = self.bench.disk
        if doom is not None:
            disk.crash_at(disk.calls + doom[0], doom[1])
        try:
            result = call()
            self._write_all()
        except PowerOff:
            assert doom is not None
            self._start(self._left_by(doom[1]) + [paper for paper, _ in states])
            return None
        finally:
            disk.crash_at(None)
        self.paper = after
        for paper, synced in states:
            self.since = [paper] if synced else [*self.since, paper]
        return result

    def _write_all(self) -> None:
        """What nobody waits for reaches the log, too."""
        for shard in self.bench.store.shards:
            while self.bench.store.step(shard):
                pass

    def number(self, given: int) -> None:
        assert given > self.last_number, f"{given} was given out, and {self.last_number} before it"
        self.last_number = given

    def leased(self, rows: Sequence[LeaseRow], holder: str, expected: list[int]) -> None:
        """What a claim answered is what the paper says it gets; only the tokens are news."""
        assert [row[0] for row in rows] == sorted(expected)
        for seq, token, until, count in rows:
            self.number(token)
            item = self.paper.items[seq]
            assert (item.holder, item.until, item.count) == (holder, until, count)
            item.token = token
        self.since[-1] = self.paper.copy()

    def chosen(self, holder: str, picks: list[int]) -> list[int]:
        """Records to act on: half of the picks are among those that the holder has."""
        known = [seq for seq in sorted(self.paper.live) if self.tag in (None, self.paper.live[seq].tag)]
        mine = [seq for seq, item in sorted(self.paper.items.items()) if item.holder == holder]
        if not known:
            return []
        among = [mine if pick % 2 and mine else known for pick in picks]
        return list(dict.fromkeys(seqs[pick // 2 % len(seqs)] for seqs, pick in zip(among, picks, strict=True)))

    # -- crashes -------------------------------------------------------------------------------------------------------

    def _left_by(self, kind: CrashKind) -> list[Paper]:
        return [self.paper] if kind == "kill" else [*self.since, self.paper]

    def _start(self, possible: list[Paper]) -> None:
        self.bench.disk.restart()
        self.bench.open()
        why = ""
        for found in reversed(possible):
            paper = found.copy()
            paper.restart(self.wall, self.now, self.config.leases_durable)
            difference = self.difference(paper)
            # What came back without a count is as good as fresh to whoever looks, and yet an earlier state.
            if not difference and not paper.items.keys() <= self.leases().entries.keys():
                difference = "what came back was never given"
            if not difference:
                break
            why = why or difference
        else:
            raise AssertionError(f"after a crash: {why}; nor is it any of {len(possible) - 1} earlier states")
        paper.evicted.update(range(paper.head + 1, self.topic.head + 1))
        paper.head, paper.last_ts, paper.floor = self.topic.head, self.topic.last_ts, self.topic.involuntary_floor
        for seq, item in paper.items.items():
            item.token = self.leases().entries[seq].token_of(seq)
            item.last_ms = self.leases().entries[seq].last_ms
        present = self.members()
        paper.members = {name: (present[name], seen) for name, (_, seen) in paper.members.items()}
        self.paper = paper
        self.since = [paper.copy()]
        self.started()

    def started(self) -> None:
        """What else is to be looked at after a start."""

    @rule(calls=st.integers(1, 6), kind=KINDS)
    def crash_in_the_next_call(self, calls: int, kind: CrashKind) -> None:
        self.doom = (calls, kind)

    @rule(kind=KINDS, mode=st.sampled_from((None, None, "all_lost")))
    def crash(self, kind: CrashKind, mode: Mode | None = "all_lost") -> None:
        self.doom = None
        if kind == "kill":
            self.bench.disk.kill()
        else:
            self.bench.disk.power_cut(mode=mode)
        self._start(self._left_by(kind))

    @rule(clean=st.booleans())
    def checkpoint(self, clean: bool) -> None:
        self.doom = None
        changed = self.topic.dirty or clean
        assert self.bench.store.checkpoint(clean=clean)
        if changed:
            self.paper.saved(self.now)
        self.since = [self.paper.copy()]
        if clean:
            self.bench.store.release()
            self._start([self.paper])

    # -- time, and what goes by itself ---------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 400, 999, 1_001, 5_001)))
    def pass_time(self, ms: int) -> None:
        self.bench.clock.advance(ms)

    @rule(ms=st.sampled_from((-HOUR_MS, HOUR_MS)))
    def set_the_wall_clock(self, ms: int) -> None:
        self.bench.clock.step_wall(ms)

    def guard(self) -> tuple[int, int] | None:
        """Where retention has to wait for somebody, and how many bytes of it; None = for nobody."""
        return None

    def retention(self, paper: Paper) -> Steps:
        """What a sweep of the topic takes."""
        guard = self.guard()
        yield from self._evict(paper, paper.too_much(self.config.cap_records, self.config.ttl_ms, self.wall), guard)

    def _evict(self, paper: Paper, floor: int, guard: tuple[int, int] | None) -> Steps:
        if not floor:
            return
        if guard is not None:
            floor = paper.allowed(floor, *guard)
        if any(seq <= floor for seq in paper.live):
            paper.evict(floor)
            yield False

    @rule(tags=TAGS)
    def append(self, tags: list[str]) -> None:
        self.add(tags, [0] * len(tags))

    append_twice_as_often = append

    def add(self, tags: list[str], delays: list[int]) -> None:
        prepared = prepare([{"data": "0123456789", "tag": tag} for tag in tags])
        prepared.delays = delays if any(delays) else None
        guard, now = self.guard(), self.now

        def steps(paper: Paper) -> Steps:
            yield from self.retention(paper)
            first = paper.head + 1
            paper.append(tags, _SIZE, self.wall)
            for seq, delay in enumerate(delays, first):
                if delay:
                    paper.items[seq] = Item("delayed", until=now + delay, last_ms=now)
                    paper.logged(now)
            floor = paper.too_much(self.config.cap_records, 0, self.wall)
            if guard is not None and floor:
                floor = paper.allowed(floor, *guard)
            paper.evict(floor)
            yield self.fsync

        self.do(lambda: self.bench.run(self.bench.broker.append(self.name, prepared, None, None, False)), steps)

    @rule(tag=st.sampled_from(("a", "b")))
    def delete_by_tag(self, tag: str) -> None:
        def steps(paper: Paper) -> Steps:
            yield from self.retention(paper)
            hit = [seq for seq, kept in paper.live.items() if kept.tag == tag]
            if hit:
                paper.remove(hit, paper.evicted)
                yield self.fsync

        self.do(lambda: self.bench.run(self.bench.broker.delete(self.name, None, Selector(SelectorOp.EQ, tag))), steps)

    @precondition(lambda self: self.paper.head)
    @rule(back=st.integers(0, 20))
    def delete_the_oldest(self, back: int) -> None:
        below = max(self.paper.head - back, 1)

        def steps(paper: Paper) -> Steps:
            yield from self.retention(paper)
            hit = [seq for seq in paper.live if seq < below]
            paper.remove(hit, paper.evicted)
            yield self.fsync and bool(hit)  # where nothing is left to delete, nothing is written

        self.do(lambda: self.bench.run(self.bench.broker.delete(self.name, below, None)), steps)

    # -- what holds ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every record is in one place, in the engine and on paper the same."""
        assert not (difference := self.difference(self.paper)), difference
        paper = self.paper
        parts = [paper.live.keys(), paper.acked, paper.dead, paper.evicted]
        assert sum(len(part) for part in parts) == paper.head, "every record is in exactly one place"
        tokens = [entry.token_of(seq) for seq, entry in self.leases().entries.items() if entry.kind == Kind.LEASED]
        assert len(tokens) == len(set(tokens)), "one lease, one token"
