"""The batch reader: one snapshot per `load()`, made by its first action and read by any number of them.

`partitions` runs once, on the driver, when Spark plans that action: it fixes the head of every topic at one instant and
says where the seqs below it are. Each action then reads those spans again, and every task asks anew what was deleted or
lost meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topics.model.errors import CorruptFile, InvalidRequest, RecordsLost
from topics.spark.frames import Wanted
from topics.spark.options import Options, parse_options
from topics.spark.origin import Origin, end_seq, heads_of, open_origin, plan_from, start_seq
from topics.spark.packing import pack
from topics.spark.places import Damage, Loss, Plan, Span
from topics.spark.rows import loss_row, merged, project
from topics.spark.schema import Projection, columns_of, make_projection
from topics.spark.settling import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def default_schema(given: Mapping[str, str]) -> str:
    """The columns without a schema of the caller's, in Spark's words."""
    return ", ".join(f"{name} {kind}" for name, kind in columns_of(parse_options(given)).items())


def batch_reader(given: Mapping[str, str], schema: StructType) -> BatchReader:
    options = parse_options(given)
    for bound in (options.start, *options.starts.values()):
        if bound.kind == "latest":
            raise InvalidRequest("a batch cannot start at latest: nothing would be read; leave startingOffsets out")
    for name, value in (
        ("maxRecordsPerTrigger", options.max_records),
        ("maxBytesPerTrigger", options.max_bytes),
        ("minRecordsPerTrigger", options.min_records),
        ("maxTriggerDelay", options.max_delay_ms),
        ("group", options.group),
    ):
        if value is not None:
            raise InvalidRequest(f"option {name} is for streams (readStream); a batch reads its range whole")
    return BatchReader(options, make_projection(options, schema))


@dataclass
class TopicsPartition(InputPartition):
    """What one task reads."""

    origin: Origin
    spans: list[Span]
    losses: list[Loss]
    """Known when the query was planned; told before the records."""


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def partitions(self) -> list[InputPartition]:
        options = self._options
        origin = open_origin(options)
        plans = []
        for name, head in sorted(heads_of(options, origin).items()):
            start = start_seq(origin, name, head, options.start_of(name))
            end = end_seq(origin, name, head, options.end_of(name))
            if start > end and options.end_of(name).kind == "seq":
                raise InvalidRequest(f"the range of topic {name!r} ends at seq {end}, before it begins at {start}")
            if start < end:
                earliest = options.start_of(name).kind == "earliest"
                plans.append(plan_from(origin, name, head, start, end, earliest))
        return make_partitions(options, origin, plans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._projection, partition)


def make_partitions(options: Options, origin: Origin, plans: list[Plan]) -> list[InputPartition]:
    """RecordsLost if something is lost and the query takes no gaps."""
    losses = [loss for plan in plans for loss in plan.losses]
    for loss in losses:
        judge(options, loss)
    spans = [span for plan in plans for span in plan.spans]
    packed = pack(spans, os.cpu_count() or 1, options.min_partitions, options.max_partition_records)
    partitions: list[Any] = [TopicsPartition(origin, part, []) for part in packed]
    if losses and options.shows_gaps:
        partitions.insert(0, TopicsPartition(origin, [], losses))
    return partitions


def read_partition(options: Options, projection: Projection, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    settle()
    if not isinstance(partition, TopicsPartition):
        return  # Spark's stand-in where there is nothing to read
    for loss in partition.losses:
        if judge(options, loss):
            yield loss_row(loss, projection)
    wanted = Wanted(projection.want, options.verify, options.filter)
    for item in merged(partition.origin.read(partition.spans, wanted)):
        if isinstance(item, Damage):
            item = _damaged(options, item)
        if not isinstance(item, Loss):
            yield project(item, projection)
        elif judge(options, item):
            yield loss_row(item, projection)


def judge(options: Options, loss: Loss) -> bool:
    """Whether the loss is to be shown as a row; RecordsLost if it must not be."""
    if loss.reason == "corrupt" and options.report_corrupt:
        return True
    if options.gap_policy == "fail":
        raise RecordsLost(
            f"records {loss.gap_from} to {loss.gap_to} of topic {loss.topic!r} are lost ({loss.reason}): read on with "
            "gapPolicy=skip, or with gapPolicy=emit for a row in place of each gap (topics.spark.table: "
            "gap_policy='skip')",
            topic=loss.topic,
            gap_from=loss.gap_from,
            gap_to=loss.gap_to,
            reason=loss.reason,
        )
    return options.gap_policy == "emit"


def _damaged(options: Options, damage: Damage) -> Loss:
    if not options.report_corrupt:
        raise CorruptFile(
            damage.path,
            damage.offset,
            f"record {damage.seq} of topic {damage.topic!r} fails its check; restore the file from a backup, or read "
            "on with onCorrupt=report",
        )
    return Loss(damage.topic, damage.seq, damage.seq, "corrupt")
