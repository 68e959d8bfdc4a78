"""How large an Arrow stream becomes in memory, known before anything of it is inflated.

The buffers of a record batch may be compressed one by one, and a few kilobytes may say that they hold gigabytes. Each
compressed buffer begins with its size after inflation (int64, little-endian; -1 = it is not compressed after all), and
the reader allocates that much and no more. Where the buffers are is said by the message's metadata, a flatbuffer of
which three tables matter here:

    Message          1 header type (u8: 2 DictionaryBatch, 3 RecordBatch)   2 header (table)
    DictionaryBatch  1 data (a RecordBatch)
    RecordBatch      2 buffers (vector of {offset i64, length i64})         3 compression (table; absent = none)

A table begins with an i32, the distance back to its vtable; the vtable holds u16s: its own size, the table's size, and
for each field the distance from the table's beginning, 0 = absent. References to tables and vectors are relative u32s.
"""

from __future__ import annotations

from struct import error as StructError
from struct import unpack_from

import pyarrow as pa

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def inflated_size(body: bytes) -> int:
    """Bytes of all buffers of the stream, once inflated. ValueError or `pa.ArrowException` if it is no stream."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if message.body is not None:
            try:
                total += _of_message(message.metadata.to_pybytes(), memoryview(message.body))
            except StructError as problem:
                raise ValueError(f"a message of the stream is damaged: {problem}") from None
    return total


def _of_message(metadata: bytes, body: memoryview) -> int:
    table = _follow(metadata, 0)
    kind, header = _field(metadata, table, 1), _field(metadata, table, 2)
    if kind is None or header is None:
        return 0
    batch = _follow(metadata, header)
    if metadata[kind] == _DICTIONARY_BATCH:
        data = _field(metadata, batch, 1)
        if data is None:
            return 0
        batch = _follow(metadata, data)
    elif metadata[kind] != _RECORD_BATCH:
        return 0
    buffers = _field(metadata, batch, 2)
    if buffers is None:
        return 0
    is_compressed = _field(metadata, batch, 3) is not None
    vector = _follow(metadata, buffers)
    (count,) = unpack_from("<I", metadata, vector)
    total = 0
    for index in range(count):
        offset, length = unpack_from("<qq", metadata, vector + 4 + 16 * index)
        said = unpack_from("<q", body, offset)[0] if is_compressed and length >= 8 else -1
        total += length if said == -1 else max(said, 0)
    return total


def _follow(buffer: bytes, at: int) -> int:
    (distance,) = unpack_from("<I", buffer, at)
    return at + int(distance)


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """Where a field of a table stands; None if it is absent."""
    vtable = table - int(unpack_from("<i", buffer, table)[0])
    (size,) = unpack_from("<H", buffer, vtable)
    if 4 + 2 * number >= size:
        return None
    (distance,) = unpack_from("<H", buffer, vtable + 4 + 2 * number)
    return table + int(distance) if distance else None
