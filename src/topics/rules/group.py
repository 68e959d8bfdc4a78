"""A consumer group: who its members are, and how far they got. No I/O, no clock.

A group in queue mode hands each record to one member at a time and settles it by an ack; which, until when and how
often is for the lease rules to say. One in stream mode has a cursor that its members share, and a committed seq.

    cursor      the next seq that was never handed out
    committed   the least seq that is not settled: everything below it is done with, or gone

As in the lease rules a call decides first and applies later, when what it logged is written; what is under way by then
is noted in `gate` (the group as a whole) and `leaving` (one member), for others to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from topics.model.errors import StaleGeneration
from topics.model.group import GroupConfig
from topics.model.leaserows import LeaseRow, LeaseRun
from topics.rules.lease import Leases
from topics.rules.lease_values import Extended, Released


@dataclass(slots=True)
class Member:
    generation: int
    seen_ms: int


@dataclass(slots=True)
class Counters:
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    dead_lettered: int = 0
    lost: int = 0
    """Seqs the cursor passed that nobody could be given."""

    def row(self) -> list[int]:
        return [self.delivered, self.redelivered, self.acked, self.nacked, self.dead_lettered, self.lost]


@dataclass(slots=True, eq=False)
class Group:
    name: str
    config: GroupConfig
    leases: Leases = field(default_factory=Leases)
    """In stream mode only its position is used: it is the committed one."""
    counters: Counters = field(default_factory=Counters)
    members: dict[str, Member] = field(default_factory=dict)
    used_ms: int = 0
    handed: int = 0
    """Stream mode: the cursor. It lives as long as the members do."""
    gate: object | None = None
    """What has to end before anything else is decided: a seek, or the end of the group."""
    leaving: dict[str, object] = field(default_factory=dict)
    bites: int = 0
    """How often retention went on past what the group was still to get, in this process."""
    _look_ms: int = 0

    @property
    def is_stream(self) -> bool:
        return self.config.mode == "stream"

    @property
    def cursor(self) -> int:
        return max(self.handed, self.leases.position) if self.is_stream else self.leases.position

    @property
    def committed(self) -> int:
        return self.leases.position if self.is_stream else self.leases.lowest()

    @property
    def pending(self) -> int:
        return len(self.leases.entries) - self.leases.parked

    # -- deciding ------------------------------------------------------------------------------------------------------

    def check_generation(self, member: str, generation: int | None) -> None:
        """Refuse a member that was replaced by one of its name, or whose session is over."""
        known = self.members.get(member)
        present = 0 if known is None else known.generation
        if generation is not None and generation != present:
            if known is None:
                why = f"group {self.name!r} has no member {member!r}, or has none any more; join first"
            else:
                why = f"member {member!r} of group {self.name!r} is now of generation {present}, not {generation}"
            raise StaleGeneration(why, generation=present)

    def touch(self, member: str, now_ms: int) -> None:
        self.used_ms = now_ms
        known = self.members.get(member)
        if known is not None:
            known.seen_ms = now_ms

    def over(self, now_ms: int) -> list[tuple[str, int]]:
        """(name, generation) of the members whose session is over. Costs nothing while none can be."""
        if now_ms < self._look_ms:
            return []
        session = self.config.session_ms
        alive = [m.seen_ms for name, m in self.members.items() if now_ms - m.seen_ms <= session]
        self._look_ms = min(alive, default=now_ms) + session + 1
        return [
            (name, member.generation)
            for name, member in self.members.items()
            if now_ms - member.seen_ms > session and name not in self.leaving
        ]

    def room(self) -> int:
        """How many records may be handed out for the first time."""
        return max(self.config.max_pending - self.leases.unsettled(), 0)

    # -- applying: live and in replay alike ----------------------------------------------------------------------------

    def apply_config(self, config: GroupConfig) -> None:
        self.config = config
        self._look_ms = 0  # sessions may be shorter now

    def apply_joined(self, member: str, generation: int, now_ms: int) -> None:
        self.members[member] = Member(generation, now_ms)
        self._look_ms = 0

    def apply_left(self, member: str, generation: int, now_ms: int) -> None:
        """What it held is ready for others at once."""
        known = self.members.get(member)
        if known is None or known.generation > generation:
            return
        del self.members[member]
        entries = self.leases.entries
        held = self.leases.held_by(member)
        self.leases.apply_released([Released(seq, token, 0, entries[seq].deliveries) for seq, token in held], now_ms)
        if not self.members:
            self.handed = 0

    def apply_claimed(self, member: str, rows: Sequence[LeaseRow], position: int, lost: int, now_ms: int) -> None:
        counters = self.counters
        counters.delivered += len(rows)
        if not isinstance(rows, LeaseRun) or rows.deliveries > 1:
            counters.redelivered += len([row for row in rows if row[3] > 1])
        counters.lost += lost
        self.leases.apply_claimed(member, rows, now_ms, position)

    def apply_released(self, rows: Iterable[LeaseRow], nacked: bool, now_ms: int) -> None:
        known = self.leases.entries
        released = [Released(*row) for row in rows if (entry := known.get(row[0])) and entry.token_of(row[0]) == row[1]]
        self.leases.apply_released(released, now_ms)
        if nacked:
            self.counters.nacked += len(released)

    def apply_extended(self, rows: Iterable[LeaseRow], now_ms: int) -> None:
        self.leases.apply_extended([Extended(*row[:3]) for row in rows], now_ms)

    def apply_settled(self, rows: Sequence[LeaseRow]) -> None:
        self.counters.acked += self.leases.apply_settled(self.leases.current(rows))

    def apply_parked(self, rows: Sequence[LeaseRow]) -> None:
        self.leases.apply_parked(self.leases.current(rows))

    def apply_dead(self, rows: Sequence[LeaseRow]) -> None:
        self.counters.dead_lettered += self.leases.apply_settled(self.leases.current(rows))

    def apply_committed(self, seq: int) -> None:
        self.leases.position = max(self.leases.position, seq)

    def apply_sought(self, position: int) -> None:
        self.leases.seek(position)
        self.handed = 0

    def restart(self, then_ms: int, now_ms: int, keep_leases: bool, there: Callable[[int], bool], head: int) -> None:
        """What was found on disk becomes what this process goes on with. Members get a fresh session."""
        leases = self.leases
        if any(not there(seq) for seq in leases.entries):
            leases.keep({seq: entry for seq, entry in leases.entries.items() if there(seq)})
        leases.position = min(leases.position, head + 1)
        leases.restart(then_ms, now_ms, keep_leases)
        self.used_ms = now_ms - max(then_ms - self.used_ms, 0)
        self.handed = self._look_ms = 0
        self.gate = None
        self.leaving = {}
        for member in self.members.values():
            member.seen_ms = now_ms
