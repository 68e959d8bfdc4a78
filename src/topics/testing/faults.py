"""FaultFs: the n-th call of a class fails, once or for ever.

A failed call does what the worst honest kernel does:

- write: EIO may come after part of the bytes went in, so half of them do; any other error leaves none; SHORT writes
  half and says so.
- sync: fails, and the un-synced bytes are called clean (`FakeDisk.forget_unsynced`): a second sync that succeeds does
  not make them durable. A dsync write that fails as a sync has written its bytes, un-synced.
- read: SHORT gives half, as at the end of a file.
- free: ENOSPC says that nothing is left.
- all others: nothing happened.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from topics.host.fs import Buffer, File, Fs, Lock
from topics.testing.wrap import WrappedFile, WrappedFs

CALLS: Final = (
    "open",
    "read",
    "write",
    "sync",
    "dsync",
    "sync_dir",
    "rename",
    "remove",
    "truncate",
    "allocate",
    "mkdir",
    "list",
    "lock",
    "map",
    "uncache",
    "free",
)
"""The classes of calls. A write with `dsync` is a write, a sync and a dsync; rmdir is a remove, blank an
allocate."""


@dataclass(frozen=True)
class Fault:
    call: str
    """One of CALLS."""
    nth: int = 1
    """Which call of the class fails, counted from 1 when the fault is planned, among those that `path` lets through."""
    error: str = "EIO"
    """The name of an errno, or SHORT for a write or read of half."""
    forever: bool = False
    """Every later call of the class fails too."""
    path: str = ""
    """Only calls whose path contains this count."""

    def __post_init__(self) -> None:
        if self.call not in CALLS:
            raise ValueError(f"no class of calls is named {self.call!r}; there are {', '.join(CALLS)}")
        if self.error == "SHORT" and self.call not in ("read", "write"):
            raise ValueError(f"a {self.call} cannot be short")
        if self.error != "SHORT" and not hasattr(errno, self.error):
            raise ValueError(f"no errno is named {self.error!r}")
        if self.nth < 1:
            raise ValueError(f"calls are counted from 1, not {self.nth}")


class _Planned:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0

    def hits(self, call: str, path: str) -> bool:
        fault = self.fault
        if call != fault.call or fault.path not in path:
            return False
        self.seen += 1
        return self.seen == fault.nth or (fault.forever and self.seen > fault.nth)


class FaultFs(WrappedFs):
    """`counts` tells a sweep its range: how many calls of each class were made. `fired` is how many of them failed."""

    def __init__(self, inner: Fs, plan: Fault | Iterable[Fault] = ()) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()
        self.fired = 0
        self.hits: Counter[str] = Counter()
        """How often each class of calls failed, and how."""
        self._planned: list[_Planned] = []
        for fault in [plan] if isinstance(plan, Fault) else plan:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        self._planned.append(_Planned(fault))

    def heal(self) -> None:
        """Nothing fails from now on: the disk was replaced, space came back."""
        self._planned.clear()

    def due(self, call: str, path: str) -> str | None:
        """Count a call; the error it must fail with, if any."""
        self.counts[call] += 1
        error: str | None = None
        for planned in self._planned:
            if planned.hits(call, path):
                error = planned.fault.error
        if error is not None:
            self.fired += 1
            self.hits[f"{call} {error}"] += 1
        return error

    def check(self, call: str, path: str) -> None:
        error = self.due(call, path)
        if error is not None:
            raise os_error(error, path)

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        self.check("open", path)
        return FaultFile(self.inner.open(path, write=write, create=create, exclusive=exclusive), self)

    def list(self, path: str) -> list[str]:
        self.check("list", path)
        return super().list(path)

    def mkdir(self, path: str) -> None:
        self.check("mkdir", path)
        super().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", f"{source}\n{target}")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        super().remove(path)

    def rmdir(self, path: str) -> None:
        self.check("remove", path)
        super().rmdir(path)

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        super().sync_dir(path)

    def lock(self, path: str) -> Lock:
        self.check("lock", path)
        return super().lock(path)

    def free(self, path: str) -> int:
        error = self.due("free", path)
        if error == "ENOSPC":
            return 0
        if error is not None:
            raise os_error(error, path)
        return super().free(path)


class FaultFile(WrappedFile):
    def __init__(self, inner: File, fs: FaultFs) -> None:
        super().__init__(inner)
        self._fs = fs

    def read_at(self, offset: int, size: int) -> bytes:
        error = self._fs.due("read", self.path)
        if error is None:
            return super().read_at(offset, size)
        if error == "SHORT":
            return super().read_at(offset, size)[: size // 2]
        raise os_error(error, self.path)

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        error = self._fs.due("write", self.path)
        sync_error = dsync_error = None
        if dsync:
            sync_error = self._fs.due("sync", self.path)
            dsync_error = self._fs.due("dsync", self.path)
        if error == "SHORT":
            # A write of one byte goes in whole: a device that writes half, for ever, still gets to the end.
            data = b"".join(buffers)
            buffers, error = [data[: max(1, len(data) // 2)]], None
        elif error == "EIO":
            data = b"".join(buffers)
            super().write_at(offset, [data[: len(data) // 2]])
        if error is not None:
            raise os_error(error, self.path)
        failed = sync_error or dsync_error
        if failed is not None:
            super().write_at(offset, buffers)
            self.forget_unsynced()
            raise os_error(failed, self.path)
        return super().write_at(offset, buffers, dsync=dsync)

    def sync(self) -> None:
        error = self._fs.due("sync", self.path)
        if error is not None:
            self.forget_unsynced()
            raise os_error(error, self.path)
        super().sync()

    def truncate(self, size: int) -> None:
        self._fs.check("truncate", self.path)
        super().truncate(size)

    def allocate(self, size: int) -> None:
        self._fs.check("allocate", self.path)
        super().allocate(size)

    def blank(self, size: int) -> None:
        self._fs.check("allocate", self.path)
        super().blank(size)

    def map(self) -> memoryview:
        self._fs.check("map", self.path)
        return super().map()

    def uncache(self) -> None:
        self._fs.check("uncache", self.path)
        super().uncache()


def os_error(name: str, path: str) -> OSError:
    number: int = getattr(errno, name)
    return OSError(number, errno.errorcode[number], path.partition("\n")[0])
