"""The consumer groups of a topic: what their frames say, live and in replay alike.

Times are monotonic while the process lives and wall times in the log, by a distance that is fixed when the store is
opened; see `topics.storage.queue`, which does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from topics.format.frame import Kind, encode_frame
from topics.format.group import GroupEvent, GroupOp
from topics.format.snapshot import GroupRow
from topics.model.group import GroupConfig
from topics.rules.group import Counters, Group
from topics.rules.lease import Leases
from topics.rules.lease_columns import Packed, pack, unpack
from topics.rules.lease_values import Cut
from topics.storage.dead import DeadSet
from topics.storage.queue import ran_out
from topics.storage.submission import Submission


class GroupCut(NamedTuple):
    name: str
    config: GroupConfig
    leases: Cut
    counters: list[int]
    members: list[tuple[str, int]]
    used_ms: int
    now_ms: int
    shift_ms: int


@dataclass(slots=True)
class Groups:
    by_name: dict[str, Group] = field(default_factory=dict)
    shift_ms: int = 0
    """From monotonic time to the time that is logged."""
    seen_ms: int = 0
    """The latest time in the log."""
    making: dict[str, object] = field(default_factory=dict)
    """Groups whose first frame is under way."""

    def apply(self, op: GroupOp, now_ms: int, dead: DeadSet) -> None:
        event = op.event
        if event == GroupEvent.PUT:
            self._put(op, now_ms)
            return
        if event == GroupEvent.KEPT:
            self.load(msgspec.json.decode(op.text, type=GroupRow))
            return
        group = self.by_name.get(op.group)
        if group is None:
            return
        group.used_ms = max(group.used_ms, now_ms)
        if event == GroupEvent.CLAIMED:
            # A record may have gone between the fetch and now: its lease would never end.
            rows = op.rows
            if rows and dead.has_any(rows[0][0], rows[-1][0]):
                rows = [row for row in rows if row[0] not in dead]
            group.apply_claimed(op.member, rows, op.number, op.lost, now_ms)
        elif event == GroupEvent.SETTLED:
            group.apply_settled(op.rows)
        elif event == GroupEvent.RELEASED:
            group.apply_released(op.rows, op.number == 1, now_ms)
        elif event == GroupEvent.EXTENDED:
            group.apply_extended(op.rows, now_ms)
        elif event == GroupEvent.PARKED:
            group.apply_parked(op.rows)
        elif event == GroupEvent.DEAD:
            group.apply_dead(op.rows)
        elif event == GroupEvent.COMMITTED:
            group.apply_committed(op.number)
        elif event == GroupEvent.SOUGHT:
            group.apply_sought(op.number)
        elif event == GroupEvent.JOINED:
            group.apply_joined(op.member, op.number, now_ms)
        elif event == GroupEvent.LEFT:
            group.apply_left(op.member, op.number, now_ms)
        else:
            del self.by_name[op.group]

    def _put(self, op: GroupOp, now_ms: int) -> None:
        config = msgspec.json.decode(op.text, type=GroupConfig)
        known = self.by_name.get(op.group)
        if known is not None:
            known.apply_config(config)
            return
        self.by_name[op.group] = Group(op.group, config, Leases(op.number), used_ms=now_ms)

    def load(self, row: GroupRow) -> None:
        leases = unpack(Packed(row.position, row.holders, row.columns))
        config = msgspec.json.decode(row.config, type=GroupConfig)
        group = Group(row.name, config, leases, Counters(*row.counters), used_ms=row.used_ms)
        for name, generation in row.members:
            group.apply_joined(name, generation, row.at_ms)
        self.by_name[row.name] = group
        self.seen_ms = max(self.seen_ms, row.at_ms)

    def forget(self, first: int, last: int) -> None:
        """Their records are gone, whoever did it: they count as settled."""
        for group in self.by_name.values():
            group.leases.forget(first, last)

    def keep_within(self, name: str, head: int) -> None:
        """A group never stands beyond the next seq. Of records that lived in RAM alone the log knows nothing: their
        seqs are given again, and what gets them must not count as settled because of what had them before."""
        group = self.by_name.get(name)
        if group is not None and group.leases.position > head + 1:
            group.leases.position = head + 1

    def forget_all(self, seqs: Sequence[int]) -> None:
        for group in self.by_name.values():
            group.leases.drop(seqs)

    def restart(self, wall_ms: int, now_ms: int, keep_leases: bool, dead: DeadSet, head: int) -> list[GroupOp]:
        """See `Queue.restart`."""
        then_ms = max(wall_ms, self.seen_ms)
        self.shift_ms = then_ms - now_ms
        self.making = {}
        ended = []
        for group in self.by_name.values():
            over = ran_out(group.leases, then_ms) if keep_leases else []
            if over:
                ended.append(GroupOp(GroupEvent.RELEASED, group.name, rows=over))
            group.restart(then_ms, now_ms, keep_leases, lambda seq: seq <= head and seq not in dead, head)
        return ended

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def frame(self, topic_id: int, op: GroupOp, now_ms: int, flags: int) -> bytes:
        """The op is in monotonic time."""
        shift = self.shift_ms
        return encode_frame(Kind.GROUP, topic_id, op.encode(shift), ts=now_ms + shift, flags=flags)

    def under_way(self) -> Submission | None:
        """Something that was ordered and will change a group."""
        found = [*self.making.values()]
        for group in self.by_name.values():
            found += [group.gate, *group.leaving.values(), *group.leases.all_under_way()]
        return next((what for what in found if isinstance(what, Submission) and not what.settled), None)

    def kept(self, now_ms: int) -> list[GroupOp]:
        """All groups as they are. What was done while their topic lived in RAM alone, the log has yet to hear."""
        return [
            GroupOp(GroupEvent.KEPT, cut.name, text=msgspec.json.encode(group_row(cut))) for cut in self.cut(now_ms)
        ]

    def cut(self, now_ms: int) -> list[GroupCut]:
        return [
            GroupCut(
                group.name, group.config, group.leases.cut(), group.counters.row(),
                [(name, member.generation) for name, member in group.members.items()], group.used_ms, now_ms,
                self.shift_ms,
            )
            for group in self.by_name.values()
        ]  # fmt: skip


def group_row(cut: GroupCut) -> GroupRow:
    packed = pack(cut.leases, cut.shift_ms)
    shift = cut.shift_ms
    config = msgspec.Raw(msgspec.json.encode(cut.config))
    return GroupRow(
        cut.name, config, packed.position, packed.holders, packed.columns, cut.counters, cut.members,
        cut.used_ms + shift, cut.now_ms + shift,
    )  # fmt: skip


def load_groups(rows: list[GroupRow]) -> Groups:
    groups = Groups()
    for row in rows:
        groups.load(row)
    return groups
