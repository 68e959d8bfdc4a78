"""History as an Arrow stream: a row per record, one per gap, and a last one that says the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from topics.broker.history import History, Piece
from topics.format.ops import collect_columns
from topics.format.render import WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.model.record import Gap

_SEQ_MAX = (1 << 63) - 1
_TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema([
    ("seq", pa.int64()), ("gap_from", pa.int64()), ("gap_to", pa.int64()), ("ts", _TIME),
    ("tag", pa.utf8()), ("node", pa.utf8()), ("key", pa.utf8()), ("data", pa.utf8()), ("meta", pa.utf8()),
    ("kind", pa.utf8()), ("reason", pa.utf8()),
])  # fmt: skip


def arrow_pieces(history: History, want: int) -> Iterator[bytes]:
    """The stream in pieces; the last holds the end of the stream too."""
    sink = _Sink()
    writer = pa.ipc.new_stream(sink, SCHEMA)
    left = 1 << 62 if history.wanted.limit is None else history.wanted.limit
    for item in history.items():
        if isinstance(item, Gap):
            writer.write_batch(_row(item.gap_from, item.gap_to, "gap", item.reason))
        else:
            batch = _batch(item, want)
            if batch.num_rows > left:
                batch = batch.slice(0, left)
                history.next_from_seq = batch.column(0)[-1].as_py() + 1
            left -= batch.num_rows
            if batch.num_rows:
                writer.write_batch(batch)
        yield sink.take()
        if left <= 0:
            break
    # A seq may be asked for that no signed column can hold; nothing will ever be there.
    writer.write_batch(_row(min(history.next_from_seq, _SEQ_MAX), history.head_seq, "end", None))
    writer.close()
    yield sink.take()


def _batch(piece: Piece, want: int) -> Any:
    batch = piece.batch
    rows, seqs, times, texts = collect_columns(
        batch.buffer, batch.entries, 0, batch.count, batch.first_seq, batch.layout, batch.base, piece.dead
    )
    wanted = (want & WITH_TAGS, True, want & WITH_KEYS, want & WITH_DATA, want & WITH_META)
    columns = [
        _text(rows, *column) if shown else pa.nulls(rows, pa.utf8())
        for column, shown in zip(texts, wanted, strict=True)
    ]
    nothing = pa.nulls(rows, pa.int64())
    return pa.record_batch(
        [
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(seqs)]), nothing, nothing,
            pa.Array.from_buffers(_TIME, rows, [None, pa.py_buffer(times)]), *columns,
            pa.repeat(pa.scalar("record", pa.utf8()), rows), pa.nulls(rows, pa.utf8()),
        ],
        schema=SCHEMA,
    )  # fmt: skip


def _text(rows: int, bits: bytes | None, offsets: bytes, text: bytes) -> Any:
    validity = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(pa.utf8(), rows, [validity, pa.py_buffer(offsets), pa.py_buffer(text)])


def _row(gap_from: int, gap_to: int, kind: str, reason: str | None) -> Any:
    values = {"gap_from": gap_from, "gap_to": gap_to, "kind": kind, "reason": reason}
    return pa.record_batch([pa.array([values.get(field.name)], field.type) for field in SCHEMA], schema=SCHEMA)


class _Sink:
    """A file that hands out what was written to it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
