"""Records as Arrow columns on their way to Spark: what a place gave, laid out as the query's schema wants it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from topics.format.columns import TextColumn
from topics.format.decode import Decoded
from topics.spark.payload import parse_texts
from topics.spark.places import Damage, Loss
from topics.spark.schema import Projection

TEXTS: Final = ("tag", "node", "key", "data", "meta")
TIME: Final = pa.timestamp("us", tz="UTC")

_KAFKA_NAMES: Final = {"value": "data", "offset": "seq", "timestamp": "ts"}
MERGE_BYTES: Final = 1 << 20
_LOG_APPEND_TIME: Final = 1
"""Kafka's word for a time that the server gave."""


@dataclass(slots=True)
class Rows:
    """Records of one topic in seq order. A text that was not wanted is not there."""

    topic: str
    count: int
    seq: pa.Array
    ts: pa.Array | None
    texts: dict[str, pa.Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        columns = [self.seq, *self.texts.values()] if self.ts is None else [self.seq, self.ts, *self.texts.values()]
        return sum(int(column.nbytes) for column in columns)


def decoded_rows(topic: str, decoded: Decoded) -> Rows:
    """What the kernel laid out, without a copy."""
    _walked, count, seqs, times, texts = decoded
    return Rows(
        topic,
        count,
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(seqs)]),
        None if times is None else time_column(np.frombuffer(times, dtype=np.int64)),
        {name: _text(count, column) for name, column in zip(TEXTS, texts, strict=True) if column is not None},
    )


def merged(items: Iterable[Rows | Loss | Damage]) -> Iterator[Rows | Loss | Damage]:
    """The same, with small runs of rows made into larger ones: a batch costs Spark about what ten thousand rows do."""
    gathered: list[Rows] = []
    size = 0
    for item in items:
        if not isinstance(item, Rows) or (gathered and gathered[0].topic != item.topic):
            yield from _joined(gathered)
            gathered, size = [], 0
        if not isinstance(item, Rows):
            yield item
            continue
        gathered.append(item)
        size += item.nbytes
        if size >= MERGE_BYTES:
            yield from _joined(gathered)
            gathered, size = [], 0
    yield from _joined(gathered)


def _joined(parts: list[Rows]) -> list[Rows]:
    """One of all, where there are any."""
    if len(parts) < 2:
        return parts
    first = parts[0]
    return [
        Rows(
            first.topic,
            sum(part.count for part in parts),
            pa.concat_arrays([part.seq for part in parts]),
            None if first.ts is None else pa.concat_arrays([part.ts for part in parts]),
            {name: pa.concat_arrays([part.texts[name] for part in parts]) for name in first.texts},
        )
    ]


def time_column(times_ms: np.ndarray) -> pa.Array:
    micros = times_ms * 1000
    return pa.Array.from_buffers(TIME, len(micros), [None, pa.py_buffer(micros)])


def _text(count: int, column: TextColumn) -> pa.Array:
    bits, offsets, text = column
    validity = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(pa.string(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(text)])


def _same_text(text: str, count: int) -> pa.Array:
    """Made of buffers, as the other columns are: a scalar of pyarrow's imports pandas, a third of a second."""
    encoded = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(encoded * count)])


def _same_number(number: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(np.full(count, number, dtype=np.int32))])


def project(rows: Rows, projection: Projection) -> pa.RecordBatch:
    """The rows as a batch of the query's schema."""
    columns = []
    for name, kind in zip(projection.names, projection.schema.types, strict=True):
        name = _KAFKA_NAMES.get(name, name) if projection.kafka else name
        if name == "topic":
            columns.append(_same_text(rows.topic, rows.count))
        elif name == "seq":
            columns.append(rows.seq)
        elif name == "ts":
            columns.append(rows.ts)
        elif name == "kind":
            columns.append(_same_text("record", rows.count))
        elif name == "partition":
            columns.append(_same_number(0, rows.count))
        elif name == "timestampType":
            columns.append(_same_number(_LOG_APPEND_TIME, rows.count))
        elif name in rows.texts:
            texts = rows.texts[name]
            if kind == pa.binary():
                texts = texts.cast(pa.binary())
            elif kind != pa.string():
                texts = parse_texts(texts, kind, projection.fail_bad_json)
            columns.append(texts)
        else:
            columns.append(pa.nulls(rows.count, kind))
    return pa.record_batch(columns, schema=projection.schema)


def loss_row(loss: Loss, projection: Projection) -> pa.RecordBatch:
    """One row that says what is missing."""
    values = {
        "topic": loss.topic, "kind": "gap", "gap_from": loss.gap_from, "gap_to": loss.gap_to, "reason": loss.reason,
    }  # fmt: skip
    columns = [
        pa.array([values.get(name)], kind) for name, kind in zip(projection.names, projection.schema.types, strict=True)
    ]
    return pa.record_batch(columns, schema=projection.schema)
