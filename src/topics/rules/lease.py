"""Who holds which record, until when: the one set of lease rules under queues and consumer groups. No I/O, no clock.

A queue's ack deletes the record, a group's ack settles it for the group; both call `apply_settled`. `holder` is a node
or a group's member. Every time is `now_ms` of one clock of the caller's: monotonic while a process lives. During replay
it is the wall time that was logged, and `restart` moves the state from the one to the other.

A record is *fresh* until it is first handed out. From then on (or from when it is delayed) it has an `Entry`, which is
READY to be handed out again, LEASED, DELAYED or PARKED, until it is settled. A seq at or above `position` is fresh
unless it has an entry; one below it without an entry is settled.

A call decides first and applies later, when what it logged is written. In between the seqs are *in hand*: nobody else
is given them, and they do not expire.

    decide   sweep        leases that ran out and delays that are over become READY. Call it first, each time.
             deal         who gets what: READY ones first, lowest seq first, then fresh ones; round robin over the asks
             deal_idle    the same by idle time, from whoever holds it: what a group's claim does
             judge        why a holder may not ack, nack or extend; None = it may. `under_way` first: to wait for
             held_by      what a holder has, to be released when it goes
             hold         the seqs are in hand, for `what`; `deal` does it by itself
             give_back    what was decided will not happen
    apply    apply_claimed, apply_released (nack, expiry that was logged, delay), apply_extended, apply_parked,
             apply_settled, forget (the record is gone); each ends being in hand. Live and in replay alike: what names a
             token that is not the entry's last one changes nothing, so that replaying twice is replaying once.
    look     tally, lowest, listing, entries
    keep     cut, restart; `topics.rules.lease_columns` packs a cut for the snapshot and unpacks it

Nothing here costs more because more is pending: heaps drop what no longer counts when they meet it, and are built anew
once half of them is such. There is no timer per lease.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from topics.model.job import Why
from topics.rules.share import share

SPENT_MAX: Final = 1000
"""Records that one deal takes out because they were handed out too often: each has its own way to the dead letters."""

SLACK: Final = 1024
"""A heap is built anew when what no longer counts exceeds what does by this much."""

FAR_MS: Final = 86_400_000
"""No lease and no delay is longer: what a restart finds further ahead was written under another clock."""


class Kind(enum.IntEnum):
    READY = 0
    LEASED = 1
    DELAYED = 2
    PARKED = 3
    """Handed out too often, with nowhere to go: waits for somebody to free it."""


READY, LEASED, DELAYED, PARKED = (int(kind) for kind in Kind)


class Entry(NamedTuple):
    """Never changed, only replaced: so a copy of all entries is a copy of one dict."""

    kind: int
    holder: str
    """Who has it, or had it last."""
    token: int
    """Of the last lease, 0 = none yet. Later leases have greater ones."""
    until: int
    """LEASED: the last ms of the lease. DELAYED: the first ms at which it may be handed out."""
    deliveries: int
    """How often it was handed out."""
    first_ms: int
    last_ms: int
    """First time it was handed out; last time that, or that the lease was extended."""


class Ask(NamedTuple):
    holder: str
    most: int
    lease_ms: int


class Grant(NamedTuple):
    seq: int
    deliveries: int
    """This delivery included."""


@dataclass(slots=True)
class Deal:
    """All of it is in hand."""

    grants: list[list[Grant]]
    """Per ask, ascending."""
    spent: list[int] = field(default_factory=list)
    """Records that would exceed the deliveries they may have: to the dead letters, or parked."""


class Claimed(NamedTuple):
    seq: int
    token: int
    until: int
    deliveries: int


Row = tuple[int, int, int, int]


class Released(NamedTuple):
    seq: int
    token: int
    """Of the lease that ends; 0 = there was none, the record is delayed from the start."""
    ready_at: int
    """0 = at once."""
    deliveries: int


class Extended(NamedTuple):
    seq: int
    token: int
    until: int


class Cut(NamedTuple):
    """The applied state at one moment: no effect of what is in hand."""

    entries: dict[int, Entry]
    position: int


class Leases:
    __slots__ = ("_due", "_holders", "_idle", "_in_hand", "_low", "_ready", "entries", "position", "tally")

    def __init__(self, position: int = 1) -> None:
        self.entries: dict[int, Entry] = {}
        self.position = position
        """Seqs from here on are fresh, but for those with an entry."""
        self.tally = [0, 0, 0, 0]
        """Entries of each `Kind`."""
        self._in_hand: dict[int, object] = {}
        self._holders: dict[str, set[int]] = {}
        self._ready: list[int] = []
        self._due: list[tuple[int, int]] = []
        """(first ms at which it is over, seq)."""
        self._low: list[int] | None = None
        self._idle: list[tuple[int, int]] | None = None
        """(last_ms, seq). Both exist once somebody asked: queues never do."""

    # -- deciding ------------------------------------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> list[tuple[int, int]]:
        """End what is over. Returns (seq, token) of the leases that ran out."""
        due = self._due
        expired: list[tuple[int, int]] = []
        while due and due[0][0] <= now_ms:
            at, seq = heappop(due)
            entry = self.entries.get(seq)
            if entry is None or seq in self._in_hand or _over_at(entry) != at:
                continue
            if entry.kind == LEASED:
                expired.append((seq, entry.token))
            self._put(seq, entry._replace(kind=READY, until=0))
        return expired

    def deal(self, asks: Sequence[Ask], fresh: Iterator[int], max_deliveries: int = 0) -> Deal:
        """Hand out what there is. `fresh` yields seqs from `position` on, ascending, that may be handed out; entries
        among them are passed over. Sets `position` behind the last one taken."""
        total = sum(ask.most for ask in asks)
        picked: list[Grant] = []
        spent: list[int] = []
        entries, ready, in_hand = self.entries, self._ready, self._in_hand
        while ready and len(picked) < total and len(spent) < SPENT_MAX:
            seq = heappop(ready)
            entry = entries.get(seq)
            if entry is None or entry.kind != READY or seq in in_hand:
                continue
            in_hand[seq] = None
            if entry.deliveries >= max_deliveries > 0:
                spent.append(seq)
            else:
                picked.append(Grant(seq, entry.deliveries + 1))
        while len(picked) < total:
            seq = next(fresh, 0)
            if not seq:
                break
            self.position = seq + 1
            if seq in entries or seq in in_hand:
                continue
            in_hand[seq] = None
            picked.append(Grant(seq, 1))
        return Deal(self._share(picked, asks), spent)

    def deal_idle(
        self, ask: Ask, now_ms: int, min_idle_ms: int, seqs: Iterable[int] | None = None, max_deliveries: int = 0
    ) -> Deal:
        """Take records, from whoever has them, that nobody was given or extended for `min_idle_ms`; longest idle first.
        A PARKED one is taken only where it is named."""
        deal = Deal([[]])
        latest = now_ms - min_idle_ms
        for seq in self._idle_since(latest) if seqs is None else dict.fromkeys(seqs):
            if len(deal.grants[0]) >= ask.most or len(deal.spent) >= SPENT_MAX:
                break
            entry = self.entries.get(seq)
            if entry is None or not entry.deliveries or entry.kind == DELAYED:
                continue
            if seq in self._in_hand or entry.last_ms > latest:
                continue
            self._in_hand[seq] = None
            if entry.deliveries >= max_deliveries > 0 and entry.kind != PARKED:
                deal.spent.append(seq)
            else:
                deal.grants[0].append(Grant(seq, entry.deliveries + 1))
        deal.grants[0].sort()
        return deal

    def _idle_since(self, latest_ms: int) -> Iterator[int]:
        """LEASED and READY ones, longest idle first. Whoever gets one takes it in hand."""
        while (idle := self._idle_heap()) and idle[0][0] <= latest_ms:
            yield idle[0][1]

    def judge(self, seq: int, holder: str, token: int | None, now_ms: int) -> Why | None:
        """Why `holder` may not act on `seq` by its lease; `token` None = it does not say which."""
        entry = self.entries.get(seq)
        if entry is None:
            return "settled" if seq < self.position and seq not in self._in_hand else "unknown"
        if not entry.deliveries:
            return "unknown"
        if entry.holder != holder:
            return "member"
        if entry.kind != LEASED or now_ms > entry.until:
            return "expired"
        return "token" if token is not None and token != entry.token else None

    def is_leased(self, seq: int, token: int) -> bool:
        return (entry := self.entries.get(seq)) is not None and entry.kind == LEASED and entry.token == token

    def under_way(self, seq: int) -> object | None:
        """What the leased record is in hand for: its outcome decides what `judge` will say."""
        return self._in_hand.get(seq)

    def held_by(self, holder: str) -> list[tuple[int, int]]:
        """(seq, token) of the leases of `holder` that nothing else is under way for."""
        mine = self._holders.get(holder, ())
        return [(seq, self.entries[seq].token) for seq in sorted(mine) if seq not in self._in_hand]

    def in_flight(self, holder: str) -> int:
        return len(self._holders.get(holder, ()))

    def hold(self, seqs: Iterable[int], what: object) -> None:
        for seq in seqs:
            self._in_hand[seq] = what

    def give_back(self, seqs: Iterable[int], now_ms: int) -> None:
        """Nothing came of it: each is again what it was. A fresh one is READY, for the position has passed it."""
        for seq in seqs:
            if seq not in self._in_hand:
                continue
            del self._in_hand[seq]
            entry = self.entries.get(seq)
            self._put(seq, entry if entry is not None else Entry(READY, "", 0, 0, 0, now_ms, now_ms))

    # -- applying ------------------------------------------------------------------------------------------------------

    def apply_claimed(self, holder: str, rows: Iterable[Row], now_ms: int, position: int = 0) -> None:
        """Leases begin; a row is a `Claimed`. `position` is where fresh seqs begin behind them, if the log says so."""
        self.position = max(self.position, position)
        entries, in_hand = self.entries, self._in_hand
        plain = self._low is None and self._idle is None
        for seq, token, until, deliveries in rows:
            known = entries.get(seq)
            if known is not None and known.token > token:
                continue
            in_hand.pop(seq, None)
            if known is None and plain:  # what `_put` would do, for the usual case
                entries[seq] = Entry(LEASED, holder, token, until, deliveries, now_ms, now_ms)
                self.tally[LEASED] += 1
                self._holders.setdefault(holder, set()).add(seq)
                heappush(self._due, (until + 1, seq))
                continue
            first_ms = known.first_ms if known is not None and known.deliveries else now_ms
            self._put(seq, Entry(LEASED, holder, token, until, deliveries, first_ms, now_ms))
        self._clear_due()

    def apply_released(self, rows: Iterable[Released], now_ms: int) -> None:
        """Leases end without being settled; or records are delayed that nobody had yet."""
        for seq, token, ready_at, deliveries in rows:
            known = self.entries.get(seq)
            if known is None and not token:
                known = Entry(READY, "", 0, 0, 0, now_ms, now_ms)
            if known is None or known.token != token:
                continue
            self._in_hand.pop(seq, None)
            kind = DELAYED if ready_at > now_ms else READY
            until = ready_at if kind == DELAYED else 0
            self._put(seq, known._replace(kind=kind, until=until, deliveries=deliveries))

    def apply_extended(self, rows: Iterable[Extended], now_ms: int) -> None:
        for seq, token, until in rows:
            known = self.entries.get(seq)
            if known is not None and known.token == token:
                self._in_hand.pop(seq, None)
                self._put(seq, known._replace(kind=LEASED, until=until, last_ms=now_ms))

    def apply_parked(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            known = self.entries.get(seq)
            if known is not None:
                self._in_hand.pop(seq, None)
                self._put(seq, known._replace(kind=PARKED, until=0))

    def apply_settled(self, seqs: Iterable[int]) -> int:
        """They are done with. Returns how many were not so before."""
        return len(self.drop(seqs))

    def forget(self, first: int, last: int) -> list[tuple[int, Entry]]:
        """The records first..last are gone: so is all that was pending on them, which is returned."""
        seqs: Iterable[int] = range(first, last + 1)
        if last - first + 1 > len(self.entries) + len(self._in_hand):
            seqs = [seq for known in (self.entries, self._in_hand) for seq in known if first <= seq <= last]
        return self.drop(seqs)

    def seek(self, position: int) -> int:
        """Begin anew at `position`. Returns how many entries that clears."""
        cleared = len(self.entries)
        self._adopt({}, position)
        return cleared

    def _put(self, seq: int, entry: Entry) -> None:
        known = self.entries.get(seq)
        if known is not None:
            self.tally[known.kind] -= 1
            if known.kind == LEASED:
                self._unhold(seq, known.holder)
        elif self._low is not None:
            heappush(self._low, seq)
        self.entries[seq] = entry
        kind = entry.kind
        self.tally[kind] += 1
        if self._idle is not None and kind <= LEASED and entry.deliveries:
            heappush(self._idle, (entry.last_ms, seq))
        if kind == READY:
            heappush(self._ready, seq)
            if len(self._ready) > 2 * self.tally[READY] + SLACK:
                self._ready = sorted(seq for seq, entry in self.entries.items() if entry.kind == READY)
            return
        if kind == LEASED:
            self._holders.setdefault(entry.holder, set()).add(seq)
        if kind != PARKED:
            heappush(self._due, (_over_at(entry), seq))
            self._clear_due()

    def _clear_due(self) -> None:
        if len(self._due) > 2 * (self.tally[LEASED] + self.tally[DELAYED]) + SLACK:
            self._due = self._all_due()

    def drop(self, seqs: Iterable[int]) -> list[tuple[int, Entry]]:
        """Whatever was pending on these ends; it is returned."""
        entries, in_hand, tally = self.entries, self._in_hand, self.tally
        dropped = []
        for seq in seqs:
            in_hand.pop(seq, None)
            known = entries.pop(seq, None)
            if known is not None:
                tally[known.kind] -= 1
                if known.kind == LEASED:
                    self._unhold(seq, known.holder)
                dropped.append((seq, known))
        return dropped

    def _unhold(self, seq: int, holder: str) -> None:
        mine = self._holders[holder]
        mine.discard(seq)
        if not mine:
            del self._holders[holder]

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def leased(self) -> int:
        return self.tally[LEASED]

    @property
    def delayed(self) -> int:
        return self.tally[DELAYED]

    @property
    def parked(self) -> int:
        return self.tally[PARKED]

    def lowest(self) -> int:
        """The least seq that is not settled: what a group calls `committed`."""
        if self._low is None or len(self._low) > 2 * len(self.entries) + SLACK:
            self._low = sorted(self.entries)
        while self._low and self._low[0] not in self.entries:
            heappop(self._low)
        begun = min((seq for seq in self._in_hand if seq not in self.entries), default=self.position)
        return min(begun, self._low[0]) if self._low else begun

    def unsettled(self) -> int:
        return len(self.entries) + sum(seq not in self.entries for seq in self._in_hand)

    def oldest_ms(self) -> int | None:
        """When the record that is pending longest was handed out or extended last; None = none is."""
        idle = self._idle_heap()
        return idle[0][0] if idle else None

    def listing(
        self, now_ms: int, *, after_seq: int = 0, limit: int, holder: str | None = None, min_idle_ms: int = 0,
        kinds: Container[int] = (READY, LEASED, DELAYED, PARKED),
    ) -> list[tuple[int, Entry]]:  # fmt: skip
        """Entries that were handed out at least once, by seq."""
        latest = now_ms - min_idle_ms
        found = sorted(
            seq
            for seq, entry in self.entries.items()
            if seq > after_seq and entry.deliveries and entry.last_ms <= latest and entry.kind in kinds
            and (holder is None or entry.holder == holder)
        )  # fmt: skip
        return [(seq, self.entries[seq]) for seq in found[:limit]]

    def _idle_heap(self) -> list[tuple[int, int]]:
        """Built when somebody asks, and again when half of it no longer counts. What does not count is off its top."""
        if self._idle is None or len(self._idle) > 2 * len(self.entries) + SLACK:
            self._idle = [(entry.last_ms, seq) for seq, entry in self.entries.items() if entry.deliveries]
            heapify(self._idle)
        idle = self._idle
        while idle:
            last_ms, seq = idle[0]
            entry = self.entries.get(seq)
            current = entry is not None and entry.last_ms == last_ms and entry.kind <= LEASED and entry.deliveries
            if current and seq not in self._in_hand:
                break
            heappop(idle)  # whatever ends its being in hand, delayed or parked puts it here again
        return idle

    # -- keeping -------------------------------------------------------------------------------------------------------

    def cut(self) -> Cut:
        """What is applied. A fresh record in hand is fresh to whoever reads this."""
        begun = min((seq for seq in self._in_hand if seq not in self.entries), default=self.position)
        return Cut(dict(self.entries), min(begun, self.position))

    def restart(self, then_ms: int, now_ms: int, keep_leases: bool) -> None:
        """The state was `then_ms` by the clock it was logged with; that moment is `now_ms` by the one that counts from
        here on. Without `keep_leases` whoever held something holds it no longer; delays and counts stay."""
        entries: dict[int, Entry] = {}
        for seq, entry in self.entries.items():
            kind, until = entry.kind, entry.until
            if (kind == LEASED and (not keep_leases or then_ms > until)) or (kind == DELAYED and until <= then_ms):
                kind, until = READY, 0
            elif kind in (LEASED, DELAYED):
                until = now_ms + min(until - then_ms, FAR_MS)
            first_ms, last_ms = (now_ms - max(then_ms - at, 0) for at in (entry.first_ms, entry.last_ms))
            entries[seq] = Entry(kind, entry.holder, entry.token, until, entry.deliveries, first_ms, last_ms)
        self._adopt(entries, self.position)

    def keep(self, entries: dict[int, Entry]) -> None:
        """Only these are still there."""
        self._adopt(entries, self.position)

    def _adopt(self, entries: dict[int, Entry], position: int) -> None:
        self.entries = entries
        self.position = position
        self._in_hand = {}
        self._low = self._idle = None
        self.tally = [0, 0, 0, 0]
        self._holders = {}
        for seq, entry in entries.items():
            self.tally[entry.kind] += 1
            if entry.kind == LEASED:
                self._holders.setdefault(entry.holder, set()).add(seq)
        self._ready = sorted(seq for seq, entry in entries.items() if entry.kind == READY)
        self._due = self._all_due()

    def _all_due(self) -> list[tuple[int, int]]:
        due = [(_over_at(entry), seq) for seq, entry in self.entries.items() if entry.kind in (LEASED, DELAYED)]
        heapify(due)
        return due

    @staticmethod
    def _share(picked: list[Grant], asks: Sequence[Ask]) -> list[list[Grant]]:
        if len(asks) == 1:
            picked.sort()
            return [picked]
        grants: list[list[Grant]] = [[] for _ in asks]
        for grant, owner in zip(picked, share(len(picked), [ask.most for ask in asks]), strict=True):
            grants[owner].append(grant)
        for hand in grants:
            hand.sort()
        return grants


def _over_at(entry: Entry) -> int:
    """The first ms at which a lease or a delay is over; -1 = it is neither."""
    if entry.kind == LEASED:
        return entry.until + 1
    return entry.until if entry.kind == DELAYED else -1
