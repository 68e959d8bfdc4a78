"""Mistakes with WAL files that are only reserved, or longer than usual. `mutants.py` lists and hunts them."""

from __future__ import annotations

from typing import Any

from tests.crash.mistakes import Patches
from topics.storage import turn, walread
from topics.storage.options import StoreOptions
from topics.storage.walfile import Spare
from topics.storage.walfile import make_spare as real_make_spare
from topics.storage.walfile import recycle as real_recycle


def reserved_file_not_synced_before_use(patches: Patches) -> None:
    """Its size and its blocks may be lost with the power, and bytes that were synced in it with them."""

    def make_spare(fs: Any, directory: str, serial: int, capacity: int, fill: bool = True) -> Spare:
        if fill:
            return real_make_spare(fs, directory, serial, capacity)
        path = f"{directory}/spare-{serial:016d}.pre"
        file = fs.open(path, write=True, create=True, exclusive=True)
        file.allocate(capacity)
        return Spare(path, file, capacity)

    patches.set(turn, "make_spare", make_spare)


def recycled_file_reserved_and_not_zeroed(patches: Patches) -> None:
    """A hurry that spares the zeros: blocks that are there already keep what they hold."""

    def recycle(fs: Any, directory: str, serial: int, old: str, capacity: int, fill: bool = True) -> Spare:
        if fill:
            return real_recycle(fs, directory, serial, old, capacity)
        path = f"{directory}/spare-{serial:016d}.pre"
        fs.rename(old, path)
        fs.sync_dir(directory)
        file = fs.open(path, write=True)
        file.allocate(capacity)
        file.sync()
        return Spare(path, file, capacity)

    patches.set(turn, "recycle", recycle)


def blanked_file_not_synced_before_use(patches: Patches) -> None:
    """What it held may come back with a power cut, behind what was synced of its new life."""

    def recycle(fs: Any, directory: str, serial: int, old: str, capacity: int, fill: bool = True) -> Spare:
        if fill:
            return real_recycle(fs, directory, serial, old, capacity)
        path = f"{directory}/spare-{serial:016d}.pre"
        fs.rename(old, path)
        fs.sync_dir(directory)
        file = fs.open(path, write=True)
        file.blank(capacity)
        return Spare(path, file, capacity)

    patches.set(turn, "recycle", recycle)


def long_file_read_to_the_usual_length(patches: Patches) -> None:
    """Recovery takes every WAL file to be of one size."""
    usual = [0]
    real_init, real_scan = StoreOptions.__post_init__, walread.GroupReader._scan_last

    def init(self: StoreOptions) -> None:
        real_init(self)
        usual[0] = self.wal_file_bytes

    def scan_last(self: walread.GroupReader, read: walread.FileRead, sealed: int) -> None:
        read.size = min(read.size, usual[0])
        real_scan(self, read, min(sealed, usual[0]))

    patches.set(StoreOptions, "__post_init__", init)
    patches.set(walread.GroupReader, "_scan_last", scan_last)
