"""Where topics stand, all at one instant."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from topics.model import limits
from topics.model.errors import InvalidRequest
from topics.storage.durable import durable_seq
from topics.storage.store import Store


class HeadRow(msgspec.Struct, frozen=True):
    epoch: int
    head_seq: int
    durable_seq: int | None
    earliest_seq: int
    loss_floor: int
    """Lowest seq not lost against anyone's will."""
    bytes_ahead: int
    """Accounted bytes from the asked seq on."""


def heads_like(store: Store, prefix: str, exact: bool, allowed: Callable[[str], bool]) -> dict[str, int]:
    """The topics that a pattern means, each with its next seq. Under the lock."""
    if exact:
        topic = store.topics.get(prefix)
        return {prefix: topic.head + 1} if topic is not None and allowed(prefix) else {}
    found = {}
    for name, topic in store.topics.items():
        if name.startswith(prefix) and allowed(name):
            found[name] = topic.head + 1
            if len(found) > limits.HEADS_TOPICS:
                raise InvalidRequest(
                    f"the pattern {prefix + '*'!r} means more than the {limits.HEADS_TOPICS} topics of one call; "
                    "ask for a longer prefix"
                )
    return found


def heads_of(store: Store, asked: dict[str, int]) -> tuple[dict[str, HeadRow], bool]:
    """Rows of the topics that exist, by name, and whether one has safe records at its asked seq. Under the lock."""
    rows: dict[str, HeadRow] = {}
    passed = False
    for name, next_seq in asked.items():
        topic = store.topics.get(name)
        if topic is None or topic.closing:
            continue
        safe = durable_seq(topic, store.shard_for(topic))
        ahead = topic.measure(max(next_seq, 1), topic.head)[1] if next_seq <= topic.head else 0
        rows[name] = HeadRow(
            topic.epoch, topic.head, safe, topic.earliest_seq, min(topic.involuntary_floor, topic.head) + 1, ahead
        )
        passed = passed or (topic.head if safe is None else safe) >= next_seq
    return rows, passed
