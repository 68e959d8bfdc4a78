"""Where topics are read from: a running server, or a data directory at rest. Both answer the same questions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from topics.model.errors import InvalidRequest, TopicNotFound
from topics.spark.frames import Wanted
from topics.spark.options import Bound, Options
from topics.spark.places import Damage, Head, Loss, Plan, Span
from topics.spark.rows import Rows


class Origin(Protocol):
    """Travels to the tasks with the spans that it planned."""

    def topic_names(self) -> list[str]: ...

    def heads(self, asked: dict[str, int], wait_ms: int = 0) -> dict[str, Head]:
        """Those of the asked topics (name: next seq) that exist, at one instant. With `wait_ms` it may wait until one
        of them has a durable record at its next seq."""
        ...

    def seq_at(self, name: str, ts: int) -> int:
        """The first seq whose time is `ts` or later, or head + 1."""
        ...

    def plan(self, name: str, topic_id: int, start: int, end: int) -> Plan:
        """Where the seqs from `start` to `end` are, and which of them are lost."""
        ...

    def read(self, spans: list[Span], wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        """What lies in the spans now: without what was deleted since they were planned, and with the losses since."""
        ...


def open_origin(options: Options) -> Origin:
    if options.url is not None:
        from topics.spark.server_origin import ServerOrigin

        return ServerOrigin(options.url, options.token, timeout_ms=options.timeout_ms, words=options.words)
    from topics.spark.rest_origin import RestOrigin

    assert options.path is not None
    return RestOrigin(options.path, options.allow_live, words=options.words)


def chosen_topics(options: Options, origin: Origin) -> list[str]:
    """The names that are asked for; those given by name may be absent."""
    if options.pattern is None:
        return list(options.topics)
    return [name for name in origin.topic_names() if matches(options, name)]


def matches(options: Options, name: str) -> bool:
    """Whether the pattern, if there is one, means the topic."""
    return options.pattern is not None and re.fullmatch(options.pattern, name) is not None


def start_seq(origin: Origin, name: str, head: Head, bound: Bound) -> int:
    """The first seq to read; InvalidRequest if it lies beyond the head."""
    if bound.kind == "earliest":
        return head.earliest_seq
    if bound.kind == "latest":
        return head.head_seq + 1
    if bound.kind == "ts":
        return min(origin.seq_at(name, bound.value), head.head_seq + 1)
    if bound.value > head.head_seq + 1:
        raise InvalidRequest(
            f"the range of topic {name!r} begins at seq {bound.value}, but its last record is {head.head_seq}"
        )
    return max(bound.value, 1)


def end_seq(origin: Origin, name: str, head: Head, bound: Bound) -> int:
    """The first seq not to read; InvalidRequest if it lies beyond the head."""
    if bound.kind == "ts":
        return min(origin.seq_at(name, bound.value), head.head_seq + 1)
    if bound.kind != "seq":
        return head.head_seq + 1
    if bound.value > head.head_seq + 1:
        raise InvalidRequest(
            f"the range of topic {name!r} ends before seq {bound.value}, but its last record is {head.head_seq}: "
            "leave endSeq out to read up to it"
        )
    return bound.value


def plan_from(origin: Origin, name: str, head: Head, start: int, end: int, earliest: bool) -> Plan:
    """The plan of start..end. With `earliest` the range begins wherever the topic begins by now: what was evicted
    since its head was asked for is no loss."""
    plan = origin.plan(name, head.topic_id, start, end)
    if earliest:
        return Plan(plan.spans, [loss for loss in plan.losses if loss.gap_from != start])
    return plan


def heads_of(options: Options, origin: Origin) -> dict[str, Head]:
    """All topics to read, at one instant; each one given by name must exist."""
    names = chosen_topics(options, origin)
    if not names:
        raise InvalidRequest(f"no topic matches subscribePattern {options.pattern!r}")
    heads = origin.heads(dict.fromkeys(names, 1))
    for name in options.topics:
        if name not in heads and options.allow_live:
            raise InvalidRequest(
                f"the last checkpoint of {options.path} knows no topic {name!r}, and nothing newer is read beside a "
                "running store: read through its server with option url"
            )
        if name not in heads:
            raise TopicNotFound(name)
    return heads
