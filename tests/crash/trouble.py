"""What happens to the disk besides crashes: calls that fail, files that rot or vanish while the store is down."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.crash.profile import Profile
from topics.format.container import BadContainer
from topics.format.ops import scan_wal
from topics.format.snapshot import Snapshot, decode_snapshot
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault

_RUNNING = (
    ("write", "EIO", "/wal/"),
    ("write", "ENOSPC", "/wal/"),
    ("write", "SHORT", ""),
    ("write", "EIO", "seg-"),
    ("write", "ENOSPC", ""),
    ("sync", "EIO", "/wal/"),
    ("sync", "EIO", "seg-"),
    ("sync", "EIO", ""),
    ("dsync", "EIO", ""),
    ("sync_dir", "EIO", ""),
    ("rename", "EIO", ""),
    ("rename", "ENOSPC", ""),
    ("open", "EIO", ""),
    ("open", "ENOSPC", ".pre"),
    ("write", "ENOSPC", ".pre"),
    ("truncate", "EIO", ""),
    ("truncate", "EIO", "/wal/"),
    ("remove", "EIO", ""),
    ("mkdir", "ENOSPC", ""),
    ("read", "EIO", ""),
    ("map", "EIO", ""),
    ("free", "ENOSPC", ""),
    ("allocate", "ENOSPC", ""),
    ("uncache", "EIO", ""),
)
OPENING = (*_RUNNING, ("list", "EIO", ""), ("list", "EIO", "/topics"), ("lock", "EIO", ""))
"""Only a start looks at what there is, and takes the lock."""

_FREQUENT = ("write", "sync", "open")
_FEW = ("truncate", "mkdir", "free", "allocate", "lock", "uncache")


def draw_faults(rng: Random, profile: Profile, opening: bool = False) -> list[Fault]:
    faults = []
    for _ in range(rng.choice((1, 1, 2))):
        call, error, path = rng.choice(profile.faults or (OPENING if opening else _RUNNING))
        nth = rng.randint(1, profile.fault_reach if call in _FREQUENT and not opening else 2 if call in _FEW else 6)
        if call in _FEW or path == ".pre":  # most lives make one or none
            nth = 1
        faults.append(Fault(call, nth, error, rng.random() < 0.3, path))
    return faults


def note_torn_batches(disk: FakeDisk, counts: Counter[str]) -> None:
    """Count WAL files that end with a part of a submission."""
    for path in disk.files():
        if path.endswith(".log"):
            data = memoryview(disk.read(path))
            scan = scan_wal(data, 0, len(data), bytearray())
            counts["tear inside a batch"] += scan.stop > scan.end or scan.reason == "unfinished"


def spoil(disk: FakeDisk, rng: Random, profile: Profile, counts: Counter[str], shards: int) -> None:
    """Damage, between two lives, what the store promises to survive without."""
    if rng.random() < profile.fallback_rate:
        _spoil_snapshot(disk, rng, profile, counts, shards)
    if rng.random() < profile.derived_rate:
        _spoil_derived(disk, rng, counts)


def _spoil_snapshot(disk: FakeDisk, rng: Random, profile: Profile, counts: Counter[str], shards: int) -> None:
    paths = [path for path in disk.files() if "/meta/snapshot-" in path and path.endswith(".bin")]
    valid: list[tuple[str, Snapshot]] = []
    for path in paths:
        try:
            valid.append((path, decode_snapshot(disk.read(path))))
        except BadContainer:
            continue
    if len(valid) < 2:
        return
    (_, older), (path, newest) = valid[-2:]
    if newest.half and profile.salvage_rate:
        return  # the other one may lead to damage: until the twin of this one is written there is none to spare
    quarantined = [path for path in disk.files() if "/quarantine/snapshot-" in path]
    if quarantined and max(quarantined).rpartition("/")[2] > f"snapshot-{older.id:016d}":
        return  # one rotten snapshot is survivable: until two more were written there is no second one to spare
    disk.corrupt(path, rng.randrange(len(disk.read(path))), 1 + rng.randrange(255))
    counts["snapshot fallback"] += 1
    if older.shards != shards or newest.shards != shards or older.positions.keys() != newest.positions.keys():
        counts["snapshot fallback over a reshard"] += 1
    sealed = {(row.id, s.first) for row in older.topics for s in row.segments if s.sealed}
    counts["snapshot fallback over a seal"] += any(
        s.sealed and (row.id, s.first) not in sealed for row in newest.topics for s in row.segments
    )
    counts["snapshot fallback over a drop"] += bool(
        {row.id for row in older.topics} - {row.id for row in newest.topics}
    )


def _spoil_derived(disk: FakeDisk, rng: Random, counts: Counter[str]) -> None:
    paths = [path for path in disk.files() if path.endswith((".idx", ".tags", "/CURRENT", "/MANIFEST"))]
    if not paths:
        return
    path = rng.choice(paths)
    size = len(disk.read(path))
    if not size:
        return
    counts[f"spoiled {path.rpartition('/')[2].rpartition('.')[2]}"] += 1
    # CURRENT is plain text without a checksum: rot in the middle of a number is not to be told from a number.
    disk.corrupt(path, 0 if path.endswith("/CURRENT") else rng.randrange(size), 1 + rng.randrange(255))
