"""The lock that keeps a directory to one process, and the directory as the calls in it are given it."""

from __future__ import annotations

import fcntl
import os


class _Directory(int):
    """The descriptor of a directory, closed when nobody uses it any more: a call that was about to use it when its lock
    was released must not find another directory under the same number."""

    _closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self)

    def __del__(self) -> None:
        self.close()


class OsLock:
    """A held `flock`. A forked child shares it: only the process that took it may end it for both."""

    def __init__(self, directory: str, *fds: int) -> None:
        """`fds`: the directory, then what else is locked."""
        self._directory = directory
        self._below = directory + "/"
        self._fds = tuple(_Directory(fd) if at == 0 else fd for at, fd in enumerate(fds))
        self._pid = os.getpid()

    def at(self, path: str) -> tuple[str, int | None]:
        """A path inside the locked directory as a name in it; any other, and any after the release, as it is."""
        fds = self._fds
        if fds and path.startswith(self._below):
            return path[len(self._below) :], fds[0]
        return (".", fds[0]) if fds and path == self._directory else (path, None)

    def release(self) -> None:
        fds, self._fds = self._fds, ()
        ours = os.getpid() == self._pid
        for fd in fds:
            if ours:
                fcntl.flock(fd, fcntl.LOCK_UN)
            if not isinstance(fd, _Directory):
                os.close(fd)
            elif not ours:  # threads that used it live in the other process, and will not let go of it here
                fd.close()

    def __del__(self) -> None:
        self.release()
