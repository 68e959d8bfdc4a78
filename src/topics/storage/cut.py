"""The exact state of one topic at a checkpoint's mark: the effect of every frame before it and of none after.

It is taken of every changed topic while all writers wait, so it makes few objects: an empty tuple is none, and with ten
thousand topics the collector would otherwise take longer than the taking.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from topics.format.control import LostReason
from topics.format.snapshot import SegmentRow, TopicRow
from topics.model.config import TopicConfig
from topics.storage.alive import live_runs
from topics.storage.dead import DeadSet
from topics.storage.group import GroupCut, group_row
from topics.storage.lost import LostRanges
from topics.storage.queue import QueueCut, queue_row
from topics.storage.segment import Segment
from topics.storage.tail import ENTRY_SIZE, Source
from topics.storage.topic import Topic


@dataclass(slots=True)
class Piece:
    """Entries of consecutive seqs in one WAL file, to be copied into segments."""

    first_seq: int
    count: int
    buffer: bytearray
    start: int
    """Where the first entry lies in `buffer`."""
    source: Source

    @property
    def entries(self) -> memoryview:
        return memoryview(self.buffer)[self.start : self.start + self.count * ENTRY_SIZE]


@dataclass(slots=True)
class TopicCut:
    topic: Topic
    head: int
    copy_through: int
    """Last seq to be copied: RAM-only records behind it have nowhere to be copied to."""
    config: TopicConfig
    ceiling: int
    evict_floor: int
    expiry_floor: int
    trim_floor: int
    delete_below: int
    lost: tuple[tuple[int, int, int], ...]
    live: int
    bytes: int
    last_ts: int
    dead: DeadSet
    dead_version: int
    """Of the topic's own dead set, which knows nothing of what `dead` counts as lost with the process."""
    unflagged: tuple[tuple[int, int], ...]
    dedupe: tuple[tuple[str, int, int, int], ...]
    txns: tuple[tuple[str, str, int, int, int], ...]
    pieces: tuple[Piece, ...]
    tokens: tuple[int, int]
    queue: QueueCut | None
    groups: tuple[GroupCut, ...]


def capture(topic: Topic, now_ms: int, mono_ms: int) -> TopicCut:
    """Copy what a snapshot needs of `topic`. Runs under the lock, so it copies references where it can."""
    topic.dedupe.expire(now_ms, topic.config.idempotency_window_ms)
    rams = tuple(topic.tail.ram_ranges())
    copy_through = min(topic.head, rams[0][0] - 1) if rams else topic.head
    dead = topic.dead.freeze()
    lost = LostRanges(topic.lost.rows) if rams else topic.lost
    live, size = topic.live, topic.bytes
    for first, last in rams:
        # Whoever opens this snapshot has no RAM of ours: for them these records were lost with the process.
        last = min(last, topic.head)
        gone, gone_bytes = topic.measure(first, last)
        live, size = live - gone, size - gone_bytes
        dead.mark(first, last)
        for low, high in live_runs(topic, first, last):
            lost.add(low, high, LostReason.RESTART)
    cut = TopicCut(
        topic=topic,
        head=topic.head,
        copy_through=copy_through,
        config=topic.config,
        ceiling=topic.ceiling,
        evict_floor=topic.evict_floor,
        expiry_floor=topic.expiry_floor,
        trim_floor=topic.trim_floor,
        delete_below=topic.delete_below,
        lost=tuple(lost.rows),
        live=live,
        bytes=size,
        last_ts=topic.last_ts,
        dead=dead,
        dead_version=topic.dead.version,
        unflagged=tuple(topic.unflagged),
        dedupe=_dedupe_rows(topic, rams) if len(topic.dedupe) else (),
        txns=tuple([(*row,) for row in topic.stages.memory.rows()]) if topic.stages is not None else (),
        pieces=tuple(_pieces(topic, copy_through)),
        tokens=(topic.tokens.next, topic.tokens.ceiling),
        queue=None if topic.queue is None else topic.queue.cut(mono_ms),
        groups=() if topic.groups is None else tuple(topic.groups.cut(mono_ms)),
    )
    topic.dirty = False
    return cut


def _dedupe_rows(topic: Topic, rams: tuple[tuple[int, int], ...]) -> tuple[tuple[str, int, int, int], ...]:
    rows = topic.dedupe.rows()
    return tuple([row for row in rows if not any(first <= row[1] <= last for first, last in rams)])


def _pieces(topic: Topic, through: int) -> list[Piece]:
    pieces: list[Piece] = []
    start = max(topic.copied, topic.dead.floor) + 1
    for chunk, low, high in topic.tail.between(start, through + 1):
        while low < high:
            source, end = chunk.source_of(low)
            stop = min(end, high)
            at = (low - chunk.first_seq) * ENTRY_SIZE
            pieces.append(Piece(low, stop - low, chunk.buffer, at, source))
            low = stop
    return pieces


def make_row(cut: TopicCut, segments: list[Segment], ceiling: int) -> TopicRow:
    topic = cut.topic
    return TopicRow(
        id=topic.id,
        name=topic.name,
        config=msgspec.Raw(msgspec.json.encode(cut.config)),
        created_ts=topic.created_ts,
        head=cut.head,
        ckpt_seq=cut.head,
        ceiling=ceiling,
        evict_floor=cut.evict_floor,
        expiry_floor=cut.expiry_floor,
        trim_floor=cut.trim_floor,
        delete_below=cut.delete_below,
        lost=list(cut.lost),
        live=cut.live,
        bytes=cut.bytes,
        last_ts=cut.last_ts,
        segments=[
            SegmentRow(s.first_seq, s.count, s.data_len, s.sealed, s.idx_xxh3, s.generation, s.tags, s.keys)
            for s in segments
        ],
        dead=list(cut.dead.ranges()),
        unflagged=[],
        dedupe=list(cut.dedupe),
        txns=list(cut.txns),
        tokens=cut.tokens,
        queue=None if cut.queue is None else queue_row(cut.queue),
        groups=[group_row(group) for group in cut.groups],
    )
