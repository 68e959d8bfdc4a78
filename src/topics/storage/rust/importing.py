"""Making a store of ours of a directory of the Rust program.

    1  survey          read everything and decide; nothing is written
    2  stage           a whole store of ours in `.topics.import/`: segments, manifests, two snapshots, the report
    3  FORMAT          in there, durable: from here on the import is made, and only finished
    4  finish          the Rust program's files go, ours take their places, FORMAT moves to `meta/` last

Before 3 the other program's files are as they were, and an interrupted import begins again. After it each step may be
interrupted and done again. What was not taken over is copied to `quarantine/` between 2 and 3.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Final

from topics.format.rustsnapshot import MAGIC
from topics.format.snapshot import Position, SnapshotHead, encode_row
from topics.host.clock import Clock
from topics.host.fs import Fs, read_file, replace_file
from topics.host.ids import Ids
from topics.storage.copy import CopyTools
from topics.storage.cut import capture, make_row
from topics.storage.handles import Handles
from topics.storage.options import StoreOptions
from topics.storage.paths import Paths, group_key, is_group, snapshot_number, wal_number
from topics.storage.recovery import FORMAT_LINE, magic_of
from topics.storage.repair import copy_file, ensure_dir, make_directories, remove_tree
from topics.storage.rust.replay import Tell
from topics.storage.rust.report import ImportReport, decode_report, encode_report
from topics.storage.rust.survey import Survey, survey
from topics.storage.snapshots import Snapshots

_TOPICS: Final = 64
"""Topics that are copied between two words about progress."""
_SURVEYED: Final = 0.5


def look(fs: Fs, paths: Paths, salvage: bool, tell: Tell) -> ImportReport:
    """What an import says, or, where it is made and not finished yet, what it said. Writes nothing."""
    staging = Paths(paths.importing)
    if fs.exists(f"{staging.root}/FORMAT"):
        there = staging.import_report if fs.exists(staging.import_report) else paths.import_report
        return decode_report(read_file(fs, there))
    handles = Handles(fs)
    try:
        return survey(fs, paths, staging, handles, salvage, tell).report
    finally:
        handles.close()


def import_rust(fs: Fs, paths: Paths, options: StoreOptions, clock: Clock, ids: Ids, tell: Tell) -> ImportReport:
    """Take the directory over. When it returns, it is a store of ours at rest."""
    staging = Paths(paths.importing)
    if not fs.exists(f"{staging.root}/FORMAT"):
        discard_staging(fs, paths)
        handles = Handles(fs)
        try:
            found = survey(
                fs, paths, staging, handles, options.recovery == "salvage", lambda part: tell(_SURVEYED * part)
            )
            _stage(fs, staging, handles, options, clock, found, lambda part: tell(_SURVEYED + (1 - _SURVEYED) * part))
            _set_aside(fs, paths, found)
            replace_file(fs, staging.import_report, encode_report(found.report))
            replace_file(fs, f"{staging.root}/FORMAT", f"{FORMAT_LINE}\n{ids.token(16)}\n".encode())
        except OSError:
            with suppress(OSError):  # most likely the disk is full: what it was filled with is of no use
                discard_staging(fs, paths)
            raise
        finally:
            handles.close()
    return _finish(fs, paths, staging)


# -- staging -----------------------------------------------------------------------------------------------------------


def _stage(
    fs: Fs, staging: Paths, handles: Handles, options: StoreOptions, clock: Clock, found: Survey, tell: Tell
) -> None:
    ensure_dir(fs, staging.root)
    make_directories(fs, staging)
    replay = found.replay
    tools = CopyTools(fs, clock, options, handles, nullcontext())
    now_ms, mono_ms = clock.now_ms(), clock.monotonic_ns() // 1_000_000
    topics = list(replay.topics.values())
    rows: list[bytes] = []
    for start in range(0, len(topics), _TOPICS):
        cuts = []
        for topic in topics[start : start + _TOPICS]:
            topic.tokens.restart(None)
            if topic.queue is not None:
                topic.queue.restart(now_ms, mono_ms, topic.config.leases_durable, topic.dead, topic.head)
            cuts.append(capture(topic, now_ms, mono_ms))
        for cut, segments in zip(cuts, tools.copy_all(cuts), strict=True):
            rows.append(encode_row(make_row(cut, segments, cut.ceiling)))
        tools.maps.clear()
        tell(len(rows) / len(topics))
    snapshots = Snapshots(fs, staging)
    snapshots.next_id = found.next_snapshot
    positions = {group_key(i, options.wal_shards): Position(found.next_wal, 0) for i in range(options.wal_shards)}
    head = SnapshotHead(
        id=0,
        ts=now_ms,
        clean=False,
        next_topic_id=replay.next_topic_id,
        next_wal=found.next_wal,
        shards=options.wal_shards,
        positions=positions,
        routers=[router.row(router.cursor, router.forwarded) for router in replay.routers],
    )
    for _ in range(2):  # what they tell is nowhere else once the other program's files are gone
        snapshots.write(head, rows)


def _set_aside(fs: Fs, paths: Paths, found: Survey) -> None:
    """Copies, under names that stay the same however often an import is begun."""
    there = [path for path in found.suspect if fs.exists(path)]
    if not there:
        return
    ensure_dir(fs, paths.quarantine)
    for path in there:
        name = "rust-" + path.removeprefix(paths.root + "/").replace("/", "-")
        target = f"{paths.quarantine}/{name}"
        for leftover in (f"{target}.tmp", target):
            if fs.exists(leftover):
                fs.remove(leftover)
        copy_file(fs, path, f"{target}.tmp")
        fs.rename(f"{target}.tmp", target)
        found.report.set_aside.append(name)
    fs.sync_dir(paths.quarantine)


# -- switching ---------------------------------------------------------------------------------------------------------


def _finish(fs: Fs, paths: Paths, staging: Paths) -> ImportReport:
    if fs.is_dir(staging.topics):
        if fs.is_dir(paths.topics):
            remove_tree(fs, paths.topics)
        fs.rename(staging.topics, paths.topics)
        # Where it came from first: were it found in both places after a power cut, we would remove what we made.
        fs.sync_dir(staging.root)
        fs.sync_dir(paths.root)
    _remove_wal(fs, paths)
    ensure_dir(fs, paths.meta)
    for name in fs.list(paths.meta):
        number = snapshot_number(name.removesuffix(".tmp"))
        if number is not None and (name.endswith(".tmp") or magic_of(fs, f"{paths.meta}/{name}") == MAGIC):
            fs.remove(f"{paths.meta}/{name}")
    for name in fs.list(staging.meta):
        fs.rename(f"{staging.meta}/{name}", f"{paths.meta}/{name}")
    fs.sync_dir(paths.meta)
    report = decode_report(read_file(fs, paths.import_report))
    fs.rename(f"{staging.root}/FORMAT", paths.format)
    fs.sync_dir(paths.meta)
    discard_staging(fs, paths)
    return report


def discard_staging(fs: Fs, paths: Paths) -> None:
    """Let go of what was staged. Its name goes first, durably: half of it must never be taken for a whole store."""
    grave = f"{paths.importing}.deleted"
    if fs.is_dir(grave):
        remove_tree(fs, grave)
    if fs.is_dir(paths.importing):
        fs.rename(paths.importing, grave)
        fs.sync_dir(paths.root)
        remove_tree(fs, grave)


def _remove_wal(fs: Fs, paths: Paths) -> None:
    """Durably: a file of a group that our layout does not list would be set aside as somebody else's."""
    if not fs.is_dir(paths.wal):
        return
    for name in fs.list(paths.wal):
        if is_group(name):
            remove_tree(fs, f"{paths.wal}/{name}")
        elif wal_number(name) is not None:
            fs.remove(f"{paths.wal}/{name}")
    fs.sync_dir(paths.wal)
