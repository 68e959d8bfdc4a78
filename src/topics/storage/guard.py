"""What consumer groups still have to get, retention leaves alone: within bounds, and not for groups nobody uses."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from topics.rules.group import Group
from topics.storage.alive import last_live
from topics.storage.evict import EvictPlan, find_evict_floor
from topics.storage.topic import Topic

log = logging.getLogger("topics.retention")


@dataclass(frozen=True, slots=True)
class Pin:
    group: Group
    committed: int
    hold_bytes: int
    """What it may hold back; 0 for a group that was unused for too long."""


def pins_of(topic: Topic, mono_ms: int) -> list[Pin]:
    """Groups that retention has to ask."""
    if topic.groups is None:
        return []
    return [
        Pin(group, group.committed, 0 if mono_ms - group.used_ms > config.group_ttl_ms else config.max_hold_bytes)
        for group in topic.groups.by_name.values()
        if (config := group.config).retention_guard
    ]


def holds_all(topic: Topic, pins: list[Pin], size: int) -> bool:
    """True if a group still has to get the oldest record and may hold all there is, `size` bytes: nothing goes."""
    return any(pin.committed - 1 <= topic.ordered.floor and size <= pin.hold_bytes for pin in pins)


def guarded_floor(topic: Topic, pins: list[Pin], floor: int, head: int, tell: bool = True) -> int:
    """How much of an eviction through `floor` may happen, 0 = nothing. `tell`: it will, and whom it hurts is said."""
    start = topic.ordered.floor + 1
    allowed = floor
    bounds: list[tuple[Pin, int]] = []
    for pin in pins:
        if pin.committed > floor:
            continue
        size = topic.measure(start, floor, topic.ordered.overlay)[1]
        held = topic.measure(max(pin.committed, start), floor, topic.ordered.overlay)[1]
        bound = pin.committed - 1
        if held > pin.hold_bytes:
            through = floor if not pin.hold_bytes else find_evict_floor(topic, 0, size - pin.hold_bytes, head).floor
            bound = max(bound, min(through, floor))
        bounds.append((pin, bound))
        allowed = min(allowed, bound)
    if allowed < floor:  # a floor is the seq of a record that goes: what was deleted is told to nobody as a loss
        allowed = last_live(topic, start, allowed, topic.ordered.overlay)
        allowed = 0 if allowed < start else allowed
    if tell:
        for pin, _ in bounds:
            _tell(topic, pin, allowed)
    return allowed


def guarded_plan(topic: Topic, pins: list[Pin], plan: EvictPlan, head: int) -> EvictPlan:
    """The part of a plan that may happen."""
    floor = guarded_floor(topic, pins, plan.floor, head)
    if floor == plan.floor:
        return plan
    return EvictPlan(floor, *topic.measure(topic.ordered.floor + 1, floor, topic.ordered.overlay))


def _tell(topic: Topic, pin: Pin, floor: int) -> None:
    if floor < max(pin.committed, topic.ordered.floor + 1):
        return
    group = pin.group
    if not group.bites:
        why = f"it holds more than its {pin.hold_bytes} bytes" if pin.hold_bytes else "it was unused for too long"
        log.warning(
            "retention of topic %s goes on past group %s, which is at %d: %s",
            topic.name, group.name, pin.committed, why,
        )  # fmt: skip
    group.bites += 1


def pinned_by(pins: list[Pin], floor: int) -> list[dict[str, int | str]]:
    """Groups that still have to get something up to `floor`."""
    return [{"group": pin.group.name, "committed": pin.committed} for pin in pins if pin.committed <= floor]
