"""What is asked of a store whose disk broke its promises: never to serve what was not stored, and to count true.

Damage below what a sync had proven takes what it takes: an acknowledged record, but also the frame of a delete or of a
drop, so that what these had ended may be back. What must hold all the same: every record that is served was sent, to
this topic and under this seq, byte for byte; no reported range covers a record that is served; the counts say what a
reader gets; and what is gone lies in a reported range, under seqs that nobody gets again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from topics.model.config import Durability
from topics.model.record import Record
from topics.testing.plain import State, size_of
from topics.testing.view import View


@dataclass(slots=True)
class Memory:
    """All that was ever asked for, whatever became of it."""

    names: dict[int, set[str]] = field(default_factory=dict)
    """Topic id -> the names it was asked for under: the id of a create that nobody saw done may be given again."""
    records: dict[tuple[int, int], set[Record]] = field(default_factory=dict)
    """Topic id and seq -> what was sent under it."""

    def create(self, topic_id: int, name: str) -> None:
        self.names.setdefault(topic_id, set()).add(name)

    def append(self, topic_id: int, records: list[Record]) -> None:
        for record in records:
            self.records.setdefault((topic_id, record.seq), set()).add(record)


def dishonest(view: View, memory: Memory, rotten: bool = False) -> str | None:
    """What of a view nobody ever asked for; None = nothing. `rotten`: frames may rot in segments, where reading alone
    finds it, so that what a reader is told to be corrupt may still be counted."""
    if view.name not in memory.names.get(view.id, ()):
        return "nobody ever created it"
    for seq, record in view.records.items():
        if record not in memory.records.get((view.id, seq), ()):
            return f"it serves {record}, sent was {memory.records.get((view.id, seq))}"
        if seq > view.head:
            return f"it serves the record {seq} behind its head {view.head}"
    covered = {seq for gap in view.gaps for seq in range(gap.gap_from, gap.gap_to + 1)}
    if covered & view.records.keys():
        return f"the live records {sorted(covered & view.records.keys())} lie in reported ranges"
    seqs, times = list(view.records), [record.ts for record in view.records.values()]
    if seqs != sorted(seqs) or times != sorted(times):
        return f"records come out of order: {list(zip(seqs, times, strict=True))}"
    corrupt = sum(gap.gap_to - gap.gap_from + 1 for gap in view.gaps if gap.reason == "corrupt") if rotten else 0
    if not len(seqs) <= view.count <= len(seqs) + corrupt:
        return f"it counts {view.count} records and serves {len(seqs)}"
    size = sum(map(size_of, view.records.values()))
    # What a rotten record had counted is not known any more when it is deleted, but where nothing is, nothing counts.
    if view.bytes < size or (view.bytes > size and not (rotten and view.count)):
        return f"it counts {view.bytes} bytes and serves {size}"
    return None


class Known(Protocol):
    """What is remembered of a topic."""

    name: str
    published: State | None
    ordered: State | None
    handed: int

    @property
    def in_ram(self) -> set[int]: ...


def gone(view: View, known: Known) -> set[int]:
    """The records that are missing, though a kill leaves them alone and nobody has asked to end them."""
    if known.name != view.name or known.published is None or known.ordered is None:
        return set()
    live = (known.published.records.keys() & known.ordered.records.keys()) - known.in_ram - known.published.ram
    ended = max(view.evict_floor, view.expiry_floor, view.delete_below - 1)
    return {seq for seq in live - view.records.keys() if seq > ended}


def silent(view: View, known: Known | None, power: bool) -> str | None:
    """What is gone and not told; None = nothing. A power cut takes of its own, too: there nothing is asked."""
    if power or known is None or known.name != view.name or view.config.commit_class == Durability.EPHEMERAL:
        return None
    if view.head < known.handed:
        return f"its head is {view.head}, but seq {known.handed} was acknowledged"
    untold = gone(view, known) - {seq for gap in view.gaps for seq in range(gap.gap_from, gap.gap_to + 1)}
    return f"the acknowledged records {sorted(untold)} are gone, and nothing says so" if untold else None


def state_of(view: View) -> State:
    """What is there is what there is: the state to go on from."""
    state = State(
        view.config, view.head, view.last_ts, view.evict_floor, view.expiry_floor, view.delete_below,
        records=dict(view.records), keys=dict(view.keys), solid=view.head, txns=dict(view.txns),
    )  # fmt: skip
    state.lost = {
        seq: gap.reason
        for gap in view.gaps
        for seq in range(gap.gap_from, gap.gap_to + 1)
        if seq > state.involuntary_floor
    }
    state.progress = {router_id: (cursor, copies) for router_id, (cursor, copies, _) in view.routers.items()}
    return state
