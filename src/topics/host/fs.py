"""The file system as we use it, and the real one.

The seam is small so that a fake can be exact about it. Three rules carry every durability promise:

- `write_at` may be short; `write_all` is the loop around it.
- Bytes last after `sync` (or, for one range, after `write_at(dsync=True)`); names last after `sync_dir` of their
  directory. Syncing a file does not keep its name.
- After a failed `sync` nothing is known: the kernel may have marked the pages clean, so a later success proves nothing
  about them.

Errors are `OSError`s as the system gives them; `storage` translates them. Calls interrupted by a signal are retried by
Python itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from topics.host.blanking import blank_range
from topics.host.locking import OsLock
from topics.host.making import make_all
from topics.host.mapping import map_file
from topics.host.mount import mount_of
from topics.host.writing_back import write_back

Buffer = bytes | bytearray | memoryview

BUFFERS_PER_WRITE: Final = 1024
"""What Linux takes in one `pwritev` (IOV_MAX); the rest of a longer list is a short write."""

_CLOSED: Final = (1 << 31) - 1
"""The descriptor of a closed file: no process has it, so every call fails with EBADF. To some calls -1 means more."""

_ZEROS: Final = memoryview(bytes(64 * 1024))


class File(Protocol):
    @property
    def path(self) -> str:
        """The path it was opened by; a rename does not change it."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Short only at the end of the file."""
        ...

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        """Bytes written, perhaps fewer than given. With `dsync` the written range, and no other, is durable then."""
        ...

    def sync(self) -> None:
        """Make the data durable, and the size needed to read it."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve blocks for the first `size` bytes; the file grows to that size if it was smaller."""
        ...

    def blank(self, size: int) -> None:
        """Turn the first `size` bytes into zeros, without writing them where the file system can: the blocks stay, and
        are reserved only. The file grows to that size if it was smaller."""
        ...

    def map(self) -> memoryview:
        """A read-only mapping of the whole file as it is now; ValueError if it is empty."""
        ...

    def uncache(self) -> None:
        """Nobody will read it soon: the memory its synced bytes take may go to others. A wish, not an order."""
        ...

    def close(self) -> None:
        """May be called again. A file that nobody holds any more is closed too."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


class Fs(Protocol):
    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """FileNotFoundError without `create`; FileExistsError with `exclusive`. A new file has mode 0600."""
        ...

    def make_files(self, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        """Make every file hold these bytes and no others, synced; what is there is emptied first. Names are not synced,
        and after an error each file may hold anything. Not `hot`: nobody will read them soon, so they need no memory
        of the system. A wish, not an order."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Sorted names in a directory."""
        ...

    def mkdir(self, path: str) -> None:
        """Mode 0700. The parent must exist, the directory must not."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replaces a file at `target`."""
        ...

    def remove(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable: what was created, removed or renamed in it."""
        ...

    def lock(self, path: str) -> Lock:
        """Hold the file at `path`, made if need be, against every other holder; BlockingIOError if there is one."""
        ...

    def free(self, path: str) -> int:
        """Bytes that may still be written below this directory."""
        ...

    def identity(self, path: str) -> str:
        """Stays the same exactly while the page cache under this directory does: no reboot, no new mount."""
        ...


def parent(path: str) -> str:
    """The directory that holds `path`."""
    return os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")


def write_all(file: File, offset: int, buffers: Sequence[Buffer], dsync: bool = False, size: int = -1) -> None:
    """Write every byte, however short the single writes are. A write that makes no progress is an I/O error.
    `size`: how many they are, where the caller knows."""
    left = size if size >= 0 else sum(_nbytes(buffer) for buffer in buffers)
    while left:
        written = file.write_at(offset, buffers, dsync=dsync)
        if written == left:
            return
        if written <= 0:
            raise OSError(errno.EIO, "write made no progress", file.path)
        offset += written
        left -= written
        buffers = _after(buffers, written)


def read_exact(file: File, offset: int, size: int) -> bytes:
    """`size` bytes, or EOFError if the file ends before them."""
    data = file.read_at(offset, size)
    if len(data) != size:
        raise EOFError(f"{file.path} ends at byte {offset + len(data)}, before byte {offset + size}")
    return data


def read_file(fs: Fs, path: str) -> bytes:
    file = fs.open(path)
    try:
        return read_exact(file, 0, file.size())
    finally:
        file.close()


def replace_file(fs: Fs, path: str, data: Buffer) -> None:
    """Put `data` at `path` so that a crash leaves either the old file or the new one, and a return the new one."""
    tmp = path + ".tmp"
    # A crash in the middle of a rename may have left both names on one file; writing into the old tmp would then
    # destroy the very file that we replace. So it goes, and a new one is made.
    if fs.exists(tmp):
        fs.remove(tmp)
    try:
        file = fs.open(tmp, write=True, create=True, exclusive=True)
        try:
            write_all(file, 0, [data])
            file.sync()
        finally:
            file.close()
        fs.rename(tmp, path)
    except OSError:
        with suppress(OSError):
            fs.remove(tmp)
        raise
    fs.sync_dir(parent(path))


def make_singly(fs: Fs, files: Sequence[tuple[str, Buffer]]) -> None:
    """What `make_files` does, in single calls."""
    made: list[File] = []
    for path, data in files:
        file = fs.open(path, write=True, create=True)
        made.append(file)
        if file.size():
            file.truncate(0)
        write_all(file, 0, [data])
    for file in made:
        file.sync()
        file.close()


def zero_fill(file: File, size: int) -> None:
    """Overwrite the first `size` bytes with zeros: real blocks, which sync faster than merely allocated ones."""
    whole, rest = divmod(size, len(_ZEROS))
    chunk = len(_ZEROS) * BUFFERS_PER_WRITE
    for offset in range(0, whole * len(_ZEROS), chunk):
        write_all(file, offset, [_ZEROS] * min(BUFFERS_PER_WRITE, whole - offset // len(_ZEROS)))
    if rest:
        write_all(file, whole * len(_ZEROS), [_ZEROS[:rest]])


def _nbytes(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _after(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """What is left of `buffers` after their first `written` bytes."""
    for index, buffer in enumerate(buffers):
        size = _nbytes(buffer)
        if written < size:
            return [memoryview(buffer).cast("B")[written:], *buffers[index + 1 :]]
        written -= size
    return []


@contextmanager
def _naming(path: str, target: str | None = None) -> Iterator[None]:
    """A call that fails names the whole path, not the name inside the locked directory."""
    try:
        yield
    except OSError as error:
        error.filename = path
        if target is not None:
            error.filename2 = target
        raise


class OsFs:
    """The machine's own file system. Every descriptor is close-on-exec, so a started program inherits none.

    From `lock` on, names below the locked directory are looked up in that directory, wherever its path leads by then:
    a process whose directory was moved away, or removed and made anew by others, writes nothing into the new one.
    """

    _held: weakref.ref[OsLock] | None = None

    def _at(self, path: str) -> tuple[str, int | None]:
        """`path` as the system calls take it: a name and the directory in which it counts."""
        lock = self._held() if self._held is not None else None
        return lock.at(path) if lock is not None else (path, None)

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        flags = os.O_RDWR if write else os.O_RDONLY
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        name, at = self._at(path)
        with _naming(path):
            file = OsFile(path, os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=at))
        if stat.S_ISDIR(os.fstat(file.fd).st_mode):
            file.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return file

    def make_files(self, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        try:
            make_all([(*self._at(path), data) for path, data in files], hot)
        except OSError as error:
            # It names what the system was given, which may be a name inside the locked directory.
            error.filename = next((path for path, _ in files if self._at(path)[0] == error.filename), error.filename)
            raise

    def exists(self, path: str) -> bool:
        return self._mode(path) is not None

    def is_dir(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def _mode(self, path: str) -> int | None:
        name, at = self._at(path)
        try:
            return os.stat(name, dir_fd=at).st_mode
        except (OSError, ValueError):
            return None

    def list(self, path: str) -> list[str]:
        fd = self._open_dir(path)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> None:
        name, at = self._at(path)
        with _naming(path):
            os.mkdir(name, 0o700, dir_fd=at)

    def rename(self, source: str, target: str) -> None:
        name, at = self._at(source)
        new_name, new_at = self._at(target)
        with _naming(source, target):
            os.rename(name, new_name, src_dir_fd=at, dst_dir_fd=new_at)

    def remove(self, path: str) -> None:
        name, at = self._at(path)
        with _naming(path):
            os.unlink(name, dir_fd=at)

    def rmdir(self, path: str) -> None:
        name, at = self._at(path)
        with _naming(path):
            os.rmdir(name, dir_fd=at)

    def sync_dir(self, path: str) -> None:
        fd = self._open_dir(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _open_dir(self, path: str) -> int:
        name, at = self._at(path)
        with _naming(path):
            return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)

    def lock(self, path: str) -> Lock:
        # The directory is held too: whoever deletes the lock file must not thereby let a second holder in.
        directory, name = os.path.split(path)
        above = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = _CLOSED
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=above)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(above, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"pid=%d\n" % os.getpid(), 0)
        except BaseException:
            if fd != _CLOSED:
                os.close(fd)
            os.close(above)
            raise
        lock = OsLock(directory, above, fd)
        self._held = weakref.ref(lock)
        return lock

    def free(self, path: str) -> int:
        fd = self._open_dir(path)
        try:
            found = os.fstatvfs(fd)
        finally:
            os.close(fd)
        if not found.f_blocks:  # a file system that does not tell: the write will
            return 1 << 62
        return found.f_bavail * found.f_frsize

    def identity(self, path: str) -> str:
        fd = self._open_dir(path)
        try:
            with suppress(FileNotFoundError):
                boot = _read_text("/proc/sys/kernel/random/boot_id").strip()
                mount = mount_of(fd)
                if mount is not None:
                    return f"{boot} {mount}"
        finally:
            os.close(fd)
        # Without the kernel's word we must not claim that the cache survived: an identity that never comes again.
        return f"unknown {os.urandom(16).hex()}"


class OsFile:
    """One descriptor. Calls release the GIL; offsets are explicit, so threads may share it."""

    __slots__ = ("__weakref__", "_reserved", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._reserved = False
        """It may have blocks that are only reserved."""

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            part = os.pread(self.fd, size - got, offset + got)
            if not part:
                break
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        if len(buffers) > BUFFERS_PER_WRITE:
            buffers = buffers[:BUFFERS_PER_WRITE]
        if not dsync:
            return os.pwritev(self.fd, buffers, offset)
        if _RWF_DSYNC and not self._reserved:
            try:
                return os.pwritev(self.fd, buffers, offset, _RWF_DSYNC)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
        written = os.pwritev(self.fd, buffers, offset)
        self.sync()
        return written

    def sync(self) -> None:
        if self._reserved:
            write_back(self.fd)
        _fdatasync(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def allocate(self, size: int) -> None:
        self._reserved = True
        try:
            os.posix_fallocate(self.fd, 0, size)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # The library does nothing of its own where the file system cannot (musl).
            zero_fill(self, size)

    def blank(self, size: int) -> None:
        self._reserved = True
        if not blank_range(self.fd, size):
            zero_fill(self, size)

    def map(self) -> memoryview:
        return map_file(self.fd)

    def uncache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self.fd = self.fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


_RWF_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_fdatasync: Final = getattr(os, "fdatasync", os.fsync)


def _read_text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
