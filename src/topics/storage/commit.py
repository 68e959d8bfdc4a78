"""Many callers, one sync: threads that wait for their submissions, and the ones that work for them.

A caller that finds its shard idle writes for everybody who has queued, in its own thread (the leader); those who come
meanwhile wait, and one of them leads the next turn. A lone writer so pays for no thread hop. Background threads do what
no caller should wait for: syncs by the timer, the next WAL file, checkpoints.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from topics.format.prepared import Prepared
from topics.host.files import files_max
from topics.host.threads import LastingPool, step_back
from topics.model.errors import StoreClosed, TopicsError
from topics.rules.catchup import hold_back_ns
from topics.storage.append import Append
from topics.storage.checkpoint import Checkpoint
from topics.storage.due import due_bytes
from topics.storage.store import Store
from topics.storage.submission import Submission, fresh_error
from topics.storage.turn import Sync, Write, failure_behind, untraced
from topics.storage.wal import Shard

log = logging.getLogger("topics.storage")

_SEGMENT_THREADS = 8
"""What a checkpoint does side by side. It waits for the disk nearly all the time, so this is no number of cores."""
_HELD_BACK_NS = 200_000
"""The shortest sleep that is one."""
_IDLE_S = 0.5
"""How often the background looks for work that nobody announced."""
_CALM_S = 0.05
"""How long a thread that stumbled rests: what made it may last, and it must not spin."""


class Bell:
    """An event that signals cannot break: `threading.Event` is Python code that holds a lock, and an exception out of a
    signal handler in the middle of its `set` would leave it held for ever."""

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._quiet.release()

    def wait(self, timeout_s: float) -> None:
        """Sleep until it rings, or for so long; it is quiet again afterwards."""
        self._quiet.acquire(timeout=timeout_s)


class Committer:
    """Waits for submissions. `lock` is the store's."""

    def __init__(self, store: Store, lock: threading.Lock) -> None:
        self.store = store
        self.lock = lock
        self.spare_wanted = Bell()
        self.stirred = Bell()
        """Set when the background thread should look at the shards now."""
        self.idle = True
        """The background thread sleeps and knows of no byte to sync."""
        self.checkpointing = threading.Lock()
        """Held over a whole checkpoint: two at once would copy the same records into the same segment."""
        self.filling = False
        """The next WAL file is being written full of zeros."""
        self.held_back_ns = 0
        """For how long writers are to be held back yet: many small waits are one that is worth a sleep."""
        self._silent = Bell()

    @property
    def is_disk_busy(self) -> bool:
        """We write in bulk ourselves: a sync waits behind that."""
        return self.filling or self.checkpointing.locked()

    def append(self, name: str, prepared: Prepared, key: str | None) -> Append:
        """Order an append; return when its class is satisfied. Who finds the shard idle takes it in the same hold of
        the lock: around the one write of a lone writer every step counts."""
        shard: Shard | None = None
        led_by_another = True
        try:
            with self.lock:
                append = self.store.append(name, prepared, key)
                submission = append.submission
                if submission is None:
                    return append
                shard = submission.shard
                assert shard is not None
                led_by_another = shard.writing
                write = shard.take()
            settled = write is not None and self.lead(shard, write)
        except BaseException as error:
            if shard is not None:
                with self.lock:
                    shard.abandon(error, leading=not led_by_another)
            elif not isinstance(error, Exception):  # a signal, in the middle of a change
                with self.lock:
                    self.store.abandon(error)
            raise
        if write is not None and write.interrupt is not None:
            raise write.interrupt
        if not settled or submission.error is not None:
            self.wait(submission)
        elif shard.dirty_since_ns is not None or shard.wants_spare():
            self.nudge(shard)
        if shard.wal_bytes > self.store.options.checkpoint_burst_bytes:
            self.hold_back(shard, submission.size)
        return append

    def hold_back(self, shard: Shard, size: int) -> None:
        """Let the checkpoint catch up. The append is done: nobody but its own caller waits."""
        self.held_back_ns += self.hold_back_ns(shard, size)
        if self.held_back_ns >= _HELD_BACK_NS:
            held_back_ns, self.held_back_ns = self.held_back_ns, 0
            self._silent.wait(held_back_ns / 1e9)

    def hold_back_ns(self, shard: Shard, size: int) -> int:
        """For how long whoever wrote `size` bytes is to wait. No checkpoint catches up with a stuck shard."""
        burst = self.store.options.checkpoint_burst_bytes
        if shard.wal_bytes <= burst or shard.stuck:
            return 0
        return hold_back_ns(size, shard.wal_bytes, burst, due_bytes(self.store))

    def wait(self, submission: Submission) -> None:
        """Return when the submission's class is satisfied; raise if it failed."""
        shard = submission.shard
        assert shard is not None, "only what was submitted can be waited for"
        while not self._turn(shard, submission):
            pass
        self.nudge(shard)
        if submission.error is not None:
            raise fresh_error(submission.error)

    def _turn(self, shard: Shard, submission: Submission) -> bool:
        """Lead, or sleep until woken; True once the submission is settled."""
        waiter: threading.Lock | None = None
        led_by_another = True
        try:
            with self.lock:
                if submission.settled:
                    return True
                led_by_another = shard.writing
                write = shard.take()
                if write is None:
                    waiter = threading.Lock()
                    waiter.acquire()
                    submission.waiters.append(waiter)
            settled = write is not None and self.lead(shard, write)
        except BaseException as error:
            with self.lock:
                shard.abandon(error, leading=not led_by_another)
            raise
        if write is not None and write.interrupt is not None:
            raise write.interrupt
        if waiter is None:
            return settled
        try:
            self.nudge(shard)
            waiter.acquire()
        except BaseException:  # a signal ends the sleep; if it was our turn to lead, another must
            with self.lock:
                if waiter in submission.waiters:
                    submission.waiters.remove(waiter)
                else:
                    self.pass_on(shard)
            raise
        return False

    def lead(self, shard: Shard, write: Write) -> bool:
        """One turn for all who queued; then the first of those who came meanwhile leads. True if all that was submitted
        is settled. What a signal raised in between is left in `write`: the turn is done, and it may take its way."""
        before = sys.exception()
        try:
            try:
                shard.run(write)
            except BaseException as error:
                # Others wait for this write, so the same bytes go to the same place once more. Only half a rotation
                # cannot be done again, and what failed must not be: a sync behind one that failed proves nothing.
                shard.met = shard.met or failure_behind(error, before)
                if write.rotation is not None or shard.met is not None:
                    raise
                write.interrupt = error
                shard.run(write)
            with self.lock:
                shard.finish(write)
                if shard.queue:
                    self.pass_on(shard)
                    return False
                return not shard.waiting
        except BaseException as error:
            shard.met = shard.met or failure_behind(error, before)
            with self.lock:
                shard.abandon(error)
            raise

    def sync(self, shard: Shard, sync: Sync) -> None:
        mistake: Exception | None = None
        try:
            sync.run()
        except Exception as error:  # of our own: nothing is known of what it was to sync
            sync.error = mistake = error
        with self.lock:
            shard.finish_sync(sync)
            self.pass_on(shard)  # what needs a sync of its own was not taken meanwhile
        if mistake is not None:
            log.error("WAL shard %d stops: its background sync broke off", shard.index, exc_info=mistake)

    @staticmethod
    def pass_on(shard: Shard) -> None:
        """Wake the first who waits in the queue, to lead the next turn."""
        for submission in shard.queue:
            if submission.waiters:
                submission.waiters.pop(0).release()
                break

    def nudge(self, shard: Shard) -> None:
        """Wake the background thread, but only for what it does not know: it keeps time for dirty shards itself."""
        if (shard.dirty_since_ns is not None and self.idle) or shard.waiting:
            self.stirred.set()
        if shard.wants_spare():
            self.spare_wanted.set()

    def wait_settled(self, submission: Submission) -> None:
        """Wait for somebody else's submission; its trouble, if any, is told to whoever made it."""
        with suppress(TopicsError):
            self.wait(submission)

    def drain(self) -> None:
        """Write and sync everything that was submitted. Nothing more may come in meanwhile."""
        for shard in self.store.shards:
            while True:
                with self.lock:
                    last = shard.queue[-1] if shard.queue else shard.waiting[-1] if shard.waiting else None
                    sync = shard.take_sync() if not shard.queue else None
                if sync is not None:
                    self.sync(shard, sync)
                elif last is not None:
                    self.wait_settled(last)
                elif shard.writing or shard.syncing:
                    # An outcome that nobody waits for any more, of a file still in use.
                    threading.Event().wait(0.001)
                else:
                    break

    def wait_room(self, shard: Shard) -> None:
        """Block until what now waits in the shard's queue is gone from it."""
        with self.lock:
            last = shard.queue[-1] if shard.queue else None
        if last is not None:
            self.wait_settled(last)


