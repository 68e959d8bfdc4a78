"""What the lease rules are asked and what they say: small values, and the entry of a record that was handed out."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple


class Kind(enum.IntEnum):
    READY = 0
    LEASED = 1
    DELAYED = 2
    PARKED = 3
    """Handed out too often, with nowhere to go: waits for somebody to free it."""


READY, LEASED, DELAYED, PARKED = (int(kind) for kind in Kind)


class Entry(NamedTuple):
    """Never changed, only replaced: so a copy of all entries is a copy of one dict, and records that were handed out
    together share one."""

    kind: int
    holder: str
    """Who has it, or had it last."""
    ahead: int
    """By how much the token of the last lease exceeds the seq; token 0 = none yet. Later leases have greater ones."""
    until: int
    """LEASED: the last ms of the lease. DELAYED: the first ms at which it may be handed out."""
    deliveries: int
    """How often it was handed out."""
    first_ms: int
    last_ms: int
    """First time it was handed out; last time that, or that the lease was extended."""

    def token_of(self, seq: int) -> int:
        return self.ahead + seq


Ended = tuple[list[int], Entry]
"""Seqs, and the entry that each of them had."""


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


def over_at(entry: Entry) -> int:
    """The first ms at which a lease or a delay is over; -1 = it is neither."""
    if entry.kind == LEASED:
        return entry.until + 1
    return entry.until if entry.kind == DELAYED else -1
