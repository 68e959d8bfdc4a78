"""Rot below what was proven to be synced: a store must refuse it, name the file, and change nothing."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from random import Random

from topics.format.container import BadContainer
from topics.format.manifest import decode_manifest
from topics.format.ops import find_sync_marks, scan_wal
from topics.format.snapshot import Snapshot, decode_snapshot
from topics.host.clock import Clock
from topics.model.errors import CorruptFile
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.paths import wal_number
from topics.testing.disk import FakeDisk
from topics.testing.ids import FakeIds
from topics.testing.oracle import Violation
from topics.testing.order import OrderFs

ROOT = "/data"


def manifest_firsts(data: bytes) -> set[int]:
    return {entry.first for entry in decode_manifest(data).segments}


def probe_rot(disk: FakeDisk, rng: Random, options: StoreOptions, clock: Clock) -> bool:
    """Let a frame rot, see the store refuse, and heal it. False if there is no frame to try it with."""
    rot = rot_frame(disk, rng)
    if rot is None:
        return False
    path, heal = rot
    before = contents(disk)
    try:
        open_store(OrderFs(disk, manifest_firsts), ROOT, options, clock, FakeIds(0), contextlib.nullcontext())
    except CorruptFile as error:
        if error.facts.get("path") != path:
            raise Violation(f"rot in {path} is called: {error}") from error
    else:
        raise Violation(f"a rotten frame in {path}, below what was proven synced, is taken for a torn tail")
    if contents(disk) != before:
        raise Violation("a start that was refused changed files")
    heal()
    disk.restart()
    return True


def contents(disk: FakeDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.files() if not path.endswith(".lock")}


def rot_frame(disk: FakeDisk, rng: Random) -> tuple[str, Callable[[], None]] | None:
    """Turn the start of a frame of the WAL into zeros, one that replay needs and that a later mark proves synced.
    Returns the path and what undoes it; None if there is no such frame."""
    choices = proven_frames(disk)
    if not choices:
        return None
    path, offset, _ = rng.choice(choices)
    held = disk.read(path)[offset : offset + 4]
    for index, byte in enumerate(held):
        disk.corrupt(path, offset + index, byte)

    def heal() -> None:
        for index, byte in enumerate(held):
            disk.corrupt(path, offset + index, byte)

    return path, heal


def proven_frames(disk: FakeDisk) -> list[tuple[str, int, int]]:
    """Path, offset and size of the frames that replay needs and that were proven to be synced."""
    snapshot = newest_snapshot(disk)
    if snapshot is None:
        return []
    found: list[tuple[str, int, int]] = []
    for key, position in snapshot.positions.items():
        directory = f"{ROOT}/wal/{key}" if key else f"{ROOT}/wal"
        for path in disk.files():
            number = wal_number(path.rpartition("/")[2]) if path.rpartition("/")[0] == directory else None
            if number is not None and number >= position.file:
                data = disk.read(path)
                start = position.offset if number == position.file else 0
                found += [(path, at, _frame_size(data, at)) for at in _proven_frames(data, number, start)]
    return found


def newest_snapshot(disk: FakeDisk) -> Snapshot | None:
    for path in sorted((path for path in disk.files() if "/meta/snapshot-" in path), reverse=True):
        try:
            return decode_snapshot(disk.read(path))
        except BadContainer:
            continue
    return None


def _proven_frames(data: bytes, number: int, start: int) -> list[int]:
    """Offsets of whole frames from `start` on that a mark of this file proves to have been synced: one that is whole
    and has a frame behind it, for the bytes of a mark may also stand inside a record."""
    end = scan_wal(memoryview(data), 0, len(data), bytearray()).end
    marks = find_sync_marks(memoryview(data), 0, end, number)
    synced = max((claim for at, claim in marks if claim <= at and at + _frame_size(data, at) < end), default=0)
    offsets, offset = [], 0
    while offset + 4 <= end:
        if start <= offset < synced:
            offsets.append(offset)
        offset += _frame_size(data, offset)
    return offsets


def _frame_size(data: bytes, offset: int) -> int:
    size: int = struct.unpack_from("<I", data, offset)[0]
    return 4 + size
