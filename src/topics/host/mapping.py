"""Mapping a file without keeping it open.

`mmap.mmap` of Python 3.11 and 3.12 keeps a descriptor of its own per mapping, of which a process has 1024 unless it
asks for more: a store could then map a few hundred segments and would map and unmap one at every random read beyond
them. The system call itself needs the descriptor only while it runs, so where `mmap` cannot let go of it we make the
call ourselves.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from typing import Final

Call = Callable[..., int]


def map_file(fd: int) -> memoryview:
    """A read-only view of the whole file as it is now; ValueError if it is empty. It lives as long as any view of it,
    whatever becomes of the descriptor and of the file's name."""
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ, trackfd=False))
    if _CALLS is None:
        return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
    size = os.fstat(fd).st_size
    if not size:
        raise ValueError("cannot map an empty file")
    call, end = _CALLS
    address = call(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    pages = (ctypes.c_ubyte * size).from_address(address)
    # The views hold `pages`, so the last of them to go ends the mapping; a process that ends needs no call for it.
    weakref.finalize(pages, end, address, size).atexit = False
    return memoryview(pages).cast("B").toreadonly()


def _find_calls() -> tuple[Call, Call] | None:
    """`mmap` and `munmap` of the C library, or None where they are not to be had as we need them."""
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    call, end = library.mmap, library.munmap
    call.restype = ctypes.c_void_p
    call.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    ]  # fmt: skip
    end.restype = ctypes.c_int
    end.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return call, end


_FAILED: Final = (1 << 64) - 1
_CALLS: Final = _find_calls()
