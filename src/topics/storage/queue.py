"""The lease layer of a queue: what its Lease frames say, live and in replay alike.

Times are monotonic while the process lives. In the log and in the snapshot they are wall times, by a distance between
the two clocks that is fixed when the store is opened: a wall clock that is set meanwhile moves no deadline. The next
life goes on from the latest time it finds, so that a clock that was set back revives no lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topics.format.control import Lease, LeaseEvent
from topics.format.frame import Kind, encode_frame
from topics.format.snapshot import QueueRow
from topics.model.job import Why
from topics.model.leaserows import LeaseRow
from topics.rules.lease import Leases
from topics.rules.lease_columns import Packed, pack, unpack
from topics.rules.lease_values import LEASED, Cut, Ended, Entry, Extended, Released
from topics.storage.dead import DeadSet

_GONE_SLACK = 1024


class QueueCut(NamedTuple):
    leases: Cut
    dead_lettered: int
    now_ms: int
    shift_ms: int


@dataclass(slots=True)
class Queue:
    leases: Leases = field(default_factory=Leases)
    dead_lettered: int = 0
    shift_ms: int = 0
    """From monotonic time to the time that is logged."""
    seen_ms: int = 0
    """The latest time in the log."""
    _gone: dict[int, Entry] = field(default_factory=dict)
    """Leases whose records went: their holders may still ack them."""
    _gone_max: int = _GONE_SLACK
    acking: bool = False
    """What goes now goes because it was acked: nothing is left of its lease."""

    # -- applying ------------------------------------------------------------------------------------------------------

    def apply(self, event: int, node: str, rows: Sequence[LeaseRow], now_ms: int, dead: DeadSet) -> None:
        leases = self.leases
        if event == LeaseEvent.CLAIMED:
            # A record may have gone between the claim and now: its lease would never end.
            if dead.has_any(rows[0][0], rows[-1][0]):
                rows = [row for row in rows if row[0] not in dead]
            leases.apply_claimed(node, rows, now_ms)
        elif event == LeaseEvent.RELEASED:
            leases.apply_released([Released(*row) for row in rows if row[0] not in dead], now_ms)
        elif event == LeaseEvent.EXTENDED:
            leases.apply_extended([Extended(*row[:3]) for row in rows], now_ms)
        elif event == LeaseEvent.ACKED:
            leases.apply_settled(leases.current(rows))
        else:
            self.dead_lettered += len(rows)

    def forget(self, first: int, last: int) -> None:
        """Their records are gone, whoever did it."""
        self._remember_gone(self.leases.forget(first, last))

    def forget_all(self, seqs: Sequence[int]) -> None:
        self._remember_gone(self.leases.drop(seqs))

    def _remember_gone(self, gone: Iterable[Ended]) -> None:
        if self.acking:
            return
        for seqs, entry in gone:
            if entry.kind == LEASED:
                self._gone.update(dict.fromkeys(seqs, entry))

    def restart(self, wall_ms: int, now_ms: int, keep_leases: bool, dead: DeadSet, head: int) -> list[LeaseRow]:
        """What was found on disk becomes what this process goes on with. Returns leases that were to survive and ran
        out meanwhile, to be logged: a clock that is set back later must not revive them."""
        then_ms = max(wall_ms, self.seen_ms)
        self.shift_ms = then_ms - now_ms
        entries = self.leases.entries
        if any(seq in dead or seq > head for seq in entries):
            self.leases.keep({seq: entry for seq, entry in entries.items() if seq not in dead and seq <= head})
        over = ran_out(self.leases, then_ms) if keep_leases else []
        self.leases.restart(then_ms, now_ms, keep_leases)
        # A claim passes over jobs whose delete is on its way; where that was lost with the power, they are fresh again.
        self.leases.position = end = min(self.leases.position, head + 1)
        seq = dead.next_live(dead.floor + 1, end)
        while seq < end and seq in self.leases.entries:
            seq = dead.next_live(seq + 1, end)
        if seq < end:
            self.leases.position = seq
        self._gone.clear()
        return over

    # -- leases on records that are gone -------------------------------------------------------------------------------

    def judge(self, seq: int, node: str, token: int | None, now_ms: int) -> Why | None:
        gone = self._gone.get(seq) if self._gone else None
        if gone is None:
            return self.leases.judge(seq, node, token, now_ms)
        if gone.holder != node or now_ms > gone.until or not gone.until:
            return "settled"
        return "token" if token is not None and token != gone.token_of(seq) else None

    @property
    def has_gone(self) -> bool:
        return bool(self._gone)

    def is_gone(self, seq: int) -> bool:
        return seq in self._gone

    def settle_gone(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._gone.pop(seq, None)

    def extend_gone(self, seq: int, until: int) -> None:
        self._gone[seq] = self._gone[seq]._replace(until=until)

    def sweep(self, now_ms: int) -> list[LeaseRow]:
        """End what is over; the leases that ran out, as rows to be logged."""
        if len(self._gone) > self._gone_max:
            self._gone = {seq: entry for seq, entry in self._gone.items() if now_ms <= entry.until}
            self._gone_max = 2 * len(self._gone) + _GONE_SLACK
        expired = self.leases.sweep(now_ms)
        return [(seq, token, 0, self.leases.entries[seq].deliveries) for seq, token in expired]

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def frame(
        self, topic_id: int, event: LeaseEvent, node: str, rows: Sequence[LeaseRow], now_ms: int, flags: int
    ) -> bytes:
        """Rows are in monotonic time."""
        shift = self.shift_ms
        body = Lease.body_of(event, node, rows, shift)
        return encode_frame(Kind.LEASE, topic_id, body, seq=rows[0][0], ts=now_ms + shift, flags=flags)

    def kept(self) -> list[tuple[LeaseEvent, str, list[LeaseRow]]]:
        """Events that make its entries what they are, whatever the log has heard of them."""
        begun: dict[str, list[LeaseRow]] = {}
        over: list[LeaseRow] = []
        for seq, entry in sorted(self.leases.entries.items()):
            row = (seq, entry.token_of(seq), entry.until, entry.deliveries)
            if row[1]:
                begun.setdefault(entry.holder, []).append(row)
            if entry.kind != LEASED:
                over.append(row)
        events = [(LeaseEvent.CLAIMED, holder, rows) for holder, rows in begun.items()]
        return [*events, (LeaseEvent.RELEASED, "", over)] if over else events

    def cut(self, now_ms: int) -> QueueCut:
        return QueueCut(self.leases.cut(), self.dead_lettered, now_ms, self.shift_ms)


def ran_out(leases: Leases, then_ms: int) -> list[LeaseRow]:
    """Leases that are over at `then_ms`, as rows that release them."""
    return [
        (seq, entry.token_of(seq), 0, entry.deliveries)
        for seq, entry in sorted(leases.entries.items())
        if entry.kind == LEASED and then_ms > entry.until
    ]


def queue_row(cut: QueueCut) -> QueueRow:
    packed = pack(cut.leases, cut.shift_ms)
    return QueueRow(packed.position, packed.holders, packed.columns, cut.dead_lettered, cut.now_ms + cut.shift_ms)


def load_queue(row: QueueRow) -> Queue:
    leases = unpack(Packed(row.position, row.holders, row.columns))
    return Queue(leases, dead_lettered=row.dead_lettered, seen_ms=row.at_ms)
