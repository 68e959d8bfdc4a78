"""Opening a directory: read and decide first, then act. An interrupted recovery just runs again.

1  FORMAT, the snapshots                         what kind of directory is this
2  WAL groups from the snapshot's positions      storage/walread.py
3  replay                                        storage/replay.py
4  segments                                      storage/judge.py
5  act: cut, remove, rewrite                     storage/repair.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from topics.format.rustsnapshot import MAGIC as RUST
from topics.format.snapshot import MAGIC, Position, Snapshot
from topics.host.fs import Fs, read_exact, read_file
from topics.model.errors import CorruptFile, UnknownVersion
from topics.storage.handles import Handles
from topics.storage.judge import TopicFiles, judge
from topics.storage.partfile import Part
from topics.storage.paths import FLAT, Paths, is_group, snapshot_number, topic_of, wal_name, wal_number
from topics.storage.replay import Recovered, Replay
from topics.storage.rust.groups import begins_as_ours, begins_as_theirs, group_files
from topics.storage.snapshots import Snapshots
from topics.storage.stagereplay import find_staged
from topics.storage.walread import GroupRead, GroupReader

FORMAT_LINE = "topics-py 1"


@dataclass(slots=True)
class Found:
    """All that was read and decided. Nothing on disk has changed yet."""

    snapshot: Snapshot
    groups: list[GroupRead]
    recovered: Recovered
    files: list[TopicFiles]
    clean: bool
    next_wal: int
    bad_snapshots: list[tuple[str, str]]
    staged: dict[int, list[Part]]
    """By topic id: every staged part that is there."""
    foreign_groups: list[str] = field(default_factory=list)
    """Groups with WAL files that the snapshot does not list: set aside, never replayed."""
    damage: list[CorruptFile] = field(default_factory=list)
    report: list[str] = field(default_factory=list)


Kind = Literal["new", "ours", "rust"]


def kind_of(fs: Fs, paths: Paths) -> Kind:
    """What lies in the directory: nothing of a store yet, or only what a first start leaves before it has written
    FORMAT; a store of ours; one of the Rust program, or one whose import is under way."""
    if not fs.is_dir(paths.root):
        return "new"
    if fs.exists(paths.format):
        text = read_file(fs, paths.format).decode("utf-8", "replace")
        if text.split("\n", 1)[0] != FORMAT_LINE:
            raise UnknownVersion(
                f"{paths.format} says {text.splitlines()[:1]!r}; this version reads {FORMAT_LINE!r}", path=paths.format
            )
        return "ours"
    if fs.exists(f"{paths.importing}/FORMAT"):
        return "rust"
    wal = [
        f"{paths.group(key)}/{wal_name(number)}"
        for key, numbers in group_files(fs, paths).items()
        for number in numbers
    ]
    topics = [name for name in _names(fs, paths.topics) if topic_of(name) is not None]
    kinds = {
        magic_of(fs, f"{paths.meta}/{name}") for name in _names(fs, paths.meta) if snapshot_number(name) is not None
    }
    ours = MAGIC in kinds or any(begins_as_ours(fs, path) for path in wal)
    if not ours and (RUST in kinds or (not kinds and any(begins_as_theirs(fs, path) for path in wal))):
        return "rust"
    if wal or topics or RUST in kinds:
        raise UnknownVersion(
            f"{paths.root} holds data but no {paths.format}: that file is lost; nothing was changed. Put it back from "
            f"a copy of the directory; its first line is {FORMAT_LINE!r}, its second the id of the store",
            path=paths.root,
        )
    return "new"


def magic_of(fs: Fs, path: str) -> bytes:
    file = fs.open(path)
    return read_exact(file, 0, min(file.size(), 4))


Tell = Callable[[float], None]
"""Hears how far recovery is, from 0 to 1."""
_READ: Final = 0.3
"""The part of recovery that reading the WAL is; nearly all the rest is replaying it."""


def nobody(_: float) -> None: ...


def read_store(
    fs: Fs, paths: Paths, handles: Handles, snapshots: Snapshots, salvage: bool, identity: str, tell: Tell = nobody
) -> Found:
    """Steps 1 to 4: everything but writing."""
    snapshot, bad = snapshots.load()
    if snapshot is None:
        named = "; ".join(f"{path}: {why}" for path, why in bad) or "there is none"
        raise CorruptFile(paths.meta, 0, f"no valid snapshot ({named}); refusing to start with an empty store")
    report = [f"{path} is not a valid snapshot: {why}; an older one was used" for path, why in bad]
    listed = snapshot.positions
    present = _groups_with_files(fs, paths)
    foreign = [key for key in present if key not in listed]
    report += [f"WAL group {key or 'wal'!r} is not listed by the snapshot and was set aside" for key in foreign]
    groups: list[GroupRead] = []
    for key, position in sorted(listed.items()):
        groups.append(GroupReader(fs, paths, key, position, salvage).read())
        tell(_READ * len(groups) / len(listed))
    handles.absent = set()
    replay = Replay(snapshot, groups, paths, handles, salvage)
    recovered = replay.run(lambda part: tell(_READ + (1 - _READ) * part))
    clean = snapshot.clean and not bad and not any(_past_position(group, listed) for group in groups)
    parts: list[str] = []
    staged = find_staged(fs, recovered.topics.values(), parts)
    replay.close_tails(clean, same_boot(fs, paths, identity), staged)
    files, damage = judge(fs, recovered, salvage)
    handles.absent = None
    damage = [error for group in groups for error in group.damage] + recovered.damage + damage
    report += [f"salvaged: {error.message}" for error in damage]
    report += recovered.unknown + parts
    highest = max([group.highest for group in groups] + [_highest(fs, paths, key) for key in foreign] + [0])
    next_wal = max(snapshot.next_wal, highest + 1, *(position.file for position in listed.values()))
    return Found(snapshot, groups, recovered, files, clean, next_wal, bad, staged, foreign, damage, report)


def same_boot(fs: Fs, paths: Paths, identity: str) -> bool:
    """True if the page cache is still the one the last life wrote into: then a kill lost nothing that was written."""
    try:
        return read_file(fs, paths.boot).decode("utf-8", "replace") == identity
    except FileNotFoundError:
        return False


def _past_position(group: GroupRead, listed: dict[str, Position]) -> bool:
    position = listed[group.key]
    return any(read.wal.number > position.file or scan.frames for read in group.files for scan in read.scans)


def _groups_with_files(fs: Fs, paths: Paths) -> list[str]:
    keys = [FLAT, *(name for name in _names(fs, paths.wal) if is_group(name))]
    return [key for key in keys if any(wal_number(name) is not None for name in _names(fs, paths.group(key)))]


def _highest(fs: Fs, paths: Paths, key: str) -> int:
    return max((wal_number(name) or 0 for name in _names(fs, paths.group(key))), default=0)


def _names(fs: Fs, path: str) -> list[str]:
    return fs.list(path) if fs.is_dir(path) else []
