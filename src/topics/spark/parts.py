"""The Parquet files of a history table: written by tasks, described by a few numbers each for the driver's commit."""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.format.decode import COLUMN_DATA, COLUMN_KEY, COLUMN_META, COLUMN_NODE, COLUMN_TAG, COLUMN_TS
from topics.host.fs import OsFs
from topics.model.errors import CorruptFile, InvalidRequest, RecordsLost
from topics.spark.frames import Wanted
from topics.spark.options import Filter
from topics.spark.origin import Origin
from topics.spark.payload import parse_texts
from topics.spark.places import Damage, Loss, Span, joined_losses
from topics.spark.rows import Rows

TIME: Final = pa.timestamp("us", tz="UTC")
COLUMNS: Final = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", TIME, nullable=False),
        ("tag", pa.string()),
        ("node", pa.string()),
        ("key", pa.string()),
        ("data", pa.string()),
        ("meta", pa.string()),
    ]
)
_WANT: Final = COLUMN_TS | COLUMN_TAG | COLUMN_NODE | COLUMN_KEY | COLUMN_DATA | COLUMN_META

ROW_GROUP_BYTES: Final = 64 << 20
"""Of decoded columns: a segment alone would make groups so small that readers spend their time between them."""

FILE_BYTES: Final = 256 << 20
"""As written: a larger file would keep one task of a reader busy alone, however well the records shrink."""

SHREDDED: Final = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "boolean": pa.bool_(),
    "timestamp": TIME,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shred:
    """A typed column taken from the JSON of `data`."""

    path: tuple[str, ...]
    kind: str

    @property
    def name(self) -> str:
        """Of the column. Delta has no such characters in names, and engines that say so could not read the table."""
        return re.sub(r"[ ,;{}()=]", "_", "_".join(self.path))


def parse_shreds(text: str) -> tuple[Shred, ...]:
    """`customer.id:bigint,total:double`."""
    shreds = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        path, colon, kind = piece.rpartition(":")
        names = tuple(path.split("."))
        if not colon or kind not in SHREDDED or not all(names) or not path.isprintable():
            raise InvalidRequest(
                f"--shred {piece!r}: write path:type, such as customer.id:bigint; types: {', '.join(SHREDDED)}"
            )
        shreds.append(Shred(names, kind))
    taken = set(COLUMNS.names)
    for shred in shreds:
        if shred.name.lower() in taken:  # Delta takes names for the same whatever their case
            raise InvalidRequest(f"--shred gives two columns the name {shred.name!r}")
        taken.add(shred.name.lower())
        for other in shreds:
            if len(shred.path) < len(other.path) and other.path[: len(shred.path)] == shred.path:
                whole, part = ".".join(shred.path), ".".join(other.path)
                raise InvalidRequest(
                    f"--shred takes {whole!r} as a value and {part!r} from inside it: give one of them"
                )
    return tuple(shreds)


def table_schema(shreds: tuple[Shred, ...]) -> pa.Schema:
    schema = COLUMNS
    for shred in shreds:
        schema = schema.append(pa.field(shred.name, SHREDDED[shred.kind]))
    return schema


@dataclass(frozen=True, slots=True)
class Written:
    """A file as the driver's commit needs it."""

    path: str
    """Below the table's folder; empty where no record was left to write."""
    size: int = 0
    rows: int = 0
    stats: str = ""
    losses: tuple[Loss, ...] = ()
    """Found while reading: gone since the round was planned."""


class PartFile:
    """A Parquet file of a table while it is written: made with its first rows, measured as it grows."""

    def __init__(self, folder: str, first_seq: int, schema: pa.Schema, level: int = 3, of: str = "") -> None:
        self._name = f"part-{first_seq:019d}-{of}{uuid.uuid4()}.parquet"
        self._path = os.path.join(folder, self._name)
        self._schema = schema
        self._level = level
        self._writer: pq.ParquetWriter | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._size = 0
        self._size_of_group = 0
        self._rows = 0
        self._bounds: dict[str, list[Any]] = {}
        self._nulls: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Another row group like the largest one would make it too large."""
        return self._size + self._size_of_group > FILE_BYTES

    def add(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = open_parquet(self._path, self._schema, self._level)
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        self._rows += batch.num_rows
        for name in ("seq", "ts"):
            low_high = pc.min_max(batch.column(name)).as_py()
            bounds = self._bounds.setdefault(name, [low_high["min"], low_high["max"]])
            bounds[0], bounds[1] = min(bounds[0], low_high["min"]), max(bounds[1], low_high["max"])
        for name in batch.schema.names:
            self._nulls[name] = self._nulls.get(name, 0) + batch.column(name).null_count
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self._end_group()

    def _end_group(self) -> None:
        assert self._writer is not None
        batches, self._gathered, self._gathered_bytes = self._gathered, [], 0
        self._writer.write_table(pa.Table.from_batches(batches))
        size = os.path.getsize(self._path)
        self._size_of_group = max(self._size_of_group, size - self._size)
        self._size = size

    def finish(self, losses: tuple[Loss, ...] = ()) -> Written:
        if self._writer is None:
            return Written("", losses=losses)
        try:
            if self._gathered:
                self._end_group()
            self._writer.close()
            _sync(self._path)
        except BaseException:
            self.discard()
            raise
        return Written(self._name, os.path.getsize(self._path), self._rows, self._stats(), losses)

    def discard(self) -> None:
        """May be called again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            os.unlink(self._path)

    def _stats(self) -> str:
        low, high = ({name: _plain(bounds[side]) for name, bounds in self._bounds.items()} for side in (0, 1))
        return json.dumps({"numRecords": self._rows, "minValues": low, "maxValues": high, "nullCount": self._nulls})


