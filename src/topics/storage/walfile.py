"""One WAL file: made full of zeros, written from the front, never appended to by a later life of the store.

Zeros come first because a sync that only overwrites is 1.5-2 times faster than one that also allocates, and because
a reader may then tell the end of the log from damage: nothing but zeros lies behind the last frame.
"""

from __future__ import annotations

import errno

from topics.format.current import Current
from topics.host.files import NO_DESCRIPTORS
from topics.host.fs import File, Fs, replace_file, zero_fill
from topics.storage.paths import wal_name

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class WalFile:
    __slots__ = ("capacity", "file", "number", "path", "synced", "written")

    def __init__(self, number: int, path: str, file: File, capacity: int, written: int = 0) -> None:
        self.number = number
        self.path = path
        self.file = file
        self.capacity = capacity
        self.written = written
        """Bytes handed to the kernel."""
        self.synced = written
        """Bytes known to be durable, from the start of the file."""

    @property
    def name(self) -> str:
        return wal_name(self.number)

    def seal(self) -> tuple[int, int]:
        """Make sure of all that was written; (number, valid length)."""
        if self.synced < self.written:
            self.file.sync()
        return self.number, self.written

    def read_at(self, offset: int, size: int) -> bytes:
        return self.file.read_at(offset, size)

    def map(self) -> memoryview:
        return self.file.map()


class Spare:
    """The next WAL file of a shard, waiting under a `.pre` name."""

    __slots__ = ("capacity", "file", "path")

    def __init__(self, path: str, file: File, capacity: int) -> None:
        self.path = path
        self.file = file
        self.capacity = capacity


def make_spare(fs: Fs, directory: str, serial: int, capacity: int, fill: bool = True) -> Spare:
    """A new synced file that reads as zeros. Its name is synced when it is renamed into use.

    Without `fill` its blocks are only reserved: slower to sync later, but there at once, for a writer that waits.
    """
    path = f"{directory}/spare-{serial:016d}.pre"
    file = fs.open(path, write=True, create=True, exclusive=True)
    try:
        if fill:
            zero_fill(file, capacity)
        else:
            file.allocate(capacity)
        file.sync()
    except BaseException:
        file.close()
        discard(fs, path)
        raise
    return Spare(path, file, capacity)


def recycle(fs: Fs, directory: str, serial: int, old: str, capacity: int, fill: bool = True) -> Spare:
    """Turn the WAL file `old` into a spare. It leaves its name first, then every byte of it becomes zero:
    a frame of its earlier life behind the tail of the next would be taken for a record. Without `fill` no zero is
    written where the file system can do without."""
    path = f"{directory}/spare-{serial:016d}.pre"
    fs.rename(old, path)
    try:
        fs.sync_dir(directory)
        file = fs.open(path, write=True)
        try:
            if file.size() > capacity or (fill and file.size() < capacity):
                file.truncate(capacity)
            if fill:
                zero_fill(file, capacity)
            else:
                file.blank(capacity)
            file.sync()
        except BaseException:
            file.close()
            raise
    except BaseException:
        discard(fs, path)
        raise
    return Spare(path, file, capacity)


def put_in_place(fs: Fs, directory: str, number: int, spare: Spare, sealed: list[tuple[int, int]]) -> WalFile:
    """The spare as the next file. `sealed`: (number, valid length) of every file before it, all synced. Where no
    descriptor can be had it is gone, and all else is as before."""
    path = f"{directory}/{wal_name(number)}"
    fs.rename(spare.path, path)
    try:
        fs.sync_dir(directory)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            discard(fs, path)
        raise
    current = Current(wal_name(number), tuple((wal_name(before), length) for before, length in sealed))
    try:
        replace_file(fs, f"{directory}/CURRENT", current.encode())
    except OSError as error:
        # That leaves the CURRENT of before, which says nothing untrue; the chain of first frames tells the rest.
        if error.errno not in NO_SPACE | NO_DESCRIPTORS:
            raise
    return WalFile(number, path, spare.file, spare.capacity)


def discard(fs: Fs, path: str) -> None:
    """Remove a file nobody refers to; a leftover is removed at the next start instead."""
    try:
        fs.remove(path)
    except OSError:
        return
