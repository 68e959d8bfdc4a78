"""Records of the WAL as they stand in a segment: the same bytes, with a shorter header and a hash of their own."""

from __future__ import annotations

import numpy as np

from topics.format.ops import restamp, restamp_staged
from topics.format.segment import ENTRY_DTYPE, HOLE
from topics.model.errors import CorruptFile
from topics.storage.cut import Piece
from topics.storage.partfile import PartSource
from topics.storage.tail import ENTRY_SIZE
from topics.storage.topic import Topic


def restamp_piece(
    topic: Topic, piece: Piece, buffer: memoryview, dead: bytes | None, at: int, count: int, base: int,
    data: bytearray, idx: bytearray,
) -> None:  # fmt: skip
    """Append the frames and the entries of `count` records of `piece`, from number `at` on, to `data` and `idx`.
    `buffer` is what the piece points into, `dead` tells which of these records are, and `base` is where in the file the
    first byte of `data` will lie."""
    first = piece.first_seq + at
    if isinstance(piece.source, PartSource):
        done = restamp_staged(buffer, piece.entries, at, count, first, dead, data, idx, base)
    else:
        done = restamp(buffer, piece.entries, at, count, first, topic.id, dead, data, idx, base)
    if done < count:
        offset = np.frombuffer(piece.entries, dtype=ENTRY_DTYPE, count=1, offset=(at + done) * ENTRY_SIZE)["offset"]
        raise CorruptFile(
            piece.source.path,
            int(offset[0]),
            f"record {first + done} of topic {topic.name!r} fails its check before it was copied",
        )


def fill_holes(idx: bytearray, before_ts: int) -> None:
    """Give every hole the time of the record in front of it, as an index made from `.data` alone would have it."""
    column = np.frombuffer(idx, dtype=ENTRY_DTYPE)
    places = np.where(column["flags"] & HOLE, -1, np.arange(len(column)))
    places = np.maximum.accumulate(places)
    column["ts"] = np.where(places >= 0, column["ts"][places], before_ts)
