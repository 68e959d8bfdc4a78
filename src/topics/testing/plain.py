"""The plain model of one topic: dicts and loops, no files, no frames, nothing shared with the engine.

An operation states what it does to a topic (which records, which floor), so any prefix of a history can be folded
into the state it leaves. That is what recovery is compared with: a log that was cut somewhere is a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from topics.model.config import Durability, TopicConfig
from topics.model.record import Gap, GapReason, Record


def size_of(record: Record) -> int:
    """Accounted bytes: compact data and compact meta."""
    return len(record.raw) + len(record.meta_raw or b"")


@dataclass(slots=True)
class State:
    config: TopicConfig
    head: int = 0
    last_ts: int = 0
    evict_floor: int = 0
    expiry_floor: int = 0
    delete_below: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    """The live ones, ascending."""
    lost: dict[int, GapReason] = field(default_factory=dict)
    """Seqs that a reader is told of, each with its reason."""
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Idempotency key -> first seq, count, ts."""
    ram: set[int] = field(default_factory=set)
    """Seqs that were handed out in RAM alone."""
    solid: int = 0
    """The head without what RAM added to it."""
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Routers into this topic: id -> cursor, copies and holes so far. Those that copied nothing yet are not here."""
    txns: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Committed transactions: first seq and count; of an app only the highest version."""

    def copy(self) -> State:
        return State(
            self.config, self.head, self.last_ts, self.evict_floor, self.expiry_floor, self.delete_below,
            dict(self.records), dict(self.lost), dict(self.keys), set(self.ram), self.solid, dict(self.progress),
            dict(self.txns),
        )  # fmt: skip

    @property
    def durability(self) -> Durability:
        return self.config.commit_class

    @property
    def involuntary_floor(self) -> int:
        return max(self.evict_floor, self.expiry_floor)

    @property
    def floor(self) -> int:
        return max(self.involuntary_floor, self.delete_below - 1)

    @property
    def earliest_seq(self) -> int:
        return next(iter(self.records), self.head + 1)

    @property
    def bytes(self) -> int:
        return sum(map(size_of, self.records.values()))

    def kill(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.records.pop(seq, None)

    def lose(self, seqs: Collection[int], reason: GapReason) -> None:
        """Seqs that are gone against anyone's will; what was said of one before stays said."""
        for seq in seqs:
            self.records.pop(seq, None)
            if seq > self.involuntary_floor:
                self.lost.setdefault(seq, reason)
            self.head = max(self.head, seq)
        gone = set(seqs)
        self.keys = {key: row for key, row in self.keys.items() if row[0] not in gone}

    def raise_floors(self, evict_floor: int = 0, expiry_floor: int = 0, delete_below: int = 0) -> None:
        self.evict_floor = max(self.evict_floor, evict_floor)
        self.expiry_floor = max(self.expiry_floor, expiry_floor)
        self.delete_below = max(self.delete_below, delete_below)
        floor = self.floor
        self.head = max(self.head, floor)
        self.kill([seq for seq in self.records if seq <= floor])
        known = self.involuntary_floor
        self.lost = {seq: reason for seq, reason in self.lost.items() if seq > known}

    def items(self, cursor: int) -> Iterator[Record | Gap]:
        """What a reader behind `cursor` gets, gaps joined where they touch and have one reason."""
        floor = self.involuntary_floor
        if cursor < floor:
            by_cap, by_ttl = self.evict_floor > cursor, self.expiry_floor > cursor
            yield Gap(cursor + 1, floor, "mixed" if by_cap and by_ttl else "cap" if by_cap else "ttl")
            cursor = floor
        both: list[Record | Gap] = [record for seq, record in self.records.items() if seq > cursor]
        both += [Gap(seq, seq, reason) for seq, reason in self.lost.items() if seq > cursor]
        yield from join_gaps(sorted(both, key=place))


def place(item: Record | Gap) -> int:
    return item.gap_from if isinstance(item, Gap) else item.seq


def join_gaps(items: Iterable[Record | Gap]) -> Iterator[Record | Gap]:
    """Neighbouring gaps of one reason as one gap: how a range was cut into pieces tells a reader nothing."""
    open_gap: Gap | None = None
    for item in items:
        if not isinstance(item, Gap):
            if open_gap is not None:
                yield open_gap
                open_gap = None
            yield item
        elif open_gap is not None and open_gap.reason == item.reason and open_gap.gap_to + 1 == item.gap_from:
            open_gap = Gap(open_gap.gap_from, item.gap_to, item.reason)
        else:
            if open_gap is not None:
                yield open_gap
            open_gap = item
    if open_gap is not None:
        yield open_gap


# -- operations: each one submission, whole or absent ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a router into the topic is, in one submission with what it copied."""

    router_id: int
    cursor: int
    forwarded: int

    def apply(self, state: State) -> None:
        state.progress[self.router_id] = (self.cursor, self.forwarded)


@dataclass(slots=True)
class Appended:
    records: list[Record]
    key: str | None = None
    evict_floor: int = 0
    ram: bool = False
    progress: Progress | None = None
    """The records are copies."""

    def apply(self, state: State) -> None:
        first, last = self.records[0], self.records[-1]
        for record in self.records:
            if record.seq > state.floor:
                state.records[record.seq] = record
            if self.ram:
                state.ram.add(record.seq)
        state.head = last.seq
        if not self.ram:
            state.solid = last.seq
        state.last_ts = max(state.last_ts, first.ts)
        if self.key is not None:
            state.keys[self.key] = (first.seq, len(self.records), first.ts)
        state.raise_floors(evict_floor=self.evict_floor)
        if self.progress is not None:
            self.progress.apply(state)


@dataclass(slots=True)
class Missed:
    """Records that a router's source lost before they were copied, one hole each; none = they were passed over."""

    first: int
    last: int
    progress: Progress
    ram: bool = False

    @property
    def seqs(self) -> range:
        return range(self.first, self.last + 1)

    def apply(self, state: State) -> None:
        state.lose(self.seqs, "source_trim")
        if self.ram:
            state.ram.update(self.seqs)
        elif self.seqs:
            state.solid = self.last
        self.progress.apply(state)


@dataclass(slots=True)
class Staged:
    """Records of staged parts, and the transaction by which their commit is remembered."""

    first: int
    records: list[Record]
    txn: str
    verdict: Callable[[], bool | None] = lambda: True
    """Whether it was committed; None = nobody knows yet. What was not leaves its seqs empty."""
    ram: bool = False

    @property
    def committed(self) -> bool:
        return self.verdict() is not False

    def apply(self, state: State) -> None:
        if self.records:
            state.head = state.solid = self.records[-1].seq
        if not self.committed:
            return
        for record in self.records:
            if record.seq > state.floor:
                state.records[record.seq] = record
            state.last_ts = max(state.last_ts, record.ts)
        app, is_versioned, _ = self.txn.partition("@")
        if is_versioned:
            state.txns = {txn: row for txn, row in state.txns.items() if txn.partition("@")[0] != app}
        state.txns[self.txn] = (self.first if self.records else 0, len(self.records))


@dataclass(slots=True)
class Deleted:
    below: int
    seqs: frozenset[int]
    ram: bool = False

    def apply(self, state: State) -> None:
        state.raise_floors(delete_below=self.below)
        state.kill(self.seqs)
        if not self.ram:
            state.solid = max(state.solid, state.floor)


@dataclass(slots=True)
class Evicted:
    evict_floor: int
    expiry_floor: int
    ram: bool = False

    def apply(self, state: State) -> None:
        state.raise_floors(evict_floor=self.evict_floor, expiry_floor=self.expiry_floor)
        if not self.ram:
            state.solid = max(state.solid, state.floor)


@dataclass(slots=True)
class Configured:
    config: TopicConfig
    head: int = 0
    """Where the seqs stand, said when a class is left that promises nothing about them."""
    left: tuple[int, ...] = ()
    """Live records in RAM that stay behind."""
    holes: tuple[int, ...] = ()
    """What a router's source had lost, and only RAM knew of."""
    ram: bool = False

    def apply(self, state: State) -> None:
        state.config = self.config
        state.head = max(state.head, self.head)
        state.solid = max(state.solid, self.head)
        state.lose(self.left, "restart")
        state.lose(self.holes, "source_trim")


@dataclass(slots=True)
class Created:
    config: TopicConfig
    ram: bool = False


@dataclass(slots=True)
class Dropped:
    ram: bool = False


Change = Appended | Missed | Staged | Deleted | Evicted | Configured | Created | Dropped


def fold(state: State | None, change: Change) -> State | None:
    """The state behind one more operation; None = there is no such topic."""
    if isinstance(change, Created):
        return State(change.config)
    if isinstance(change, Dropped):
        return None
    assert state is not None, "a topic changes only while it is there"
    change.apply(state)
    return state


def oldest_over_cap(records: list[Record], config: TopicConfig) -> set[int]:
    """The seqs that the caps evict of these live records, ascending: the oldest ones, no more than needed."""
    count, size = len(records), sum(map(size_of, records))
    gone: set[int] = set()
    for record in records:
        over = (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes)
        if not over:
            break
        gone.add(record.seq)
        count -= 1
        size -= size_of(record)
    return gone