@dataclass(slots=True)
class Writer:
    """Reads spans and writes files into `folder`: one, unless that would become too large."""

    folder: str
    origin: Origin
    shreds: tuple[Shred, ...]
    report_corrupt: bool = False
    """Damaged records are losses; else they are an error."""
    mark: str = field(default_factory=lambda: f"{uuid.uuid4().hex[:12]}-")
    """Part of the name of every file, so that those of a round that fails can be told from all others."""

    def write(self, spans: list[Span]) -> list[Written]:
        """The files in the order of their seqs; the last one has the losses of all."""
        schema = table_schema(self.shreds)
        losses: list[Loss] = []
        written: list[Written] = []
        file = PartFile(self.folder, spans[0].start_seq, schema, of=self.mark)
        try:
            for item in self.origin.read(spans, Wanted(_WANT, True, Filter())):
                if isinstance(item, Loss | Damage):
                    losses.append(self._judged(item))
                elif item.count:
                    if file.is_full:
                        written.append(file.finish())
                        file = PartFile(self.folder, item.seq[0].as_py(), schema, of=self.mark)
                    file.add(self._batch(item, schema))
            written.append(file.finish(tuple(joined_losses(losses))))
        except BaseException:
            file.discard()
            for one in written:
                os.unlink(os.path.join(self.folder, one.path))
            raise
        return written

    def _judged(self, item: Loss | Damage) -> Loss:
        """CorruptFile or RecordsLost if rot took it and the export is not to go on without it."""
        remedies = "and run again, or export the rest with --on-corrupt report, which notes what is lost"
        if isinstance(item, Damage):
            if not self.report_corrupt:
                why = f"record {item.seq} of topic {item.topic!r} fails its check: restore the file from a backup"
                raise CorruptFile(item.path, item.offset, f"{why} {remedies}")
            return Loss(item.topic, item.seq, item.seq, "corrupt")
        if item.reason == "corrupt" and not self.report_corrupt:
            # The server has read them, and it alone knows the file.
            raise RecordsLost(
                f"records {item.gap_from} to {item.gap_to} of topic {item.topic!r} fail their check on the server: "
                f"restore the file, which POST /v0/admin/scrub names, from a backup {remedies}"
            )
        return item

    def _batch(self, rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
        texts = [
            rows.texts.get(name, pa.nulls(rows.count, pa.string())) for name in ("tag", "node", "key", "data", "meta")
        ]
        columns = [rows.seq, rows.ts, *texts]
        if self.shreds:
            columns += shredded(rows.texts["data"], self.shreds)
        return pa.record_batch(columns, schema=schema)


def open_parquet(path: str, schema: pa.Schema, level: int) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=level,
        use_dictionary=["tag", "node"],
        column_encoding={"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
        write_page_index=True,
    )


def _plain(value: Any) -> Any:
    """Delta writes times with milliseconds."""
    return value.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z" if hasattr(value, "strftime") else value


def _sync(path: str) -> None:
    """The commit that will name it must not outlive it."""
    file = OsFs().open(path)
    try:
        file.sync()
    finally:
        file.close()


def shredded(texts: pa.Array, shreds: tuple[Shred, ...]) -> list[pa.Array]:
    """The typed columns; null where a payload has no such value or another type."""
    columns, parsed = _shredded(texts, shreds)
    if len(shreds) > 1 and parsed.null_count:
        # One value of another type has cost a payload all of them: here each column is taken by itself.
        bad = parsed.is_null()
        again = [_shredded(texts.filter(bad), (shred,))[0][0] for shred in shreds]
        columns = [pc.replace_with_mask(column, bad, one) for column, one in zip(columns, again, strict=True)]
    return columns


def _shredded(texts: pa.Array, shreds: tuple[Shred, ...]) -> tuple[list[pa.Array], pa.Array]:
    """The columns, and the structs that they come from."""
    tree: dict[str, Any] = {}
    for shred in shreds:
        at = tree
        for name in shred.path[:-1]:
            at = at.setdefault(name, {})
        at[shred.path[-1]] = SHREDDED[shred.kind]
    parsed = parse_texts(texts, _struct(tree), False)
    columns = []
    for shred in shreds:
        column = parsed
        for name in shred.path:
            column = pc.struct_field(column, name)
        columns.append(column)
    return columns, parsed


def _struct(tree: dict[str, Any]) -> pa.DataType:
    return pa.struct([(name, _struct(kind) if isinstance(kind, dict) else kind) for name, kind in tree.items()])
