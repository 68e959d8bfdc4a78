"""One at a time: a file that is held for a moment by whoever does something that nobody else may do meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from typing import Final

from topics.host.fs import Lock
from topics.host.locking import OsLock

_LOOK_S: Final = 0.01


def take_turn(path: str, wait_s: float) -> Lock:
    """Hold the file at `path`, made if need be, until `release`; BlockingIOError if others hold it all the while. Other
    threads of this process wait, too. Whoever may write in its directory is meant to take part, so the file's mode is
    for the umask to say."""
    end = time.monotonic() + wait_s
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return OsLock(os.path.dirname(path), fd)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise BlockingIOError(errno.EWOULDBLOCK, "held by somebody else", path) from None
            time.sleep(_LOOK_S)
    except BaseException:
        os.close(fd)
        raise
