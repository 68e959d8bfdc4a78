"""Mistakes that one could make in the engine, each as a patch of the running one. `mutants.py` lists and hunts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from topics.format.checksum import xxh3_64
from topics.format.control import Dedupe, Delete
from topics.format.frame import MORE, Kind
from topics.format.ops import scan_wal as real_scan_wal
from topics.format.ops import stamp as real_stamp
from topics.format.prepared import WalScan
from topics.host.fs import Buffer, File, Fs, make_singly, replace_file
from topics.storage import append, checkpoint, copy, delete, judge, opening, repair, replay, store, turn, wal, walread
from topics.storage.cut import capture
from topics.storage.cut import make_row as real_make_row
from topics.storage.handles import Handles
from topics.storage.leftovers import remove_pair
from topics.storage.repair import repair as real_repair
from topics.storage.segment import Segment
from topics.storage.snapshots import Snapshots
from topics.storage.topic import Topic
from topics.storage.walfile import Spare, WalFile
from topics.testing.disk import FakeDisk
from topics.testing.wrap import WrappedFile, WrappedFs


class Patches:
    """Attributes replaced, and put back in reverse."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, target: Any, name: str, value: Any) -> None:
        self._undo.append((target, name, target.__dict__[name]))
        setattr(target, name, value)

    def undo(self) -> None:
        while self._undo:
            setattr(*self._undo.pop())


# -- syncs -------------------------------------------------------------------------------------------------------------


class Unsynced(WrappedFile):
    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        return self.inner.write_at(offset, buffers)

    def sync(self) -> None:
        return


class Retried(WrappedFile):
    """Believes the second sync."""

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        try:
            return self.inner.write_at(offset, buffers, dsync=dsync)
        except OSError:
            if not dsync:
                raise
        count = self.inner.write_at(offset, buffers)
        self.inner.sync()
        return count

    def sync(self) -> None:
        try:
            self.inner.sync()
        except OSError:
            self.inner.sync()


def _wrap_wal(patches: Patches, wrapper: type[WrappedFile]) -> None:
    real = WalFile.__init__

    def init(self: WalFile, number: int, path: str, file: File, capacity: int, written: int = 0) -> None:
        real(self, number, path, wrapper(file), capacity, written)

    patches.set(WalFile, "__init__", init)


def no_fsync(patches: Patches) -> None:
    _wrap_wal(patches, Unsynced)


def ack_before_sync(patches: Patches) -> None:
    real = wal.Shard.submit

    def submit(self: wal.Shard, submission: Any) -> Any:
        submission.needs_sync = submission.barrier
        return real(self, submission)

    patches.set(wal.Shard, "submit", submit)


def no_directory_sync(patches: Patches) -> None:
    patches.set(FakeDisk, "sync_dir", lambda self, path: self._check_on())


def retry_after_failed_fsync(patches: Patches) -> None:
    _wrap_wal(patches, Retried)


def two_syncs_of_one_file_at_once(patches: Patches) -> None:
    """A write and a background sync sync the same file beside each other, whichever comes first: of two, the kernel
    tells only one that it failed."""
    real_take, real_sync = wal.Shard.take, wal.Shard.take_sync

    def take(self: wal.Shard) -> turn.Write | None:
        syncing, self.syncing = self.syncing, False
        try:
            return real_take(self)
        finally:
            self.syncing = syncing

    def take_sync(self: wal.Shard) -> turn.Sync | None:
        writing, self.writing = self.writing, False
        try:
            return real_sync(self)
        finally:
            self.writing = writing

    patches.set(wal.Shard, "take", take)
    patches.set(wal.Shard, "take_sync", take_sync)


class Announced(WrappedFile):
    """Tells somebody before it syncs."""

    before_sync: Callable[[], None] | None = None

    def sync(self) -> None:
        if self.before_sync is not None:
            self.before_sync()
        self.inner.sync()


