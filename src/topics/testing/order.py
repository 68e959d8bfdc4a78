"""OrderFs: asserts, under every test, that files are written in an order that a crash cannot turn against us.

1. A `.tmp` or `.pre` file takes its real name only after its bytes are synced.
2. `seg-*.data` is unlinked only when no durable MANIFEST of its directory lists it any more.
3. A dsync write, which covers only its own range, never follows un-synced bytes in front of it.
4. A `wal-*.log` of an earlier life gets no new byte: rewriting what it holds and truncating are all that is allowed.
5. Nothing is read past the end of a file.

A breach is kept in `violations` and raised as AssertionError: the list is for breaches that some thread swallowed.
Files that were there before are taken to be synced. With FaultFs, wrap this one: `FaultFs(OrderFs(disk), plan)`, so
that what this class reads for itself is neither counted nor failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from topics.host.fs import Buffer, File, Fs, parent, read_file
from topics.testing.ranges import Ranges
from topics.testing.wrap import WrappedFile, WrappedFs

_TEMPORARY = (".tmp", ".pre")
_WAL = re.compile(r"wal-\d+\.log")
_SEGMENT = re.compile(r"seg-(\d+)\.data")
_MANIFEST = "MANIFEST"
_T = TypeVar("_T")


@dataclass(slots=True)
class _Written:
    """What we know of one file, whatever its name is by now."""

    unsynced: Ranges = field(default_factory=Ranges)
    forgotten: Ranges = field(default_factory=Ranges)
    """Bytes whose sync failed: only writing them again helps, not another sync."""
    shrunk: bool = False
    """Truncated, and not synced since."""
    old_wal: bool = False
    """A WAL file that an earlier life left."""

    def wrote(self, start: int, end: int) -> None:
        self.unsynced.add(start, end)
        self.forgotten.remove(start, end)

    def synced(self) -> None:
        self.unsynced.clear()
        self.shrunk = False

    def sync_failed(self) -> None:
        self.forgotten = self.forgotten | self.unsynced
        self.unsynced.clear()


@dataclass(slots=True)
class _Manifest:
    durable: bytes | None
    newest: bytes | None


class OrderFs(WrappedFs):
    """`lists` gives the first seqs of the segments that a MANIFEST keeps next to itself; without it rule 2 rests."""

    def __init__(self, inner: Fs, lists: Callable[[bytes], set[int]] | None = None) -> None:
        super().__init__(inner)
        self.violations: list[str] = []
        self._lists = lists
        self._files: dict[str, _Written] = {}
        self._manifests: dict[str, _Manifest] = {}

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        known = path in self._files or not self.inner.exists(path)
        inner = self.inner.open(path, write=write, create=create, exclusive=exclusive)
        if known:
            written = self._files.setdefault(path, _Written())
        else:
            written = self._files[path] = _Written(old_wal=_is_wal(path))
        return OrderFile(inner, self, written)

    def rename(self, source: str, target: str) -> None:
        written = self._files.get(source) or _Written(old_wal=_is_wal(source))
        if source.endswith(_TEMPORARY) and not target.endswith(_TEMPORARY):
            loose = written.unsynced | written.forgotten
            if loose or written.shrunk:
                self.breach(f"rename of {source} to {target} while bytes {loose} of it are un-synced")
        renamed_dir = self.inner.is_dir(source)
        manifests = [self._manifest(parent(path)) for path in (source, target) if _name(path) == _MANIFEST]
        super().rename(source, target)
        if renamed_dir:
            _move_below(self._files, source, target)
            _move_below(self._manifests, source, target)
        else:
            self._files.pop(source, None)
            written.old_wal = written.old_wal and _is_wal(target)
            self._files[target] = written
        for manifest in manifests:
            manifest.newest = None
        if _name(target) == _MANIFEST:
            self._manifest(parent(target)).newest = read_file(self.inner, target)

    def remove(self, path: str) -> None:
        segment = _SEGMENT.fullmatch(_name(path))
        # A directory on its way out keeps its MANIFEST to the end; what it belongs to is gone, so nothing reads it.
        if segment and self._lists and ".deleted/" not in path:
            durable = self._manifest(parent(path)).durable
            if durable is not None and int(segment[1]) in self._lists(durable):
                self.breach(f"unlink of {path}, which the durable MANIFEST still lists")
        manifest = self._manifest(parent(path)) if _name(path) == _MANIFEST else None
        super().remove(path)
        self._files.pop(path, None)
        if manifest is not None:
            manifest.newest = None

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        manifest = self._manifests.get(path.rstrip("/"))
        if manifest is not None:
            manifest.durable = manifest.newest

    def breach(self, what: str) -> NoReturn:
        self.violations.append(what)
        raise AssertionError(what)

    def _manifest(self, directory: str) -> _Manifest:
        manifest = self._manifests.get(directory)
        if manifest is None:
            path = f"{directory}/{_MANIFEST}"
            found = read_file(self.inner, path) if self.inner.exists(path) else None
            manifest = self._manifests[directory] = _Manifest(found, found)
        return manifest


class OrderFile(WrappedFile):
    def __init__(self, inner: File, fs: OrderFs, written: _Written) -> None:
        super().__init__(inner)
        self._fs = fs
        self._written = written

    def read_at(self, offset: int, size: int) -> bytes:
        end = self.inner.size()
        if size and offset + size > end:
            self._fs.breach(f"read of {self.path} up to byte {offset + size}, past its end at {end}")
        return super().read_at(offset, size)

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        written = self._written
        if written.old_wal:
            data = b"".join(buffers)
            if self.inner.read_at(offset, len(data)) != data:
                self._fs.breach(f"new bytes at {offset} in {self.path}, a WAL file of an earlier life")
        if dsync and (written.unsynced.meets(0, offset) or written.forgotten.meets(0, offset)):
            loose = written.unsynced | written.forgotten
            self._fs.breach(f"dsync write at {offset} of {self.path} while bytes {loose} are un-synced")
        hole = min(self.inner.size(), offset)
        try:
            count = super().write_at(offset, buffers, dsync=dsync)
        except OSError:
            written.wrote(hole, offset + sum(memoryview(buffer).nbytes for buffer in buffers))
            if dsync:
                written.sync_failed()
            raise
        written.wrote(hole, offset + count)
        if dsync:
            written.unsynced.remove(offset, offset + count)
        return count

    def sync(self) -> None:
        try:
            super().sync()
        except OSError:
            self._written.sync_failed()
            raise
        self._written.synced()

    def truncate(self, size: int) -> None:
        before = self.inner.size()
        if size > before:
            self._check_growth(size)
        super().truncate(size)
        written = self._written
        if size < before:
            written.shrunk = True
            written.unsynced.cut(size)
            written.forgotten.cut(size)
        else:
            written.wrote(before, size)

    def allocate(self, size: int) -> None:
        before = self.inner.size()
        if size > before:
            self._check_growth(size)
        super().allocate(size)
        self._written.wrote(before, size)

    def blank(self, size: int) -> None:
        if self._written.old_wal:
            self._fs.breach(f"zeros over {self.path}, a WAL file of an earlier life")
        super().blank(size)
        self._written.wrote(0, size)

    def forget_unsynced(self) -> None:
        self._written.sync_failed()
        super().forget_unsynced()

    def _check_growth(self, size: int) -> None:
        if self._written.old_wal:
            self._fs.breach(f"growth to {size} of {self.path}, a WAL file of an earlier life")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_wal(path: str) -> bool:
    return _WAL.fullmatch(_name(path)) is not None


def _move_below(known: dict[str, _T], source: str, target: str) -> None:
    """A directory got a new name, and with it all that lies below it."""
    for path in [path for path in known if path == source or path.startswith(source + "/")]:
        known[target + path[len(source) :]] = known.pop(path)
