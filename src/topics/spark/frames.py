"""From the bytes of frames to rows: in slices, checked, with a word about every frame that is not whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from topics.format.checksum import Buffer
from topics.format.ops import SEGMENT_LAYOUT, decode_columns
from topics.format.segment import ENTRY, ENTRY_DTYPE, ENTRY_SIZE
from topics.spark.options import Filter
from topics.spark.places import Damage
from topics.spark.rest_state import gone_mask
from topics.spark.rows import Rows, decoded_rows

SLICE_BYTES: Final = 16 << 20
"""Of frames in one batch: far below the 2 GiB that an Arrow column may have, and little enough for a JVM's heap."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to make of a frame."""

    want: int
    """Columns, as bits of `decode_columns`."""
    check: bool
    filter: Filter

    @property
    def tag(self) -> tuple[bytes | None, bool]:
        """(text, is it a prefix)."""
        tag = self.filter.tag
        if tag is None:
            return None, False
        return (tag[:-1].encode(), True) if tag.endswith("*") else (tag.encode(), False)


@dataclass(slots=True)
class Frames:
    """Frames of consecutive seqs: a buffer, and one entry per seq."""

    topic: str
    topic_id: int
    path: str
    """Where the bytes are from, for the error."""
    first_seq: int
    buffer: Buffer
    entries: Buffer
    base: int
    """Offset of the buffer's first byte in the file."""
    layout: int = SEGMENT_LAYOUT

    @property
    def count(self) -> int:
        return len(self.entries) // ENTRY_SIZE


def slices(entries: Buffer, bytes_max: int = SLICE_BYTES) -> Iterator[tuple[int, int]]:
    """Ranges of entries whose frames come to about `bytes_max`, at least one entry each."""
    lengths = np.frombuffer(entries, dtype=ENTRY_DTYPE)["length"].astype(np.int64)
    ends = np.cumsum(lengths)
    start, done = 0, 0
    while start < len(ends):
        stop = max(int(np.searchsorted(ends, done + bytes_max, side="right")), start + 1)
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def read_rows(
    frames: Frames, dead: list[tuple[int, int]] | tuple[tuple[int, int], ...], wanted: Wanted
) -> Iterator[Rows | Damage]:
    """The wanted records, and a Damage for each live one whose frame fails its check."""
    tag, prefix = wanted.tag
    node = None if wanted.filter.node is None else wanted.filter.node.encode()
    key = None if wanted.filter.key is None else wanted.filter.key.encode()
    whole = len(memoryview(frames.buffer)) <= SLICE_BYTES  # each frame is one of another seq: no two are the same bytes
    for start, stop in [(0, frames.count)] if whole else slices(frames.entries):
        while start < stop:
            first = frames.first_seq + start
            mask = gone_mask(dead, first, stop - start) if dead else None
            decoded = decode_columns(
                frames.buffer, frames.entries, start, stop - start, first, frames.layout, frames.topic_id, frames.base,
                mask, wanted.want, wanted.check, tag, prefix, node, key,
            )  # fmt: skip
            if decoded[1]:
                yield decoded_rows(frames.topic, decoded)
            start += decoded[0]
            if start < stop:
                offset = ENTRY.unpack_from(frames.entries, start * ENTRY_SIZE)[0]
                yield Damage(frames.topic, frames.first_seq + start, frames.path, offset)
                start += 1
