"""An append as an Arrow stream: a column `data` of JSON text, or of structs, and optional ones for the rest.

Arrow can say much in few bytes: compressed buffers, one value that many rows refer to, lists of nulls without end. What
the rows come to is bounded before any of them is made. Columns of text become frames as they lie in memory; whatever
else there is, and every row that is wrong, is looked at value by value.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from topics.api.arrow_size import inflated_size
from topics.api.wire import RecordIn
from topics.format.append_columns import ArrowText
from topics.format.jsontext import BadJson
from topics.format.ops import compact_json, prepare_columns
from topics.format.prepared import Prepared
from topics.format.values import encode_value
from topics.model import limits
from topics.model.errors import BatchTooLarge, InvalidRecord, InvalidRequest, PayloadTooLarge

_TEXTS = ("tag", "node", "key")
_COLUMNS = (*_TEXTS, "data", "meta", "delay_ms")


def read_arrow(body: bytes) -> Any:
    """The rows of the stream, as a table that is safe to walk."""
    try:
        size = inflated_size(body)
        if size > limits.ARROW_BYTES:
            raise PayloadTooLarge(f"the Arrow stream inflates to {size} bytes; the limit is {limits.ARROW_BYTES}")
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = _read(reader)
        names = table.column_names  # of which any may be no text
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"the body is not an Arrow stream: {error}") from None
    if "data" not in names:
        raise InvalidRequest("the Arrow stream has no column 'data'")
    return table


def prepare_texts(table: Any, node: str | None) -> Prepared | None:
    """The batch, where all columns are of text and no row is wrong."""
    names = table.column_names
    if "delay_ms" in names or any(names.count(name) > 1 for name in _COLUMNS):
        return None
    kinds = {name: table.schema.field(name).type for name in _COLUMNS if name in names}
    if kinds["data"] != pa.utf8() or any(kind not in (pa.utf8(), pa.null()) for kind in kinds.values()):
        return None
    given = [name if kinds.get(name) == pa.utf8() else None for name in ("data", *_TEXTS, "meta")]
    batches = []
    for batch in table.to_batches():
        if batch.num_rows:  # one without rows may be without buffers
            columns = [None if name is None else _text_buffers(batch.column(name)) for name in given]
            batches.append((batch.num_rows, *columns))
    return prepare_columns(batches, node)


def _text_buffers(column: Any) -> ArrowText:
    bits, offsets, text = column.buffers()
    return bits, offsets, b"" if text is None else text, column.offset


def records_of_arrow(table: Any) -> list[RecordIn]:
    names = table.column_names
    columns = {name: _column(table, name) for name in _COLUMNS if name in names}
    blank = [None] * table.num_rows
    texts = [columns.get(name, blank) for name in ("data", *_TEXTS)]
    unset = [msgspec.UNSET] * table.num_rows
    others = [
        [msgspec.UNSET if value is None else value for value in columns[name]] if name in columns else unset
        for name in ("meta", "delay_ms")
    ]
    return list(map(RecordIn, *texts, *others))  # in the order of its fields


def _column(table: Any, name: str) -> list[Any]:
    if table.column_names.count(name) > 1:
        raise InvalidRequest(f"the Arrow stream has more than one column {name!r}")
    column = table.column(name)
    if name in _TEXTS and not _is_text(column.type):
        raise InvalidRequest(f"the Arrow column {name!r} is {column.type}; it must be utf8")
    values = sum(_values(chunk, name) for chunk in column.chunks)
    if values > limits.ARROW_VALUES:
        raise BatchTooLarge(f"the Arrow column {name!r} holds more than {limits.ARROW_VALUES} values")
    try:
        found: list[Any] = column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError, TypeError, KeyError) as error:
        raise InvalidRequest(f"the Arrow column {name!r} holds what cannot be read: {error}") from None
    return _payloads(found, name, _is_text(column.type)) if name in ("data", "meta") else found


def _values(array: Any, name: str) -> int:
    """How many values an array and all within it hold, each of which becomes an object."""
    kind = array.type
    if pa.types.is_struct(kind):
        return len(array) + sum(_values(array.field(index), name) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return len(array) + _values(array.values, name)
    if pa.types.is_map(kind):
        return len(array) + _values(array.keys, name) + _values(array.items, name)
    if not _is_plain(kind):
        raise InvalidRequest(f"the Arrow column {name!r} holds {kind}; send utf8, or structs, lists and maps of values")
    return len(array)


def _is_plain(kind: Any) -> bool:
    """Every value has bytes of its own: none of the encodings in which rows share them."""
    types = pa.types
    return bool(
        _is_text(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def _read(reader: Any) -> Any:
    rows = 0
    batches = []
    for batch in reader:
        rows += batch.num_rows
        if rows > limits.RECORDS_PER_BULK_APPEND:
            raise BatchTooLarge(f"more than {limits.RECORDS_PER_BULK_APPEND} rows in one append")
        batch.validate(full=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=reader.schema)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


def _payloads(values: list[Any], name: str, is_text: bool) -> list[Any]:
    """JSON text of each row: as it is where the column holds text, else made of its values. A null `data` is JSON
    null, a null `meta` is none."""
    empty = msgspec.Raw(b"null") if name == "data" else None
    found: list[Any] = []
    try:
        if is_text:
            for value in values:
                text = empty if value is None else msgspec.Raw(compact_json(value.encode(), limits.JSON_DEPTH))
                found.append(text)
        else:
            for value in values:
                found.append(empty if value is None else msgspec.Raw(encode_value(value)))
    except (BadJson, TypeError, ValueError, OverflowError) as error:
        raise InvalidRecord(len(found), f"{name!r} is not JSON: {error}") from None
    return found
