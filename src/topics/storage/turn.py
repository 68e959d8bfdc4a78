"""One turn of a WAL writer as values: what is to be written, how the next file comes about, and what became of it."""

from __future__ import annotations

import errno
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from topics.host.fs import Fs
from topics.storage.submission import Submission
from topics.storage.walfile import Spare, WalFile, discard, make_spare, recycle

Failure = TypeVar("Failure", bound=BaseException)

_BLOCK: Final = 4096
_SMALL: Final = 256 * 1024
"""Smaller files are made for what frees room alone."""
SYNC_BUCKETS_US: Final = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)
_SYNC_BUCKETS_NS: Final = tuple(bound * 1000 for bound in SYNC_BUCKETS_US)


class Numbers:
    """WAL file numbers: one counter for the whole directory, never reused."""

    __slots__ = ("next",)

    def __init__(self, following: int) -> None:
        self.next = following

    def take(self) -> int:
        number = self.next
        self.next += 1
        return number


@dataclass(slots=True)
class ShardStats:
    frames: int = 0
    batches: int = 0
    syncs: int = 0
    bytes_written: int = 0
    rotations: int = 0
    submit_full: int = 0
    depth_peak: int = 0
    sync_ns: int = 0
    """Of all syncs together."""
    sync_counts: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BUCKETS_US) + 1))
    """Syncs by how long they took; the last for those beyond every bucket."""

    def synced(self, took_ns: int) -> None:
        self.syncs += 1
        self.sync_ns += took_ns
        self.sync_counts[bisect_left(_SYNC_BUCKETS_NS, took_ns)] += 1


@dataclass(slots=True)
class SparePlan:
    """How the next file is to be made; decided under the lock, carried out without it."""

    fs: Fs
    directory: str
    serial: int
    capacity: int
    old: str | None
    """A WAL file to recycle."""
    fill: bool = True
    left: int = 0
    """So many bytes of the disk stay free for a checkpoint."""
    need: int = 0
    """What is to be written into it at once."""
    frees: bool = False
    """That is what makes room, or a start: it may use what is kept for a checkpoint."""

    def run(self) -> Spare:
        try:
            return self._make()
        except BaseException:
            if self.old is not None:  # nobody else knows of it, so it would take its room until the next start
                discard(self.fs, self.old)
            raise

    def _make(self) -> Spare:
        capacity = self.capacity
        free = self.fs.free(self.directory) - self.left
        if self.old is not None:
            if free >= copied(capacity):
                return recycle(self.fs, self.directory, self.serial, self.old, capacity, self.fill)
            discard(self.fs, self.old)
            free += capacity
        if free < capacity + copied(capacity):
            capacity = min(self._smaller(free), capacity)
        return make_spare(self.fs, self.directory, self.serial, capacity, self.fill)

    def _smaller(self, free: int) -> int:
        """The size of a file where the disk has no room for a whole one and for its copy in segments: a share of what
        there is, for the other shards need theirs, and as little as may be where it is what a checkpoint needs."""
        share = _blocks(free // 5)
        if share >= max(_SMALL, self.need):
            return share
        if not self.frees:
            why = f"No space left on device, but for {self.left} bytes that a checkpoint may need"
            raise OSError(errno.ENOSPC, why)
        return max(_blocks(self.need + _BLOCK - 1), _blocks(min((free + self.left) // 8, _SMALL)))


def copied(size: int) -> int:
    """About the most that records of so many bytes of WAL take in segments, with their index and their sidecars."""
    return size * 3 // 2


def _blocks(size: int) -> int:
    return size // _BLOCK * _BLOCK


@dataclass(slots=True)
class Rotation:
    number: int
    spare: Spare | None
    plan: SparePlan | None
    """Where no spare is ready, how to make one."""
    old: WalFile | None
    previous: tuple[int, int]
    """Number and valid length of the file before, for the first frame of the new one."""

    def next_file(self) -> Spare:
        if self.spare is not None:
            return self.spare
        assert self.plan is not None
        return self.plan.run()


def untraced(error: Failure) -> Failure:
    """The error to keep: the frames that its traceback holds refer to whoever keeps it, and to files of the WAL. Such a
    ring would hold their blocks on the disk until the collector comes."""
    return error.with_traceback(None)


def failure_behind(error: BaseException, before: BaseException | None) -> OSError | None:
    """What had failed when `error` broke in: a signal, say, just while that was being noted. `before`: what our caller
    was handling already, which is none of ours."""
    known: BaseException | None = error
    while known is not None and known is not before:
        if isinstance(known, OSError):
            return known
        known = known.__context__
    return None


class Write(msgspec.Struct, eq=False):
    """One turn of the writer. `run` fills in what happened; `finish` makes it true."""

    submissions: list[Submission]
    sync: bool
    dsync: bool
    evidence: int | None
    """What an evidence mark at the front of this batch states to be synced; None = no mark."""
    rotation: Rotation | None
    file: WalFile | None = None
    started_ns: int = 0
    end: int = 0
    took_ns: int = 0
    """Of the write with its sync."""
    error: OSError | MemoryError | None = None
    refused: bool = False
    """The next file could not be made; no byte was written."""
    interrupt: BaseException | None = None
    """What a signal raised meanwhile; the turn was made all the same."""


@dataclass(slots=True)
class Sync:
    file: WalFile
    end: int
    started_ns: int
    error: Exception | None = None

    def run(self) -> None:
        try:
            self.file.file.sync()
        except (OSError, MemoryError) as error:
            self.error = untraced(error)
