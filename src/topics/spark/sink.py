"""The sink: tasks store parts that nobody sees, the driver commits them in one step.

    task:    rows ─▶ Arrow parts ─▶ PUT …/staged/<txn>/<part>      durable, invisible
    driver:  all tasks done ─▶ POST …/commit {parts}               visible at once, in the order of the partitions

A commit may be repeated: the server remembers it and answers the same seqs. So a driver that did not hear the answer,
or a stream that replays a micro-batch, asks again with the same transaction and nothing appears twice. Attempt numbers
of tasks repeat, so a part carries a name of its own, made in the task that stores it; parts that no message of a
finished task names are dropped by the commit.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from topics.client.sync import Client
from topics.model.errors import InvalidRequest, TopicsError, Unreachable
from topics.model.limits import RECORD_BYTES
from topics.spark.reaching import client_for
from topics.spark.sink_options import SinkOptions, parse_sink_options
from topics.spark.sink_rows import Piece, Rows, Spot, joined, make_rows
from topics.spark.words import OPTIONS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("topics.spark")

PART_RECORDS: Final = 50_000
PART_BYTES: Final = 8 * 1024 * 1024
"""A part is sent when it holds this much: half of what the server takes, and little memory in a task."""
TASK_BYTES: Final = 64 * 1024 * 1024
"""What a task holds for all its topics: beyond it the topic with the most is sent, however little that is."""
_PIECES: Final = 16
"""Of one topic; more become one. A piece of few rows takes a hundred times what is in them."""
_ROW_BYTES: Final = 40
"""What it costs to know which row a record was."""
_RECORD: Final = re.compile(r"record (\d+): ")
"""How the server begins when one record of a part is at fault."""


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise InvalidRequest("a topic is only ever appended to: use mode('append')")
    options = parse_sink_options(given, stream=False)
    return BatchWriter(options, make_rows(schema, options.topic, options.data_format == "string"))


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    if overwrite:
        raise InvalidRequest(
            "a topic is only ever appended to: use outputMode('append'), or foreachBatch, which may write what it likes"
        )
    options = parse_sink_options(given, stream=True)
    return StreamWriter(options, make_rows(schema, options.topic, options.data_format == "string"))


@dataclass
class Stored(WriterCommitMessage):
    """What one task stored."""

    txn: str
    query: str | None
    partition: int
    parts: dict[str, list[str]] = field(default_factory=dict)
    """By topic, in the order of the rows."""
    committed: bool = False
    """The server said that the transaction was committed before: a replay."""


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows
        if options.app is not None:
            self._txn = f"{options.app}@{options.version}"
        else:
            self._txn = options.txn or f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return store_parts(self._options, self._rows, self._txn, None, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_parts(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_parts(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch, query = (context.getLocalProperty(n) for n in ("streaming.sql.batchId", "sql.streaming.queryId"))
        if batch is None or query is None:
            raise InvalidRequest(
                "this Spark does not tell its tasks which micro-batch they belong to; 4.2 or newer does"
            )
        return store_parts(self._options, self._rows, f"{self._options.app or query}@{batch}", query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit_parts(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort_parts(self._options, messages)


def client_of(options: SinkOptions) -> Client:
    return client_for(options.url, options.token, options.timeout_ms, OPTIONS)


# -- in a task ---------------------------------------------------------------------------------------------------------


def store_parts(
    options: SinkOptions, rows: Rows, txn: str, query: str | None, batches: Iterator[pa.RecordBatch]
) -> Stored:
    context = TaskContext.get()
    stored = Stored(txn, query, context.partitionId() if context is not None else 0)
    with client_of(options) as client:
        task = _Task(client, options, stored)
        seen = 0
        for batch in batches:
            for topic, piece in rows.split(batch, Spot(stored.partition, seen)):
                task.add(topic, piece)
            seen += batch.num_rows
        task.finish()
    return stored


@dataclass(slots=True)
class _Gathered:
    """Of one topic, what was not sent yet."""

    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    @property
    def held(self) -> int:
        return self.bytes + _ROW_BYTES * self.rows

    def add(self, piece: Piece, size: int) -> None:
        if len(self.pieces) == _PIECES:
            self.pieces = [joined(self.pieces)]
        self.pieces.append(piece)
        self.rows += len(piece.rows)
        self.bytes += size


class _Task:
    """Gathers the records of each topic and sends them part by part."""

    def __init__(self, client: Client, options: SinkOptions, stored: Stored) -> None:
        self._client = client
        self._options = options
        self._stored = stored
        self._attempt = uuid.uuid4()
        self._count = 0
        self._gathered: dict[str, _Gathered] = {}
        self._held = 0

    def add(self, topic: str, piece: Piece) -> None:
        rows = piece.records.num_rows
        if rows > PART_RECORDS or (rows > 1 and _size(piece) > PART_BYTES):
            self.add(topic, piece.part(0, rows // 2))
            self.add(topic, piece.part(rows // 2, rows))
        elif rows:
            if rows == 1 and _size(piece) > PART_BYTES:  # such a body is refused before anybody looks at its rows
                raise InvalidRequest(
                    f"row {piece.rows[0]} of partition {self._stored.partition}: it has {_size(piece)} bytes, and data "
                    f"and meta of a record take at most {RECORD_BYTES}"
                )
            self._put(topic, piece)

    def _put(self, topic: str, piece: Piece) -> None:
        rows, size = len(piece.rows), _size(piece)
        known = self._gathered.get(topic)
        if known is not None and (known.rows + rows > PART_RECORDS or known.bytes + size > PART_BYTES):
            self._send(topic)
        self._gathered.setdefault(topic, _Gathered()).add(piece, size)
        self._held += size + _ROW_BYTES * rows
        if self._held > TASK_BYTES:
            self._send(max(self._gathered, key=lambda name: self._gathered[name].held))

    def finish(self) -> None:
        for topic in list(self._gathered):
            self._send(topic)

    def _send(self, topic: str) -> None:
        import pyarrow as pa

        taken = self._gathered.pop(topic)
        self._held -= taken.held
        gathered = taken.pieces
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, gathered[0].records.schema) as writer:
            for piece in gathered:
                writer.write_batch(piece.records)
        stored = self._stored
        part = f"{stored.partition}-{self._attempt}-{self._count}"
        self._count += 1
        try:
            done = self._client.stage_arrow(
                topic, stored.txn, part, buffer.getvalue().to_pybytes(), create=self._options.create
            )
        except Unreachable:
            raise
        except TopicsError as error:
            row, why = _row_of(error.message, gathered)
            if "'data' is not JSON" in why:
                why += "; dataFormat=string takes any text"
            where = f"partition {stored.partition}" if row is None else f"row {row} of partition {stored.partition}"
            raise type_of(error)(f"{where}: the server refused it for topic {topic!r}: {why}") from None
        stored.parts.setdefault(topic, []).append(part)
        stored.committed = stored.committed or done.committed


def type_of(error: TopicsError) -> type[TopicsError]:
    """What to raise instead of an error whose class takes other arguments than a message."""
    return InvalidRequest if isinstance(error, InvalidRequest) else TopicsError


def _row_of(message: str, gathered: list[Piece]) -> tuple[int | None, str]:
    """Which row the server means where it names a record of the part, and what is wrong with it."""
    named = _RECORD.match(message)
    if named is None:
        return None, message
    at = int(named.group(1))
    for piece in gathered:
        if at < len(piece.rows):
            return piece.rows[at], message[named.end() :]
        at -= len(piece.rows)
    return None, message


def _size(piece: Piece) -> int:
    return int(piece.records.nbytes)


# -- on the driver -----------------------------------------------------------------------------------------------------


def commit_parts(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Everything the tasks stored, in the order of their partitions; without rows nothing is asked."""
    stored = _stored(messages)
    topics: dict[str, list[str]] = {}
    for one in stored:
        for topic, parts in one.parts.items():
            topics.setdefault(topic, []).extend(parts)
    if not topics:
        return
    txn, query = stored[0].txn, stored[0].query
    with client_of(options) as client:
        if len(topics) == 1:
            ((topic, parts),) = topics.items()
            done = client.commit_staged(topic, txn, parts, query=query)
            log.info("committed %s: %d records of %r from seq %s", txn, done.count, topic, done.first_seq)
        else:
            client.commit_staged_topics(txn, topics, query=query)
            log.info("committed %s in %d topics", txn, len(topics))


def abort_parts(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Drop what was stored. Messages may be missing, and then the server drops it in time; a commit is never undone:
    Spark aborts also after a commit whose answer was lost."""
    stored = _stored(messages)
    topics = sorted({topic for one in stored for topic in one.parts})
    if not topics:
        return
    try:
        with client_of(options) as client:
            for topic in topics:
                client.abort_staged(topic, stored[0].txn)
    except TopicsError as error:
        log.warning("the parts of %s stay until the server drops them: %s", stored[0].txn, error.message)


def _stored(messages: list[WriterCommitMessage | None]) -> list[Stored]:
    found = [message for message in messages if isinstance(message, Stored)]
    return sorted(found, key=lambda one: one.partition)
