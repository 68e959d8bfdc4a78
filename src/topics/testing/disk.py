"""FakeDisk: a file system in memory that decides, from a seed, what a crash leaves.

Two crashes. `kill()` ends the process: every written byte and name stays, for the page cache outlives us. `power_cut()`
ends the machine: bytes last only if they were synced, names only if their directory was, and of the rest any subset
survives in any state (`topics.testing.cut`). `crash_at(n)` stops in the middle of the n-th mutating call. After a crash
everything raises `PowerOff` until `restart()`; handles and locks of the life before stay dead for ever.

Paths are absolute from the disk's own root; "data" and "/data" are the same. One thread at a time: what a seed decides
must not depend on who runs first.
"""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Literal, NoReturn

from topics.host.fs import BUFFERS_PER_WRITE, Buffer, Lock, make_singly
from topics.testing.cut import Cut, Mode
from topics.testing.inode import DirNode, FileNode, NameChanges, Node, Twins

CrashKind = Literal["power", "kill"]


class PowerOff(Exception):
    """The fake machine is down. Not an OSError: no error handling of the code under test may catch it."""


class FakeDisk:
    """See the module. `calls` counts mutating calls, `log` keeps the last ones, `counters` what cuts have done."""

    def __init__(
        self,
        seed: int = 0,
        *,
        sector: int = 512,
        page: int = 4096,
        lying_fsync: bool = False,
        keep_synced: bool = True,
        log_max: int = 200,
    ) -> None:
        self.seed = seed
        self.lying_fsync = lying_fsync
        """Every sync returns and does nothing."""
        self.keep_synced = keep_synced
        """Whether damage to a sector spares the bytes of it that were durable."""
        self.room = 1 << 62
        """What it says is free. It takes every byte all the same: a full one is FaultFs's."""
        self.rng = Random(seed)
        self.calls = 0
        self.log: deque[str] = deque(maxlen=log_max)
        self.counters: Counter[str] = Counter()
        self.life = 0
        """Raised by every crash; a handle works in the life that opened it."""
        self.off = False
        self._sector = sector
        self._page = page
        self._boots = 0
        self._crash_call: int | None = None
        self._crash_kind: CrashKind = "power"
        self._root = DirNode()
        self._changes = NameChanges()
        self._locks: set[FileNode] = set()

    # Crashes.

    def kill(self) -> None:
        """End the process. What was written stays written, though it is no more durable than before."""
        self.life += 1
        self.off = True
        self._locks.clear()

    def power_cut(self, rng: Random | None = None, *, mode: Mode | None = None) -> None:
        """End the machine. `mode` makes the cut a plain one: "all_lost" or "all_kept" of what was un-synced."""
        self.kill()
        self._boots += 1
        cut = Cut(rng or self.rng, mode, page=self._page, keep_synced=self.keep_synced, counters=self.counters)
        cut.apply(self._root, self._changes)

    def crash_at(self, n: int | None, kind: CrashKind = "power") -> None:
        """Crash in the middle of mutating call number `n`, counted as `calls` counts. None = not at all."""
        if n is not None and n <= self.calls:
            raise ValueError(f"call {n} has been made; {self.calls} were counted so far")
        self._crash_call = n
        self._crash_kind = kind

    def restart(self) -> None:
        """Start a new life on what the crash left. Without a crash before it this is a `kill` and a start."""
        if not self.off:
            self.kill()
        self.off = False

    def clone(self) -> FakeDisk:
        """The same disk once more, with the same future, but held by no process: no handles, no locks."""
        other = FakeDisk(
            self.seed,
            sector=self._sector,
            page=self._page,
            lying_fsync=self.lying_fsync,
            keep_synced=self.keep_synced,
            log_max=self.log.maxlen or 0,
        )
        other.rng.setstate(self.rng.getstate())
        other.calls = self.calls
        other.log.extend(self.log)
        other.counters.update(self.counters)
        other.life = self.life
        other.off = self.off
        other._boots = self._boots
        other._crash_call = self._crash_call
        other._crash_kind = self._crash_kind
        twins = Twins()
        other._root = twins.directory(self._root)
        other._changes = self._changes.copy(twins)
        return other

    # What tests look at and spoil; these work on a disk that is off, too.

    def read(self, path: str) -> bytes:
        """The bytes of a file as a process would see them."""
        return bytes(self._file(path).live)

    def files(self) -> list[str]:
        """The paths of all files, sorted."""
        found: list[str] = []
        waiting: list[tuple[str, DirNode]] = [("", self._root)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, node in directory.live.items():
                if isinstance(node, DirNode):
                    waiting.append((f"{prefix}/{name}", node))
                else:
                    found.append(f"{prefix}/{name}")
        return sorted(found)

    def is_reserved(self, path: str) -> bool:
        """Whether some of its blocks were given to it before bytes were, as `allocate` does."""
        return self._file(path).reserved

    def corrupt(self, path: str, offset: int, xor: int = 1) -> None:
        """Let the byte at `offset` rot: it changes in every image, and no write says so."""
        node = self._file(path)
        node.live[offset] ^= xor
        if offset < len(node.durable):
            node.durable[offset] ^= xor

    def forget_unsynced(self, path: str) -> None:
        """What a failed sync does: the bytes stay readable, yet no later sync makes them durable."""
        self._file(path).forget_unsynced()

    # The Fs protocol.

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> FakeFile:
        self._check_on()
        directory, name = self._place(path)
        node = directory.live.get(name)
        if node is None:
            if not (create or exclusive):
                _fail(errno.ENOENT, path)
            node = FileNode(self._sector)
            crash = self._count("create", path)
            if self._happens(crash):
                directory.live[name] = node
                self._changes.add(directory, name, node)
            self._maybe_crash(crash)
        elif exclusive:
            _fail(errno.EEXIST, path)
        if isinstance(node, DirNode):
            _fail(errno.EISDIR, path)
        return FakeFile(self, node, path, write)

    def make_files(self, files: Sequence[tuple[str, Buffer]], *, hot: bool = True) -> None:
        make_singly(self, files)

    def exists(self, path: str) -> bool:
        self._check_on()
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        self._check_on()
        return isinstance(self._find(path), DirNode)

    def list(self, path: str) -> list[str]:
        self._check_on()
        return sorted(self._dir(path).live)

    def mkdir(self, path: str) -> None:
        self._check_on()
        directory, name = self._place(path)
        crash = self._count("mkdir", path)
        if name in directory.live:  # looked at last: whoever runs before this call may have made it
            self._maybe_crash(crash)
            _fail(errno.EEXIST, path)
        if self._happens(crash):
            node = DirNode()
            directory.live[name] = node
            self._changes.add(directory, name, node)
        self._maybe_crash(crash)

    def rename(self, source: str, target: str) -> None:
        self._check_on()
        from_dir, from_name = self._place(source)
        to_dir, to_name = self._place(target)
        node = from_dir.live.get(from_name)
        if node is None:
            _fail(errno.ENOENT, source)
        there = to_dir.live.get(to_name)
        if there is node:
            # Two names of one file: POSIX leaves both.
            return
        if isinstance(there, DirNode):
            if isinstance(node, FileNode):
                _fail(errno.EISDIR, target)
            if there.live:
                _fail(errno.ENOTEMPTY, target)
        elif there is not None and isinstance(node, DirNode):
            _fail(errno.ENOTDIR, target)
        crash = self._count("rename", f"{source} -> {target}")
        if self._happens(crash):
            del from_dir.live[from_name]
            to_dir.live[to_name] = node
            self._changes.add_rename((from_dir, from_name), to_dir, to_name, node)
        self._maybe_crash(crash)

    def remove(self, path: str) -> None:
        self._check_on()
        directory, name = self._place(path)
        node = directory.live.get(name)
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, DirNode):
            _fail(errno.EISDIR, path)
        self._unname("remove", directory, name, path)

    def rmdir(self, path: str) -> None:
        self._check_on()
        directory, name = self._place(path)
        node = directory.live.get(name)
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, FileNode):
            _fail(errno.ENOTDIR, path)
        if node.live:
            _fail(errno.ENOTEMPTY, path)
        self._unname("rmdir", directory, name, path)

    def sync_dir(self, path: str) -> None:
        self._check_on()
        directory = self._dir(path)
        crash = self._count("sync_dir", path)
        if self._happens(crash) and not self.lying_fsync:
            self._changes.sync(directory)
        self._maybe_crash(crash)

    def lock(self, path: str) -> Lock:
        file = self.open(path, write=True, create=True)
        if file.node in self._locks:
            raise BlockingIOError(errno.EAGAIN, "held by another", path)
        self._locks.add(file.node)
        file.truncate(0)
        file.write_at(0, [b"pid=1\n"])
        return FakeLock(self, file.node)

    def free(self, path: str) -> int:
        self._dir(path)
        return self.room

    def identity(self, path: str) -> str:
        self._check_on()
        self._dir(path)
        return f"fake-{self.seed} boot-{self._boots}"

    # Parts that the files of this disk share.

    def _check_on(self) -> None:
        if self.off:
            raise PowerOff("the machine is off")

    def _count(self, what: str, detail: str) -> bool:
        """Count a mutating call; True if the crash is due in it."""
        self.calls += 1
        self.log.append(f"{self.calls} {what} {detail}")
        return self.calls == self._crash_call

    def _happens(self, crash: bool) -> bool:
        """A call that a crash interrupts has had its effect or not."""
        return not crash or self.rng.random() < 0.5

    def _maybe_crash(self, crash: bool) -> None:
        if not crash:
            return
        self._crash_call = None
        if self._crash_kind == "power":
            self.power_cut()
        else:
            self.kill()
        raise PowerOff(f"{self._crash_kind} in call {self.log[-1] if self.log else self.calls}")

    def _unname(self, what: str, directory: DirNode, name: str, path: str) -> None:
        crash = self._count(what, path)
        if self._happens(crash):
            del directory.live[name]
            self._changes.add(directory, name, None)
        self._maybe_crash(crash)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in _split(path):
            if not isinstance(node, DirNode):
                return None
            node = node.live.get(name)
        return node

    def _dir(self, path: str) -> DirNode:
        return self._walk(_split(path), path)

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, DirNode):
            _fail(errno.EISDIR, path)
        return node

    def _place(self, path: str) -> tuple[DirNode, str]:
        """The directory that holds, or would hold, `path`, and the name in it."""
        parts = _split(path)
        if not parts:
            _fail(errno.EEXIST, path)
        return self._walk(parts[:-1], path), parts[-1]

    def _walk(self, parts: tuple[str, ...], path: str) -> DirNode:
        node: Node = self._root
        for name in parts:
            if isinstance(node, FileNode):
                _fail(errno.ENOTDIR, path)
            there = node.live.get(name)
            if there is None:
                _fail(errno.ENOENT, path)
            node = there
        if isinstance(node, FileNode):
            _fail(errno.ENOTDIR, path)
        return node


