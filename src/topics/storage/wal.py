"""A WAL shard: submissions in, one write and at most one sync for all that has queued, completions in WAL order.

    take()   under the store's lock: what to write next
    run()    without it: rotate where needed, write, sync where a submission needs it
    finish() under it again: complete submissions in order

One write is under way at a time; a background sync may run beside it. The server and embedded use loop these in
threads; a simulation calls them by hand, in any interleaving.

A failed write or sync is final: the shard is read-only until the store is opened again. Nothing is retried,
rewound or overwritten, because after a failed sync the kernel may call pages clean that never reached the disk.
Only the making of the next file may fail and heal, because not one byte of the log was written by it.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from topics.format.control import FileMark, SyncMark
from topics.format.frame import DURABLE, Kind, encode_frame
from topics.host.clock import Clock
from topics.host.files import NO_DESCRIPTORS
from topics.host.fs import Fs, write_all
from topics.model import limits
from topics.model.errors import DiskFull, ReadOnly, StorageError, StoreClosed, Throttled, WriteFailed
from topics.storage.oldfiles import OldFiles
from topics.storage.options import StoreOptions
from topics.storage.pace import Pace
from topics.storage.paths import wal_name
from topics.storage.submission import NO_BUFFERS, Buffers, State, Submission, fresh_error
from topics.storage.turn import Numbers, Rotation, ShardStats, SparePlan, Sync, Write, untraced
from topics.storage.walfile import Spare, WalFile, discard, put_in_place

_WRITTEN = State.WRITTEN
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class Shard:
    index: int
    key: str
    directory: str
    fs: Fs
    clock: Clock
    options: StoreOptions
    numbers: Numbers
    sealed: list[tuple[int, int]]
    """(number, valid length) of older files of this group that are still there."""
    on_failed_sync: Callable[[], None]
    """Told once when a sync failed, so that the store stops trusting the page cache."""
    room: Callable[[], int] = lambda: 0
    """What the next file has to leave free for the next checkpoint."""
    file: WalFile | None = None
    spare: Spare | None = None
    queue: deque[Submission] = field(default_factory=deque)
    queued_bytes: int = 0
    waiting: deque[Submission] = field(default_factory=deque)
    """Written, not completed: their sync, their reservation or an earlier one of their lane is missing."""
    taken: list[Submission] = field(default_factory=list)
    """What the write under way has taken from the queue."""
    writing: bool = False
    write_syncs: bool = False
    """The write under way syncs its file, or the one before it."""
    syncing: bool = False
    met: OSError | MemoryError | None = None
    """What a write or a sync met, noted before any signal can break in: as final as `failed`, which is made of it."""
    failed: WriteFailed | None = None
    frozen: set[int] = field(default_factory=set)
    """Lanes in which nothing more completes in this life; no mark does either, for a snapshot must not cover them."""
    completing: bool = False
    again: bool = False
    """Completing has to start over: something that a submission waits for came true meanwhile."""
    refusing: DiskFull | None = None
    dirty_since_ns: int | None = None
    """Monotonic time of the first byte that is written and not synced."""
    evidence_due_ns: int = 0
    wal_bytes: int = 0
    """Bytes written since the last checkpoint began that did not fail."""
    uncached: int = 0
    """Files up to this number no longer take memory of the system."""
    stats: ShardStats = field(default_factory=ShardStats)
    pace: Pace = field(init=False)
    old_files: OldFiles = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(self.options.wal_file_bytes)
        self.old_files = OldFiles(self.directory, self.options.wal_file_bytes, self.pace.longest)

    # -- submitting -------------------------------------------------------------------------------------------------

    def check(self, size: int = 0, frees: bool = False) -> None:
        """Raise if a submission of this size cannot be taken now. One that `frees` room is taken on a full disk too."""
        if self.failed is not None:
            raise ReadOnly(
                f"WAL shard {self.index} is read-only since {self.failed.message}; reopen the store to write again",
                shard=self.index,
                since=self.failed.facts.get("since"),
            )
        if self.refusing is not None and not frees:
            raise fresh_error(self.refusing)
        if self.queue and self._is_full(size):
            self.stats.submit_full += 1
            raise Throttled(f"the queue of WAL shard {self.index} is full; try again", shard=self.index)

    def _is_full(self, size: int) -> bool:
        options = self.options
        return len(self.queue) >= options.queue_submissions or self.queued_bytes + size > options.queue_bytes

    @property
    def stuck(self) -> bool:
        """No mark completes here any more."""
        return self.failed is not None or bool(self.frozen)

    def submit(self, submission: Submission) -> Submission:
        submission.shard = self
        if self.failed is not None:
            # Nobody writes what a stopped shard is given: whoever waits for it would wait for ever.
            submission.fail(self.failed)
            return submission
        queue = self.queue
        queue.append(submission)
        self.queued_bytes += submission.size
        if len(queue) > self.stats.depth_peak:
            self.stats.depth_peak = len(queue)
        return submission

    # -- writing ----------------------------------------------------------------------------------------------------

    def take(self) -> Write | None:
        """The next batch, or None where nothing waits or a write is under way."""
        queue = self.queue
        if self.writing or not queue or self.failed is not None:
            return None
        if len(queue) == 1 and not self.syncing:  # what `_batch` says of a lone writer's
            lone = queue[0]
            count, size = 1, lone.size
            sync = lone.needs_sync and not lone.detached if lone.ceiling is None else self._urgent(lone)
        else:
            count, size, sync = self._batch()
        file = self.file
        rotate = file is None or file.written + size + _EVIDENCE_SIZE > file.capacity
        if not count or (rotate and self.syncing):
            return None
        batch = self.taken = []
        while len(batch) < count:
            batch.append(queue[0])
            queue.popleft()
        self.queued_bytes -= size
        self.writing = True
        self.write_syncs = sync or rotate
        if file is None or rotate:
            return Write(batch, sync, sync, None, self._plan_rotation(size + _FILE_MARK_SIZE))
        now = self.clock.monotonic_ns()
        evidence = self._evidence(file, now) if now >= self.evidence_due_ns else None
        return Write(batch, sync, sync and file.synced == file.written, evidence, None, file, now)

    def _batch(self) -> tuple[int, int, bool]:
        """(submissions, their bytes, whether one needs a sync) of the next write.

        While a background sync runs, nothing is taken that would sync too: of two syncs of one file at once the
        kernel may tell only one that it failed, and the other would be believed.
        """
        count = size = 0
        sync = False
        for submission in self.queue:
            if count == limits.COMMIT_SUBMISSIONS or (count and size + submission.size > limits.COMMIT_BYTES):
                break
            urgent = self._urgent(submission)
            if urgent and self.syncing:
                break
            count += 1
            size += submission.size
            sync = sync or urgent
            if submission.barrier:
                break
        return count, size, sync

    def _plan_rotation(self, need: int) -> Rotation:
        old = self.file
        links = [item for item in self.sealed if item[1]]
        previous = (old.number, old.written) if old is not None else links[-1] if links else (0, 0)
        number = self.numbers.take()
        if self.spare is not None and self.spare.capacity >= need:
            spare, self.spare = self.spare, None
            return Rotation(number, spare, None, old, previous)
        capacity = self.options.wal_file_bytes
        if old is None:
            capacity = min(capacity, self.options.wal_filled_bytes)
        plan = self.plan_spare(max(capacity, need), waiting=True)
        plan.need, plan.frees = need, old is None or self.refusing is not None
        return Rotation(number, None, plan, old, previous)

    @staticmethod
    def _urgent(submission: Submission) -> bool:
        if submission.ceiling is not None and not submission.ceiling():
            return True
        return submission.needs_sync and not submission.detached

    def _evidence(self, file: WalFile, now_ns: int) -> int | None:
        """A mark is worth writing when it proves more than the last one could."""
        if not file.synced:
            return None
        self.evidence_due_ns = now_ns + self.options.evidence_ms * 1_000_000
        return file.synced

    def run(self, write: Write) -> None:
        """The I/O of one turn. Touches only what the one writer owns. What fails is noted before anything is called:
        there a signal may break in, and hide it."""
        buffers: Buffers = []
        if write.rotation is not None:
            self._rotate(write, write.rotation)
            if write.file is None:
                return
            buffers.append(_mark(FileMark(0, write.file.number, *write.rotation.previous).encode()))
            write.started_ns = self.clock.monotonic_ns()
        file = write.file
        assert file is not None
        if write.evidence is not None:
            buffers.append(_mark(SyncMark(0, file.number, write.evidence).encode()))
        offset = begin = file.written
        for buffer in buffers:
            offset += len(buffer)
        for submission in write.submissions:
            submission.file = file
            submission.offset = offset
            offset += submission.size
            submission.end = offset
            buffers.extend(submission.buffers)
        write.end = offset
        try:
            write_all(file.file, begin, buffers, write.dsync, offset - begin)
            if write.sync:
                if not write.dsync:
                    file.file.sync()
                write.took_ns = self.clock.monotonic_ns() - write.started_ns
        except (OSError, MemoryError) as error:  # the latter: perhaps a call failed and nothing was left to say so with
            write.error = self.met = error

    def _rotate(self, write: Write, rotation: Rotation) -> None:
        """Put the next file in place. Until it is, nothing of this batch was written."""
        try:
            spare = rotation.next_file()
        except OSError as error:
            write.error, write.refused = error, True
            return
        sealed, sure = list(self.sealed), False
        try:
            if rotation.old is not None:
                sealed.append(rotation.old.seal())
            sure = True
            write.file = put_in_place(self.fs, self.directory, rotation.number, spare, sealed)
        except OSError as error:
            write.error, write.refused = error, sure and error.errno in NO_DESCRIPTORS
            if not write.refused:
                self.met = error

    def finish(self, write: Write) -> None:
        """Make the outcome of a turn true and complete whatever is satisfied by it."""
        self.writing = False
        if write.error is not None:
            untraced(write.error)
            if write.refused and isinstance(write.error, OSError):
                self._refuse(write, write.error)
                return
            self.waiting.extend(write.submissions)
            self._fail(write.error)
            return
        if self.failed is not None:  # a background sync failed meanwhile; nothing of this file is trusted now
            for submission in write.submissions:
                submission.fail(self.failed)
            return
        file = write.file
        assert file is not None
        if write.rotation is not None:
            old = write.rotation.old
            if old is not None:
                old.synced = old.written
                self.sealed.append((old.number, old.written))
            self.pace.rotated(old.written if old is not None else 0, self.clock.monotonic_ns(), self.stats.syncs)
            self.file = file
            self.stats.rotations += 1
            self.dirty_since_ns = None
        stats, end = self.stats, write.end
        size = end - file.written
        self.wal_bytes += size
        stats.bytes_written += size
        stats.batches += 1
        file.written = end
        if write.sync:
            stats.synced(write.took_ns)
            file.synced = end
            self.dirty_since_ns = None
        elif self.dirty_since_ns is None:
            self.dirty_since_ns = self.clock.monotonic_ns()
        for submission in write.submissions:
            submission.state = _WRITTEN
            submission.buffers = NO_BUFFERS
            stats.frames += submission.frames
            self.waiting.append(submission)
        self._complete()

    def recheck(self) -> None:
        """What a submission of this shard waits for may have come true elsewhere."""
        if self.completing:
            self.again = True
        else:
            self._complete()

    def _complete(self) -> None:
        """Complete, in WAL order, every submission whose class is satisfied."""
        self.completing = self.again = True
        try:
            while self.again:
                self.again = False
                self._complete_once()
        finally:
            self.completing = False

    def _complete_once(self) -> None:
        waiting = self.waiting
        # Nearly always each is ready when its turn comes, and what holds up others need not be noted.
        while waiting and not self.frozen and waiting[0].is_ready():
            try:
                waiting[0].complete()
            except BaseException as error:
                self._break(error)
                return
            waiting.popleft()
        if waiting:
            self._complete_some()

    def _complete_some(self) -> None:
        waiting = self.waiting
        kept: list[Submission] = []
        blocked: set[int] = set()
        broken: BaseException | None = None
        walled = False
        while waiting:
            submission = waiting.popleft()
            if self.frozen and (submission.barrier or submission.lane in self.frozen):
                submission.fail(self._frozen_error())
                continue
            ready = (
                submission.lane not in blocked
                and submission.is_ready()
                and not (submission.barrier and kept)
                and (not walled or submission.passes)
            )
            if ready:
                try:
                    submission.complete()
                    continue
                except BaseException as error:
                    broken = error
            kept.append(submission)
            if broken is not None:
                break
            walled = walled or submission.barrier
            if not submission.detached:
                blocked.add(submission.lane)
        waiting.extendleft(reversed(kept))
        if broken is not None:
            self._break(broken)

    # -- syncing in the background ----------------------------------------------------------------------------------

    def sync_due(self, now_ns: int) -> bool:
        if self.dirty_since_ns is None or self.syncing or self.failed is not None:
            return False
        return bool(self.waiting) or now_ns - self.dirty_since_ns >= self.options.sync_ms * 1_000_000

    def take_sync(self) -> Sync | None:
        file = self.file
        if self.syncing or self.failed is not None or file is None or file.synced == file.written:
            return None
        if self.writing and self.write_syncs:
            return None  # that write's own sync takes these bytes along; see `_batch`
        sync = Sync(file, file.written, self.clock.monotonic_ns())
        self.syncing = True
        self.dirty_since_ns = None
        return sync

    def finish_sync(self, sync: Sync) -> None:
        self.syncing = False
        if self.failed is not None:
            return
        if sync.error is not None:
            self._fail(sync.error)
            return
        self.stats.synced(self.clock.monotonic_ns() - sync.started_ns)
        sync.file.synced = max(sync.file.synced, sync.end)
        if self.file is sync.file and sync.file.synced < sync.file.written and self.dirty_since_ns is None:
            self.dirty_since_ns = self.clock.monotonic_ns()
        self._complete()

    # -- trouble ----------------------------------------------------------------------------------------------------

    def abandon(self, error: BaseException, leading: bool = True) -> None:
        """Something broke off at a place unknown, by a signal or by our own mistake: as final as a failed write.
        `leading`: it was the write under way; otherwise its leader ends that one."""
        if self.failed is None:
            self._fail(error if self.met is None else untraced(self.met))
        assert self.failed is not None
        if not leading:
            return
        self.writing = False
        for submission in self.taken:
            if not submission.settled:
                submission.fail(self.failed)

    def end(self) -> None:
        """The store lets go of the directory, which may be another process's next: no late comer writes into it."""
        if self.failed is None:
            self._fail(StoreClosed("the store is closed"))

    def _fail(self, error: BaseException) -> None:
        failed = WriteFailed(
            f"WAL shard {self.index} failed: {str(error) or type(error).__name__}",
            shard=self.index,
            since=self.clock.now_ms(),
        )
        failed.__cause__ = error
        self.failed = failed
        if isinstance(error, OSError | MemoryError):  # after all else the page cache still has what was written
            self.on_failed_sync()
        pending = [*self.waiting, *self.queue]
        self.waiting.clear()
        self._empty_queue()
        for submission in pending:
            if not submission.settled:
                submission.fail(failed)

    def _frozen_error(self) -> WriteFailed:
        return WriteFailed(
            f"it waits in WAL shard {self.index} behind a commit whose outcome is unknown; reopen the store",
            shard=self.index,
        )

    def _break(self, broken: BaseException) -> None:
        """It is committed and applied by half at most. Replay applies it whole; until then nobody builds on it."""
        self._fail(broken)
        if not isinstance(broken, StorageError):
            raise broken

    def _refuse(self, write: Write, error: OSError) -> None:
        """No next file: what waited fails whole, what was written before stays on its way."""
        remedy = "free disk space to write again" if error.errno in _NO_SPACE else "writes go on once it can"
        full = DiskFull(f"WAL shard {self.index} cannot make its next file: {error}; {remedy}", shard=self.index)
        # A file that came meanwhile, or was too small for this batch alone, takes the next one.
        self.refusing = full if self.spare is None else None
        pending = [*write.submissions, *self.queue]
        self._empty_queue()
        for submission in pending:
            submission.fail(full)

    def _empty_queue(self) -> None:
        self.queue.clear()
        self.queued_bytes = 0

    def wants_spare(self) -> bool:
        """True when the next file should be made in the background: this one is in earnest use, or none could be."""
        if self.spare is not None or self.failed is not None:
            return False
        return self.refusing is not None or (self.file is not None and self.file.written * 8 > self.file.capacity)

    def plan_spare(self, capacity: int | None = None, waiting: bool = False) -> SparePlan:
        """How to make a next file. A writer that waits for a large one, or is hurried, gets it reserved, not filled."""
        size = self.pace.capacity() if capacity is None else capacity
        fill = not (waiting or self.pace.hurried) or size <= self.options.wal_filled_bytes
        old = self.old_files.take(size, fill)
        return SparePlan(self.fs, self.directory, self.numbers.take(), size, old, fill, self.room())

    def retire(self, gone: list[tuple[int, int]], stopping: bool = False) -> list[str]:
        """What is to be removed of the files (number, valid length) that nobody needs."""
        return self.old_files.retire(gone, self.stats.rotations, stopping)

    def copied_files(self, position: int) -> list[str]:
        """The sealed files below number `position`, whose records all lie in segments by now; each is named once."""
        numbers = [number for number, _ in self.sealed if self.uncached < number < position]
        self.uncached = max(self.uncached, position - 1)
        return [f"{self.directory}/{wal_name(number)}" for number in numbers]

    def adopt_spare(self, spare: Spare) -> None:
        if self.spare is not None:
            discard(self.fs, self.spare.path)
        self.spare = spare
        self.refusing = None


def _mark(body: bytes) -> bytes:
    return encode_frame(Kind.CHECKPOINT_MARK, 0, body, flags=DURABLE)


_FILE_MARK_SIZE = len(_mark(FileMark(0, 0, 0, 0).encode()))
_EVIDENCE_SIZE = len(_mark(SyncMark(0, 0, 0).encode()))
