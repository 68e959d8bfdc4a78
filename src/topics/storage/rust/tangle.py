"""The records of a topic whose seqs fall somewhere in the Rust program's log.

After a failed write it leaves a hole in the seqs; at its next start it takes nothing behind the hole and hands the
same seqs out again. Both writes were acknowledged, and both are in the log. So a record that fills a hole is taken, and
of two with one seq the younger: that is the one it served last, and a stale frame, left behind by a write that failed,
is older than the one in front of it. The topic is put together once all is read, since its records come in no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from topics.format.control import Selector
from topics.format.frame import Kind, decode_frame
from topics.format.segment import ENTRY, ENTRY_SIZE
from topics.storage.alive import runs_of
from topics.storage.rust.order import Item
from topics.storage.walread import FileRead


@dataclass(slots=True)
class Tangle:
    highest: int
    """The highest seq that was seen."""
    records: dict[int, tuple[FileRead, bytes]] = field(default_factory=dict)
    """By seq, the file and the entry of the record that counts."""
    deleted: set[int] = field(default_factory=set)
    """Seqs whose records were deleted on purpose."""

    def add(self, read: FileRead, first: int, entries: bytes) -> None:
        for number in range(len(entries) // ENTRY_SIZE):
            entry = entries[number * ENTRY_SIZE : (number + 1) * ENTRY_SIZE]
            seq = first + number
            known = self.records.get(seq)
            if known is None or _ts(entry) > _ts(known[1]):
                self.records[seq] = (read, entry)
                self.deleted.discard(seq)
            self.highest = max(self.highest, seq)

    def delete(self, bound: int, match: Selector | None, seqs: Iterable[int]) -> None:
        """The seqs named, else what matches below the bound, else all below it."""
        doomed = list(seqs) or [
            seq
            for seq, (read, entry) in self.records.items()
            if seq < bound and (match is None or match.matches(_tag(read, entry)))
        ]
        for seq in doomed:
            if self.records.pop(seq, None) is not None:
                self.deleted.add(seq)

    def runs(self, above: int) -> Iterator[tuple[FileRead, int, bytes]]:
        """(file, first seq, entries) of the records above a seq, in the order of their seqs."""
        start: FileRead | None = None
        first, entries = 0, bytearray()
        for seq in sorted(seq for seq in self.records if seq > above):
            read, entry = self.records[seq]
            if read is not start or seq != first + len(entries) // ENTRY_SIZE:
                if start is not None:
                    yield start, first, bytes(entries)
                start, first, entries = read, seq, bytearray()
            entries += entry
        if start is not None:
            yield start, first, bytes(entries)

    def silent(self, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges of first..last that nobody misses."""
        return list(runs_of(sorted(seq for seq in self.deleted if first <= seq <= last)))


def find_tangled(items: Iterable[tuple[FileRead, Item]], heads: dict[int, int]) -> dict[int, Tangle]:
    """By topic id, a tangle for each whose Appends above the snapshot's head are not in order."""
    highest: dict[int, int] = {}
    found: dict[int, Tangle] = {}
    for _, item in items:
        if item[0] != Kind.APPEND:
            continue
        topic_id, last = item[1], item[2] + item[3] - 1
        head = heads.get(topic_id, 0)
        if last > head and max(item[2], head + 1) <= highest.get(topic_id, head):
            found[topic_id] = Tangle(head)
        highest[topic_id] = max(last, highest.get(topic_id, head))
    return found


def _ts(entry: bytes) -> int:
    return int(ENTRY.unpack(entry)[2])


def _tag(read: FileRead, entry: bytes) -> str | None:
    offset, length, _ts, flags, _ = ENTRY.unpack(entry)
    return decode_frame(read.view, offset, offset + length).tag.decode() if flags & 1 else None
