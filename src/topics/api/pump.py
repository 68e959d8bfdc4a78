"""Drives the store for the event loop: use cases are parked while the disk works, and woken once per batch.

While the disk is quick (`pace.py`) writes and syncs run in place: a thread has to ask the busy loop for the interpreter
before and after its write, which takes longer than the sync of a fast disk. Everything else of a shard goes to its
writer thread, which goes on taking what has queued meanwhile; whatever one turn completes wakes the loop with one call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from topics.api.http import Answer, Later
from topics.api.pace import Pace
from topics.broker.forwarding import Forwarder
from topics.broker.steps import Nap, Steps
from topics.rules.pressure import Relief
from topics.storage.closing import left_in_doubt
from topics.storage.commit import Background, Committer, run_checkpoint
from topics.storage.store import Store
from topics.storage.submission import Submission
from topics.storage.turn import Write
from topics.storage.wal import Shard

T = TypeVar("T")

_INLINE_BYTES_MAX = 1024 * 1024
"""A larger write keeps the loop from others for longer than a thread hop would."""
_QUICK_SYNC_NS = 1_000_000
"""Slower syncs go to the writer thread: whoever only reads would be kept waiting by them."""
_QUICK_WRITE_NS = 5_000_000
"""The same without a sync. Getting the interpreter back from another thread can take as long by itself."""
_EARLY_MS = 1
"""How long before a sync is due its thread is woken: the loop's timers are not finer, and it waits out the rest."""


class Resumed(Protocol):
    """Who waits for something, and goes on when the loop gets to it."""

    def resume(self) -> None: ...


