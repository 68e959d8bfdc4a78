"""The past of a topic: a range of seqs or times, filtered; a snapshot that ends at the head of its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from topics.broker.reading import Tombstone
from topics.format.control import Selector, SelectorOp
from topics.format.ops import collect_tags, make_records, render_json
from topics.format.render import COMMA, NEWLINE, WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.model.errors import CorruptRecord, Recreated
from topics.model.record import Gap, Record
from topics.storage.names import KEYS, TAGS, Names, Seqs
from topics.storage.namesearch import search
from topics.storage.reader import FrameBatch
from topics.storage.scan import check_there, gaps_between, scan
from topics.storage.store import Store
from topics.storage.timesearch import first_at
from topics.storage.topic import Topic

ALL: Final = WITH_TAGS | WITH_META | WITH_KEYS | WITH_DATA
_STEP_RECORDS: Final = 8192
_STEP_BYTES: Final = 1 << 20
"""What one step reads: enough to be quick, little enough to pace."""


@dataclass(slots=True)
class Range:
    """What part of the past is meant. Seqs and times are half-open."""

    from_seq: int | None = None
    """None = the earliest."""
    to_seq: int | None = None
    from_ts: int | None = None
    to_ts: int | None = None
    tag: Selector | None = None
    node: str | None = None
    key: str | None = None
    limit: int | None = None
    epoch: int | None = None

    @property
    def named(self) -> tuple[Names, Selector] | None:
        """What an index knows about the records that are wanted."""
        if self.key is not None:
            return KEYS, Selector(SelectorOp.EQ, self.key)
        return None if self.tag is None else (TAGS, self.tag)


@dataclass(slots=True)
class Piece:
    """A batch with everything that is not wanted marked dead."""

    batch: FrameBatch
    dead: bytes | None


_NEAR: Final = 64
"""Wanted records this close together are read in one go, with what lies between them."""


def windows(seqs: Seqs) -> Iterator[tuple[int, int, Seqs]]:
    """Stretches of wanted seqs that lie near each other: (first, last, the seqs)."""
    breaks = np.flatnonzero(np.diff(seqs) > _NEAR) + 1
    for low, high in pairwise([0, *breaks.tolist(), len(seqs)]):
        if low < high:
            yield int(seqs[low]), int(seqs[high - 1]), seqs[low:high]


class History:
    """A range of one topic, being read. `next_from_seq` is where a reader goes on."""

    def __init__(self, store: Store, topic: Topic, wanted: Range) -> None:
        """Under the store's lock, on a swept topic."""
        if wanted.epoch is not None and wanted.epoch != topic.epoch:
            raise Recreated(f"topic {topic.name!r} was created again: its epoch is {topic.epoch}", topic=topic.name)
        self.store = store
        self.topic = topic
        self.wanted = wanted
        self.head_seq = topic.head
        self.told_gaps = True
        """Say what was lost in the range, where the index finds the records."""
        start = topic.earliest_seq if wanted.from_seq is None else wanted.from_seq
        if wanted.from_ts is not None:
            start = max(start, first_at(topic, wanted.from_ts))
        end = topic.head + 1
        if wanted.to_seq is not None:
            end = min(end, wanted.to_seq)
        if wanted.to_ts is not None:
            end = min(end, first_at(topic, wanted.to_ts))
        self.end_seq = end
        self.next_from_seq = max(start, 1)
        self._behind_gap = 0
        """Where a gap ends that reaches beyond the range."""

    def items(self, step_records: int = _STEP_RECORDS, step_bytes: int = _STEP_BYTES) -> Iterator[Gap | Piece]:
        """What lies in the range, also of a gap. Whoever takes only part of a piece sets `next_from_seq` itself."""
        if self.next_from_seq >= self.end_seq:
            return
        for item in self._items(step_records, step_bytes):
            if isinstance(item, Gap) and item.gap_to >= self.end_seq:
                self._behind_gap = item.gap_to + 1
                self.next_from_seq = self.end_seq
                if item.gap_from < self.end_seq:
                    yield Gap(item.gap_from, self.end_seq - 1, item.reason)
            else:
                yield item

    def _items(self, step_records: int, step_bytes: int) -> Iterator[Gap | Piece]:
        seqs = self._found()
        if seqs is not None:
            yield from self._named(seqs, step_records, step_bytes)
            return
        for item in scan(self.store, self.topic, self.next_from_seq - 1, self.end_seq, step_records, step_bytes):
            if isinstance(item, Gap):
                self.next_from_seq = item.gap_to + 1
                yield item
            else:
                self.next_from_seq = item.first_seq + item.count
                yield Piece(item, self._unwanted(item))
        self.next_from_seq = max(self.next_from_seq, self.end_seq)

    def _found(self) -> Seqs | None:
        """The wanted seqs by an index; None = every record has to be looked at."""
        named = self.wanted.named
        if named is None:
            return None
        try:
            return search(self.store, self.topic, *named)
        except CorruptRecord:
            return None  # which name it carries nobody knows; reading on tells where it was

    def _named(self, seqs: Seqs, step_records: int, step_bytes: int) -> Iterator[Gap | Piece]:
        """What lies in the range of what the index found; what was lost between is told as ever."""
        low, high = np.searchsorted(seqs, [self.next_from_seq, self.end_seq])
        seqs = seqs[int(low) : int(high)]
        for first, last, hits in windows(seqs):
            yield from self._gaps(first)
            for item in scan(self.store, self.topic, first - 1, last + 1, step_records, step_bytes):
                if isinstance(item, Gap):
                    continue  # lost since the search
                self.next_from_seq = item.first_seq + item.count
                yield Piece(item, self._unwanted(item, hits))
        yield from self._gaps(self.end_seq)
        self.next_from_seq = max(self.next_from_seq, self.end_seq)

    def _gaps(self, end: int) -> Iterator[Gap]:
        if not self.told_gaps:
            return
        with self.store.lock:
            check_there(self.store, self.topic)
            found = gaps_between(self.topic, self.next_from_seq - 1, end)
        for gap in found:
            self.next_from_seq = gap.gap_to + 1
            yield gap

    def _unwanted(self, batch: FrameBatch, hits: Seqs | None = None) -> bytes | None:
        """`hits`: the only seqs of the batch that come into question."""
        wanted = self.wanted
        if wanted.tag is None and wanted.node is None and wanted.key is None:
            return batch.dead
        mask = bytearray(batch.dead or bytes(batch.count))
        if hits is not None:
            found = np.frombuffer(mask, dtype=np.uint8) | 1
            mine = hits[(hits >= batch.first_seq) & (hits < batch.first_seq + batch.count)]
            at = (mine - np.uint64(batch.first_seq)).astype(np.int64)
            found[at] = np.frombuffer(mask, dtype=np.uint8)[at]
            mask = bytearray(found.tobytes())
            if wanted.node is None and (wanted.tag is None or wanted.key is None):
                return bytes(mask)
        if wanted.tag is not None:
            tags = collect_tags(batch.buffer, batch.entries, 0, batch.count, batch.layout, batch.base)
            for position, tag in enumerate(tags):
                if tag is None or not wanted.tag.matches(tag.decode()):
                    mask[position] = 1
        if wanted.node is not None or wanted.key is not None:
            records: list[Record] = make_records(
                batch.buffer,
                batch.entries,
                0,
                batch.count,
                batch.first_seq,
                batch.layout,
                batch.base,
                bytes(mask),
                Record,
            )
            for record in records:
                if (wanted.node is not None and record.node != wanted.node) or (
                    wanted.key is not None and record.key != wanted.key
                ):
                    mask[record.seq - batch.first_seq] = 1
        return bytes(mask)

    # -- as JSON -------------------------------------------------------------------------------------------------------

    def page(self, limit: int, bytes_max: int, want: int) -> list[bytes]:
        """Texts of one page, tombstones among the records; to be joined by commas."""
        texts: list[bytes] = []
        count = spent = 0
        for item in self.items(min(limit, _STEP_RECORDS)):
            if isinstance(item, Gap):
                texts.append(self.tombstone(item))
                continue
            text, delivered, size, walked = render(item, want, limit - count, bytes_max - spent, not count, COMMA)
            if delivered:
                texts.append(text)
                count += delivered
                spent += size
            if walked < item.batch.count or count >= limit:
                self.next_from_seq = item.batch.first_seq + walked
                break
        return texts

    def lines(self, want: int) -> Iterator[bytes]:
        """The whole range as lines, in pieces of about a step, the end said in the last one."""
        left = 1 << 62 if self.wanted.limit is None else self.wanted.limit
        for item in self.items():
            if isinstance(item, Gap):
                yield self.tombstone(item) + b"\n"
                continue
            text, delivered, _, walked = render(item, want, left, 1 << 62, True, NEWLINE)
            left -= delivered
            if delivered:
                yield text + b"\n"
            if left <= 0:
                self.next_from_seq = item.batch.first_seq + walked
                break
        yield b'{"end":{"next_from_seq":%d,"head_seq":%d}}\n' % (self.next_from_seq, self.head_seq)

    def tombstone(self, gap: Gap) -> bytes:
        earliest = max(gap.gap_to + 1, self._behind_gap)
        told = Tombstone(gap.gap_from, gap.gap_to, gap.reason, gap.missed, earliest, self.head_seq)
        return b'{"tombstone":%b}' % encode(told)


def render(
    piece: Piece, want: int, limit: int, budget: int, forced: bool, separator: int
) -> tuple[bytes, int, int, int]:
    """As `render_json`."""
    batch = piece.batch
    return render_json(
        batch.buffer, batch.entries, 0, batch.count, batch.first_seq, batch.layout, batch.base,
        piece.dead, want, (), limit, budget, forced, separator,
    )  # fmt: skip


def encode(tombstone: Tombstone) -> bytes:
    return (
        b'{"gap_from":%d,"gap_to":%d,"reason":"%b","missed_estimate":%d,"earliest_seq":%d,"head_seq":%d}'
        % (
            tombstone.gap_from, tombstone.gap_to, tombstone.reason.encode(), tombstone.missed_estimate,
            tombstone.earliest_seq, tombstone.head_seq,
        )
    )  # fmt: skip
