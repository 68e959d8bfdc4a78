from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from topics.format.decode import COLUMN_DATA, COLUMN_TS
from topics.spark.places import ServerPlace, Span
from topics.spark.rows import Rows
from topics.spark.server_origin import _items


def streamed(count: int, size: int) -> bytes:
    """An answer of the server with one batch of records."""
    sink = io.BytesIO()
    texts = ("tag", "node", "key", "data", "meta", "kind", "reason")
    schema = pa.schema(
        [("seq", pa.int64()), ("ts", pa.timestamp("ms", "UTC")), ("gap_from", pa.int64()), ("gap_to", pa.int64())]
        + [(name, pa.string()) for name in texts]
    )
    values: dict[str, Any] = {
        "seq": list(range(1, count + 1)),
        "ts": [0] * count,
        "data": ['"' + "x" * size + '"'] * count,
    }
    columns = [pa.array(values.get(field.name, [None] * count), field.type) for field in schema]
    columns[schema.get_field_index("kind")] = pa.array(["record"] * count)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue()


@pytest.mark.parametrize("piece", [1, 1000, 65_536, 10_000_000])
def test_batch_that_comes_in_pieces_is_read_whole(piece: int) -> None:
    body = streamed(2_000 if piece > 1 else 5, 200)

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(body), piece):
            yield body[at : at + piece]

    span = Span("t", 1, 1, 2_001, 0, ServerPlace())
    (rows,) = _items(span, pieces(), COLUMN_DATA | COLUMN_TS)  # type: ignore[arg-type]
    assert isinstance(rows, Rows)
    assert rows.count == rows.seq[-1].as_py()
    assert len(rows.texts["data"][rows.count - 1].as_py()) == 202