class Pump:
    """Lives on one event loop. `lock` is the store's."""

    def __init__(self, store: Store, lock: threading.Lock, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self.lock = lock
        self.loop = loop
        self.committer = Committer(store, lock)
        self.background = Background(store, self.committer)
        self.background.start()
        self._thread_id = threading.get_ident()
        self._writers = [_Writer(self, shard) for shard in store.shards]
        self._released: list[Resumed] = []
        """Runs to go on with; appended to under the lock by whoever completes something."""
        self._wanted: set[int] = set()
        """Shards with something to write at the end of this turn of the loop."""
        self._flush_soon = False
        self._flushing = False
        """What is released now is woken at the end of it."""
        self._wake_soon = self._turn_soon = False
        self._stir_soon = False
        """The thread that syncs is woken shortly before it is to."""
        self._crowded = False
        """Several writes come in each turn of the loop: they are collected and written together at its end."""
        self._naps: set[_Run[Any]] = set()
        self.pace_synced = Pace(_QUICK_SYNC_NS)
        self.pace_unsynced = Pace(_QUICK_WRITE_NS)
        self.stopping = False
        self.relief = Relief()
        """What the present pressure asks for."""
        self.refused = 0
        """Writes answered with 429 because of it."""
        self.forwarder = Forwarder(store)
        self.run(self.forwarder.run())

    @property
    def is_waking(self) -> bool:
        """Somebody is to be woken in this turn of the loop or the next."""
        return self._wake_soon

    @property
    def thread_id(self) -> int:
        """Of the loop."""
        return self._thread_id

    # -- running use cases -----------------------------------------------------------------------------------------

    def run(self, steps: Steps[T]) -> T | asyncio.Future[T]:
        """The result, or a future of it where something has to be waited for."""
        run = _Run(self, steps)
        if run.advance():
            return run.value
        future: asyncio.Future[T] = self.loop.create_future()

        def tell(value: Any) -> None:
            if not future.cancelled():
                future.set_result(value)

        def fail(error: BaseException) -> None:
            if not future.cancelled():
                future.set_exception(error)

        def left(done: asyncio.Future[T]) -> None:
            if done.cancelled():
                run.cancel()

        run.then(tell, fail)
        future.add_done_callback(left)
        return future

    def start(self, steps: Steps[Answer]) -> Answer | Later:
        """The same for a use case that ends in an answer and turns its errors into answers by itself."""
        run = _Run(self, steps)
        return run.value if run.advance() else run

    def after(self, submission: Submission, answer: Callable[[], Answer]) -> Answer | Later:
        """What `answer` says once the submission is settled. It raises nothing."""
        if not self._crowded and self.settle_now(submission):
            return answer()
        wait = _Wait(self, submission, answer)
        return wait if wait.park() else answer()

    def stop_waiting(self) -> None:
        """Every nap ends now and none begins: parked long polls are answered."""
        self.stopping = True
        for run in list(self._naps):
            run.nap_over(refused=True)

    # -- writing ---------------------------------------------------------------------------------------------------

    def settle_now(self, submission: Submission) -> bool:
        """Write it in place where that is the quickest way; True if it is settled then."""
        shard = submission.shard
        assert shard is not None
        if self._crowded or self.relief.window_ms or (submission.needs_sync and not submission.detached):
            return submission.settled
        if self._turn_soon:
            # The second in one turn of the loop: from now on they are collected.
            self._crowded = True
        else:
            self._turn_soon = True
            self.loop.call_soon(self._turn_over)
        with self.lock:
            write = None if submission.settled else shard.take()
        if write is not None:
            self._write(shard, write)
        return submission.settled

    def _turn_over(self) -> None:
        self._turn_soon = False

    def write_soon(self, shard: Shard) -> None:
        """At the end of this turn of the loop, so that those who come in it share one sync."""
        self._wanted.add(shard.index)
        if not self._flush_soon:
            self._flush_soon = True
            if self.relief.window_ms:
                self.loop.call_later(self.relief.window_ms / 1000, self._flush)
            else:
                self.loop.call_soon(self._flush)

    def write_now(self, shards: set[int]) -> None:
        """For somebody who has collected a turn of the loop by himself."""
        if self.relief.window_ms:
            for index in shards:
                self.write_soon(self.store.shards[index])
            return
        self._wanted |= shards
        self._flush()

    def _flush(self) -> None:
        self._flush_soon = False
        wanted, self._wanted = self._wanted, set()
        self._flushing = True
        try:
            for index in wanted:
                shard = self.store.shards[index]
                with self.lock:
                    self._crowded = self._crowded and len(shard.queue) > 1
                    write = shard.take()
                if write is not None:
                    self._write(shard, write)
                self._nudge(shard)
        finally:
            self._flushing = False
            if self._released:
                self._wake()

    def _write(self, shard: Shard, write: Write) -> None:
        now_ns = self.store.clock.monotonic_ns
        begun = now_ns()
        if not self._in_place(shard, write, begun):
            self._writers[shard.index].put(write)
            return
        self.committer.lead(shard, write)
        ended = now_ns()
        self._pace(write).took(ended, ended - begun - size_of(write))
        self._nudge(shard)
        if shard.queue:
            self.write_soon(shard)

    def _nudge(self, shard: Shard) -> None:
        """Like the committer's, but the background thread is not woken before there is something for it to do. It would
        ask for the interpreter just when the answer and the deliveries of this write are to go out."""
        if shard.waiting or shard.wants_spare():
            self.committer.nudge(shard)
        elif shard.dirty_since_ns is not None and self.committer.idle and not self._stir_soon:
            self._stir_soon = True
            self.loop.call_later(max(self.store.options.sync_ms - _EARLY_MS, 0) / 1000, self._stir)

    def _stir(self) -> None:
        self._stir_soon = False
        self.committer.stirred.set()

    def _pace(self, write: Write) -> Pace:
        return self.pace_synced if write.sync else self.pace_unsynced

    def _in_place(self, shard: Shard, write: Write, now_ns: int) -> bool:
        if write.rotation is not None or (write.sync and self.committer.is_disk_busy):
            return False
        size = size_of(write)
        if size > _INLINE_BYTES_MAX or self.committer.hold_back_ns(shard, size):
            return False
        return self._pace(write).is_quick(now_ns)

    def took(self, write: Write, spent_ns: int) -> bool:
        """By a writer thread, under the lock; True if the loop may go on with such writes by itself."""
        if write.rotation is not None:
            return False
        pace, now_ns = self._pace(write), self.store.clock.monotonic_ns()
        pace.took(now_ns, spent_ns - size_of(write))
        return pace.is_quick(now_ns)

    # -- waking ----------------------------------------------------------------------------------------------------

    def released(self, run: Resumed) -> None:
        """Under the lock, from any thread. The first of a batch schedules the one wake-up for all of it."""
        self._released.append(run)
        if not self._wake_soon:
            self._wake_soon = True
            if threading.get_ident() != self._thread_id:
                self.loop.call_soon_threadsafe(self._wake)
            elif not self._flushing:
                self.loop.call_soon(self._wake)

    def lead_wanted(self, shard: Shard) -> None:
        """Under the lock, from any thread: a submission in the queue has nobody who writes it."""
        self.loop.call_soon_threadsafe(self.write_soon, shard)

    def _wake(self) -> None:
        with self.lock:
            self._wake_soon = False
            runs, self._released = self._released, []
        for run in runs:
            try:
                run.resume()
            except Exception as error:  # of one of them: the others get their answers
                self.loop.call_exception_handler({"message": "an answer was not delivered", "exception": error})

    # -- the end ---------------------------------------------------------------------------------------------------

    def checkpoint(self) -> bool:
        """Blocks; call it from a thread."""
        return run_checkpoint(self.store, self.committer)

    def close(self) -> None:
        """Write everything out, checkpoint, let go of the directory. Blocks; nothing may be submitted any more.

        StorageError, when all is let go of, where acknowledged writes are not surely on the disk."""
        with self.lock:
            self.store.closed = True
        for writer in self._writers:
            writer.stop()
        try:
            self.background.stop()
            self.committer.drain()
            saved = run_checkpoint(self.store, self.committer, clean=True)
            with self.lock:
                doubt = left_in_doubt(self.store, saved)
        finally:
            self.background.close_pool()
            self.store.release()
        if doubt is not None:
            raise doubt


class _Wait(Later):
    """An answer that needs nothing but its submission settled."""

    __slots__ = ("_answer", "_cancelled", "_pump", "_submission")
    placed = True

    def __init__(self, pump: Pump, submission: Submission, answer: Callable[[], Answer]) -> None:
        self._pump = pump
        self._submission = submission
        self._answer = answer
        self._cancelled = False

    def park(self) -> bool:
        """False if it was settled meanwhile."""
        pump, submission = self._pump, self._submission
        with pump.lock:
            if submission.settled:
                return False
            submission.waiters.append(self)
        shard = submission.shard
        assert shard is not None
        if not (pump._flush_soon and shard.index in pump._wanted):
            pump.write_soon(shard)
        return True

    def release(self) -> None:
        """By the store, under its lock."""
        submission = self._submission
        if submission.settled:
            self._pump.released(self)
            return
        submission.waiters.append(self)
        assert submission.shard is not None
        self._pump.lead_wanted(submission.shard)

    def cancel(self) -> None:
        """What was submitted stays so; nobody is told."""
        self._cancelled = True

    def resume(self) -> None:
        if not self._cancelled:
            self._tell(self._answer())


class _Run(Later, Generic[T]):
    """One use case on its way. Also what is released when its submission is settled or its nap is over."""

    __slots__ = ("_cancelled", "_nap", "_pump", "_steps", "_submission", "_timer", "value")

    def __init__(self, pump: Pump, steps: Steps[T]) -> None:
        self._pump = pump
        self._steps = steps
        self._submission: Submission | None = None
        self._nap: Nap | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        self.value: T

    def advance(self) -> bool:
        """Go on until something has to be waited for; True if the end was reached instead."""
        pump = self._pump
        while True:
            try:
                wait = next(self._steps)
            except StopIteration as end:
                self.value = end.value
                return True
            if isinstance(wait, Nap):
                if not self._sleep(wait):
                    return False
            elif not pump.settle_now(wait) and self._park(wait):
                return False

    def _park(self, submission: Submission) -> bool:
        """False if it was settled meanwhile."""
        pump = self._pump
        with pump.lock:
            if submission.settled:
                return False
            self._submission = submission
            submission.waiters.append(self)
        assert submission.shard is not None
        pump.write_soon(submission.shard)
        return True

    def _sleep(self, nap: Nap) -> bool:
        """True if there is nothing to sleep for."""
        pump = self._pump
        if pump.stopping:
            nap.refused = True
            return True
        with pump.lock:
            if nap.woken:
                return True
            nap.sleeper = self
        self._nap = nap
        self._timer = pump.loop.call_later(nap.wait_ms / 1000, self.nap_over)
        pump._naps.add(self)
        return False

    def release(self) -> None:
        """By the store, under its lock."""
        submission = self._submission
        if submission is not None and not submission.settled:
            submission.waiters.append(self)
            assert submission.shard is not None
            self._pump.lead_wanted(submission.shard)
            return
        self._pump.released(self)

    def nap_over(self, refused: bool = False) -> None:
        if self._nap is None:
            return
        self._nap.refused = refused
        with self._pump.lock:
            if self._nap.woken:
                return  # the release is on its way
            self._nap.sleeper = None
        self.resume()

    def cancel(self) -> None:
        """The caller went away: its nap need not end by itself."""
        self._cancelled = True
        if self._nap is not None:
            self.nap_over()

    def resume(self) -> None:
        self._submission = None
        if self._nap is not None:
            self._nap = None
            self._pump._naps.discard(self)
            assert self._timer is not None
            self._timer.cancel()
        if self._cancelled:
            self._steps.close()
            return
        try:
            done = self.advance()
        except BaseException as error:
            self._fail(error)
            return
        if done:
            self._tell(self.value)  # type: ignore[arg-type]


def size_of(write: Write) -> int:
    """Its bytes, which are about the nanoseconds that they take a disk by themselves."""
    submissions = write.submissions
    return submissions[0].size if len(submissions) == 1 else sum(submission.size for submission in submissions)


class _Writer:
    """The thread of one shard; started when it is first needed."""

    def __init__(self, pump: Pump, shard: Shard) -> None:
        self._pump = pump
        self._shard = shard
        self._thread: threading.Thread | None = None
        self._items: SimpleQueue[Write | None] = SimpleQueue()

    def put(self, write: Write) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"topics-wal-{self._shard.index}", daemon=True)
            self._thread.start()
        self._items.put(write)

    def stop(self) -> None:
        if self._thread is not None:
            self._items.put(None)
            self._thread.join()

    def _loop(self) -> None:
        pump, shard = self._pump, self._shard
        while True:
            write = self._items.get()
            if write is None:
                return
            while write is not None:
                write = self._turn(shard, write)
            pump.committer.nudge(shard)

    def _turn(self, shard: Shard, write: Write) -> Write | None:
        pump = self._pump
        now_ns = pump.store.clock.monotonic_ns
        try:
            begun = now_ns()
            shard.run(write)
            spent = now_ns() - begun
            with pump.lock:
                is_quick = pump.took(write, spent)
                shard.finish(write)
                if not pump.committer.hold_back_ns(shard, size_of(write)):
                    return self._next(is_quick)
            # All others of this shard come behind: so it takes in no more than its checkpoints copy. Whoever finds its
            # queue full then waits for room, or is refused as the pressure says.
            pump.committer.hold_back(shard, size_of(write))
            with pump.lock:
                return self._next(is_quick)
        except BaseException as error:
            with self._pump.lock:
                shard.abandon(error)
            return None

    def _next(self, is_quick: bool) -> Write | None:
        """Under the lock. None where nothing waits, or the loop goes on."""
        if is_quick and self._shard.queue:
            self._pump.lead_wanted(self._shard)
            return None
        return self._shard.take()
