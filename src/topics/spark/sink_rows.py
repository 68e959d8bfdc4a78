"""Rows of a DataFrame as records: columns checked on the driver, values in the tasks.

A value that cannot be a record fails its task and names the row; nothing of the query is visible then. What only the
server can judge, such as the size of a record, it says when the part is stored, which is just as early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.model.config import check_topic_name
from topics.model.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS: Final = ("topic", "data", "tag", "node", "key", "meta")
_TEXTS: Final = ("topic", "tag", "node", "key")

# Decimals keep their digits, and are numbers as they were.
_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one topic, and which row of its partition each of them was."""

    records: pa.RecordBatch
    rows: Sequence[int]

    def part(self, start: int, end: int) -> Piece:
        return Piece(self.records.slice(start, end - start), self.rows[start:end])


def joined(pieces: Sequence[Piece]) -> Piece:
    """One of all; they are of one topic and one query."""
    import pyarrow as pa

    (records,) = pa.Table.from_batches([one.records for one in pieces]).combine_chunks().to_batches()
    return Piece(records, [row for one in pieces for row in one.rows])


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a batch begins, as the rows of a query are told apart."""

    partition: int
    first_row: int

    def refused(self, index: int, why: str) -> InvalidRequest:
        """About a row of the batch."""
        return InvalidRequest(f"row {self.first_row + index} of partition {self.partition}: {why}")

    def behind(self, count: int) -> Spot:
        return Spot(self.partition, self.first_row + count)


class Unfit(ValueError):
    """A value that has no JSON of the same meaning; says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows become records."""

    topic: str | None
    """For rows without one of their own."""
    has_topics: bool
    wraps: bool
    """`data` is any text and becomes a JSON string."""

    def split(self, batch: pa.RecordBatch, spot: Spot) -> Iterator[tuple[str, Piece]]:
        """The records of each topic, in the order of the rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for name in batch.schema.names:
            _check_text(name, batch.column(name), spot)
        columns = {"data": self._data(batch.column("data"), spot)}
        for name in ("tag", "node", "key"):
            if name in batch.schema.names:
                columns[name] = _text(batch.column(name))
        if "meta" in batch.schema.names:
            columns["meta"] = _json("meta", batch.column("meta"), spot, wraps=False)
        records = pa.RecordBatch.from_pydict(columns)
        if not self.has_topics:
            assert self.topic is not None
            yield self.topic, Piece(records, range(spot.first_row, spot.first_row + records.num_rows))
            return
        topics = _text(batch.column("topic"))
        if self.topic is not None:
            topics = pc.fill_null(topics, self.topic)
        elif topics.null_count:
            row = topics.is_null().to_pylist().index(True)
            raise spot.refused(row, "its topic is null, and there is no option topic")
        for name in topics.unique().to_pylist():
            chosen = pc.indices_nonzero(pc.equal(topics, name))
            try:
                check_topic_name(name)
            except InvalidRequest as error:
                raise spot.refused(chosen[0].as_py(), error.message) from None
            yield name, Piece(records.take(chosen), [spot.first_row + row for row in chosen.to_pylist()])

    def _data(self, column: pa.Array, spot: Spot) -> pa.Array:
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise spot.refused(row, "data is null; write the JSON text null for that")
        return _json("data", column, spot, self.wraps)


def _check_text(name: str, column: pa.Array, spot: Spot) -> None:
    """InvalidRequest that names the first row with text that is no UTF-8: Spark lets any bytes be cast to a string."""
    if not _is_torn(column):
        return
    low, high = 0, len(column)
    while high - low > 1:
        half = (low + high) // 2
        if _is_torn(column.take(list(range(low, half)))):
            high = half
        else:
            low = half
    why = "text that is no UTF-8: make_valid_utf8(…) replaces the bytes that are wrong, base64(…) keeps them"
    raise spot.refused(low, f"{name} holds {why}")


def _is_torn(column: pa.Array) -> bool:
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        return "UTF8" in str(error)
    return False


