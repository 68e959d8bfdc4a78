"""JSON texts as typed values, a column at a time, by Arrow's JSON reader.

The reader takes a block or refuses it whole. Where a block holds texts that do not fit the type, those that plainly do
not become null first; if that is not enough, the block is halved until the others stand alone.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from topics.model.errors import InvalidRequest
from topics.spark.misfits import without_misfits

_SHOWN: Final = 200


def parse_texts(texts: pa.Array, kind: pa.DataType, fail: bool) -> pa.Array:
    """Each JSON text as a value of `kind`; null where there is no text, or where it does not fit unless `fail`."""
    if not len(texts):
        return pa.nulls(0, kind)
    try:
        return _parsed(texts, kind)
    except pa.ArrowInvalid:
        return _halved(texts if fail else without_misfits(texts, kind), kind, fail)


def _halved(texts: pa.Array, kind: pa.DataType, fail: bool) -> pa.Array:
    """The same, where some text does not fit: it is found by halves."""
    try:
        return _parsed(texts, kind)
    except pa.ArrowInvalid as error:
        if len(texts) == 1:
            if fail:
                text = str(texts[0].as_py())[:_SHOWN]
                raise InvalidRequest(
                    f"a record does not fit the schema ({error}): {text}; onBadJson=null reads it as null"
                ) from None
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_halved(texts[:half], kind, fail), _halved(texts[half:], kind, fail)])


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    lines = pc.binary_join_element_wise('{"v":', pc.fill_null(texts, "null"), "}\n", "")
    start = lines.offset
    offsets = lines.buffers()[1]
    first, last = (
        int.from_bytes(offsets[at * 4 : at * 4 + 4].to_pybytes(), "little") for at in (start, start + len(lines))
    )
    block = lines.buffers()[2].slice(first, last - first)
    table = pj.read_json(
        pa.BufferReader(block),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([("v", kind)]), unexpected_field_behavior="ignore", newlines_in_values=False
        ),
    )
    column = table.column("v").combine_chunks()
    if len(column) != len(texts):
        raise pa.ArrowInvalid("the texts are not one value each")
    return column
