"""Turning what a file holds into zeros without writing them.

The file system notes that the blocks hold nothing, as of blocks that are only reserved, and keeps them: a new file of
256 MiB costs a virtual disk two hundred times as much, and zeros that are written three hundred times.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final

_ZERO_RANGE: Final = 0x10
"""From linux/falloc.h."""
_UNABLE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def blank_range(fd: int, size: int) -> bool:
    """The first `size` bytes read as zeros, in a file that is at least so long. False where that cannot be had: then
    nothing was done."""
    if _fallocate is None:
        return False
    while True:
        ctypes.set_errno(0)
        if not _fallocate(fd, _ZERO_RANGE, 0, size):
            return True
        number = ctypes.get_errno()
        if number in _UNABLE:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def _find() -> Callable[..., int] | None:
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    # Offsets of 64 bits everywhere: where the system's own are shorter it has another name for this call.
    if ctypes.sizeof(ctypes.c_long) < 8:
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


_fallocate: Final = _find()
