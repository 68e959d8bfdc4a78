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
             deal         who gets what: READY ones first, lowest seq first, then fresh ones; round robin over the asks,
                          or one ask after the other
             deal_idle    the same by idle time, from whoever holds it: what a group's claim does
             judge        why a holder may not ack, nack or extend; None = it may. `under_way` first: to wait for.
                          `holds_all` says at once that there is nothing to judge and nothing to wait for
             held_by      what a holder has, to be released when it goes
             hold         the seqs are in hand, for `what`; `deal` does it by itself
             give_back    what was decided will not happen
    apply    apply_claimed, apply_released (nack, expiry that was logged, delay), apply_extended, apply_parked,
             apply_settled, forget (the record is gone); each ends being in hand. Live and in replay alike: what names a
             token that is not the entry's last one changes nothing, so that replaying twice is replaying once.
    look     tally, lowest, listing, entries
    keep     cut, restart; `topics.rules.lease_columns` packs a cut for the snapshot and unpacks it

Nothing here costs more because more is pending: heaps drop what no longer counts when they meet it, and are built anew
once half of them is such. There is no timer per lease. What one call handed out is, as a rule, consecutive and was
fresh: that is begun, judged and ended together, without a look at each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import groupby, islice, repeat
from typing import Final

from topics.model.job import Why
from topics.model.leaserows import LeaseRow, LeaseRun, as_run, in_a_row, is_twofold
from topics.rules import share
from topics.rules.lease_values import (
    DELAYED,
    LEASED,
    PARKED,
    READY,
    Ask,
    Cut,
    Deal,
    Ended,
    Entry,
    Extended,
    Grant,
    Released,
    over_at,
)
from topics.rules.spans import Spans

SPENT_MAX: Final = 1000
"""Records that one deal takes out because they were handed out too often: each has its own way to the dead letters."""

SLACK: Final = 1024
"""A heap is built anew when what no longer counts exceeds what does by this much."""

FAR_MS: Final = 86_400_000
"""No lease and no delay is longer: what a restart finds further ahead was written under another clock."""

_new = tuple.__new__
"""Makes named tuples of rows without a call of Python for each."""
_exhaust = deque[object](maxlen=0).extend


