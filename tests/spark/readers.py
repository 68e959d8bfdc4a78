"""Reading as Spark's tasks do, without Spark: partitions are planned, pickled, and read one by one."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from topics.model.record import Gap, Record
from topics.spark.options import parse_options
from topics.spark.schema import columns_of
from topics.spark.source import batch_reader

Item = tuple[Any, ...]
"""A record as (seq, ts, tag, node, key, data, meta), or a gap as ("gap", first, last, reason)."""

_TYPES = {"string": StringType(), "bigint": LongType(), "timestamp": TimestampType()}


def schema_of(options: dict[str, str]) -> StructType:
    """What Spark makes of the default schema."""
    schema = StructType()
    for name, kind in columns_of(parse_options(options)).items():
        schema = schema.add(name, _TYPES[kind.removesuffix(" not null")], not kind.endswith(" not null"))
    return schema


def partitions(options: dict[str, str], schema: StructType | None = None) -> tuple[Any, list[Any]]:
    """A reader as a worker gets it, and its partitions."""
    reader = batch_reader(options, schema or schema_of(options))
    worker = pickle.loads(pickle.dumps(reader))
    return worker, [pickle.loads(pickle.dumps(partition)) for partition in reader.partitions()]


def batches(options: dict[str, str], schema: StructType | None = None) -> list[pa.RecordBatch]:
    worker, parts = partitions(options, schema)
    return [batch for part in parts for batch in worker.read(part)]


def items(options: dict[str, str]) -> list[Item]:
    """Records and gaps of one topic, in seq order."""
    return sorted(items_of_batches(batches(options)), key=place)


def items_of_batches(found: Iterable[pa.RecordBatch]) -> list[Item]:
    return [item_of_row(row) for batch in found for row in batch.to_pylist()]


def item_of_row(row: dict[str, Any]) -> Item:
    if row.get("kind") == "gap":
        return "gap", row["gap_from"], row["gap_to"], row["reason"]
    ts = round(row["ts"].timestamp() * 1000)
    return row["seq"], ts, row["tag"], row["node"], row["key"], row["data"], row["meta"]


def item_of(found: Record | Gap) -> Item:
    """The same of what the engine or the client gave."""
    if isinstance(found, Gap):
        return "gap", found.gap_from, found.gap_to, found.reason
    meta = None if found.meta_raw is None else found.meta_raw.decode()
    return found.seq, found.ts, found.tag, found.node, found.key, found.raw.decode(), meta


def place(item: Item) -> int:
    first = item[1] if item[0] == "gap" else item[0]
    assert isinstance(first, int)
    return first


def seqs(found: Iterable[Item]) -> list[int]:
    return [item[0] for item in found if item[0] != "gap"]
