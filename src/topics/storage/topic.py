"""One topic's live state, and the `apply` methods that live writes and recovery share.

Two views of a topic exist while writes are under way. The published view is what readers see; it changes only in
`apply_*`, in WAL order, when a submission's class is satisfied. The ordered view (`ordered`) is the published one plus
everything that was handed to the WAL since; the next write is decided on it: its seq, its time, what a cap will evict.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from topics.format.control import LostReason
from topics.format.group import GroupOp
from topics.format.ops import measure_entries
from topics.model.config import Durability, TopicConfig
from topics.model.errors import TopicsError
from topics.model.leaserows import LeaseRow
from topics.rules.tokens import Tokens
from topics.rules.txns import Committed
from topics.storage.columns import Column, Ranges, measure_at, spell_out, spread, within
from topics.storage.dead import DeadSet
from topics.storage.dedupe import Dedupe, Remembered
from topics.storage.effect import Effect, Ledger, Ordered
from topics.storage.group import Groups
from topics.storage.handles import Handles
from topics.storage.lost import LostRanges
from topics.storage.queue import Queue
from topics.storage.segment import Segment
from topics.storage.staging import TopicStages, stages_of
from topics.storage.submission import Submission, Waiter, fresh_error
from topics.storage.tail import ENTRY_SIZE, RamBlock, Tail


class Topic:
    __slots__ = (
        "bytes", "ceiling", "ceiling_asked", "ckpt_seq", "closing", "config", "copied", "created_ts", "dead", "dedupe",
        "delete_below", "directory", "dirty", "evict_floor", "expiry_floor", "frozen", "gates", "groups", "handles",
        "head", "id", "inherited", "last_ts", "ledger", "live", "lost", "name", "name_tails", "ordered", "pending",
        "queue", "ram", "reserved_at", "reserved_last", "reserving", "segments", "shard", "stages", "tail", "tokens",
        "trim_floor", "unflagged", "waiters",
    )  # fmt: skip

    def __init__(self, topic_id: int, name: str, config: TopicConfig, directory: str, handles: Handles) -> None:
        self.id = topic_id
        self.name = name
        self.config = config
        self.directory = directory
        self.handles = handles
        self.created_ts = 0
        self.shard = 0
        self.head = 0
        """Highest published seq."""
        self.last_ts = 0
        self.live = 0
        self.bytes = 0
        self.evict_floor = 0
        self.expiry_floor = 0
        self.trim_floor = 0
        """Last seq lost by a cap, by age, by a router's source: all against the reader's will."""
        self.delete_below = 0
        """Everything below it was deleted on purpose."""
        self.dead = DeadSet()
        """Seqs that no reader gets: deleted, lost, skipped, or below a floor."""
        self.lost = LostRanges()
        self.segments: list[Segment] = []
        self.copied = 0
        """Last seq that segments hold or that needs no copy."""
        self.ckpt_seq = 0
        """Last seq that the newest snapshot covers; recovery skips Appends at or below it."""
        self.tail = Tail()
        self.ram: RamBlock | None = None
        self.ceiling = 0
        """Seqs up to it are reserved by a synced HeadWatermark."""
        self.ceiling_asked = 0
        self.reserved_last = 0
        self.reserved_at = 0
        self.dedupe = Dedupe()
        self.gates: dict[str, Submission] = {}
        """Idempotency keys of appends under way."""
        self.unflagged: list[tuple[int, int]] = []
        """Deleted ranges whose frames in segments do not carry the delete flag yet."""
        self.pending: deque[Effect] = deque()
        self.closing = False
        """Its TopicDelete is ordered: nothing more may be."""
        self.frozen: TopicsError | None = None
        """Why nothing more may be ordered in this life; None = everything may."""
        self.stages: TopicStages | None = None
        """Transactions: open, under way and committed; None = there never was one."""
        self.dirty = True
        """Changed since the last snapshot captured it."""
        self.name_tails: dict[str, object] = {}
        """Tags and keys of the unsealed records, as far as searches have asked: see `names.py`."""
        self.inherited = 0
        """Last seq of an earlier process: the time of records up to it was another clock's."""
        self.waiters: list[Waiter] = []
        """Released once at the next append, or when the topic goes."""
        self.tokens = Tokens()
        """Lease ids, and whatever else must never repeat."""
        self.reserving: Submission | None = None
        """The last reservation of them that was ordered."""
        self.queue = Queue() if config.type == "queue" else None
        self.groups: Groups | None = None
        """Consumer groups; None = there never was one."""
        self.ledger = Ledger()
        """The store's, once the topic belongs to it."""
        self.ordered = self.published()

    @property
    def epoch(self) -> int:
        return self.id

    @property
    def durability(self) -> Durability:
        return self.config.commit_class

    # -- ordering ---------------------------------------------------------------------------------------------------

    def published(self) -> Ordered:
        return Ordered(
            self.head, self.last_ts, self.live, self.bytes,
            self.evict_floor, self.expiry_floor, self.delete_below, self.config,
        )  # fmt: skip

    def order(self, effect: Effect) -> None:
        self.pending.append(effect)
        self.ordered.add(effect)

    def settled(self, effect: Effect) -> None:
        """The effect was applied (or will never be): the ordered view no longer adds it."""
        if self.pending and self.pending[0] is effect:
            self.pending.popleft()
        else:
            self.pending.remove(effect)
        if not self.pending and (self.ordered.overlay is not None or effect.config is not None):
            self.ordered = self.published()

    def check_writable(self) -> None:
        if self.frozen is not None:
            raise fresh_error(self.frozen)

    def wake(self) -> None:
        """Release whoever waits for the next append."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter.release()

    def withdraw(self, effect: Effect) -> None:
        """A submission failed before a byte of it was written: its seqs are free again."""
        if effect in self.pending:
            self.pending.remove(effect)
        self.ordered = self.published()
        for other in self.pending:
            self.ordered.add(other)
        self.tail.cut_after(self.ordered.head)

    # -- applying: the only places where the published state changes -------------------------------------------------

    def apply_append(self, first_seq: int, count: int, accounted: int, ts: int) -> None:
        """Records first_seq .. first_seq + count - 1, already in the tail, become readable."""
        self.dirty = True
        if ts > self.last_ts:
            self.last_ts = ts
        last = first_seq + count - 1
        if first_seq <= self.dead.floor:  # a floor known from later than these records: they are dead on arrival
            self.head = max(self.head, last)
            live, size = self.measure(first_seq, last)
            self.live += live
            self.bytes += size
            self.ledger.bytes += size
            return
        self.live += count
        self.bytes += accounted
        self.ledger.bytes += accounted
        self.head = last

    def apply_delete(self, delete_below: int, ranges: Ranges) -> int:
        """Delete on purpose: everything below `delete_below`, and the ranges. Returns how many records died."""
        self.dirty = True
        before = self.live
        if delete_below > self.delete_below:
            self.delete_below = delete_below
            self._flag_later(((self.dead.floor + 1, delete_below - 1),))
            self._raise_floor()
        self._kill_all(ranges)
        self._flag_later(ranges)
        return before - self.live

    def apply_evict(self, evict_floor: int, expiry_floor: int) -> None:
        self.dirty = True
        self.evict_floor = max(self.evict_floor, evict_floor)
        self.expiry_floor = max(self.expiry_floor, expiry_floor)
        self._raise_floor()
        self.lost.drop_through(self.involuntary_floor)

    def apply_lost(self, first: int, last: int, reason: LostReason) -> None:
        """Seqs that exist for nobody: said to readers unless they were merely skipped."""
        self.dirty = True
        self._kill(first, min(last, self.head))
        self.dead.mark(first, last)
        self.lost.add(first, last, reason)
        self.lost.drop_through(self.involuntary_floor)
        self.dedupe.drop_in(first, last)
        self.head = max(self.head, last)

    def apply_config(self, config: TopicConfig) -> None:
        self.dirty = True
        self.config = config

    def apply_dedupe(self, key: str, first_seq: int, count: int, ts: int) -> None:
        self.dirty = True
        self.dedupe.add(key, Remembered(first_seq, count, ts))

    def apply_txn(self, row: Committed) -> None:
        self.dirty = True
        stages_of(self).memory.add(row)

    def apply_ceiling(self, ceiling: int) -> None:
        self.dirty = True
        self.ceiling = max(self.ceiling, ceiling)
        self.ceiling_asked = max(self.ceiling_asked, self.ceiling)

    def apply_tokens(self, ceiling: int) -> None:
        self.dirty = True
        self.tokens.apply_ceiling(ceiling)

    def apply_lease(self, event: int, node: str, rows: Sequence[LeaseRow], now_ms: int) -> None:
        """By monotonic time when live, by the logged one in replay: see Queue."""
        if self.queue is not None:
            self.dirty = True
            self.queue.apply(event, node, rows, now_ms, self.dead)

    def apply_group(self, op: GroupOp, now_ms: int) -> None:
        self.dirty = True
        self.groups = self.groups or Groups()
        self.groups.apply(op, now_ms, self.dead)
        self.groups.keep_within(op.group, self.head)

    def _raise_floor(self) -> None:
        floor = max(self.involuntary_floor, self.delete_below - 1)
        if floor <= self.dead.floor:
            return
        self._kill(self.dead.floor + 1, min(floor, self.head))
        self.dead.raise_floor(floor)
        # Only replay finds a floor above the head: what it covers was handed out in RAM, and no seq of it comes again.
        self.head = max(self.head, floor)

    def _kill(self, first: int, last: int) -> None:
        """Take the live records of first..last out of the counts and mark them dead."""
        first = max(first, self.dead.floor + 1)
        last = min(last, self.head)
        if first > last:
            return
        for layer in (self.queue, self.groups):
            if layer is not None:
                layer.forget(first, last)
        before = self.bytes
        for segment in self.segments_between(first, last + 1):
            low, high = max(first, segment.first_seq), min(last + 1, segment.end_seq)
            self.count(segment)
            if low == segment.first_seq and high == segment.end_seq:
                live, size = segment.live, segment.bytes
            else:
                live, size = self._measure_segment(segment, low, high, None)
            segment.live -= live
            segment.bytes -= size
            self.live -= live
            self.bytes -= size
        live, size = self._measure_tail(max(first, self.copied + 1), last + 1, None)
        self.live -= live
        self.bytes -= size
        if not self.live:
            self.bytes = 0  # a frame that rotted since it was counted does not say its size any more
        self.ledger.bytes += self.bytes - before
        self.dead.mark(first, last)

    def _kill_all(self, ranges: Ranges) -> None:
        """The same of many ranges, the short ones together."""
        parts = spread(ranges, self.dead.floor + 1, self.head)
        for first, last in parts.long:
            self._kill(first, last)
        for firsts, lasts in parts.pieces():
            seqs = spell_out(firsts, lasts)
            found = list(self._measure_at(seqs, None))
            for segment, _, _ in found:
                if segment is not None:
                    self.count(segment)
            for layer in (self.queue, self.groups):
                if layer is not None:
                    layer.forget_all(seqs.tolist())
            before = self.bytes
            for segment, live, size in found:
                if segment is not None:
                    segment.live -= live
                    segment.bytes -= size
                self.live -= live
                self.bytes -= size
            if not self.live:
                self.bytes = 0
            self.ledger.bytes += self.bytes - before
            self.dead.mark_all(tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)))

    def _flag_later(self, ranges: Ranges) -> None:
        if self.segments:
            copied = self.copied
            self.unflagged += [
                (first, min(last, copied)) for first, last in ranges if first <= last and first <= copied
            ]

    # -- floors -----------------------------------------------------------------------------------------------------

    @property
    def involuntary_floor(self) -> int:
        return max(self.evict_floor, self.expiry_floor, self.trim_floor)

    @property
    def earliest_seq(self) -> int:
        """The first live seq, or head + 1."""
        return self.dead.next_live(self.dead.floor + 1, self.head + 1)

    # -- measuring --------------------------------------------------------------------------------------------------

    def segments_between(self, first: int, end: int) -> Iterator[Segment]:
        at = max(bisect_right(self.segments, first, key=lambda segment: segment.first_seq) - 1, 0)
        for segment in self.segments[at:]:
            if segment.first_seq >= end:
                return
            if segment.end_seq > first:
                yield segment

    def segment_of(self, seq: int) -> Segment | None:
        at = bisect_right(self.segments, seq, key=lambda segment: segment.first_seq) - 1
        if at < 0 or seq >= self.segments[at].end_seq:
            return None
        return self.segments[at]

    def measure(self, first: int, last: int, overlay: DeadSet | None = None) -> tuple[int, int]:
        """Live records of first..last and their accounted bytes; `overlay` counts as dead too."""
        live = size = 0
        if first > last:
            return live, size
        for segment in self.segments_between(first, last + 1):
            low, high = max(first, segment.first_seq), min(last + 1, segment.end_seq)
            if overlay is None and low == segment.first_seq and high == segment.end_seq:
                self.count(segment)
                live += segment.live
                size += segment.bytes
            else:
                more = self._measure_segment(segment, low, high, overlay)
                live += more[0]
                size += more[1]
        more = self._measure_tail(max(first, self.copied + 1), last + 1, overlay)
        return live + more[0], size + more[1]

    def measure_all(self, ranges: Ranges, overlay: DeadSet | None = None) -> tuple[int, int]:
        """The same of ranges that do not overlap."""
        parts = spread(ranges, 0, self.ordered.head)
        found = [self.measure(first, last, overlay) for first, last in parts.long]
        for firsts, lasts in parts.pieces():
            found += [(live, size) for _, live, size in self._measure_at(spell_out(firsts, lasts), overlay)]
        return sum(live for live, _ in found), sum(size for _, size in found)

    def count(self, segment: Segment) -> None:
        """Fill in how much of a segment is live, if that is not known yet."""
        if segment.live < 0:
            segment.live, segment.bytes = self._measure_segment(segment, segment.first_seq, segment.end_seq, None)

    def _measure_segment(self, segment: Segment, low: int, high: int, overlay: DeadSet | None) -> tuple[int, int]:
        if not segment.live:
            return 0, 0
        entries = self.handles.entries(segment, low - segment.first_seq, high - low)
        return self._measure_entries(entries, low, high - low, overlay)

    def _measure_tail(self, first: int, end: int, overlay: DeadSet | None) -> tuple[int, int]:
        live = size = 0
        for chunk, low, high in self.tail.between(first, end):
            start = (low - chunk.first_seq) * ENTRY_SIZE
            view = memoryview(chunk.buffer)[start : start + (high - low) * ENTRY_SIZE]
            more = self._measure_entries(view, low, high - low, overlay)
            live += more[0]
            size += more[1]
        return live, size

    def _measure_at(self, seqs: Column, overlay: DeadSet | None) -> Iterator[tuple[Segment | None, int, int]]:
        """Live records among ascending seqs and their accounted bytes, by segment; None = not in one yet."""
        first, end = int(seqs[0]), int(seqs[-1]) + 1
        for segment in self.segments_between(first, end):
            here = within(seqs, segment.first_seq, segment.end_seq)
            if len(here) and segment.live:
                low, count = int(here[0]), int(here[-1] - here[0]) + 1
                entries = self.handles.entries(segment, low - segment.first_seq, count)
                yield segment, *measure_at(entries, self.gone_mask(low, count, overlay), here - low)
        for chunk, low, high in self.tail.between(max(first, self.copied + 1), end):
            here = within(seqs, low, high)
            if len(here):
                start = (low - chunk.first_seq) * ENTRY_SIZE
                entries = memoryview(chunk.buffer)[start : start + (high - low) * ENTRY_SIZE]
                yield None, *measure_at(entries, self.gone_mask(low, high - low, overlay), here - low)

    def _measure_entries(self, entries: memoryview, first: int, count: int, overlay: DeadSet | None) -> tuple[int, int]:
        if count == 1:
            gone = first in self.dead or (overlay is not None and first in overlay)
            return (0, 0) if gone else (1, int.from_bytes(entries[17:20], "little"))
        return measure_entries(entries, count, self.gone_mask(first, count, overlay))

    def gone_mask(self, first: int, count: int, overlay: DeadSet | None = None) -> bytes | None:
        mask = self.dead.mask(first, count)
        if overlay is None:
            return mask
        other = overlay.mask(first, count)
        if mask is None or other is None:
            return mask if other is None else other
        return (np.frombuffer(mask, dtype=np.uint8) | np.frombuffer(other, dtype=np.uint8)).tobytes()