class FakeFile:
    """An open file of a FakeDisk: works until closed, or until its life is over."""

    def __init__(self, disk: FakeDisk, node: FileNode, path: str, write: bool) -> None:
        self.path = path
        self.node = node
        self._disk = disk
        self._life = disk.life
        self._write = write
        self._closed = False

    def read_at(self, offset: int, size: int) -> bytes:
        self._check()
        return bytes(self.node.live[offset : offset + size])

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        self._check(write=True)
        disk, node = self._disk, self.node
        data = b"".join(buffers[:BUFFERS_PER_WRITE])
        if not data:
            return 0
        crash = disk._count("write_at", f"{self.path} {offset}+{len(data)}{' dsync' if dsync else ''}")
        if crash:
            data = data[: disk.rng.randint(0, len(data))]
        if data:
            node.write(offset, data)
            if dsync and disk._happens(crash) and not disk.lying_fsync:
                node.sync_range(offset, offset + len(data))
        disk._maybe_crash(crash)
        return len(data)

    def sync(self) -> None:
        self._check()
        disk = self._disk
        crash = disk._count("sync", self.path)
        if disk._happens(crash) and not disk.lying_fsync:
            self.node.sync()
        disk._maybe_crash(crash)

    def size(self) -> int:
        self._check()
        return len(self.node.live)

    def truncate(self, size: int) -> None:
        self._check(write=True)
        disk = self._disk
        crash = disk._count("truncate", f"{self.path} {size}")
        if disk._happens(crash):
            self.node.resize(size)
        disk._maybe_crash(crash)

    def allocate(self, size: int) -> None:
        self._check(write=True)
        disk = self._disk
        crash = disk._count("allocate", f"{self.path} {size}")
        if disk._happens(crash) and size > len(self.node.live):
            self.node.resize(size)
            self.node.reserved = True
        disk._maybe_crash(crash)

    def blank(self, size: int) -> None:
        self._check(write=True)
        disk = self._disk
        crash = disk._count("blank", f"{self.path} {size}")
        if disk._happens(crash):
            self.node.write(0, bytes(size))
            self.node.reserved = True
        disk._maybe_crash(crash)

    def map(self) -> memoryview:
        self._check()
        if not self.node.live:
            raise ValueError(f"cannot map {self.path}: it is empty")
        return memoryview(bytes(self.node.live))

    def uncache(self) -> None:
        self._check()

    def close(self) -> None:
        # A dead process closes nothing and complains about nothing.
        self._closed = True

    def forget_unsynced(self) -> None:
        """As `FakeDisk.forget_unsynced`, for a file whose name may have changed since it was opened."""
        self.node.forget_unsynced()

    def _check(self, *, write: bool = False) -> None:
        if self._life != self._disk.life:
            raise PowerOff(f"{self.path} was opened in an earlier life")
        if self._closed or (write and not self._write):
            _fail(errno.EBADF, self.path)


class FakeLock:
    def __init__(self, disk: FakeDisk, node: FileNode) -> None:
        self._disk = disk
        self._node: FileNode | None = node
        self._life = disk.life

    def release(self) -> None:
        # A lock of an earlier life is gone already, and its file may be locked by another by now.
        if self._node is not None and self._life == self._disk.life:
            self._disk._locks.discard(self._node)
        self._node = None


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, errno.errorcode[number], path)
