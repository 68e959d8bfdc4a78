"""Whole files, made and synced in one call: the compiled twin where it was built, else plain Python.

Every system call gives up the interpreter and has to get it back. Beside a thread that is never done that takes longer
than making a file does, so a checkpoint that made its files by single calls would fall behind the writer it works for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["NewFile", "make_all", "make_all_plain"]

NewFile = tuple[str, int | None, bytes | bytearray | memoryview]
"""A name, the directory in which it counts (None = the working directory), and all that the file shall hold."""

_fdatasync = getattr(os, "fdatasync", os.fsync)


def make_all_plain(files: Sequence[NewFile], hot: bool) -> None:
    """Write each file, from empty, and then sync each. Not `hot`: nobody reads them soon, so they take no memory of the
    system where that can be had. After an error any of them may hold anything."""
    made: list[int] = []
    name = ""
    try:
        for name, at, data in files:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=at)
            made.append(fd)
            done, view = 0, memoryview(data).cast("B")
            while done < len(view):
                done += os.pwrite(fd, view[done:], done)
        for (path, _, _), fd in zip(files, made, strict=True):
            name = path
            _fdatasync(fd)
            if not hot and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        error.filename = name
        raise
    finally:
        for fd in made:
            os.close(fd)


try:
    from topics.host.making_fast import make_all
except ImportError:  # the kernel of `format`, which is built with it, has warned
    make_all = make_all_plain