class Errand:
    """What a caller has done for it by the checkpoint thread, and waits for."""

    __slots__ = ("act", "answer", "done", "error")

    def __init__(self, act: Callable[[], bool]) -> None:
        self.act = act
        self.answer = False
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.answer = self.act()
        except BaseException as error:
            self.error = error
        self.done.release()


class Background:
    """The threads of an embedded store. Those that work in bulk leave the cores to callers: a writer that finds each of
    them taken by such work waits for a slice of time."""

    def __init__(self, store: Store, committer: Committer) -> None:
        self.store = store
        self.committer = committer
        self.stopping = False
        self.checkpoint_now = Bell()
        self._calm = Bell()
        """Never rung: a thread that stumbled rests."""
        self._errands: deque[Errand] = deque()
        self._ended = False
        """The checkpoint thread takes no more errands."""
        self._threads = [
            threading.Thread(target=self._sync_loop, name="topics-sync", daemon=True),
            threading.Thread(target=self._spare_loop, name="topics-spare", daemon=True),
            threading.Thread(target=self._checkpoint_loop, name="topics-checkpoint", daemon=True),
        ]
        store.files_max = files_max()
        store.pool = LastingPool(_SEGMENT_THREADS, thread_name_prefix="topics-segments", initializer=step_back)

    def start(self) -> None:
        """All of them or, after an error, none."""
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.stop()
            self.close_pool()
            raise

    def stop(self) -> None:
        self.stopping = True
        self.committer.stirred.set()
        self.committer.spare_wanted.set()
        self.checkpoint_now.set()
        for thread in self._threads:
            with suppress(RuntimeError):  # not begun, or just beginning: it finds that it is to stop
                thread.join()

    def run(self, act: Callable[[], bool]) -> bool:
        """Have the checkpoint thread do `act`, and wait. Signals reach the main thread alone: one that comes now breaks
        off the waiting, never the work."""
        if sys.is_finalizing():
            raise StoreClosed("the process ends, and its background threads have ended")
        errand = Errand(act)
        self._errands.append(errand)
        self.checkpoint_now.set()
        if self._ended:
            self._refuse()
        errand.done.acquire()
        if errand.error is not None:
            raise errand.error
        return errand.answer

    def _refuse(self) -> None:
        with suppress(IndexError):
            while True:
                errand = self._errands.popleft()
                errand.error = StoreClosed("the store is closed")
                if errand.done.locked():  # else it was done, and the thread ended just behind it
                    errand.done.release()

    def close_pool(self) -> None:
        pool, self.store.pool = self.store.pool, None
        if pool is not None:
            pool.shutdown()

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _keep_at(self, name: str, turn: Callable[[], None]) -> None:
        """One turn after the other until the store stops. Memory may run out in the telling of an error, too: then the
        thread goes on without."""
        while not self.stopping:
            try:
                self._turns(name, turn)
            except Exception:
                self._calm.wait(_CALM_S)

    def _turns(self, name: str, turn: Callable[[], None]) -> None:
        stumbled = self.store.stumbled
        while not self.stopping:
            try:
                turn()
            except Exception as error:
                stumbled[name] = untraced(error)
                log.error("%s broke off and goes on: %r", name, error, exc_info=error)
                self._calm.wait(_CALM_S)
            else:
                if name in stumbled:
                    del stumbled[name]

    def _sync_loop(self) -> None:
        try:
            self._keep_at("the thread that syncs", self._sync_turn)
        finally:
            if not self.stopping:  # nobody writes and syncs for those who wait any more
                with self.committer.lock:
                    self.store.abandon(RuntimeError("the thread that syncs has ended"))

    def _sync_turn(self) -> None:
        store, committer = self.store, self.committer
        committer.stirred.wait(_IDLE_S if committer.idle else self._pause_s())
        committer.idle = False
        for shard in store.shards:
            try:
                self._write(shard)
                self._sync(shard)
            except Exception as error:
                # Something may have happened by half: nobody may build on it, and nobody may wait for ever.
                with committer.lock:
                    shard.abandon(error)
                log.exception("WAL shard %d stops: its background sync broke off", shard.index)
        # Said before the look: a shard that becomes dirty after it finds the flag set, and wakes us.
        committer.idle = True
        if any(shard.dirty_since_ns is not None and shard.failed is None for shard in store.shards):
            committer.idle = False

    def _pause_s(self) -> float:
        store = self.store
        dirty = [shard.dirty_since_ns for shard in store.shards if shard.failed is None]
        return until_due_ns(dirty, store.options.sync_ms * 1_000_000, store.clock.monotonic_ns()) / 1e9

    def _write(self, shard: Shard) -> None:
        """What was submitted and nobody waits for."""
        with self.committer.lock:
            write = shard.take() if not any(submission.waiters for submission in shard.queue) else None
        if write is not None:
            self.committer.lead(shard, write)

    def _sync(self, shard: Shard) -> None:
        with self.committer.lock:
            sync = shard.take_sync() if shard.sync_due(self.store.clock.monotonic_ns()) else None
        if sync is not None:
            self.committer.sync(shard, sync)

    def _spare_loop(self) -> None:
        step_back()
        self._keep_at("the thread that makes WAL files", self._spare_turn)

    def _spare_turn(self) -> None:
        self.committer.spare_wanted.wait(_IDLE_S)
        if not self.stopping:
            for shard in self.store.shards:
                self._spare(shard)

    def _spare(self, shard: Shard) -> None:
        with self.committer.lock:
            plan = shard.plan_spare() if shard.wants_spare() else None
        if plan is None:
            return
        self.committer.filling = True
        try:
            spare = plan.run()
        except OSError:
            return  # the writer meets the same trouble when it needs the file, and says so
        except Exception:  # memory that ran out, above all: the next file is tried for again
            log.exception("WAL shard %d has no next file yet", shard.index)
            return
        finally:
            self.committer.filling = False
        with self.committer.lock:
            shard.adopt_spare(spare)
        self.checkpoint_now.set()  # a file was begun, so there may be enough

    def _checkpoint_loop(self) -> None:
        step_back()
        try:
            self._keep_at("the thread that checkpoints", self._checkpoint_turn)
        finally:
            self._ended = True
            self._refuse()

    def _checkpoint_turn(self) -> None:
        store = self.store
        self.checkpoint_now.wait(_IDLE_S)
        while self._errands:
            self._errands[0].run()
            self._errands.popleft()  # not before: whoever waits for one that broke off would wait for ever
        with self.committer.lock:
            due = not self.stopping and not store.closed and store.checkpoint_due()
        if due:
            try:
                run_checkpoint(store, self.committer)
            except StoreClosed:
                return
            except Exception as error:  # all of it is tried again when the next one is due
                store.trouble = error
        elif not store.closed:
            store.tend()


def until_due_ns(dirty_since_ns: Iterable[int | None], sync_ns: int, now_ns: int) -> int:
    """How long until the first sync by the timer; at least a millisecond, for one that is due and cannot be taken."""
    first_ns = min((since for since in dirty_since_ns if since is not None), default=now_ns)
    return max(first_ns + sync_ns - now_ns, 1_000_000)


def run_checkpoint(store: Store, committer: Committer, clean: bool = False) -> bool:
    """A whole checkpoint, its marks committed like any submission. One runs at a time."""
    with committer.checkpointing:
        with committer.lock:
            if not clean:
                store.check_open()
            try:
                checkpoint: Checkpoint = store.begin_checkpoint(clean)
            except BaseException as error:
                store.abandon(error)
                raise
        try:
            for mark in checkpoint.marks:
                committer.wait_settled(mark)
            return checkpoint.run()
        except BaseException:
            with committer.lock:
                checkpoint.abandon()
            raise
