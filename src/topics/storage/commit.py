"""Many callers, one sync: threads that wait for their submissions, and the ones that work for them.

A caller that finds its shard idle writes for everybody who has queued, in its own thread (the leader); those who come
meanwhile wait, and one of them leads the next turn. A lone writer so pays for no thread hop. Two background threads do
what no caller should wait for: syncs by the timer, the next WAL file, checkpoints.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from topics.model.errors import TopicsError
from topics.storage.checkpoint import Checkpoint
from topics.storage.store import Store
from topics.storage.submission import Submission
from topics.storage.wal import Shard, Write, fresh_error

_IDLE_S = 0.5
"""How often the background looks for work that nobody announced."""


class Committer:
    """Waits for submissions. `lock` is the store's."""

    def __init__(self, store: Store, lock: threading.Lock) -> None:
        self.store = store
        self.lock = lock
        self.stirred = threading.Event()
        """Set when a shard has bytes to sync or needs its next file."""

    def wait(self, submission: Submission) -> None:
        """Return when the submission's class is satisfied; raise if it failed."""
        lock = self.lock
        shard = submission.shard
        assert shard is not None, "only what was submitted can be waited for"
        while True:
            waiter: threading.Lock | None = None
            with lock:
                if submission.settled:
                    break
                write = shard.take()
                if write is None:
                    waiter = threading.Lock()
                    waiter.acquire()
                    submission.waiters.append(waiter)
            if write is not None:
                self.lead(shard, write)
            else:
                assert waiter is not None
                self._nudge(shard)
                waiter.acquire()
        self._nudge(shard)
        if submission.error is not None:
            raise fresh_error(submission.error)

    def lead(self, shard: Shard, write: Write) -> None:
        """One turn for all who queued; then the first of those who came meanwhile leads."""
        shard.run(write)
        with self.lock:
            shard.finish(write)
            for submission in shard.queue:
                if submission.waiters:
                    submission.waiters.pop(0).release()
                    break

    def _nudge(self, shard: Shard) -> None:
        if shard.dirty_since_ns is not None or shard.waiting or shard.wants_spare():
            self.stirred.set()

    def wait_settled(self, submission: Submission) -> None:
        """Wait for somebody else's submission; its trouble, if any, is told to whoever made it."""
        with suppress(TopicsError):
            self.wait(submission)

    def wait_room(self, shard: Shard) -> None:
        """Block until what now waits in the shard's queue is gone from it."""
        with self.lock:
            last = shard.queue[-1] if shard.queue else None
        if last is not None:
            self.wait_settled(last)


class Background:
    """The two threads of an embedded store."""

    def __init__(self, store: Store, committer: Committer) -> None:
        self.store = store
        self.committer = committer
        self.stopping = threading.Event()
        self.checkpoint_now = threading.Event()
        self._threads = [
            threading.Thread(target=self._sync_loop, name="topics-sync", daemon=True),
            threading.Thread(target=self._checkpoint_loop, name="topics-checkpoint", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.committer.stirred.set()
        self.checkpoint_now.set()
        for thread in self._threads:
            thread.join()

    def _sync_loop(self) -> None:
        store, committer = self.store, self.committer
        pause = _IDLE_S
        while not self.stopping.is_set():
            committer.stirred.wait(pause)
            committer.stirred.clear()
            pause = _IDLE_S
            for shard in store.shards:
                self._write(shard)
                self._sync(shard)
                self._spare(shard)
                if shard.dirty_since_ns is not None and shard.failed is None:
                    pause = min(pause, max(store.options.sync_ms, 1) / 1000)

    def _write(self, shard: Shard) -> None:
        """What was submitted and nobody waits for."""
        with self.committer.lock:
            write = shard.take() if not any(submission.waiters for submission in shard.queue) else None
        if write is not None:
            self.committer.lead(shard, write)

    def _sync(self, shard: Shard) -> None:
        with self.committer.lock:
            sync = shard.take_sync() if shard.sync_due(self.store.clock.monotonic_ns()) else None
        if sync is None:
            return
        sync.run()
        with self.committer.lock:
            shard.finish_sync(sync)

    def _spare(self, shard: Shard) -> None:
        with self.committer.lock:
            plan = shard.plan_spare() if shard.wants_spare() else None
        if plan is None:
            return
        try:
            spare = plan.run()
        except OSError:
            return  # the writer meets the same trouble when it needs the file, and says so
        with self.committer.lock:
            shard.adopt_spare(spare)

    def _checkpoint_loop(self) -> None:
        while not self.stopping.is_set():
            self.checkpoint_now.wait(_IDLE_S)
            self.checkpoint_now.clear()
            if self.stopping.is_set():
                return
            with self.committer.lock:
                due = self.store.checkpoint_due()
            if due:
                run_checkpoint(self.store, self.committer)


def run_checkpoint(store: Store, committer: Committer, clean: bool = False) -> bool:
    """A whole checkpoint, its marks committed like any submission."""
    with committer.lock:
        checkpoint: Checkpoint = store.begin_checkpoint(clean)
    for mark in checkpoint.marks:
        committer.wait_settled(mark)
    return checkpoint.run()
