"""A data directory held by one process: its lock, its WAL shards, its topics.

Every method that reads or changes topics is called under `lock`; I/O that takes time (a shard's `run`, a checkpoint's
`run`, fetching payloads) happens without it. The store itself has no thread: `storage/commit.py` adds them for
embedded use, a server loops over the same steps, and a simulation calls them by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, suppress

import msgspec

from topics.format.checksum import self_test, shard_of
from topics.format.control import (
    HeadWatermark,
    LostRange,
    LostReason,
    Selector,
    TokenWatermark,
    TopicCreate,
    TopicDelete,
)
from topics.format.frame import DURABLE, MORE, Kind, encode_frame
from topics.format.prepared import Prepared
from topics.format.snapshot import Position
from topics.host.clock import Clock
from topics.host.files import FILES_USUAL
from topics.host.fs import Fs, Lock, replace_file
from topics.host.ids import Ids
from topics.model.config import Durability, TopicConfig, check_topic_name
from topics.model.errors import StoreClosed, Throttled, TopicExists, TopicNotEmpty, TopicNotFound, TopicsError
from topics.rules.tokens import AHEAD as TOKENS_AHEAD
from topics.storage import paths as names
from topics.storage.append import EPHEMERAL, Append, check_room, order_append
from topics.storage.checkpoint import Checkpoint
from topics.storage.delete import join_ranges, order_config, order_delete, order_retention
from topics.storage.due import is_due
from topics.storage.effect import Effect, Ledger
from topics.storage.handles import Handles
from topics.storage.idle import Idle
from topics.storage.keptrow import KeptRow
from topics.storage.leasing import Now, check_delays, delay_rider
from topics.storage.names import Found, find_tagged
from topics.storage.options import StoreOptions
from topics.storage.paths import Paths
from topics.storage.repair import bury
from topics.storage.routers import Routers
from topics.storage.snapshots import Snapshots
from topics.storage.staging import Staging
from topics.storage.submission import Submission, WaitFirst, fresh_error
from topics.storage.topic import Topic
from topics.storage.turn import Numbers
from topics.storage.wal import Shard
from topics.storage.walfile import discard


class Store:
    def __init__(
        self,
        fs: Fs,
        paths: Paths,
        options: StoreOptions,
        clock: Clock,
        ids: Ids,
        lock: AbstractContextManager[object],
        guard: Lock,
    ) -> None:
        self_test()
        self.fs = fs
        self.paths = paths
        self.options = options
        self.clock = clock
        self.ids = ids
        self.lock = lock
        self.guard = guard
        self.handles = Handles(fs)
        self.snapshots = Snapshots(fs, paths)
        self.numbers = Numbers(1)
        self.shards: list[Shard] = []
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.creating: dict[str, Submission] = {}
        self.ledger = Ledger()
        self.next_topic_id = 1
        self.routers = Routers()
        self.staging = Staging()
        self.idle = Idle(clock.monotonic_ns())
        self.rows: dict[int, KeptRow] = {}
        """Each topic as the last snapshot has it: an unchanged topic costs the next one little more than a copy."""
        self.positions: dict[str, Position] = {}
        self.retired: dict[str, list[int]] = {}
        """WAL files of groups that the present layout does not use."""
        self.graveyard: list[int] = []
        """Dropped topics whose files are still there."""
        self.doubtful: dict[str, list[int]] = {}
        """Name -> ids whose create failed behind its write: it may be in the log all the same."""
        self.outlived: set[int] = set()
        """Ids that no start may bring back though their create may be in the log: their names were made again since, or
        recovery found them ended. Kept until a snapshot's positions lie behind all of that."""
        self.opened_ns = clock.monotonic_ns()
        self.checkpointed_ns = self.opened_ns
        self.trouble: Exception | None = None
        """Why the last checkpoint failed; None = it did not."""
        self.stumbled: dict[str, Exception] = {}
        """Why the last turn of a background thread broke off, by what the thread does. It goes on."""
        self.report: list[str] = []
        """What recovery had to say."""
        self.store_id = ""
        self.pool: Executor | None = None
        """Runs the syncs of a checkpoint beside each other; None = one by one."""
        self.files_max = FILES_USUAL
        """How many files the process may have open. Asked of the machine by whoever gives the pool."""
        self.waits_for_room = False
        """Whoever calls waits in a thread of its own: where a shard's queue is full it waits for room, for nobody but
        itself, rather than be refused."""
        self.closed = False

    # -- topics --------------------------------------------------------------------------------------------------------

    def all_topics(self) -> Iterable[Topic]:
        return self.by_id.values()

    def topics_of(self, shard: int) -> Iterable[Topic]:
        return [topic for topic in self.by_id.values() if topic.shard == shard]

    def topic(self, name: str) -> Topic:
        self.check_open()
        if not isinstance(name, str):
            check_topic_name(name)
        topic = self.topics.get(name)
        if topic is None or topic.closing:
            raise TopicNotFound(name)
        return topic

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the store is closed")

    def shard_for(self, topic: Topic) -> Shard:
        return self.shards[topic.shard]

    def writer_of(self, topic: Topic, size: int = 0, frees: bool = False) -> Shard:
        """The shard of the topic; raises if a submission of this size cannot be taken now."""
        topic.check_writable()
        shard = self.shards[topic.shard]
        shard.check(size, frees)
        return shard

    def create(self, name: str, config: TopicConfig) -> Submission | None:
        """Log a new topic; None if it is there already with this config. Racing creates log one id."""
        self.check_open()
        check_topic_name(name)
        if name in self.creating:
            raise WaitFirst(self.creating[name])
        known = self.topics.get(name)
        if known is not None:
            if known.closing:
                raise WaitFirst(known.pending[-1].submission)
            if known.ordered.config.type != config.type:
                raise TopicExists(
                    f"topic {name!r} is a {known.config.type}; it cannot become a {config.type}",
                    topic=name,
                    existing_type=known.config.type,
                    requested_type=config.type,
                )
            return None
        limit = self.options.max_topics
        if limit and len(self.by_id) + len(self.creating) >= limit:
            raise Throttled(f"the store holds {limit} topics, its limit", limit="max_topics", max=limit)
        topic_id = self.next_topic_id
        index = shard_of(topic_id, self.options.wal_shards)
        shard = self.shards[index]
        shard.check()
        self.next_topic_id += 1
        now = self.clock.now_ms()
        topic = Topic(topic_id, name, config, self.paths.topic(topic_id), self.handles)
        topic.shard = index
        topic.created_ts = now
        reserve = self.options.reserve_seqs if config.commit_class == Durability.DISK else 0
        body = TopicCreate(name, msgspec.json.encode(config)).encode()
        tokens = TOKENS_AHEAD if topic.queue is not None else 0
        frames = [(Kind.TOPIC_CREATE, body)]
        if reserve:
            frames.append((Kind.HEAD_WATERMARK, HeadWatermark(reserve).encode()))
        if topic.queue is not None:
            topic.queue.restart(now, self.clock.monotonic_ns() // 1_000_000, False, topic.dead, 0)
            frames.append((Kind.TOKEN_WATERMARK, TokenWatermark(tokens).encode()))
        buffers: list[bytes | bytearray] = [
            encode_frame(kind, topic_id, data, ts=now, flags=DURABLE | (MORE if at < len(frames) - 1 else 0))
            for at, (kind, data) in enumerate(frames)
        ]

        def apply(_: Submission) -> None:
            del self.creating[name]
            topic.apply_ceiling(reserve)
            topic.apply_tokens(tokens)
            topic.ledger = self.ledger
            self.topics[name] = self.by_id[topic_id] = topic
            self.outlived.update(self.doubtful.pop(name, ()))

        def fail(failed: Submission) -> None:
            self.creating.pop(name, None)
            if failed.file is not None:
                self.doubtful.setdefault(name, []).append(topic_id)

        self.creating[name] = Submission(topic_id, buffers, apply, needs_sync=True, on_fail=fail)
        return shard.submit(self.creating[name])

    def configure(self, name: str, config: TopicConfig) -> Submission | None:
        """Replace a topic's config; None if nothing changes."""
        topic = self.topic(name)
        current = topic.ordered.config
        if current == config:
            return None
        if current.type != config.type:
            raise TopicExists(
                f"topic {name!r} is a {current.type}; it cannot become a {config.type}",
                topic=name,
                existing_type=current.type,
                requested_type=config.type,
            )
        shard = self.writer_of(topic, frees=True)
        feeders = self.routers.into(topic.id)
        return order_config(topic, shard, self.clock.now_ms(), config, self.clock.monotonic_ns() // 1_000_000, feeders)

    def drop(self, name: str, if_empty: bool = False) -> Submission | None:
        """Log the end of a topic; None if there is none. Its files go with the next housekeeping."""
        self.check_open()
        check_topic_name(name)
        if name in self.creating:
            raise WaitFirst(self.creating[name])
        topic = self.topics.get(name)
        if topic is None:
            return None
        if topic.closing:
            raise WaitFirst(topic.pending[-1].submission)
        if if_empty and topic.ordered.live:
            raise TopicNotEmpty(f"topic {name!r} holds {topic.live} records", topic=name, count=topic.live)
        shard = self.writer_of(topic, frees=True)
        body = TopicDelete(name).encode()
        frame = encode_frame(Kind.TOPIC_DELETE, topic.id, body, ts=self.clock.now_ms(), flags=DURABLE)
        effect = Effect()
        topic.closing = True

        def apply(_: Submission) -> None:
            del self.topics[name]
            del self.by_id[topic.id]
            self.routers.forget_topic(topic.id)
            self.staging.forget_topic(topic)
            self.graveyard.append(topic.id)
            self.ledger.bytes -= topic.bytes
            topic.ledger = Ledger()
            # A use case may hold it still: its frames would be nobody's once the one that tells of the drop is trimmed.
            topic.frozen = TopicNotFound(name)
            topic.wake()

        def fail(failed: Submission) -> None:
            if failed.file is None:
                topic.closing = False
                topic.withdraw(effect)

        effect.submission = Submission(topic.id, [frame], apply, needs_sync=True, on_fail=fail)
        topic.order(effect)
        return shard.submit(effect.submission)

    # -- records -------------------------------------------------------------------------------------------------------

    def append(self, name: str, prepared: Prepared, key: str | None = None) -> Append:
        topic = self.topic(name)
        now = self.clock.now_ms()
        if key is not None:
            if key in topic.gates:
                raise WaitFirst(topic.gates[key])
            known = topic.dedupe.get(key, now, topic.ordered.config.idempotency_window_ms)
            if known is not None:
                return Append(topic, known.first_seq, known.records, known.ts, deduped=True)
        config = topic.ordered.config
        shard = self.shards[topic.shard]
        if config.commit_class is not EPHEMERAL:
            self.writer_of(topic, len(prepared.frames))
        mono_ns = self.clock.monotonic_ns()
        if config.ttl_ms or config.cap_records or config.cap_bytes:
            self.sweep(topic)
            check_room(topic, prepared, mono_ns // 1_000_000)
        if self.ledger.bytes_max:
            self.check_quota(prepared)
        rider = None
        if prepared.delays is not None:
            check_delays(name, topic.config.type, prepared)
            if any(prepared.delays):
                rider = delay_rider(topic, prepared.delays, Now(now, mono_ns // 1_000_000))
        return order_append(topic, shard, prepared, now, mono_ns, key, self.options.reserve_seqs, rider)

    def check_quota(self, prepared: Prepared) -> None:
        ledger = self.ledger
        if ledger.bytes + ledger.ordered + prepared.accounted > ledger.bytes_max > 0:
            raise Throttled(
                f"the store may hold {ledger.bytes_max} bytes of records; delete some, or raise the limit",
                limit="max_total_bytes",
                max=ledger.bytes_max,
            )

    def delete(
        self, name: str, before_seq: int | None, match: Selector | None, known: Found | None = None
    ) -> tuple[Submission | None, Callable[[], int]]:
        """`known`: what a search of the sealed segments found already."""
        topic = self.topic(name)
        shard = self.writer_of(topic, frees=True)
        self.sweep(topic)
        ranges = join_ranges(find_tagged(self.handles, topic, match, before_seq, known)) if match is not None else ()
        return order_delete(topic, shard, self.clock.now_ms(), before_seq, match, ranges)

    def sweep(self, topic: Topic) -> Submission | None:
        """Evict what has become too old or too much. Trouble with the shard leaves everything as it is."""
        config = topic.ordered.config
        if topic.closing or not (config.ttl_ms or config.cap_records or config.cap_bytes):
            return None
        mono_ns = self.clock.monotonic_ns()
        graced = mono_ns - self.opened_ns < self.options.ttl_grace_ms * 1_000_000
        ready = not graced or topic.earliest_seq > topic.inherited
        try:
            shard = self.writer_of(topic, frees=True)
        except TopicsError:
            return None
        return order_retention(topic, shard, self.clock.now_ms(), ready, mono_ns // 1_000_000)

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Now and then, by one thread, without the lock: what time alone brings."""
        self.staging.tend(self)
        self.idle.tend(self)

    def checkpoint_due(self) -> bool:
        return is_due(self)

    def begin_checkpoint(self, clean: bool = False) -> Checkpoint:
        self.checkpointed_ns = self.clock.monotonic_ns()
        if clean:
            for topic in self.by_id.values():
                # What a clean stop says of lease ids is believed: its row is made anew wherever any were given out.
                topic.dirty = topic.dirty or topic.ceiling != topic.head or topic.tokens.ceiling > 0
        checkpoint = Checkpoint(self, self.lock, clean)
        checkpoint.begin()
        return checkpoint

    def bury(self) -> None:
        """Remove the files of dropped topics. A file that will not go keeps the WAL that tells of the drop."""
        with self.lock:
            waiting = [topic_id for topic_id in self.graveyard if topic_id not in self.staging.busy]
        for topic_id in waiting:
            try:
                bury(self.fs, self.paths, topic_id)
            except OSError:
                continue
            with self.lock:
                self.graveyard.remove(topic_id)

    def free_recyclable(self) -> None:
        """Files kept to save work later take room that is needed now."""
        with self.lock:
            doomed = [path for shard in self.shards for path in shard.old_files.give_up()]
        for path in doomed:
            discard(self.fs, path)

    def uncache(self) -> None:
        """WAL files whose records were all copied are read by a recovery alone: their memory is better used for the
        next ones and for segments."""
        with self.lock:
            paths = [path for shard in self.shards for path in shard.copied_files(self._copied_below(shard))]
        for path in paths:
            with suppress(OSError):
                file = self.fs.open(path)
                file.uncache()
                file.close()

    def _copied_below(self, shard: Shard) -> int:
        position = self.positions.get(shard.key)
        return 0 if position is None else position.file

    def trim(self, stopping: bool = False) -> None:
        """Let go of WAL files wholly below the older kept snapshot; some become spares."""
        older = self.snapshots.older
        with self.lock:
            if older is None or self.graveyard:
                return
            doomed: list[str] = []
            for shard in self.shards:
                position = older.get(shard.key)
                if position is None:
                    continue
                gone = [item for item in shard.sealed if item[0] < position.file]
                shard.sealed = [item for item in shard.sealed if item[0] >= position.file]
                doomed += shard.retire(gone, stopping)
            retired = [
                (key, numbers)
                for key, numbers in self.retired.items()
                if key in older and all(number < older[key].file for number in numbers)
            ]
        for path in doomed:
            discard(self.fs, path)
        for key, numbers in retired:
            self._remove_group(key, numbers)

    def _remove_group(self, key: str, numbers: list[int]) -> None:
        """The files of a layout that is no longer used; its key stays listed until the removal is synced."""
        directory = self.paths.group(key)
        try:
            for number in numbers:
                path = f"{directory}/{names.wal_name(number)}"
                if self.fs.exists(path):
                    self.fs.remove(path)
            if self.fs.exists(f"{directory}/CURRENT"):
                self.fs.remove(f"{directory}/CURRENT")
            self.fs.sync_dir(directory)
        except OSError:
            return
        with self.lock:
            del self.retired[key]
            self.positions.pop(key, None)

    def abandon(self, error: BaseException) -> None:
        """A change of state broke off half-way: nothing may be written on top of it; the WAL has the truth."""
        for shard in self.shards:
            shard.abandon(error, leading=False)

    def lost_boot(self) -> None:
        """A sync failed: what the page cache says is no longer what the disk has."""
        discard(self.fs, self.paths.boot)

    # -- the steps of a writer, for callers without threads ------------------------------------------------------------

    def step(self, shard: Shard) -> bool:
        """One turn of a shard's writer, in place. True if there was something to do."""
        write = shard.take()
        if write is None:
            return False
        shard.run(write)
        shard.finish(write)
        return True

    def drive(self, submission: Submission | None) -> None:
        """Step until the submission is settled; raise its error if it failed."""
        while submission is not None and not submission.settled:
            self.drive_once()
        if submission is not None and submission.error is not None:
            raise fresh_error(submission.error)

    def checkpoint(self, clean: bool = False) -> bool:
        """A whole checkpoint in place."""
        checkpoint = self.begin_checkpoint(clean)
        for mark in checkpoint.marks:
            while not mark.settled:
                self.drive_once()
        return checkpoint.run()

    def drive_once(self) -> None:
        if not any(self.step(shard) for shard in self.shards):
            for shard in self.shards:
                sync = shard.take_sync()
                if sync is not None:
                    sync.run()
                    shard.finish_sync(sync)

    def announce(self, ranges: dict[int, list[tuple[int, int, LostReason]]]) -> dict[int, list[bytes]]:
        """LostRange frames per shard, to be logged before the first write."""
        frames: dict[int, list[bytes]] = {}
        for topic_id, rows in ranges.items():
            topic = self.by_id.get(topic_id)
            if topic is None:
                continue
            for first, last, reason in rows:
                body = LostRange(first, last, reason).encode()
                frame = encode_frame(Kind.LOST_RANGE, topic_id, body, ts=topic.last_ts, flags=DURABLE)
                frames.setdefault(topic.shard, []).append(frame)
        return frames

    def write_boot(self) -> None:
        replace_file(self.fs, self.paths.boot, self.fs.identity(self.paths.root).encode())

    def release(self) -> None:
        """Let go of files and of the directory."""
        self.closed = True
        with self.lock:
            for shard in self.shards:
                shard.end()
        try:
            for topic in self.topics.values():
                for effect in topic.pending:  # a ring, and a file of the WAL in it
                    effect.submission = None
            self.handles.close()
        finally:
            self.guard.release()