class Leases:
    __slots__ = ("_begun", "_due", "_holders", "_idle", "_in_hand", "_low", "_ready", "entries", "position", "tally")

    def __init__(self, position: int = 1) -> None:
        self.entries: dict[int, Entry] = {}
        self.position = position
        """Seqs from here on are fresh, but for those with an entry."""
        self.tally = [0, 0, 0, 0]
        """Entries of each `Kind`."""
        self._in_hand: dict[int, object] = {}
        """Of those with an entry."""
        self._begun: dict[int, object] = {}
        """The same of fresh ones. They are dealt in the order of their seqs, so the first one is the least."""
        self._holders: dict[str, set[int]] = {}
        self._ready: list[int] = []
        self._due = Spans()
        """By the first ms at which it is over."""
        self._low: Spans | None = None
        self._idle: Spans | None = None
        """By `last_ms`. Both exist once somebody asked: queues never do."""

    # -- deciding ------------------------------------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> list[tuple[int, int]]:
        """End what is over. Returns (seq, token) of the leases that ran out."""
        expired: list[tuple[int, int]] = []
        while (over := self._due.pop_until(now_ms)) is not None:
            at, seqs = over
            for seq in seqs:
                entry = self.entries.get(seq)
                if entry is None or seq in self._in_hand or over_at(entry) != at:
                    continue
                if entry.kind == LEASED:
                    expired.append((seq, entry.token_of(seq)))
                self._put(seq, entry._replace(kind=READY, until=0))
        return expired

    def deal(self, asks: Sequence[Ask], fresh: Iterator[int], max_deliveries: int = 0, in_turn: bool = False) -> Deal:
        """Hand out what there is. `fresh` yields seqs from `position` on, ascending, that may be handed out; entries
        among them are passed over. Sets `position` behind the last one taken. `in_turn`: whoever asks first gets all
        it asks for before the next gets anything, as if each had come by itself."""
        most = [ask.most for ask in asks]
        total = sum(most)
        picked: list[Grant] = []
        spent: list[int] = []
        entries, ready, in_hand, begun = self.entries, self._ready, self._in_hand, self._begun
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
        again = len(picked)
        while len(picked) < total and (seqs := list(islice(fresh, total - len(picked)))):
            self.position = seqs[-1] + 1
            if not (entries.keys().isdisjoint(seqs) and begun.keys().isdisjoint(seqs)):
                seqs = [seq for seq in seqs if seq not in entries and seq not in begun]
            begun.update(dict.fromkeys(seqs))
            picked += map(_new, repeat(Grant), zip(seqs, repeat(1)))
        hands = share.in_turn(picked, most) if in_turn else share.round_robin(picked, most)
        if again:
            for hand in hands:
                hand.sort()
        return Deal(hands, spent)

    def begin(self, seqs: range) -> bool:
        """Hand out all of these, which follow the position and are live, whoever gets them. False = there is none, or
        somebody has one of them, or had it: `deal` has to choose."""
        if not seqs or not (self.entries.keys().isdisjoint(seqs) and self._begun.keys().isdisjoint(seqs)):
            return False
        self._begun.update(dict.fromkeys(seqs))
        self.position = seqs.stop
        return True

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
        while (idle := self._longest_idle()) is not None and idle[0] <= latest_ms:
            yield idle[1]

    def judge(self, seq: int, holder: str, token: int | None, now_ms: int) -> Why | None:
        """Why `holder` may not act on `seq` by its lease; `token` None = it does not say which."""
        entry = self.entries.get(seq)
        if entry is None:
            return "settled" if seq < self.position and seq not in self._begun else "unknown"
        if not entry.deliveries:
            return "unknown"
        if entry.holder != holder:
            return "member"
        if entry.kind != LEASED or now_ms > entry.until:
            return "expired"
        return "token" if token is not None and token != entry.token_of(seq) else None

    def holds_all(self, holder: str, seqs: Sequence[int], tokens: Sequence[int | None]) -> bool:
        """True if `holder` may act on each of them, by these tokens, and nothing is under way for any. Only after a
        sweep of the same moment: what it left to a holder has not run out, unless it is in hand."""
        mine = self._holders.get(holder)
        if mine is None or not mine.issuperset(seqs):
            return False
        if (self._in_hand and not self._in_hand.keys().isdisjoint(seqs)) or is_twofold(seqs):
            return False
        if tokens.count(None) == len(seqs):
            return True
        known = [row[1] for row in self.rows(seqs)]
        return tokens == known or all(given in (None, token) for given, token in zip(tokens, known, strict=True))

    def rows(self, seqs: Sequence[int], until: int = 0) -> Sequence[LeaseRow]:
        """What the log says of those that have an entry: a run where one call got them all."""
        seqs = in_a_row(seqs)
        known = list(map(self.entries.get, seqs))
        if isinstance(seqs, range) and known and (one := known[0]) is not None and known.count(one) == len(known):
            return LeaseRun(seqs, one.token_of(seqs.start), until, one.deliveries)
        return [
            (seq, entry.token_of(seq), until, entry.deliveries)
            for seq, entry in zip(seqs, known, strict=True)
            if entry is not None
        ]

    def current(self, rows: Sequence[LeaseRow]) -> Sequence[int]:
        """Those whose last lease is the one that is named: after a seek, say, it is another one's."""
        if isinstance(rows, LeaseRun):
            known = self.rows(rows.seqs)
            if isinstance(known, LeaseRun) and known.token == rows.token:
                return rows.seqs
        known_to = self.entries.get
        return [row[0] for row in rows if (entry := known_to(row[0])) and entry.token_of(row[0]) == row[1]]

    def is_leased(self, seq: int, token: int) -> bool:
        return (entry := self.entries.get(seq)) is not None and entry.kind == LEASED and entry.token_of(seq) == token

    def under_way(self, seq: int) -> object | None:
        """What the leased record is in hand for: its outcome decides what `judge` will say."""
        return self._in_hand.get(seq) or self._begun.get(seq)

    def all_under_way(self) -> list[object]:
        return [*self._in_hand.values(), *self._begun.values()]

    def held_by(self, holder: str) -> list[tuple[int, int]]:
        """(seq, token) of the leases of `holder` that nothing else is under way for."""
        mine = self._holders.get(holder, ())
        return [(seq, self.entries[seq].token_of(seq)) for seq in sorted(mine) if seq not in self._in_hand]

    def in_flight(self, holder: str) -> int:
        return len(self._holders.get(holder, ()))

    def hold(self, seqs: Sequence[int], what: object) -> None:
        entries = self.entries
        if all(map(entries.__contains__, seqs)):
            self._in_hand.update(dict.fromkeys(seqs, what))
        elif entries.keys().isdisjoint(seqs):
            self._begun.update(dict.fromkeys(seqs, what))
        else:
            for seq in seqs:
                (self._in_hand if seq in entries else self._begun)[seq] = what

    def give_back(self, seqs: Iterable[int], now_ms: int) -> None:
        """Nothing came of it: each is again what it was. A fresh one is READY, for the position has passed it."""
        for seq in seqs:
            if seq in self._in_hand or seq in self._begun:
                self._end(seq)
                entry = self.entries.get(seq)
                self._put(seq, entry if entry is not None else _unheard(seq, now_ms))

    def _end(self, seq: int) -> None:
        """Of its being in hand."""
        self._in_hand.pop(seq, None)
        self._begun.pop(seq, None)

    # -- applying ------------------------------------------------------------------------------------------------------

    def apply_claimed(self, holder: str, rows: Sequence[LeaseRow], now_ms: int, position: int = 0) -> None:
        """Leases begin. `position` is where fresh seqs begin behind them, if the log says so."""
        self.position = max(self.position, position)
        run = as_run(rows)
        if not isinstance(run, LeaseRun) or not self._begin_run(holder, run, now_ms):
            for seq, token, until, deliveries in rows:
                known = self.entries.get(seq)
                if known is not None and known.token_of(seq) > token:
                    continue
                self._end(seq)
                first_ms = known.first_ms if known is not None and known.deliveries else now_ms
                self._put(seq, Entry(LEASED, holder, token - seq, until, deliveries, first_ms, now_ms))
        self._clear_due()

    def _begin_run(self, holder: str, run: LeaseRun, now_ms: int) -> bool:
        """What `_put` would do for each; False if somebody had one of them before."""
        seqs = run.seqs
        if run.deliveries < 1 or not self.entries.keys().isdisjoint(seqs):
            return False
        if self._begun:
            _exhaust(map(self._begun.pop, seqs, repeat(None)))
        entry = Entry(LEASED, holder, run.token - seqs.start, run.until, run.deliveries, now_ms, now_ms)
        self.entries.update(dict.fromkeys(seqs, entry))
        self.tally[LEASED] += len(seqs)
        self._holders.setdefault(holder, set()).update(seqs)
        self._due.push(run.until + 1, seqs.start, seqs.stop)
        if self._low is not None:
            self._low.push(0, seqs.start, seqs.stop)
        if self._idle is not None:
            self._idle.push(now_ms, seqs.start, seqs.stop)
        return True

    def apply_released(self, rows: Iterable[Released], now_ms: int) -> None:
        """Leases end without being settled; or records are delayed that nobody had yet."""
        for seq, token, ready_at, deliveries in rows:
            known = self.entries.get(seq)
            if known is None and not token:
                known = _unheard(seq, now_ms)
            if known is None or known.token_of(seq) != token:
                continue
            self._end(seq)
            kind = DELAYED if ready_at > now_ms else READY
            until = ready_at if kind == DELAYED else 0
            self._put(seq, known._replace(kind=kind, until=until, deliveries=deliveries))

    def apply_extended(self, rows: Iterable[Extended], now_ms: int) -> None:
        for seq, token, until in rows:
            known = self.entries.get(seq)
            if known is not None and known.token_of(seq) == token:
                self._end(seq)
                self._put(seq, known._replace(kind=LEASED, until=until, last_ms=now_ms))

    def apply_parked(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            known = self.entries.get(seq)
            if known is not None:
                self._end(seq)
                self._put(seq, known._replace(kind=PARKED, until=0))

    def apply_settled(self, seqs: Sequence[int]) -> int:
        """They are done with. Returns how many were not so before."""
        return sum(len(ended) for ended, _ in self.drop(seqs))

    def forget(self, first: int, last: int) -> list[Ended]:
        """The records first..last are gone: so is all that was pending on them, which is returned."""
        seqs: Sequence[int] = range(first, last + 1)
        if last - first + 1 > len(self.entries) + len(self._begun):
            seqs = [seq for known in (self.entries, self._begun) for seq in known if first <= seq <= last]
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
                self._unhold((seq,), known.holder)
        elif self._low is not None:
            self._low.push(0, seq, seq + 1)
        self.entries[seq] = entry
        kind = entry.kind
        self.tally[kind] += 1
        if self._idle is not None and kind <= LEASED and entry.deliveries:
            self._idle.push(entry.last_ms, seq, seq + 1)
        if kind == READY:
            heappush(self._ready, seq)
            if len(self._ready) > 2 * self.tally[READY] + SLACK:
                self._ready = sorted(seq for seq, entry in self.entries.items() if entry.kind == READY)
            return
        if kind == LEASED:
            self._holders.setdefault(entry.holder, set()).add(seq)
        if kind != PARKED:
            self._due.push(over_at(entry), seq, seq + 1)
            self._clear_due()

    def _clear_due(self) -> None:
        if len(self._due) > 2 * (self.tally[LEASED] + self.tally[DELAYED]) + SLACK:
            self._due = self._all_due()

    def drop(self, seqs: Sequence[int]) -> list[Ended]:
        """Whatever was pending on these ends; it is returned."""
        entries, dropped = self.entries, list[Ended]()
        for entry, same in groupby(seqs if isinstance(seqs, range) else dict.fromkeys(seqs), entries.get):
            ended = list(same)
            if entry is None:
                _exhaust(map(self._begun.pop, ended, repeat(None)))
                continue
            _exhaust(map(entries.__delitem__, ended))
            _exhaust(map(self._in_hand.pop, ended, repeat(None)))
            self.tally[entry.kind] -= len(ended)
            if entry.kind == LEASED:
                self._unhold(ended, entry.holder)
            dropped.append((ended, entry))
        return dropped

    def _unhold(self, seqs: Sequence[int], holder: str) -> None:
        mine = self._holders[holder]
        mine.difference_update(seqs)
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
            self._low = Spans((0, seq) for seq in self.entries)
        begun = next(iter(self._begun), self.position)
        lowest = self._low.first_in(self.entries)
        return begun if lowest is None else min(begun, lowest)

    def unsettled(self) -> int:
        return len(self.entries) + len(self._begun)

    def oldest_ms(self) -> int | None:
        """When the record that is pending longest was handed out or extended last; None = none is."""
        idle = self._longest_idle()
        return idle[0] if idle is not None else None

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

    def _longest_idle(self) -> tuple[int, int] | None:
        """(last_ms, seq). Whatever ends its being in hand, delayed or parked puts a record here again."""
        if self._idle is None or len(self._idle) > 2 * len(self.entries) + SLACK:
            self._idle = Spans((entry.last_ms, seq) for seq, entry in self.entries.items() if entry.deliveries)

        def counts(last_ms: int, seq: int) -> bool:
            entry = self.entries.get(seq)
            current = entry is not None and entry.last_ms == last_ms and entry.kind <= LEASED and entry.deliveries
            return bool(current) and seq not in self._in_hand

        return self._idle.first(counts)

    # -- keeping -------------------------------------------------------------------------------------------------------

    def cut(self) -> Cut:
        """What is applied. A fresh record in hand is fresh to whoever reads this."""
        return Cut(dict(self.entries), min(next(iter(self._begun), self.position), self.position))

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
            entries[seq] = Entry(kind, entry.holder, entry.ahead, until, entry.deliveries, first_ms, last_ms)
        self._adopt(entries, self.position)

    def keep(self, entries: dict[int, Entry]) -> None:
        """Only these are still there."""
        self._adopt(entries, self.position)

    def _adopt(self, entries: dict[int, Entry], position: int) -> None:
        self.entries = entries
        self.position = position
        self._in_hand, self._begun = {}, {}
        self._low = self._idle = None
        self.tally = [0, 0, 0, 0]
        self._holders = {}
        for seq, entry in entries.items():
            self.tally[entry.kind] += 1
            if entry.kind == LEASED:
                self._holders.setdefault(entry.holder, set()).add(seq)
        self._ready = sorted(seq for seq, entry in entries.items() if entry.kind == READY)
        self._due = self._all_due()

    def _all_due(self) -> Spans:
        return Spans((over_at(entry), seq) for seq, entry in self.entries.items() if entry.kind in (LEASED, DELAYED))


def _unheard(seq: int, now_ms: int) -> Entry:
    """Of a record that nobody was given yet."""
    return Entry(READY, "", -seq, 0, 0, now_ms, now_ms)
