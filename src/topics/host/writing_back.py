"""What must be done before a sync of a file whose blocks are only reserved.

Such a block reads as zeros until the file system notes in its journal that it was written, after its bytes reached the
disk. Where ext4 shuts down or gives up its journal just between the two, an `fdatasync` that is under way drops the
note and returns 0. A sync that begins later fails, as every call does that needs the journal. So the bytes are written
back first, notes and all, and what the sync behind that says is true.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final

# From linux/fs.h: wait for pages that are on their way, send the others, wait for those too.
_WAIT_BEFORE_WRITE_WAIT_AFTER: Final = 1 | 2 | 4


def write_back(fd: int) -> None:
    """Return when every byte written so far is where a sync would put it. It is durable only after a sync."""
    if _sync_file_range is None:
        _fdatasync(fd)  # the first of two does as well, and takes a flush of the disk more
        return
    ctypes.set_errno(0)
    try:
        _sync_file_range(fd, 0, 0, _WAIT_BEFORE_WRITE_WAIT_AFTER)
    finally:  # also where a signal breaks in right behind the call: what it met is told only once
        number = ctypes.get_errno()
        if number not in (0, errno.ENOSYS):
            raise OSError(number, os.strerror(number))
    if number:
        _fdatasync(fd)


def _find() -> Callable[..., int] | None:
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_sync_file_range: Final = _find()
_fdatasync: Final = getattr(os, "fdatasync", os.fsync)
