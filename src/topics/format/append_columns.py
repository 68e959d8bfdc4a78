"""Records that come as columns of text, straight to frames, in Python: the readable twin of `kernel_arrow.pxi`.

A column is as Arrow lays it out: (validity bits or None if every row has a value, int32 offsets, bytes, the row in them
that comes first). The usual form of a batch: `data` and `meta` are JSON, no key needs escapes, nothing is beyond a
limit. Every other batch goes the slow way, value by value, which also says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

from topics.format.checksum import Buffer
from topics.format.prepare import prepare
from topics.format.prepared import Prepared
from topics.model.errors import BatchTooLarge, InvalidRecord, RecordTooLarge

ArrowText = tuple[Buffer | None, Buffer, Buffer, int]
ColumnBatch = tuple[int, ArrowText, ArrowText | None, ArrowText | None, ArrowText | None, ArrowText | None]
"""(rows, data, tag, node, key, meta); None = no row has one."""


def prepare_columns(batches: Sequence[ColumnBatch], default_node: str | None = None) -> Prepared | None:
    """The batches as one, byte for byte as `prepare` makes it of their records; None where their form is not usual.

    A null `data` is JSON null, any other null is absent. ValueError if buffers are too short for their rows.
    """
    columns: list[list[bytes | None]] = [[], [], [], [], []]
    for rows, *texts in batches:
        for values, text in zip(columns, texts, strict=True):
            values += [None] * rows if text is None else _values(rows, text)
    try:
        data, tags, nodes, keys, metas = columns
        if any(not _is_plain(key) for key in keys):
            return None
        names = [[None if text is None else text.decode() for text in column] for column in (tags, nodes, keys)]
        records = [
            {"data": b"null" if text is None else text, "tag": tag, "node": node, "key": key, "meta": meta}
            for text, tag, node, key, meta in zip(data, *names, metas, strict=True)
        ]
        return prepare(records, default_node=default_node)
    except (UnicodeDecodeError, InvalidRecord, RecordTooLarge, BatchTooLarge):
        return None


def _values(rows: int, column: ArrowText) -> list[bytes | None]:
    bits, offsets, text, start = column
    end = start + rows
    if start < 0 or rows < 0 or len(offsets) < (end + 1) * 4 or (bits is not None and len(bits) * 8 < end):
        raise ValueError(f"the buffers of a column are too short for rows {start}..{end}")
    places = struct.unpack_from(f"<{rows + 1}i", offsets, start * 4)
    if places[0] < 0 or places[-1] > len(text) or any(a > b for a, b in pairwise(places)):
        raise ValueError("the offsets of a column lie outside its text")
    view = memoryview(text)
    return [
        bytes(view[places[row] : places[row + 1]]) if bits is None or _is_set(bits, start + row) else None
        for row in range(rows)
    ]


def _is_set(bits: Buffer, row: int) -> bool:
    return bool(bits[row >> 3] >> (row & 7) & 1)


def _is_plain(key: bytes | None) -> bool:
    return key is None or not any(byte < 0x20 or byte in b'"\\' for byte in key)
