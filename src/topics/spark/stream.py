"""The stream reader: which seqs the next batch has, decided once; a replay of it reads the same seqs.

An offset names, per topic, the instance and the next seq: {"orders": {"id": "<store>-<topic id>", "next": 1001}}.
Spark compares offsets as text, so keys are sorted. Nothing above the durable head is ever offered: a record that a
power cut may take back must not have been processed.

With option `group` the stream's progress is told to the server. Spark asks for the next offset with the end of the last
batch that is done with, so that is what is told; its own `commit` comes no earlier.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from topics.model.errors import InvalidRequest, TopicNotFound, TopicsError
from topics.spark.admission import Limits, Offer, admit
from topics.spark.options import DELAY_MS, EARLIEST, LATEST, Options, parse_options
from topics.spark.origin import Origin, chosen_topics, heads_of, matches, open_origin, plan_from, start_seq
from topics.spark.places import Head, Loss, Plan
from topics.spark.progress import Progress
from topics.spark.schema import Projection, make_projection
from topics.spark.server_origin import ServerOrigin
from topics.spark.source import judge, make_partitions, read_partition
from topics.spark.words import STREAM

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("topics.spark")

WAIT_MS: Final = 250
"""How long a reader that has everything waits for more; Spark would ask again some 90 times a second."""

Offset = dict[str, dict[str, Any]]


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    options = parse_options(given)
    if options.end != LATEST or options.ends:
        raise InvalidRequest("a stream has no end: leave out endSeq, endTs and endingOffsets, or use spark.read")
    if options.allow_live:
        raise InvalidRequest("a stream cannot read beside a running store: give its url instead of path")
    return StreamReader(replace(options, words=STREAM), make_projection(options, schema))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self, options: Options, projection: Projection, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._projection = projection
        self._monotonic = monotonic
        self._origin: Origin | None = None
        self._target: Offset | None = None
        """With Trigger.AvailableNow: where the last batch ends."""
        self._latest: Offset | None = None
        self._waiting_since: float | None = None
        self._progress: Progress | None = None
        self._begun = False
        """Whether it is known where this stream begins: at the option's place, or at the checkpoint's."""

    def __getstate__(self) -> dict[str, Any]:
        """A task needs the question, not what the driver found out."""
        return {**self.__dict__, "_origin": None, "_progress": None, "_monotonic": time.monotonic}

    @property
    def origin(self) -> Origin:
        if self._origin is None:
            self._origin = open_origin(self._options)
        return self._origin

    # -- which seqs ----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        self._begun = True
        options, origin = self._options, self.origin
        heads = heads_of(options, origin) if options.topics or chosen_topics(options, origin) else {}
        offset: Offset = {}
        for name, head in sorted(heads.items()):
            _check_durable(name, head)
            bound = options.start_of(name)
            start = start_seq(origin, name, head, bound) if bound.kind != "latest" else durable_end(head)
            offset[name] = entry(head.id, min(start, durable_end(head)) if bound.kind == "latest" else start)
        return offset

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        if not self._begun:
            self._begun = True
            if self._options.start != EARLIEST or self._options.starts:
                log.warning("the stream goes on from its checkpoint (%s): where to start is for a new one alone", start)
        heads = self._heads(start, WAIT_MS if self._target is None else 0)
        self._latest = {name: entry(head.id, durable_end(head)) for name, head in sorted(heads.items())}
        self._tell_progress(start, heads)
        offers: dict[str, Offer] = {}
        end: Offset = {}
        for name, head in sorted(heads.items()):
            _check_durable(name, head)
            at = start.get(name)
            stop = durable_end(head)
            if self._target is not None:
                goal = self._target.get(name)
                stop = min(stop, goal["next"]) if goal is not None and goal["id"] == head.id else 0
            if at is None:
                first = head.earliest_seq
            elif is_other(at, head):
                judge(self._options, _recreated(name, at, head))
                first = 1
            else:
                first = at["next"]
            if stop < first:  # nothing that may be offered: what was offered before stays
                end[name] = at if at is not None and not is_other(at, head) else entry(head.id, first)
                continue
            offers[name] = Offer(first, stop, head.bytes_ahead)
            end[name] = entry(head.id, first)
        for name, stop in self._admitted(offers, limit).items():
            end[name] = entry(heads[name].id, stop)
        for name, at in start.items():
            if name in heads:
                continue
            if name in self._options.topics:
                self._dropped(name)
            if not matches(self._options, name):  # one that matched is gone, and leaves
                end[name] = at  # one that is not asked for any more keeps its place, should it be asked for again
        return dict(sorted(end.items()))

    def _heads(self, start: Offset, wait_ms: int) -> dict[str, Head]:
        """Where the topics stand, once one of them has something new or the wait is over."""
        names = chosen_topics(self._options, self.origin)
        asked = {name: start[name]["next"] if name in start else 1 for name in names}
        if not asked:
            if wait_ms:
                time.sleep(wait_ms / 1000)
            return {}
        return self.origin.heads(asked, wait_ms)

    def _tell_progress(self, start: Offset, heads: Mapping[str, Head]) -> None:
        """A topic that joins is told with its first record, so that retention may wait for it from now on."""
        origin = self.origin
        if self._options.group is None or not isinstance(origin, ServerOrigin):
            return
        if self._progress is None:
            self._progress = Progress(lambda: origin.client, self._options.group, self._options.hold)
        for name, head in heads.items():
            at = start.get(name)
            if head.durable_seq is None:
                continue
            if at is None:
                self._progress.tell(name, head.id, head.earliest_seq)
            elif not is_other(at, head):
                self._progress.tell(name, head.id, at["next"])

    def _admitted(self, offers: dict[str, Offer], limit: ReadLimit) -> dict[str, int]:
        """Where the batch ends, by topic."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return {name: offer.end for name, offer in offers.items()}
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_records
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes
        there = sum(offer.end - offer.start for offer in offers.values())
        if options.min_records is not None and self._target is None and 0 < there < options.min_records:
            now = self._monotonic()
            since = self._waiting_since = self._waiting_since if self._waiting_since is not None else now
            if (now - since) * 1000 < (DELAY_MS if options.max_delay_ms is None else options.max_delay_ms):
                time.sleep(WAIT_MS / 1000)
                return {}
        self._waiting_since = None
        return admit(offers, Limits(rows, size))

    def _dropped(self, name: str) -> None:
        """A topic that was asked for by name is not there (any more). Whoever takes gaps waits for the next one."""
        if self._options.gap_policy == "fail":
            raise TopicNotFound(name)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_records is not None:
            return ReadMaxRows((1 << 62) - 1)  # any limit will do, so that ours are asked for
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        heads = self._heads({}, 0)
        self._target = {name: entry(head.id, durable_end(head)) for name, head in heads.items()}

    def reportLatestOffset(self) -> Offset | None:
        return self._latest

    # -- reading them --------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        options, origin = self._options, self.origin
        plans: list[Plan] = []
        heads = origin.heads(dict.fromkeys(end, 1)) if end else {}
        for name, stop in sorted(end.items()):
            at = start.get(name)
            if at == stop:
                continue
            head = heads.get(name)
            if head is None or head.id != stop["id"]:
                first = at["next"] if at is not None and at["id"] == stop["id"] else 1
                plans.append(Plan([], [Loss(name, first, max(stop["next"] - 1, first), "recreated")]))
                continue
            losses: list[Loss] = []
            if at is None:
                first = (
                    head.earliest_seq
                )  # a topic that joins begins where it begins: what went before was not asked for
            elif at["id"] != stop["id"] or at["next"] > stop["next"]:
                losses = [_recreated(name, at, head)]
                first = 1
            else:
                first = at["next"]
            last = min(stop["next"], head.head_seq + 1)
            if first < last:
                plan = plan_from(origin, name, head, first, last, earliest=at is None)
                plans.append(Plan(plan.spans, losses + plan.losses))
            elif losses:
                plans.append(Plan([], losses))
            if last < stop["next"]:  # offered by a head that a topic put back from a backup does not have
                plans.append(Plan([], [Loss(name, max(first, last), stop["next"] - 1, "recreated")]))
        return make_partitions(options, origin, plans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._projection, partition)

    def stop(self) -> None:
        close = getattr(self._origin, "close", None)
        if close is not None:
            close()


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In place of a reader that cannot be made: whatever is asked first hears why."""

    def __init__(self, error: TopicsError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        raise self._error

    def latestOffset(self, start: Offset, limit: ReadLimit) -> NoReturn:
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        raise self._error

    def reportLatestOffset(self) -> NoReturn:
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> NoReturn:
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error


def entry(topic: str, next_seq: int) -> dict[str, Any]:
    return {"id": topic, "next": next_seq}


def durable_end(head: Head) -> int:
    """The first seq that may not be offered yet."""
    return (0 if head.durable_seq is None else head.durable_seq) + 1


def is_other(at: dict[str, Any], head: Head) -> bool:
    """Whether the topic is another than the one the offset was made of."""
    return bool(at["id"] != head.id or at["next"] > head.head_seq + 1)


def _recreated(name: str, at: dict[str, Any], head: Head) -> Loss:
    """What the old instance may have had from there on is unknown; the gap says where the reader stood."""
    return Loss(name, at["next"], at["next"], "recreated")


def _check_durable(name: str, head: Head) -> None:
    if head.durable_seq is None:
        raise InvalidRequest(
            f"topic {name!r} is ephemeral: nothing of it is durable, so a stream could not replay it; use spark.read"
        )
