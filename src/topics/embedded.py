"""Embedded use: the engine in your own process, synchronous, for any number of threads.

One short lock stands where a server has its event loop; waiting for the disk happens outside it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple

import msgspec

from topics.broker.group import ConsumerGroups
from topics.broker.grouphandle import GroupHandle
from topics.broker.local import LocalQueue
from topics.broker.queue import Queues
from topics.broker.steps import Nap, Steps
from topics.broker.waiting import Staging
from topics.format.control import Selector, SelectorOp
from topics.format.ops import prepare
from topics.host.clock import Clock, SteadyClock, SystemClock
from topics.host.fs import Fs, OsFs
from topics.host.ids import Ids, SystemIds
from topics.host.lifetime import note_open
from topics.model import limits
from topics.model.arguments import check_batch, check_limit, check_seq, check_text, split_delays
from topics.model.config import TopicConfig, make_config
from topics.model.errors import (
    CorruptRecord,
    InvalidRequest,
    NotFound,
    StorageError,
    StoreClosed,
    Throttled,
    TopicNotFound,
    TopicsError,
)
from topics.model.outcomes import Appended, Deleted, TopicInfo
from topics.model.record import Gap, Record
from topics.rules.steady import Steady
from topics.storage.closing import end_writing, forget_frames, left_in_doubt
from topics.storage.commit import Background, Committer, run_checkpoint
from topics.storage.opening import open_store
from topics.storage.options import make_options
from topics.storage.reader import FrameBatch, Slice, fetch_one, plan
from topics.storage.scan import explain_missing, moved, scan
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst
from topics.storage.topic import Topic
from topics.storage.trouble import describe_trouble

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SLICE_RECORDS = 8192
_SLICE_BYTES = 4 * 1024 * 1024


class Log:
    """A data directory, open. Close it, or use it as a context manager: a clean close makes the next open instant."""

    def __init__(self, fs: Fs, path: str, clock: Clock, ids: Ids, **options: Any) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        steady = SteadyClock(clock, Steady())
        self._store: Store = open_store(fs, path, make_options(options), steady, ids, self._lock)
        self._store.waits_for_room = True
        try:
            self._committer = Committer(self._store, self._lock)
            self._background = Background(self._store, self._committer)
            self._queues = Queues(self._store, self._swept)
            self.staging = Staging(self._store, self._committer, self._background)
            """Parts that are durable and invisible, and their commit, once, in one topic or several."""
            self._groups = ConsumerGroups(self._store, self._swept)
            self.path = path
            self.store_id = self._store.store_id
            self.recovery_report: list[str] = list(self._store.report)
            """What recovery found worth saying: skipped snapshots, salvaged damage, things set aside. Usually empty."""
            note_open(self)
            self._background.start()
        except BaseException:  # a thread that the system does not start, or a signal: nobody else will let go of it
            self._store.release()
            self._forget()
            raise

    # -- topics --------------------------------------------------------------------------------------------------------

    def create(self, topic: str, **config: Any) -> bool:
        """Create a topic; True if it is new. One that exists gets the given config, as a PUT would give it."""
        wanted = make_config(config)

        def ask() -> tuple[bool, Submission | None]:
            submission = self._store.create(topic, wanted)
            if submission is not None:
                return True, submission
            return False, self._store.configure(topic, wanted)

        new, submission = self._call(ask)
        self._updated(topic, submission)
        return new

    def configure(self, topic: str, **changes: Any) -> TopicConfig:
        """Change some config fields, keep the rest. Tighter caps bite at once; relaxed ones bring nothing back."""

        def ask() -> tuple[TopicConfig, Submission | None]:
            # Merged under the lock, so that two callers who change different fields both get their way.
            known = msgspec.to_builtins(self._store.topic(topic).ordered.config)
            if "durable" in changes and "durability" not in changes:
                known["durability"] = None
            wanted = make_config({**known, **changes})
            return wanted, self._store.configure(topic, wanted)

        wanted, submission = self._call(ask)
        self._updated(topic, submission)
        return wanted

    def _updated(self, topic: str, submission: Submission | None) -> None:
        if submission is not None:
            self._committer.wait(submission)
            with suppress(TopicNotFound, StoreClosed):  # the change itself is done
                self._sweep(topic)

    def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        """End a topic and all its records; False if there is none. The name may be created again, as a new topic."""
        submission = self._settle(lambda: self._store.drop(topic, if_empty))
        if submission is not None:
            self._background.checkpoint_now.set()
        return submission is not None

    def topics(self) -> list[str]:
        with self._lock:
            self._store.check_open()
            return sorted(self._store.topics)

    def info(self, topic: str) -> TopicInfo:
        self._sweep(topic)
        with self._lock:
            found = self._store.topic(topic)
            shard = self._store.shard_for(found)
            stopped = shard.failed or shard.refusing
            return TopicInfo(
                topic=found.name,
                epoch=found.epoch,
                head_seq=found.head,
                earliest_seq=found.earliest_seq,
                evict_floor=found.involuntary_floor + 1,
                count=found.live,
                bytes=found.bytes,
                created_ts=found.created_ts,
                last_write_ts=found.last_ts or None,
                config=found.config,
                segments=len(found.segments),
                read_only=shard.failed is not None,
                trouble=None if stopped is None else stopped.message,
            )

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        idempotency_key: str | None = None,
        node: str | None = None,
    ) -> Appended:
        """Append a batch, whole or not at all; returns when the topic's class is satisfied.

        A record is a mapping with `data` (any JSON value, or JSON text as bytes) and, if wanted, `tag`, `node`, `key`,
        `meta` and, in a queue, `delay_ms`. WriteFailed means the outcome is unknown until the store is reopened; with
        an idempotency key the append may then simply be repeated.
        """
        check_batch(records, idempotency_key)
        try:
            prepared = prepare(records, default_node=node)
        except TopicsError:
            # A delay is no field of a record: only a batch that failed is looked through for them, for most have none.
            bare, delays = split_delays(records)
            if delays is None:
                raise
            prepared = prepare(bare, default_node=node)
            prepared.delays = delays
        append = self._patiently(self._committer.append, topic, prepared, idempotency_key)
        first, count = append.first_seq, append.count
        return Appended(topic, first, first + count - 1, count, append.ts, append.deduped)

    def delete(self, topic: str, *, before_seq: int | None = None, tag: str | None = None) -> Deleted:
        """Delete for good: everything below `before_seq`, records whose `tag` is equal (or begins, with a `*` at its
        end), or, with both, those among the first. Silent for readers."""
        if before_seq is None and tag is None:
            raise InvalidRequest("say what to delete: before_seq=, tag= or both")
        if before_seq is not None:
            check_seq("before_seq", before_seq)
        match = None if tag is None else _selector(tag)
        found, (submission, died) = self._call(
            lambda: (self._store.topic(topic), self._store.delete(topic, before_seq, match))
        )
        if submission is not None:
            self._committer.wait(submission)
        with self._lock:
            return Deleted(topic, died(), found.earliest_seq, found.head)

    def queue(self, topic: str) -> LocalQueue:
        """The calls of a queue's workers: claim, ack, nack, extend, redrive. The topic is made with `type="queue"`."""
        return LocalQueue(self._store, self._queues, self._drive, topic)

    def _swept(self, topic: str) -> Steps[Topic]:
        with self._lock:
            found = self._store.topic(topic)
            submission = self._store.sweep(found)
        if submission is not None and not submission.settled:
            yield submission
        return found

    def _drive(self, steps: Steps[T]) -> T:
        """Run a use case to its end; this thread waits where it waits."""
        naps = False
        try:
            while True:
                try:
                    wait = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if isinstance(wait, Nap):
                    naps = True
                    _sleep(self._lock, wait)
                    naps = False
                else:
                    self._committer.wait_settled(wait)
        except Exception:
            raise
        except BaseException as error:  # a signal
            closed = False
            try:
                steps.close()
                closed = True
            finally:
                if not (naps and closed):  # perhaps in the middle of a change; while it naps nothing is half changed
                    with self._lock:
                        self._store.abandon(error)
            raise

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, topic: str, from_seq: int = 0, limit: int | None = None) -> Iterator[Record | Gap]:
        """Records after `from_seq`, up to the head of this moment, and a Gap wherever some were lost."""
        return self._records(self.read_batches(topic, from_seq, limit), limit)

    @staticmethod
    def _records(batches: Iterator[FrameBatch | Gap], limit: int | None) -> Iterator[Record | Gap]:
        left = limit
        for item in batches:
            if isinstance(item, Gap):
                yield item
                continue
            records = item.records()
            if left is not None:
                records = records[:left]
                left -= len(records)
            yield from records
            if left == 0:
                return

    def read_batches(
        self, topic: str, from_seq: int = 0, limit: int | None = None, bytes_max: int = _SLICE_BYTES
    ) -> Iterator[FrameBatch | Gap]:
        """The same as verified frames: a buffer and its index, for those who parse records themselves. A batch may
        hold dead seqs, which its mask tells; `limit` bounds the size of one batch."""
        check_seq("from_seq", from_seq)
        check_limit(limit)
        self._sweep(topic)
        with self._lock:
            found = self._store.topic(topic)
            end = found.head + 1
            cursor = from_seq
            recreated = Gap(1, found.head, "recreated") if from_seq > found.head else None
            if recreated is not None:
                cursor = found.earliest_seq - 1
        return self._batches(found, cursor, end, min(limit or _SLICE_RECORDS, _SLICE_RECORDS), bytes_max, recreated)

    def _batches(
        self, topic: Topic, cursor: int, end: int, count_max: int, bytes_max: int, recreated: Gap | None
    ) -> Iterator[FrameBatch | Gap]:
        if recreated is not None:
            yield recreated
        yield from scan(self._store, topic, cursor, end, count_max, bytes_max)

    def get(self, topic: str, seq: int) -> Record:
        """One record; NotFound if it is gone or not there yet, CorruptRecord if its bytes fail their check."""
        check_seq("seq", seq)
        for _ in range(3):  # a record may move from the WAL to a segment, and that segment may go, while it is fetched
            with self._lock:
                found = self._store.topic(topic)
                part = None
                if 0 < seq <= found.head and seq not in found.dead:
                    part = plan(found, seq - 1, seq + 1, 1)
            if not isinstance(part, Slice) or part.first_seq != seq:
                break
            try:
                item = fetch_one(self._store.handles, part)
            except FileNotFoundError as error:
                explain_missing(self._store, found, part, error)
                continue
            except OSError as error:
                raise _unreadable(topic, error) from error
            if item is not None:
                return item.records()[0]
            if not moved(self._store, found, part, seq):
                where = part.segment.path("data") if part.segment is not None else part.source
                path = where if isinstance(where, str) else getattr(where, "path", "")
                raise CorruptRecord(path, 0, f"record {seq} of topic {topic!r} fails its check", seq=seq)
        raise NotFound(f"topic {topic!r} has no live record {seq}", topic=topic, seq=seq)

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def group(self, topic: str, group: str) -> GroupHandle:
        """A consumer group, to be made, looked at or worked in: `log.group("orders", "billing").fetch("worker-1")`."""
        return GroupHandle(self._store, self._groups, self._drive, topic, group)

    def checkpoint(self) -> bool:
        """Copy the WAL into segments now. Happens by itself; False if a part failed and will be tried again."""
        with self._lock:
            self._store.check_open()
        return self._background.run(lambda: run_checkpoint(self._store, self._committer))

    @property
    def trouble(self) -> list[str]:
        """What keeps the store from working as it should at this moment, in words; empty = nothing does."""
        with self._lock:
            return list(describe_trouble(self._store).values())

    def close(self) -> None:
        """Stop, write everything out, and let go of the directory.

        WriteFailed or StorageError, when all is let go of, where writes that were acknowledged are not surely on the
        disk. A checkpoint that fails loses nothing, the next open replays the WAL; `trouble` tells of it.
        """
        if sys.is_finalizing():
            # Other threads stand still for good, perhaps with a lock in hand; the system lets go of all the rest.
            self._store.closed = True
            self._store.guard.release()
            return
        with self._closing:
            with self._lock:
                if self._store.closed:
                    return
                self._store.closed = True
            doubt: StorageError | None = None
            try:
                saved = self._background.run(self._write_out)
                with self._lock:
                    doubt = left_in_doubt(self._store, saved)
            finally:
                self._background.stop()
                end_writing(self._store)
                self._background.close_pool()
                self._store.release()
                self._forget()
            if doubt is not None:
                raise doubt

    def _write_out(self) -> bool:
        self._committer.drain()
        return run_checkpoint(self._store, self._committer, clean=True)

    def _forget(self) -> None:
        """Drop every file the store holds; one that a reader is in the middle of closes behind that reader."""
        with self._lock:
            self._store.topics.clear()
            self._store.by_id.clear()
            for shard in self._store.shards:
                shard.file = shard.spare = None
                shard.taken = []
            forget_frames(self._store)

    def leave_to_parent(self) -> None:
        """In a forked child, of itself: the store stays with the process that opened it, and the child holds no lock
        on it."""
        self._store.closed = True
        # Whoever held the locks lives in the other process.
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._store.lock = self._committer.lock = self._lock
        self._store.handles.leave_to_parent()
        self._store.guard.release()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TopicsError as failed:
            if error is None:
                raise
            error.add_note(f"closing the log failed, too: {failed}")  # what happened first is what the caller hears

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _call(self, ask: Callable[[], T]) -> T:
        """Ask the store under the lock, patiently."""

        def act() -> T:
            with self._lock:
                try:
                    return ask()
                except Exception:
                    raise
                except BaseException as error:  # a signal, in the middle of a change
                    self._store.abandon(error)
                    raise

        return self._patiently(act)

    def _patiently(self, act: Callable[[*Ts], T], *args: *Ts) -> T:
        """Do it; where that depends on something under way, wait and do it again."""
        while True:
            try:
                return act(*args)
            except OSError as error:
                raise StorageError(f"{error.filename or self.path} cannot be read: {error}") from error
            except WaitFirst as first:
                self._committer.wait_settled(first.submission)
            except Throttled as full:
                if "shard" not in full.facts:
                    raise
                self._committer.wait_room(self._store.shards[full.facts["shard"]])

    def _settle(self, ask: Callable[[], Submission | None]) -> Submission | None:
        submission = self._call(ask)
        if submission is not None:
            self._committer.wait(submission)
        return submission

    def _sweep(self, topic: str) -> None:
        submission = self._call(lambda: self._store.sweep(self._store.topic(topic)))
        if submission is not None:
            self._committer.wait_settled(submission)


