"""What must be done before a sync of a file whose blocks are only reserved: the compiled twin where it was built, else
plain Python.

Such a block reads as zeros until the file system notes in its journal that it was written, after its bytes reached the
disk. Where ext4 shuts down or gives up its journal just between the two, an `fdatasync` that is under way drops the
note and returns 0. A sync that begins later fails, as every call does that needs the journal. So the bytes are written
back first, notes and all, and what the sync behind that says is true.

The system tells of an error once. So either twin is one call that raises what it met, and never two of which a signal
handler could break in between.
"""

from __future__ import annotations

import os

__all__ = ["write_back", "write_back_plain"]

_fdatasync = getattr(os, "fdatasync", os.fsync)


def write_back_plain(fd: int) -> None:
    """Return when every byte written so far is where a sync would put it. It is durable only after a sync.

    The first of two syncs does as well as the call that writes back alone, and takes a flush of the disk more.
    """
    _fdatasync(fd)


try:
    from topics.host.writing_back_fast import write_back
except ImportError:  # the kernel of `format`, which is built with it, has warned
    write_back = write_back_plain
