"""One page of a diff: records after a cursor, at most one tombstone, and where the cursor stands then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from topics.format.ops import make_records, render_json
from topics.format.render import COMMA, NODES_MAX, WITH_DATA, WITH_META
from topics.model.record import Gap, GapReason, Record
from topics.storage.reader import FrameBatch, Slice, fetch_one, find_newest
from topics.storage.scan import check_there, scan
from topics.storage.store import Store
from topics.storage.topic import Topic

SCAN_MAX: Final = 65_536
"""Seqs one page walks at most: a filter that drops everything must not hold up everybody else."""

_FILTERED_STEP: Final = 4096


@dataclass(slots=True)
class Query:
    from_seq: int = 0
    """Exclusive."""
    limit: int = 256
    bytes_max: int = 1 << 20
    exclude_nodes: tuple[bytes, ...] = ()
    want: int = WITH_DATA | WITH_META
    epoch: int | None = None
    """The instance the reader knows; another one's cursor means nothing here."""
    through: int | None = None
    """The last seq that may be shown for now; None = the head."""
    past_missing: bool = False
    """A segment whose file is missing is a tombstone, as one that cannot be read is, and not an error."""


@dataclass(slots=True)
class Tombstone:
    gap_from: int
    gap_to: int
    reason: GapReason
    missed_estimate: int
    earliest_seq: int
    head_seq: int


@dataclass(slots=True)
class Page:
    topic: str
    head_seq: int
    earliest_seq: int
    next_from_seq: int
    tombstone: Tombstone | None = None
    pieces: list[bytes] = field(default_factory=list)
    """JSON of the records, to be joined by commas."""
    count: int = 0
    scanned: int = 0

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def is_empty(self) -> bool:
        """Nothing in it that a long poll would have to say."""
        return not self.count and self.tombstone is None and self.caught_up


def read_page(store: Store, topic: Topic, query: Query) -> Page:
    with store.lock:
        check_there(store, topic)
        head, earliest = topic.head, topic.earliest_seq
        deleted_through = topic.delete_below - 1
        keep_nodes = not topic.config.dedupe_node
        epoch = topic.epoch
        newest = find_newest(topic) if query.from_seq == head - 1 else None
    page = Page(topic.name, head, earliest, query.from_seq)
    cursor = query.from_seq
    if cursor > head or (query.epoch is not None and query.epoch != epoch):
        page.tombstone = Tombstone(1, head, "recreated", max(head, 1), earliest, head)
        cursor = page.next_from_seq = earliest - 1
    started = max(cursor, deleted_through)
    if cursor < head:
        exclude = () if keep_nodes else tuple(dict.fromkeys(query.exclude_nodes))
        if newest is None or exclude or not _take_newest(store, query, page, newest):
            started = max(_walk(store, topic, query, page, exclude), deleted_through)
    page.scanned = max(page.next_from_seq - started, 0)
    return page


def _take_newest(store: Store, query: Query, page: Page, newest: Slice) -> bool:
    """The page of a reader who lacks the last record alone, in short. False if there is more to say than the record."""
    head = newest.first_seq
    if page.next_from_seq != head - 1 or (query.through is not None and query.through < head):
        return False
    try:
        item = fetch_one(store.handles, newest)
    except OSError:
        return False  # it may have moved meanwhile; the long way looks again
    if item is None:
        return False
    text, count, _, _ = render_json(
        item.buffer, item.entries, 0, 1, head, item.layout, item.base,
        None, query.want, (), 1, query.bytes_max, True, COMMA,
    )  # fmt: skip
    if count:
        page.pieces.append(text)
        page.count = count
    page.next_from_seq = head
    return True


def _walk(store: Store, topic: Topic, query: Query, page: Page, exclude: tuple[bytes, ...]) -> int:
    """Fill the page; returns the cursor behind its tombstone, from where seqs count as scanned."""
    last = page.head_seq if query.through is None else min(query.through, page.head_seq)
    end = last + 1
    started = page.next_from_seq
    if started >= last:
        return started
    spent = 0
    step = max(query.limit, _FILTERED_STEP) if exclude else query.limit
    # Frames are longer than what counts against the budget; what is fetched beyond it is not delivered.
    bytes_max = query.bytes_max + 64 * query.limit
    for item in scan(store, topic, page.next_from_seq, end, step, bytes_max, query.past_missing):
        if isinstance(item, Gap):
            if page.tombstone is not None or page.count:
                page.next_from_seq = item.gap_from - 1
                return started
            page.tombstone = _tombstone(item, page.head_seq)
            started = page.next_from_seq = item.gap_to
            continue
        text, count, size, walked = render_json(
            item.buffer, item.entries, 0, item.count, item.first_seq, item.layout, item.base,
            _left_out(item, exclude), query.want, exclude if len(exclude) <= NODES_MAX else (),
            query.limit - page.count, query.bytes_max - spent, page.count == 0, COMMA,
        )  # fmt: skip
        if count:
            page.pieces.append(text)
            page.count += count
            spent += size
        page.next_from_seq = item.first_seq + walked - 1  # what lies dead in front of a batch was walked over, too
        if walked < item.count or page.count >= query.limit or page.next_from_seq - started >= SCAN_MAX:
            return started
        if page.next_from_seq >= last:
            return started  # spares the look behind the end, which live reading would pay for every record
    page.next_from_seq = max(last, page.next_from_seq)
    return started


def _left_out(batch: FrameBatch, exclude: tuple[bytes, ...]) -> bytes | None:
    """The dead mask, and with more nodes than the renderer takes, theirs too."""
    if len(exclude) <= NODES_MAX:
        return batch.dead
    mask = bytearray(batch.dead or bytes(batch.count))
    unwanted = {node.decode("utf-8", "surrogateescape") for node in exclude}
    records: list[Record] = make_records(
        batch.buffer, batch.entries, 0, batch.count, batch.first_seq, batch.layout, batch.base, batch.dead, Record
    )
    for record in records:
        if record.node in unwanted:
            mask[record.seq - batch.first_seq] = 1
    return bytes(mask)


def _tombstone(gap: Gap, head: int) -> Tombstone:
    return Tombstone(gap.gap_from, gap.gap_to, gap.reason, gap.missed, gap.gap_to + 1, head)
