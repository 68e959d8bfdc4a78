"""Mistakes that one could make in consumer groups, each as a patch of the running engine; see `mistakes.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tests.crash.mistakes import Patches
from topics.format.group import GroupEvent, GroupOp
from topics.rules.group import Group
from topics.storage import append, delete, grouping, guard
from topics.storage.group import Groups
from topics.storage.submission import Submission, joined
from topics.storage.topic import Topic


def _unlogged(patches: Patches, event: GroupEvent) -> None:
    """The frames of an event say nothing."""
    real = Groups.frame

    def frame(self: Groups, topic_id: int, op: GroupOp, *rest: Any) -> bytes:
        if op.event == event:
            op = GroupOp(GroupEvent.RELEASED, op.group)
        return real(self, topic_id, op, *rest)

    patches.set(Groups, "frame", frame)


def group_acks_not_logged(patches: Patches) -> None:
    _unlogged(patches, GroupEvent.SETTLED)


def group_seeks_not_logged(patches: Patches) -> None:
    _unlogged(patches, GroupEvent.SOUGHT)


def group_drops_not_logged(patches: Patches) -> None:
    _unlogged(patches, GroupEvent.DROP)


def group_acks_answered_before_their_sync(patches: Patches) -> None:
    patches.set(grouping, "settles", lambda _: False)


def groups_left_out_of_the_snapshot(patches: Patches) -> None:
    patches.set(Groups, "cut", lambda self, now_ms: [])


def group_position_logged_without_its_records(patches: Patches) -> None:
    real = Groups.frame

    def frame(self: Groups, topic_id: int, op: GroupOp, *rest: Any) -> bytes:
        if op.event == GroupEvent.CLAIMED:
            op = msgspec.structs.replace(op, rows=())
        return real(self, topic_id, op, *rest)

    patches.set(Groups, "frame", frame)


def calls_that_travel_together_log_the_first_alone(patches: Patches) -> None:
    def travel(lane: int, parts: list[Submission]) -> Submission:
        for part in parts[1:]:
            part.buffers = []
        return joined(lane, parts)

    patches.set(grouping, "joined", travel)


def calls_that_travel_together_are_answered_before_their_sync(patches: Patches) -> None:
    def travel(lane: int, parts: list[Submission]) -> Submission:
        submission = joined(lane, parts)
        submission.needs_sync = False
        return submission

    patches.set(grouping, "joined", travel)


def leaving_settles_what_a_member_held(patches: Patches) -> None:
    def left(self: Group, member: str, generation: int, now_ms: int) -> None:
        self.members.pop(member, None)
        self.leases.apply_settled([seq for seq, _ in self.leases.held_by(member)])

    patches.set(Group, "apply_left", left)


def retention_does_not_ask_the_groups(patches: Patches) -> None:
    for module in (append, delete):
        patches.set(module, "pins_of", lambda topic, mono_ms: [])


def retention_waits_only_for_what_nobody_was_given(patches: Patches) -> None:
    real = guard.pins_of

    def pins_of(topic: Topic, mono_ms: int) -> list[guard.Pin]:
        return [replace(pin, committed=pin.group.cursor) for pin in real(topic, mono_ms)]

    for module in (append, delete):
        patches.set(module, "pins_of", pins_of)


def groups_of_a_topic_that_leaves_ram_not_logged(patches: Patches) -> None:
    patches.set(delete, "kept_frames", lambda topic, mono_ms: [])