def publish_before_durable(patches: Patches) -> None:
    """Readers see a batch once it is written; its writers are told after the sync."""
    _wrap_wal(patches, Announced)
    real = wal.Shard.run

    def run(self: wal.Shard, write: turn.Write) -> None:
        def publish() -> None:
            for submission in write.submissions:
                if not submission.barrier:
                    apply, submission.apply = submission.apply, lambda _: None
                    apply(submission)

        file = write.file.file if write.file is not None else None
        if isinstance(file, Announced):
            write.dsync, file.before_sync = False, publish
        real(self, write)
        if isinstance(file, Announced):
            file.before_sync = None

    patches.set(wal.Shard, "run", run)


def range_sync_over_unsynced_bytes(patches: Patches) -> None:
    real = wal.Shard.take

    def take(self: wal.Shard) -> Any:
        write = real(self)
        if write is not None and write.rotation is None:
            write.dsync = write.sync
        return write

    patches.set(wal.Shard, "take", take)


def second_fsync_of_data_believed(patches: Patches) -> None:
    real = Handles.file
    known: dict[int, Retried] = {}

    def file(self: Handles, path: str) -> File:
        found = real(self, path)
        return known.setdefault(id(found), Retried(found)) if path.endswith(".data") else found

    patches.set(Handles, "file", file)
    _make_files_with(patches, lambda path, found: Retried(found) if path.endswith(".data") else found)


def whole_pairs_not_synced(patches: Patches) -> None:
    _make_files_with(patches, lambda _, found: Unsynced(found))


