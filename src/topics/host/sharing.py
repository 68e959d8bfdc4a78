"""Holding a data directory still: many readers at once, and no writer meanwhile.

The same two locks that a store takes for itself (`OsFs.lock`), shared instead of exclusive and without writing a byte:
whoever may only read the directory can hold them too.
"""

from __future__ import annotations

import fcntl
import os

from topics.host.locking import OsLock


def share_directory(directory: str, lock_name: str) -> OsLock:
    """Both locks, until `release`; BlockingIOError while a store has the directory open."""
    fds: list[int] = []
    try:
        for path, flags in ((directory, os.O_DIRECTORY), (f"{directory}/{lock_name}", 0)):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
            except FileNotFoundError:
                if flags:
                    raise
                continue  # a copy of a directory may come without its lock file
            fds.append(fd)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return OsLock(directory, *fds)
