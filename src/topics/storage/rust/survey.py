"""Reading a directory of the Rust program whole, and deciding, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from topics.format.container import BadContainer
from topics.format.envelope import BadEnvelope, split_raw
from topics.format.frame import BadFrame
from topics.format.rustsnapshot import NULL, RustTopic, UnknownSnapshot, decode_rust_snapshot
from topics.format.segment import ENTRY, ENTRY_SIZE, decode_segment_frame
from topics.host.fs import Fs, read_exact
from topics.model.errors import CorruptFile, UnknownVersion
from topics.storage.handles import Handles
from topics.storage.paths import Paths, segment_first, segment_name, snapshot_number
from topics.storage.rust.groups import RustGroups, group_files
from topics.storage.rust.replay import RustReplay, SnapshotFile, Tell
from topics.storage.rust.report import Finding, ImportReport
from topics.storage.topic import Topic

_READ: Final = 0.2
"""The part of a survey that reading the files is; the rest is replaying."""


@dataclass(slots=True)
class Survey:
    replay: RustReplay
    report: ImportReport
    suspect: list[str]
    """Files that hold something that is not taken over: to be set aside before the directory is switched."""
    next_wal: int
    next_snapshot: int


def survey(fs: Fs, paths: Paths, staging: Paths, handles: Handles, salvage: bool, tell: Tell) -> Survey:
    """Everything but writing. The topics found are to live in `staging`."""
    report = ImportReport()
    source = _newest_snapshot(fs, paths, report)
    report.source = source.path
    groups = RustGroups(fs, paths, source.snapshot, salvage, report)
    found = groups.read()
    tell(_READ)
    replay = RustReplay(source, staging, handles, report)
    replay.run(found, lambda part: tell(_READ + (1 - _READ) * part))
    suspect = groups.suspect | replay.suspect
    for row in source.snapshot.topics:
        topic = replay.topics.get(row.id)
        if topic is not None and row.nulls:
            suspect |= _supplied(fs, paths, row, topic, report)
    report.topics = len(replay.topics)
    report.records = sum(topic.live for topic in replay.topics.values())
    report.bytes = sum(topic.bytes for topic in replay.topics.values())
    report.routers = len(replay.routers)
    highest = max((numbers[-1] for numbers in group_files(fs, paths).values()), default=0)
    highest = max([highest, source.snapshot.first[0], *(file for file, _ in source.snapshot.positions)])
    numbers = _snapshot_numbers(fs, paths)
    return Survey(replay, report, sorted(suspect), highest + 1, (numbers[-1] if numbers else 0) + 1)


def _snapshot_numbers(fs: Fs, paths: Paths) -> list[int]:
    names = fs.list(paths.meta) if fs.is_dir(paths.meta) else []
    return sorted(number for name in names if (number := snapshot_number(name)) is not None)


def _newest_snapshot(fs: Fs, paths: Paths, report: ImportReport) -> SnapshotFile:
    bad: list[tuple[str, str]] = []
    for number in reversed(_snapshot_numbers(fs, paths)):
        path = paths.snapshot(number)
        file = fs.open(path)
        view = file.map() if file.size() else memoryview(b"")
        try:
            found = SnapshotFile(path, view, decode_rust_snapshot(view))
        except UnknownSnapshot as error:
            message = (
                f"{path} is a snapshot of a version of the Rust program that is not known here: {error.why}; nothing "
                "was changed. Start the program that wrote it and copy its topics over HTTP into a new directory"
            )
            raise UnknownVersion(message, path=path) from None
        except BadContainer as error:
            bad.append((path, error.why))
            continue
        for worse, why in bad:
            report.add(Finding("bad_snapshot", path=worse, why=why))
        return found
    if bad:
        named = "; ".join(f"{path}: {why}" for path, why in bad)
        raise CorruptFile(paths.meta, 0, f"no valid snapshot of the Rust program ({named}); the WAL alone is not all")
    return SnapshotFile()


# -- payloads that the other program could not read ------------------------------------------------------------------


def _supplied(fs: Fs, paths: Paths, row: RustTopic, topic: Topic, report: ImportReport) -> set[str]:
    """Segments that have a payload where the snapshot has null. It is said, not taken: which of the two is right
    nobody can tell."""
    directory = paths.topic(row.id)
    if not fs.is_dir(directory):
        return set()
    firsts = sorted({first for name in fs.list(directory) if (first := segment_first(name)) is not None})
    suspect: set[str] = set()
    for seq in row.nulls:
        if seq in topic.dead:
            continue
        first = max((first for first in firsts if first <= seq), default=None)
        if first is None or not _has_payload(fs, directory, first, seq):
            continue
        pair = [f"{directory}/{segment_name(first, part)}" for part in ("data", "idx")]
        suspect.update(pair)
        report.add(Finding("null", row.name, seq, seq, path=pair[0]))
    return suspect


def _has_payload(fs: Fs, directory: str, first: int, seq: int) -> bool:
    try:
        idx, data = (fs.open(f"{directory}/{segment_name(first, part)}") for part in ("idx", "data"))
    except FileNotFoundError:
        return False
    at = (seq - first) * ENTRY_SIZE
    if at + ENTRY_SIZE > idx.size():
        return False
    offset, length, _ts, _flags, _ = ENTRY.unpack(read_exact(idx, at, ENTRY_SIZE))
    if offset + length > data.size():
        return False
    try:
        frame = decode_segment_frame(read_exact(data, offset, length), 0, length)
        return frame.seq == seq and split_raw(frame.body)[2] != NULL
    except (BadFrame, BadEnvelope):
        return False