def _text(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _json(name: str, column: pa.Array, spot: Spot, wraps: bool) -> pa.Array:
    """JSON text of every value; null stays null. InvalidRequest that names the row of a value that has none."""
    import pyarrow as pa

    if not wraps and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _text(column)
    try:
        values = plain(column)
    except (OverflowError, Unfit) as error:
        if len(column) > 1:
            half = len(column) // 2
            halves = (column[:half], spot), (column[half:], spot.behind(half))
            return pa.concat_arrays([_json(name, part, at, wraps) for part, at in halves])
        why = str(error)
        if isinstance(error, OverflowError):
            why = f"a time or date beyond the years 1 to 9999 ({error}): cast it to string"
        raise spot.refused(0, f"{name} holds {why}") from None
    return pa.array([None if value is None else _encode(value).decode() for value in values], pa.string())


def plain(column: pa.Array) -> list[Any]:
    """The values as JSON knows them, column by column: Arrow makes them of a struct one by one, several times slower.
    Maps are lists of pairs there, an empty one like an empty list: only the type tells them apart."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise InvalidRequest(f"a struct has two fields of one name: {', '.join(names)}")
        parts = [plain(part) for part in column.flatten()]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)] if parts else [{}] * len(column)
        return _with_nulls(column, rows)
    if pa.types.is_map(kind):
        names = list(map(_name, plain(_own(column, column.keys))))
        pairs = _runs(column, list(zip(names, plain(_own(column, column.items)), strict=True)))
        return _with_nulls(column, [_distinct(part) for part in pairs])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_nulls(column, _runs(column, plain(_own(column, column.values))))
    if pa.types.is_float32(kind):  # in as few digits as it needs: 0.1, not 0.10000000149011612
        column = column.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        # A moment has one text whatever the session's time zone, whose offset once had seconds: in JSON it has none.
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    values: list[Any] = column.to_pylist()
    return values


def _name(key: Any) -> str:
    """A key of a map as the name of a field: what the value would be as JSON."""
    if isinstance(key, str):
        return key
    text = _encode(key).decode()
    return text.strip('"')


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Unfit if keys that differ have one name: an object would keep one of their values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise Unfit(f"a map with two keys that are {name!r} in JSON: cast its keys to string")
    return found


def _own(column: pa.Array, items: pa.Array) -> pa.Array:
    """Of the items of an array those of the column, which may be a part of it."""
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return items[start:end]


def _runs(column: pa.Array, items: list[Any]) -> list[list[Any]]:
    """The column's own items, list by list."""
    offsets = column.offsets.to_pylist()
    return [items[start - offsets[0] : end - offsets[0]] for start, end in pairwise(offsets)]


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]


def make_rows(schema: StructType, topic: str | None, wraps: bool) -> Rows:
    """InvalidRequest if the columns cannot be written."""
    from pyspark.sql.types import BinaryType, MapType, StringType, StructType

    fields = {field.name: field.dataType for field in schema.fields}
    if len(fields) < len(schema.fields):
        raise InvalidRequest("two columns have one name")
    for name in fields:
        if name not in COLUMNS:
            raise InvalidRequest(
                f"a topic has no column {name!r}, only {', '.join(COLUMNS)}: put the others into a struct named data"
            )
    if "data" not in fields:
        raise InvalidRequest("a column named data is needed: JSON text, or a struct that becomes JSON")
    for name in _TEXTS:
        if name in fields and not isinstance(fields[name], StringType):
            raise InvalidRequest(f"column {name} is {fields[name].simpleString()}; it must be a string")
    for name in ("data", "meta"):
        kind = fields.get(name)
        if isinstance(kind, BinaryType):
            remedy = "cast it to string, or encode it with base64(…)"
            raise InvalidRequest(f"column {name} is binary, which JSON does not know: {remedy}")
        if kind is not None:
            _check_json(name, kind)
        if name == "meta" and kind is not None and not isinstance(kind, (StringType, StructType, MapType)):
            raise InvalidRequest(f"column meta is {kind.simpleString()}; it must be JSON text, a struct or a map")
    if wraps and not isinstance(fields["data"], StringType):
        raise InvalidRequest("dataFormat=string is for a column data that is a string")
    if topic is None and "topic" not in fields:
        raise InvalidRequest("give option topic, or a column named topic")
    return Rows(topic, "topic" in fields, wraps)


def _check_json(name: str, kind: Any) -> None:
    """InvalidRequest if somewhere in it is what would not come out as JSON that means the same."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType, YearMonthIntervalType

    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_json(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_json(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType):
        if isinstance(kind.keyType, StructType | ArrayType):
            raise InvalidRequest(
                f"the keys of {name} are {kind.keyType.simpleString()}, and a field in JSON has a name: make them text"
            )
        _check_json(f"the keys of {name}", kind.keyType)
        _check_json(f"{name}[]", kind.valueType)
    elif isinstance(kind, VariantType | YearMonthIntervalType):
        remedy = f"to_json({name})" if isinstance(kind, VariantType) else "cast it to string"
        raise InvalidRequest(f"column {name} is {kind.simpleString()}, which JSON does not know: {remedy}")