def _sleep(lock: threading.Lock, nap: Nap) -> None:
    bed = threading.Lock()
    bed.acquire()
    with lock:
        if nap.woken:
            return
        nap.sleeper = bed
    bed.acquire(timeout=nap.wait_ms / 1000)
    with lock:
        nap.sleeper = None


def _unreadable(topic: str, error: OSError) -> StorageError:
    return StorageError(f"topic {topic!r} cannot be read: {error}", path=error.filename)


def _selector(tag: str) -> Selector:
    check_text("tag", tag, limits.TAG_BYTES + 1)
    return Selector(SelectorOp.GLOB, tag[:-1]) if tag.endswith("*") else Selector(SelectorOp.EQ, tag)


def open(path: str | os.PathLike[str], **options: Any) -> Log:
    """Open a data directory, making it if need be. Options are the fields of `StoreOptions`, as keywords."""
    options.setdefault("wal_shards", min(os.cpu_count() or 1, 8))
    if not isinstance(path, str | bytes | os.PathLike):
        raise InvalidRequest(f"path is {path!r}; it must name a directory, as text or as a path")
    name = os.fsdecode(path)
    if not name:
        raise InvalidRequest("path is empty; name the directory to open, '.' for the present one")
    if "\0" in name:
        raise InvalidRequest(f"path is {name!r}; no path has a zero byte")
    if os.path.islink(name) and not os.path.exists(name):
        raise StorageError(f"{name} is a symbolic link to {os.readlink(name)}, which is not there", path=name)
    if os.path.exists(name) and not os.path.isdir(name):
        raise StorageError(f"{name} is a file; a store needs a directory of its own", path=name)
    return Log(OsFs(), os.path.abspath(name), SystemClock(), SystemIds(), **options)


__all__ = ["Appended", "Deleted", "Log", "StoreClosed", "TopicInfo", "TopicsError", "open"]
