"""How the C library keeps memory for us."""

from __future__ import annotations

import ctypes
from typing import Final

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
