"""A segment's two files on this machine: its frames, and an index of them that can be believed.

A sealed `.data` is mapped: nobody changes its length. One that still grows is read, since the store may cut its end
when it starts again. An `.idx` is believed if its checksum is known and right; else it is made again from `.data`, and
where a damaged frame ends that, the others are found all the same: see `format/mending.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from topics.format.checksum import Buffer, xxh3_64
from topics.format.mending import make_index
from topics.format.segment import ENTRY_SIZE
from topics.host.fs import Fs, read_file
from topics.model.errors import CorruptFile
from topics.spark.frames import Frames, Wanted, read_rows
from topics.spark.places import Damage, SegmentPlace, Span
from topics.spark.rows import Rows

REMEDIES: Final = "restore it from a backup, or start the store once with recovery=salvage, which notes what is lost"
"""For a file that is not whole; a record that fails its check is a Damage and has others."""


class SegmentFiles:
    """Both parts of one segment, open: what is unlinked or replaced from now on does not matter to them."""

    def __init__(self, fs: Fs, place: SegmentPlace) -> None:
        """FileNotFoundError if the segment is not there."""
        assert place.path is not None
        self.place = place
        self.path = place.path
        self.count = place.end_seq - place.first_seq
        data = fs.open(place.path)
        size = data.size()
        if size < place.data_len:
            raise CorruptFile(place.path, size, f"it ends here, but it had {place.data_len} bytes: {REMEDIES}")
        self.data: Buffer = b""
        if place.data_len:
            self.data = data.map()[: place.data_len] if place.sealed else data.read_at(0, place.data_len)
        self._hints = _index_file(fs, place.path.removesuffix(".data") + ".idx", self.count)
        self.entries = self._proven_entries()

    def _proven_entries(self) -> Buffer:
        """An index that says `hole` where a record is would hide it: only a proven one is used."""
        hints = self._hints
        known = self.place.idx_xxh3 if self.place.sealed else None
        if known is not None and len(hints) == self.count * ENTRY_SIZE and xxh3_64(hints) == known:
            return hints
        return self.rebuilt()

    def rebuilt(self) -> bytes:
        """The index made from `.data`, of every frame that is whole."""
        return make_index(self.data, self.place.first_seq, self.count, len(self.data), lambda: self._hints)

    def read(self, span: Span, dead: tuple[tuple[int, int], ...], wanted: Wanted) -> Iterator[Rows | Damage]:
        """The wanted records of the span."""
        first = self.place.first_seq
        low, high = (span.start_seq - first) * ENTRY_SIZE, (span.end_seq - first) * ENTRY_SIZE
        entries = memoryview(self.entries)[low:high]
        yield from read_rows(
            Frames(span.topic, span.topic_id, self.path, span.start_seq, self.data, entries, 0), dead, wanted
        )


def _index_file(fs: Fs, path: str, count: int) -> Buffer:
    """The first `count` entries of an `.idx`; fewer or none if it is short or missing."""
    try:
        return memoryview(read_file(fs, path))[: count * ENTRY_SIZE]
    except (FileNotFoundError, EOFError):
        return b""
