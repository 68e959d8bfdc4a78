"""A checkpoint: WAL records into segments, a snapshot of the metadata, then WAL files nobody needs go.

    K0  a synced mark in every shard; when it completes, before anything behind it does, the shard's state is copied
    K1  records up to the mark go to the active pairs, deletes get their flags     (storage/copy.py)
    K2  sync, MANIFEST where the list changed
    K4  the snapshot
    K5  the index of a copied record points to its segment
    K6  WAL files wholly below the older kept snapshot's positions go

A crash anywhere leaves the older snapshot, the WAL it needs, and bytes behind trusted lengths that recovery cuts off.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topics.format.control import MarkRow, SnapshotMark
from topics.format.frame import DURABLE, Kind, encode_frame
from topics.format.snapshot import Position, RouterRow, SnapshotHead, VerdictRow
from topics.model.errors import TopicsError
from topics.storage.copy import CopyTools
from topics.storage.cut import TopicCut, capture, make_row
from topics.storage.keptrow import KeptRow, keep_row, text_of
from topics.storage.submission import Submission
from topics.storage.walfile import NO_SPACE

if TYPE_CHECKING:
    from topics.storage.routers import Router
    from topics.storage.store import Store
    from topics.storage.wal import Shard


@dataclass(slots=True)
class Checkpoint:
    store: Store
    lock: AbstractContextManager[object]
    clean: bool = False
    marks: list[Submission] = field(default_factory=list)
    cuts: list[TopicCut] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    whole: bool = True
    """Every shard took part; a read-only one keeps its part of the last snapshot."""
    taken: list[tuple[Shard, int]] = field(default_factory=list)
    """Bytes of WAL that it takes along."""
    abandoned: bool = False
    routers: list[Router] | None = None
    """The list as of shard 0's mark; None = shard 0 took no part."""
    verdicts: list[VerdictRow] | None = None
    """Decisions over several topics, as of shard 0's mark; None as above."""
    outlived: set[int] = field(default_factory=set)
    """Topics that no start may bring back, as of the marks."""
    progress: dict[int, tuple[Router, int, int]] = field(default_factory=dict)
    """Cursor and copies by router, as of the mark in its dest's shard."""

    def begin(self) -> None:
        """K0, under the lock. The marks complete like any submission; wait for them, then `run`."""
        store = self.store
        self.outlived = set(store.outlived)
        self._wake_idle_pairs()
        rows = self._mark_rows()
        for shard in store.shards:
            body = SnapshotMark(0, store.snapshots.next_id, tuple(rows.get(shard.index, ()))).encode()
            frame = encode_frame(Kind.CHECKPOINT_MARK, 0, body, ts=store.clock.now_ms(), flags=DURABLE)
            if shard.stuck:
                self.whole = False
                continue
            mark = Submission(
                0, [frame], self._captured(shard), needs_sync=True, barrier=True, on_fail=self._not_whole
            )  # fmt: skip
            self.marks.append(shard.submit(mark))

    def _mark_rows(self) -> dict[int, list[MarkRow]]:
        """By shard, for tools: where its changed topics stand. What was ordered before the mark is what its position
        covers."""
        rows: dict[int, list[MarkRow]] = {}
        for topic in self.store.all_topics():
            if not topic.dirty and not topic.pending:
                continue
            at, active = topic.ordered, topic.segments[-1] if topic.segments else None
            pair = (0, 0, 0)
            if active is not None and not active.sealed:
                pair = (active.first_seq, active.data_len, active.count)
            row = MarkRow(topic.id, at.head, at.evict_floor, at.expiry_floor, at.delete_below, *pair)
            rows.setdefault(topic.shard, []).append(row)
        return rows

    def _not_whole(self, _: Submission) -> None:
        self.whole = False

    def _captured(self, shard: Shard) -> Callable[[Submission], None]:
        def apply(mark: Submission) -> None:
            if self.abandoned:
                return
            assert mark.file is not None
            self.positions[shard.key] = Position(mark.file.number, mark.end)
            now, mono_ms = self.store.clock.now_ms(), self.store.clock.monotonic_ns() // 1_000_000
            for topic in self.store.topics_of(shard.index):
                if topic.dirty:
                    self.cuts.append(capture(topic, now, mono_ms))
            self._capture_routers(shard)
            self.taken.append((shard, shard.wal_bytes))
            shard.wal_bytes = 0

        return apply

    def _capture_routers(self, shard: Shard) -> None:
        """Progress is cut in the shard of the copies, the list in shard 0."""
        store = self.store
        if shard.index == 0:
            self.routers = list(store.routers.by_name.values())
            self.verdicts = list(store.staging.verdicts)
        for dest_id, routers in store.routers.dests():
            dest = store.by_id.get(dest_id)
            if dest is not None and dest.shard == shard.index:
                self.progress.update({r.id: (r, r.cursor, r.forwarded) for r in routers})

    def _router_rows(self) -> list[RouterRow]:
        """The rows that go with the positions of this snapshot.

        A dest whose shard took no part keeps the progress of the last snapshot, but not its options, whose log is shard
        0; a router made after its dest's mark had copied nothing before it. Without shard 0 the list is that of the
        last snapshot and every change since comes from the WAL, but the copies of routers made since do not, so their
        progress is kept here. Options may be newer than the mark: replay sets them once more.
        """
        rows = {row.id: row for row in self.store.routers.rows}
        for router_id, (router, cursor, forwarded) in self.progress.items():
            rows[router_id] = router.row(cursor, forwarded)
        if self.routers is None:
            return list(rows.values())
        known = {row.id: (row.cursor, row.forwarded) for row in rows.values()}
        return [router.row(*known.get(router.id, (router.start, 0))) for router in self.routers]

    def _wake_idle_pairs(self) -> None:
        """A pair of an idle topic is sealed by its age too."""
        age_ms = self.store.options.segment_max_age_ms
        if not age_ms:
            return
        oldest = self.store.clock.monotonic_ns() - age_ms * 1_000_000
        for topic in self.store.all_topics():
            if topic.segments and not topic.segments[-1].sealed and topic.segments[-1].opened_ns <= oldest:
                topic.dirty = True

    @property
    def captured(self) -> bool:
        return all(mark.settled for mark in self.marks)

    def run(self) -> bool:
        """K1 to K6, without the lock but for short moments. False if a part failed; all of it is tried again."""
        store = self.store
        tools = CopyTools(
            store.fs, store.clock, store.options, store.handles, self.lock, pool=store.pool, files_max=store.files_max
        )
        try:
            cuts = [cut for cut in self.cuts if cut.topic.id in store.by_id]
            rows = {
                cut.topic.id: keep_row(make_row(cut, segments, self._ceiling(cut)))
                for cut, segments in zip(cuts, tools.copy_all(cuts), strict=True)
            }
            self._write_snapshot(rows)
        except (OSError, EOFError, TopicsError) as error:
            with self.lock:
                self.abandon()
            store.trouble = error
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                store.free_recyclable()
            return False
        store.trouble = None
        store.bury()
        store.trim(stopping=self.clean)
        tools.maps.clear()  # mapped bytes would stay in memory
        store.uncache()
        with self.lock:
            store.staging.forget_verdicts(store.snapshots.older)
        store.staging.release(store)
        return True

    def abandon(self) -> None:
        """What was captured reached no snapshot, and nothing more will be: every topic of it still needs one. Called
        under the lock."""
        self.abandoned = True
        while self.taken:  # all of that waits for the next one still
            shard, size = self.taken.pop()
            shard.wal_bytes += size
        for cut in self.cuts:
            cut.topic.dirty = True

    def _ceiling(self, cut: TopicCut) -> int:
        """A clean stop states the exact head, so that no seq is skipped at the next start."""
        return cut.head if self.clean and self.whole else cut.ceiling

    def _write_snapshot(self, rows: dict[int, KeptRow]) -> None:
        store = self.store
        with self.lock:
            clean = self.clean and self.whole
            rows = {known: row for known, row in {**store.rows, **rows}.items() if known in store.by_id}
            positions = {**store.positions, **self.positions}
            head = SnapshotHead(
                id=0,
                ts=store.clock.now_ms(),
                clean=clean,
                next_topic_id=store.next_topic_id,
                next_wal=store.numbers.next,
                shards=store.options.wal_shards,
                positions=positions,
                routers=self._router_rows(),
                verdicts=store.staging.verdict_rows if self.verdicts is None else self.verdicts,
                dropped=[*store.graveyard, *sorted(store.outlived)],
            )
        store.snapshots.write(head, [text_of(row) for row in rows.values()])
        with self.lock:
            # Both or none: replaying a shard that stops now over rows newer than its position would count things twice.
            store.rows, store.positions = rows, positions
            store.routers.rows = head.routers
            store.staging.verdict_rows = head.verdicts
            if self.whole:  # their creates, of an earlier life, lie below the positions now
                store.outlived -= self.outlived
            for cut in self.cuts:
                cut.topic.ckpt_seq = max(cut.topic.ckpt_seq, cut.head)
