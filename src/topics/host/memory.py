"""How the C library keeps memory for us, and what the kernel keeps of our files."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Final

import numpy as np

# From malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

MMAP_BYTES: Final = 16 * 1024 * 1024
"""Smaller blocks come from the heap. By default those above 128 KiB, and so every large body and piece of a stream,
are mapped and unmapped each time, and each of their pages faults anew: that was half of the cost of a stream."""
TRIM_BYTES: Final = 64 * 1024 * 1024
"""Free memory at the end of a heap that is kept for the next use."""


def keep_freed_memory() -> None:
    """For servers: reuse memory instead of giving it back between two requests. Does nothing without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)


def _find_mincore() -> Callable[..., int] | None:
    try:
        found = ctypes.CDLL(None).mincore
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return found


_mincore: Final = _find_mincore()


def is_resident(view: memoryview, start: int, end: int) -> bool:
    """True if reading these bytes of a mapping waits for no disk. Where nobody can tell, it is said to be so."""
    if _mincore is None or start >= end:
        return True
    address = int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])
    first = (address + start) // mmap.PAGESIZE * mmap.PAGESIZE
    size = address + end - first
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    if _mincore(first, size, pages) != 0:
        return True
    # The lowest bit of each says it; the others mean nothing yet.
    return pages.raw.count(b"\1") == len(pages) or all(page & 1 for page in pages.raw)
