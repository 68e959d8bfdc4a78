"""Who has which record, as a list on paper would say it: the model that queues and groups of a real store are held
against. It knows nothing of positions, heaps or frames: a record is fresh, handed out, waiting, parked or settled."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

from topics.rules.lease import FAR_MS

Steps = Iterator[bool]
"""An operation on the paper, one written step at a time: True = with it all that came before is synced."""

Shown = tuple[str, str, int, int]
"""(state, holder, until, deliveries) of one record; holder and until only where they say something."""
FRESH: Shown = ("ready", "", 0, 0)
SETTLED: Shown = ("settled", "", 0, 0)


@dataclass(slots=True)
class Item:
    """A record that was handed out, or has to wait."""

    state: str
    holder: str = ""
    token: int = 0
    until: int = 0
    count: int = 0
    last_ms: int = 0
    """When it was handed out or extended last."""
    over: bool = False
    """The delay was seen to be over. Nobody logs that: after a crash it is looked at again."""

    def at(self, now: int) -> str:
        if self.state == "leased" and now > self.until:
            return "ready"
        if self.state == "delayed" and (self.over or now >= self.until):
            return "ready"
        return self.state

    def shown(self, now: int) -> Shown:
        state = self.at(now)
        until = self.until if state in ("leased", "delayed") else 0
        return state, self.holder if state == "leased" else "", until, self.count


@dataclass(slots=True)
class Kept:
    ts: int
    tag: str
    size: int


@dataclass(slots=True)
class Paper:
    shift: int
    """From the monotonic clock of this life to the one that is logged."""
    head: int = 0
    last_ts: int = 0
    floor: int = 0
    """The last one that a cap or an age took."""
    live: dict[int, Kept] = field(default_factory=dict)
    items: dict[int, Item] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    """Done with, and still in the topic: only groups have such."""
    acked: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    """Whose end is in the topic of dead letters."""
    evicted: set[int] = field(default_factory=set)
    """Gone in another way, or lost with the power before anybody was promised anything."""
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    """name -> (generation, when it was heard of)."""
    committed: int = 1
    """Of a stream-mode group, as the next one."""
    handed: int = 0
    """The last seq that was handed out since the cursor fell back to `committed`."""
    seen_ms: int = 0
    """The latest logged time."""

    def copy(self) -> Paper:
        return copy.deepcopy(self)

    # -- what there is -------------------------------------------------------------------------------------------------

    def fresh(self, tag: str | None = None) -> list[int]:
        return [
            seq
            for seq in sorted(self.live)
            if seq not in self.items and seq not in self.settled and (tag is None or self.live[seq].tag == tag)
        ]

    def view(self, now: int, tag: str | None = None) -> dict[int, Shown]:
        shown = {}
        for seq, record in self.live.items():
            if tag is not None and record.tag != tag:
                continue
            item = self.items.get(seq)
            shown[seq] = SETTLED if seq in self.settled else FRESH if item is None else item.shown(now)
        return shown

    def why(self, seq: int, holder: str, token: int | None, now: int, freeing: bool = False) -> str | None:
        """Why a holder may not act on a record that is there; None = it may."""
        item = self.items.get(seq)
        if item is None:
            return "settled" if seq in self.settled else "unknown"
        if freeing and item.state == "parked":
            return None
        if not item.count:
            return "unknown"
        if item.holder != holder:
            return "member"
        if item.at(now) != "leased":
            return "expired"
        return "token" if token is not None and token != item.token else None

    # -- what happens to it --------------------------------------------------------------------------------------------

    def logged(self, now: int) -> None:
        self.seen_ms = max(self.seen_ms, now + self.shift)

    def append(self, tags: list[str], size: int, wall: int) -> None:
        self.last_ts = max(self.last_ts, wall)
        for tag in tags:
            self.head += 1
            self.live[self.head] = Kept(self.last_ts, tag, size)

    def remove(self, seqs: list[int], into: set[int]) -> None:
        for seq in seqs:
            if self.live.pop(seq, None) is not None:
                self.items.pop(seq, None)
                self.settled.discard(seq)
                into.add(seq)

    def sweep(self, now: int, durable: bool) -> None:
        """Leases and delays that are over end; that of a durable lease is logged."""
        for item in self.items.values():
            if item.state == "leased" and now > item.until:
                item.state, item.until = "ready", 0
                if durable:
                    self.logged(now)
            elif item.state == "delayed" and now >= item.until:
                item.over = True

    def pick(self, most: int, max_count: int, fresh: list[int], now: int) -> tuple[list[int], list[int]]:
        """What one who asks gets: what came back first, lowest seq first; and what was handed out too often."""
        picked: list[int] = []
        spent: list[int] = []
        for seq in sorted(self.items):
            if len(picked) == most:
                break
            if self.items[seq].at(now) == "ready":
                (spent if self.items[seq].count >= max_count > 0 else picked).append(seq)
        return picked + fresh[: most - len(picked)], spent

    def lease(self, holder: str, seqs: list[int], lease_ms: int, now: int) -> None:
        for seq in seqs:
            known = self.items.get(seq)
            count = 1 if known is None else known.count + 1
            self.items[seq] = Item("leased", holder, 0, now + lease_ms, count, now)
        if seqs:
            self.logged(now)

    def release(self, seq: int, delay_ms: int, count: int, now: int) -> None:
        item = self.items[seq]
        item.state, item.until = ("delayed", now + delay_ms) if delay_ms else ("ready", 0)
        item.count, item.over = count, False
        self.logged(now)

    def leave(self, member: str, now: int) -> None:
        del self.members[member]
        for item in self.items.values():
            if item.state == "leased" and item.holder == member:
                item.state, item.until = "ready", 0
        if not self.members:
            self.handed = 0
        self.logged(now)

    def seek(self, position: int, now: int) -> None:
        self.items = {}
        self.settled = {seq for seq in self.live if seq < position}
        self.committed, self.handed = position, 0
        self.logged(now)

    def park(self, seq: int) -> None:
        item = self.items[seq]
        item.state, item.until, item.over = "parked", 0, False

    # -- what goes by itself -------------------------------------------------------------------------------------------

    def too_much(self, cap: int, ttl_ms: int, wall: int) -> int:
        """The last seq that a cap or an age would take; 0 = none."""
        seqs = sorted(self.live)
        over = max(len(seqs) - cap, 0) if cap else 0
        old = sum(1 for seq in seqs if ttl_ms and self.live[seq].ts < wall - ttl_ms)
        return seqs[max(over, old) - 1] if max(over, old) else 0

    def allowed(self, floor: int, committed: int, hold_bytes: int) -> int:
        """How much of that may happen where a group that is at `committed` may hold back so many bytes."""
        if committed > floor:
            return floor
        held = sum(kept.size for seq, kept in self.live.items() if committed <= seq <= floor)
        if held <= hold_bytes:
            return committed - 1
        if not hold_bytes:
            return floor
        left = sum(kept.size for seq, kept in self.live.items() if seq <= floor)
        for seq in sorted(self.live):
            if left <= hold_bytes:
                return max(committed - 1, seq - 1)
            left -= self.live[seq].size
        return floor

    def evict(self, floor: int) -> None:
        gone = [seq for seq in self.live if seq <= floor]
        self.floor = max([self.floor, *gone])
        self.remove(gone, self.evicted)

    # -- lives ---------------------------------------------------------------------------------------------------------

    def saved(self, now: int) -> None:
        """A snapshot was written: it has the state as it is, not how it came about."""
        self.logged(now)
        for item in self.items.values():
            if item.over:
                item.state, item.until, item.over = "ready", 0, False

    def restart(self, wall: int, now: int, keep_leases: bool) -> None:
        then = max(wall, self.seen_ms)
        for item in self.items.values():
            until = item.until + self.shift
            if item.state == "leased" and (not keep_leases or then > until):
                item.state, item.until = "ready", 0
                if keep_leases:
                    self.seen_ms = then
            elif item.state in ("leased", "delayed"):
                item.until = now + min(until - then, FAR_MS)
                item.over = item.state == "delayed" and until <= then
            item.last_ms = now - max(then - (item.last_ms + self.shift), 0)
        self.members = {name: (generation, now) for name, (generation, _) in self.members.items()}
        self.handed = 0
        self.shift = then - now
