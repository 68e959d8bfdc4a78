"""What the log is told of leases when their topic leaves RAM: of what was done there it has heard nothing, and what
follows would be taken for more than it says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.storage.submission import WaitFirst
from topics.storage.topic import Topic


def kept_frames(topic: Topic, mono_ms: int) -> list[Callable[[int], bytes]]:
    """flags -> a frame, each. They say how things are, and change nothing here; raises WaitFirst while something is
    under way that would."""
    frames: list[Callable[[int], bytes]] = []
    if topic.groups is not None:
        if (first := topic.groups.under_way()) is not None:
            raise WaitFirst(first)
        frames += [partial(topic.groups.frame, topic.id, op, mono_ms) for op in topic.groups.kept(mono_ms)]
    if topic.queue is not None:
        for event, node, rows in topic.queue.kept():
            frames.append(partial(topic.queue.frame, topic.id, event, node, rows, mono_ms))
    return frames