def _make_files_with(patches: Patches, wrapped: Callable[[str, File], File]) -> None:
    """Files that are made together are seen through `wrapped`."""

    class Seen(WrappedFs):
        def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
            return wrapped(path, self.inner.open(path, write=write, create=create, exclusive=exclusive))

    def make_files(self: WrappedFs, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        make_singly(Seen(self), files)

    patches.set(WrappedFs, "make_files", make_files)


# -- what is logged ----------------------------------------------------------------------------------------------------


def floor_not_logged(patches: Patches) -> None:
    """The frame is there, for the client reads it; what it says does not reach replay."""
    real = replay.Replay._control

    def control(self: replay.Replay, read: Any, topic: Any, frame: Any) -> None:
        if frame.kind != Kind.EVICT_WATERMARK:
            real(self, read, topic, frame)

    patches.set(replay.Replay, "_control", control)


def delete_without_bound(patches: Patches) -> None:
    """`before_seq` as the caller gave it, not cut to the head of that moment."""
    real = Delete

    def unbounded(before_seq: int | None, match: Any, bound: int, ranges: Any) -> Any:
        below = before_seq if match is not None or before_seq is None else before_seq + 5
        return real(before_seq=below, match=match, bound=bound, ranges=ranges)

    patches.set(delete, "Delete", unbounded)


def lost_range_not_logged(patches: Patches) -> None:
    patches.set(store.Store, "announce", lambda self, ranges: {})


def idempotency_key_not_logged(patches: Patches) -> None:
    real = Dedupe
    patches.set(append, "Dedupe", lambda key, first, count: real("nobody asks for this", first, count))


def batch_bit_ignored(patches: Patches) -> None:
    """Every frame a submission of its own."""
    real = real_stamp

    def stamp(frames: bytearray, entries: bytearray, count: int, *rest: Any) -> None:
        real(frames, entries, count, *rest)
        offset = 0
        while offset < len(frames):
            end = offset + 4 + int.from_bytes(frames[offset : offset + 4], "little")
            frames[offset + 5] &= ~MORE & 0xFF
            frames[end - 8 : end] = xxh3_64(bytes(frames[offset + 4 : end - 8])).to_bytes(8, "little")
            offset = end

    patches.set(append, "stamp", stamp)


# -- recovery ----------------------------------------------------------------------------------------------------------


def torn_tail_kept(patches: Patches) -> None:
    """Whole frames of an unfinished submission count as valid bytes of the file."""
    real = walread.GroupReader._scan

    def scan(self: walread.GroupReader, chain: Any, current: Any) -> None:
        real(self, chain, current)
        if self.group.files:
            last = self.group.files[-1]
            last.wal.written = max([last.wal.written, *(scan.stop for scan in last.scans)])

    patches.set(walread.GroupReader, "_scan", scan)


def zeros_taken_as_a_clean_end(patches: Patches) -> None:
    real = real_scan_wal

    def scan_wal(view: memoryview, start: int, end: int, entries: bytearray) -> WalScan:
        scan = real(view, start, end, entries)
        if scan.reason == "bad" and not any(view[scan.stop : scan.stop + 4]):
            scan.reason = "zeros"
        return scan

    patches.set(walread, "scan_wal", scan_wal)


def replay_by_name(patches: Patches) -> None:
    real = replay.Replay._find_ended

    def find_ended(self: replay.Replay, names: dict[int, str]) -> None:
        real(self, names)
        gone = {names[topic_id] for topic_id in self.result.ended if topic_id in names}
        self.result.ended.update(topic_id for topic_id, name in names.items() if name in gone)

    patches.set(replay.Replay, "_find_ended", find_ended)


def boot_identity_stored_at_open(patches: Patches) -> None:
    """Before what was lost is logged: whoever opens after a crash in between takes the new boot for the old one."""
    real = real_repair

    def early(fs: Any, paths: Any, found: Any, salvage: bool) -> None:
        replace_file(fs, paths.boot, fs.identity(paths.root).encode())
        real(fs, paths, found, salvage)

    patches.set(opening, "repair", early)


def trusted_length_applied_to_a_pair_sealed_since(patches: Patches) -> None:
    """The file is cut to the snapshot's length while the list keeps the pair sealed, with the length of MANIFEST."""
    real_judge, real_topic = judge._judge_topic, repair.repair_topic
    cuts: dict[str, int] = {}

    def judge_topic(fs: Any, topic: Any, recovered: Any, damage: Any) -> Any:
        manifest = judge._manifest(fs, topic)
        sealed = {entry.first: entry for entry in manifest.segments if entry.sealed} if manifest else {}
        if topic.segments and not topic.segments[-1].sealed and topic.segments[-1].first_seq in sealed:
            segment, entry = topic.segments[-1], sealed[topic.segments[-1].first_seq]
            cuts[segment.path("data")] = segment.data_len
            segment.sealed, segment.foreign, segment.idx_xxh3 = True, False, entry.idx_xxh3
            segment.count, segment.data_len = entry.last - entry.first + 1, entry.data_len
        return real_judge(fs, topic, recovered, damage)

    def repair_topic(fs: Any, files: Any) -> None:
        real_topic(fs, files)
        for segment in files.topic.segments:
            if segment.path("data") in cuts:
                file = fs.open(segment.path("data"), write=True)
                file.truncate(cuts.pop(segment.path("data")))
                file.sync()

    patches.set(judge, "_judge_topic", judge_topic)
    patches.set(repair, "repair_topic", repair_topic)


# -- files -------------------------------------------------------------------------------------------------------------


def _reopen_last_file(patches: Patches, clean: bool) -> None:
    """Go on in the file that an earlier life left."""
    real = opening._start_shards

    def start(store: Any, found: Any) -> None:
        take = wal.Shard.take
        groups = {group.key: group for group in found.groups}
        reopened: set[int] = set()

        def again(self: wal.Shard) -> Any:
            group = groups.get(self.key)
            if self.file is None and id(self) not in reopened and group is not None and group.files:
                reopened.add(id(self))
                read = group.files[-1]
                size = max(read.wal.file.size(), store.options.wal_file_bytes)
                if read.wal.number == group.highest and read.wal.written + 500 < size:
                    self.file = WalFile(read.wal.number, read.wal.path, read.wal.file, size, read.wal.written)
                    self.sealed = [item for item in self.sealed if item[0] != read.wal.number]
            return take(self)

        if bool(found.clean) == clean:
            wal.Shard.take = again  # type: ignore[method-assign]
        try:
            real(store, found)
        finally:
            wal.Shard.take = take  # type: ignore[method-assign]

    patches.set(opening, "_start_shards", start)


def append_after_zeros_without_a_new_file(patches: Patches) -> None:
    _reopen_last_file(patches, clean=False)


def append_to_an_old_file_after_a_clean_stop(patches: Patches) -> None:
    _reopen_last_file(patches, clean=True)


def recycled_file_not_zeroed(patches: Patches) -> None:
    def recycle(fs: Any, directory: str, serial: int, old: str, capacity: int, _fill: bool = True) -> Spare:
        path = f"{directory}/spare-{serial:016d}.pre"
        fs.rename(old, path)
        fs.sync_dir(directory)
        file = fs.open(path, write=True)
        if file.size() != capacity:
            file.truncate(capacity)
        file.sync()
        return Spare(path, file, capacity)

    patches.set(turn, "recycle", recycle)


def unlink_before_manifest(patches: Patches) -> None:
    real = copy.TopicCopy._write_manifest

    def write_manifest(self: copy.TopicCopy) -> None:
        for segment in self.dropped:
            for part in ("idx", "tags", "data"):
                if self.tools.fs.exists(segment.path(part)):
                    self.tools.fs.remove(segment.path(part))
        real(self)

    patches.set(copy.TopicCopy, "_write_manifest", write_manifest)


def failed_checkpoint_removes_all_that_it_wrote_to(patches: Patches) -> None:
    """Also the pair that was there before and grew."""

    def discard(fs: Fs, handles: Handles, topic: Topic, begun: Iterable[Segment]) -> None:
        for segment in [*topic.segments[-1:], *begun]:
            remove_pair(fs, handles, segment)

    patches.set(copy, "discard_unlisted", discard)


def trim_by_the_newest_snapshot(patches: Patches) -> None:
    def older(self: Snapshots) -> Any:
        return self.kept[-1][1] if len(self.kept) >= 2 else None

    patches.set(Snapshots, "older", property(older))


# -- checkpoints -------------------------------------------------------------------------------------------------------


def skip_by_head_of_the_snapshot(patches: Patches) -> None:
    """ckpt_seq is the head when the snapshot is written, not the head at the mark."""
    real = real_make_row

    def make_row(cut: Any, segments: Any, ceiling: int) -> Any:
        row = real(cut, segments, ceiling)
        row.ckpt_seq = cut.topic.head
        return row

    patches.set(checkpoint, "make_row", make_row)


def snapshot_captured_after_the_mark(patches: Patches) -> None:
    """What is copied is that of the mark; what the snapshot says of the topic is that of later."""
    real = checkpoint.Checkpoint.run

    def run(self: checkpoint.Checkpoint) -> bool:
        now = self.store.clock.now_ms()
        for index, cut in enumerate(self.cuts):
            late = capture(cut.topic, now, self.store.clock.monotonic_ns() // 1_000_000)
            late.pieces, late.copy_through = cut.pieces, cut.copy_through
            self.cuts[index] = late
        return real(self)

    patches.set(checkpoint.Checkpoint, "run", run)


def progress_of_routers_captured_after_the_mark(patches: Patches) -> None:
    """The snapshot has a cursor whose copies lie behind its position: a cut takes them, and nobody makes them again."""
    real = checkpoint.Checkpoint._router_rows

    def rows(self: checkpoint.Checkpoint) -> Any:
        for router, _, _ in list(self.progress.values()):
            self.progress[router.id] = (router, router.cursor, router.forwarded)
        return real(self)

    patches.set(checkpoint.Checkpoint, "_router_rows", rows)


def create_that_failed_is_forgotten(patches: Patches) -> None:
    """Its name was made again and dropped, and what tells of that lies below the positions."""
    real = checkpoint.Checkpoint.begin

    def begin(self: checkpoint.Checkpoint) -> None:
        self.store.outlived.clear()
        real(self)

    patches.set(checkpoint.Checkpoint, "begin", begin)


def half_a_salvage_taken_for_a_whole_one(patches: Patches) -> None:
    real = opening._head

    def head(store: Any, positions: Any, half: bool = False) -> Any:
        return real(store, positions)

    patches.set(opening, "_head", head)


def seqs_of_a_lost_tail_handed_out_again(patches: Patches) -> None:
    def lose_nothing(self: replay.Replay, group: walread.GroupRead, staged: Any) -> None:
        return

    patches.set(replay.Replay, "_lose_tails", lose_nothing)
