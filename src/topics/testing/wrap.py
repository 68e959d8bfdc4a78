"""An Fs around an Fs that passes every call on: what FaultFs and OrderFs are made of.

Wrappers may be stacked in any order; each overrides the calls it cares about.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.host.fs import Buffer, File, Fs, Lock, make_singly


class WrappedFile:
    def __init__(self, inner: File) -> None:
        self.inner = inner
        self.path = inner.path

    def read_at(self, offset: int, size: int) -> bytes:
        return self.inner.read_at(offset, size)

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        return self.inner.write_at(offset, buffers, dsync=dsync)

    def sync(self) -> None:
        self.inner.sync()

    def size(self) -> int:
        return self.inner.size()

    def truncate(self, size: int) -> None:
        self.inner.truncate(size)

    def allocate(self, size: int) -> None:
        self.inner.allocate(size)

    def blank(self, size: int) -> None:
        self.inner.blank(size)

    def map(self) -> memoryview:
        return self.inner.map()

    def uncache(self) -> None:
        self.inner.uncache()

    def close(self) -> None:
        self.inner.close()

    def forget_unsynced(self) -> None:
        """Reaches the FakeDisk underneath, if there is one; on a real disk nobody can ask for this."""
        forget = getattr(self.inner, "forget_unsynced", None)
        if forget is not None:
            forget()


class WrappedFs:
    def __init__(self, inner: Fs) -> None:
        self.inner = inner

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        return WrappedFile(self.inner.open(path, write=write, create=create, exclusive=exclusive))

    def make_files(self, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        """Singly, so that whoever overrides a call sees it made."""
        make_singly(self, files)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_dir(self, path: str) -> bool:
        return self.inner.is_dir(path)

    def list(self, path: str) -> list[str]:
        return self.inner.list(path)

    def mkdir(self, path: str) -> None:
        self.inner.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def rmdir(self, path: str) -> None:
        self.inner.rmdir(path)

    def sync_dir(self, path: str) -> None:
        self.inner.sync_dir(path)

    def lock(self, path: str) -> Lock:
        return self.inner.lock(path)

    def free(self, path: str) -> int:
        return self.inner.free(path)

    def identity(self, path: str) -> str:
        return self.inner.identity(path)
