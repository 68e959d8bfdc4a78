"""Frames as columns in the memory layout of Arrow, in Python: the readable twin of `kernel_columns.pxi`.

A text column is (validity bits or None if every row has a value, int32 offsets, bytes). Rows are the records that are
neither holes nor dead.
"""

from __future__ import annotations

import array
from collections.abc import Sequence

TextColumn = tuple[bytes | None, bytes, bytes]
Columns = tuple[int, bytes, bytes, tuple[TextColumn, TextColumn, TextColumn, TextColumn, TextColumn]]
"""(rows, seqs as int64, times as int64, (tag, node, key, data, meta))."""


def text_column(values: Sequence[bytes | None]) -> TextColumn:
    offsets = array.array("i", [0])
    bits = bytearray((len(values) + 7) // 8)
    at = 0
    for row, value in enumerate(values):
        if value is not None:
            at += len(value)
            bits[row >> 3] |= 1 << (row & 7)
        offsets.append(at)
    validity = None if None not in values else bytes(bits)
    return validity, offsets.tobytes(), b"".join(value for value in values if value is not None)


def int_column(values: Sequence[int]) -> bytes:
    return array.array("Q", values).tobytes()
