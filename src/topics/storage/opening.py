"""Opening a store: take the directory, recover, bring the WAL into the asked layout, and be ready to write."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from topics.format.checksum import shard_of
from topics.format.control import LeaseEvent
from topics.format.frame import DURABLE
from topics.format.snapshot import Position, SnapshotHead
from topics.host.clock import Clock
from topics.host.fs import Fs, Lock, read_file, replace_file
from topics.host.ids import Ids
from topics.model.errors import CorruptFile, InvalidRequest, StorageError, StoreLocked
from topics.storage.copy import CopyTools
from topics.storage.cut import capture, make_row
from topics.storage.keptrow import keep_row, text_of
from topics.storage.options import StoreOptions
from topics.storage.paths import Paths, group_key
from topics.storage.recovery import FORMAT_LINE, Found, Tell, kind_of, nobody, read_store
from topics.storage.repair import ensure_dir, make_directories, repair
from topics.storage.room import checkpoint_room
from topics.storage.rust.importing import discard_staging, import_rust, look
from topics.storage.rust.report import ImportReport
from topics.storage.stagereplay import adopt_staged
from topics.storage.store import Store
from topics.storage.submission import Submission
from topics.storage.topic import Topic
from topics.storage.turn import Numbers
from topics.storage.wal import Shard
from topics.storage.walread import FileRead, GroupRead

_IMPORTED: Final = 0.9
"""The part of an opening that the import of a directory of the Rust program is, where there is one."""


def open_store(
    fs: Fs,
    root: str,
    options: StoreOptions,
    clock: Clock,
    ids: Ids,
    lock: AbstractContextManager[object],
    tell: Tell = nobody,
) -> Store:
    """A recovered store, ready to write. On any error the directory is let go and nothing half-made is used. `tell`
    hears how far recovery is."""
    paths = Paths(root)
    try:
        kind = kind_of(fs, paths)
        if kind == "new":
            ensure_dir(fs, root)
        guard = _take(fs, paths)
    except (OSError, EOFError) as error:
        raise _refused(fs, root, "opened", error) from error
    held: Lock | Store = guard
    try:
        held = store = Store(fs, paths, options, clock, ids, lock, guard)
        if kind != "ours":  # somebody may have made it ours before we held the lock
            kind = kind_of(fs, paths)
        lines: list[str] = []
        if kind == "new":
            _initialise(store)
        elif kind == "rust":
            lines = import_rust(fs, paths, options, clock, ids, lambda part: tell(_IMPORTED * part)).lines()
        _recover(store, tell if not lines else lambda part: tell(_IMPORTED + (1 - _IMPORTED) * part))
        store.report[:0] = lines
    except BaseException as error:
        held.release()
        if isinstance(error, OSError | EOFError):
            raise _refused(fs, root, "opened", error) from error
        raise
    return store


def import_store(
    fs: Fs, root: str, options: StoreOptions, clock: Clock, ids: Ids, check: bool, tell: Tell = nobody
) -> ImportReport:
    """Take over a directory of the Rust program and leave it at rest. With `check` it is only read."""
    paths = Paths(root)
    try:
        if kind_of(fs, paths) != "rust":
            raise InvalidRequest(
                f"{root} is not a directory of the Rust program: there is nothing to import", path=root
            )
        guard = _take(fs, paths)
        try:
            if check:
                return look(fs, paths, options.recovery == "salvage", tell)
            return import_rust(fs, paths, options, clock, ids, tell)
        finally:
            guard.release()
    except (OSError, EOFError) as error:
        raise _refused(fs, root, "imported", error) from error


def _refused(fs: Fs, root: str, what: str, error: Exception) -> StorageError:
    """What the operating system said, and of which file, if not of the directory itself."""
    why, path = str(error), root
    if isinstance(error, OSError):
        why, path = error.strerror or why, error.filename or root
        if isinstance(error, FileExistsError):
            # The path in the way may be one above the root; a name that is taken by nothing is a link.
            why = "it is a file, not a directory" if fs.exists(path) else "it is a symbolic link that leads nowhere"
    where = "" if path == root else f"{path}: "
    return StorageError(f"{root} cannot be {what}: {where}{why}", path=root)


def _take(fs: Fs, paths: Paths) -> Lock:
    try:
        return fs.lock(paths.lock)
    except BlockingIOError:
        raise StoreLocked(
            f"{paths.root} is open already, in this process or in another (see {paths.lock}): close it there first",
            path=paths.root,
        ) from None


def _initialise(store: Store) -> None:
    """An empty snapshot, then FORMAT: whatever comes later, a directory with FORMAT has a snapshot."""
    fs, paths = store.fs, store.paths
    make_directories(fs, paths)
    if store.snapshots.load()[0] is None:
        layout = {group_key(i, store.options.wal_shards): Position(1, 0) for i in range(store.options.wal_shards)}
        store.snapshots.write(_head(store, layout), [])
    else:  # a life that was killed right behind its rename left a name that a cut takes away, and not that of FORMAT
        fs.sync_dir(paths.meta)
    replace_file(fs, paths.format, f"{FORMAT_LINE}\n{store.ids.token(16)}\n".encode())
    store.snapshots.kept.clear()


def _head(store: Store, positions: dict[str, Position], half: bool = False) -> SnapshotHead:
    return SnapshotHead(
        id=0,
        ts=store.clock.now_ms(),
        clean=False,
        next_topic_id=store.next_topic_id,
        next_wal=store.numbers.next,
        shards=store.options.wal_shards,
        positions=positions,
        routers=store.routers.rows,
        verdicts=store.staging.verdict_rows,
        half=half,
    )


def _recover(store: Store, tell: Tell) -> None:
    fs, paths, options = store.fs, store.paths, store.options
    salvage = options.recovery == "salvage"
    store.store_id = _store_id(read_file(fs, paths.format), paths)
    make_directories(fs, paths)
    fs.sync_dir(
        paths.meta
    )  # a life that was killed right behind the rename of FORMAT left a name that a cut takes away
    discard_staging(fs, paths)
    identity = fs.identity(paths.root)
    found = read_store(fs, paths, store.handles, store.snapshots, salvage, identity, tell)
    repair(fs, paths, found, salvage)
    store.report = found.report
    _adopt(store, found)
    if found.snapshot.shards != options.wal_shards or found.damage or found.snapshot.half:
        # Damage that salvage went past must not be met again: positions move behind it, as in a change of layout. An
        # earlier start may have been interrupted between the two snapshots, and left one behind to fall back to that
        # misses every group of the new layout, or meets the damage.
        _change_layout(store)
        found.recovered.announce.clear()
        found.recovered.cut_back.clear()
        found.recovered.ran_out.clear()
    _start_shards(store, found)
    store.write_boot()


def _store_id(text: bytes, paths: Paths) -> str:
    lines = text.decode("utf-8", "replace").split("\n")
    if len(lines) < 2 or not (lines[1].isascii() and lines[1].isalnum()):
        raise CorruptFile(paths.format, 0, "its second line is not the id of a store")
    return lines[1]


def _adopt(store: Store, found: Found) -> None:
    """Take over what recovery found."""
    store.numbers = Numbers(found.next_wal)
    store.next_topic_id = found.recovered.next_topic_id
    store.positions = dict(found.snapshot.positions)
    now, wall_ms = store.clock.monotonic_ns(), store.clock.now_ms()
    store.outlived = set(found.recovered.ended)
    for topic in found.recovered.topics.values():
        topic.shard = shard_of(topic.id, store.options.wal_shards)
        store.by_id[topic.id] = store.topics[topic.name] = topic
        store.ledger.bytes += topic.bytes
        topic.ledger = store.ledger
        topic.inherited = topic.head
        if topic.segments and not topic.segments[-1].sealed:
            topic.segments[-1].opened_ns = now
        if found.damage:  # the snapshot that is written because of it keeps this
            topic.tokens.leap()
        topic.tokens.restart(topic.tokens.next if found.clean and not found.damage else None)
        found.recovered.ran_out += [(topic, frame) for frame in _restart_leases(topic, wall_ms, now // 1_000_000)]
    adopt_staged(store, found)
    store.routers.adopt(found.recovered.routers.values())
    store.routers.rows = list(found.snapshot.routers)
    store.rows = {row.id: keep_row(row) for row in found.snapshot.topics if row.id in store.by_id}


def _restart_leases(topic: Topic, wall_ms: int, now_ms: int) -> list[bytes]:
    """Frames that tell of leases that ran out meanwhile."""
    keep, frames = topic.config.leases_durable, []
    if topic.groups is not None:
        for op in topic.groups.restart(wall_ms, now_ms, keep, topic.dead, topic.head):
            frames.append(topic.groups.frame(topic.id, op, now_ms, DURABLE))
    if topic.queue is not None:
        rows = topic.queue.restart(wall_ms, now_ms, keep, topic.dead, topic.head)
        if rows:
            frames.append(topic.queue.frame(topic.id, LeaseEvent.RELEASED, "", rows, now_ms, DURABLE))
    return frames


def _change_layout(store: Store) -> None:
    """Another number of shards: everything goes into segments, and both kept snapshots list the new groups, before
    the first frame of the new layout. Every group that was listed is listed at its end."""
    tools = CopyTools(store.fs, store.clock, store.options, store.handles, store.lock)
    now, mono_ms = store.clock.now_ms(), store.clock.monotonic_ns() // 1_000_000
    cuts = [capture(topic, now, mono_ms) for topic in store.by_id.values()]
    for cut, segments in zip(cuts, tools.copy_all(cuts), strict=True):
        store.rows[cut.topic.id] = keep_row(make_row(cut, segments, cut.ceiling))
        cut.topic.ckpt_seq = cut.head
    store.routers.rows = [router.row(router.cursor, router.forwarded) for router in store.routers.by_name.values()]
    end = Position(store.numbers.next, 0)
    layout = [group_key(i, store.options.wal_shards) for i in range(store.options.wal_shards)]
    store.positions = dict.fromkeys([*store.positions, *layout], end)
    for half in (True, False):
        store.snapshots.write(_head(store, store.positions, half), [text_of(row) for row in store.rows.values()])


def _start_shards(store: Store, found: Found) -> None:
    """Every start begins a new file in every shard; what was found missing is logged and synced in it first, and so
    are leases that ran out meanwhile."""
    options = store.options
    announced = store.announce(found.recovered.announce)
    for topic, frame in found.recovered.ran_out:
        announced.setdefault(topic.shard, []).append(frame)
    for router in found.recovered.cut_back:
        frame = router.cursor_frame(router.cursor, router.forwarded, store.clock.now_ms(), DURABLE)
        announced.setdefault(store.by_id[router.dest_id].shard, []).append(frame)
    groups = {group.key: group for group in found.groups}
    for index in range(options.wal_shards):
        key = group_key(index, options.wal_shards)
        directory = store.paths.group(key)
        ensure_dir(store.fs, directory)
        group = groups.get(key)
        sealed: list[tuple[int, int]] = []
        if group is not None:
            sealed = [*group.older, *((read.wal.number, read.wal.written) for read in group.files)]
            sealed = sorted([*sealed, *((number, 0) for number in group.empty)])
        room = partial(checkpoint_room, store)
        shard = Shard(
            index, key, directory, store.fs, store.clock, options, store.numbers, sealed, store.lost_boot, room
        )  # fmt: skip
        store.shards.append(shard)
        first = Submission(0, [*announced.get(index, [])], lambda _: None, needs_sync=True)
        shard.submit(first)
        store.drive(first)
        shard.wal_bytes = sum(read.wal.written - min(read.start, read.wal.written) for read in _files(group))
    layout = {shard.key for shard in store.shards}
    for key, group in groups.items():
        if key not in layout:
            numbers = [number for number, _ in group.older]
            numbers += [read.wal.number for read in group.files] + group.empty
            store.retired[key] = sorted(numbers)


def _files(group: GroupRead | None) -> list[FileRead]:
    return group.files if group is not None else []
