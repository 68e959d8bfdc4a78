"""A store of immutable blobs: where cold segments go. A directory here; an object store answers to the same protocol.

A key is a path such as `topics/0000000A/seg-0000000000000001.data`. A blob is written once, whole, and never changed.
"""

from __future__ import annotations

import threading
from typing import Protocol

from topics.host.fs import Buffer, Fs, parent, read_exact, replace_file

_TMP = ".tmp"


class BlobStore(Protocol):
    def put(self, key: str, data: Buffer) -> bool:
        """Store `data` durably, unless the key is taken: False then, and the blob there stays as it is, durable too."""
        ...

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """FileNotFoundError if there is no such blob, EOFError if it ends before the range does."""
        ...

    def size(self, key: str) -> int:
        """FileNotFoundError if there is no such blob."""
        ...

    def delete(self, key: str) -> None:
        """Durable on return. A blob that is not there is deleted already."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Sorted keys that start with `prefix`, which need not end at a slash."""
        ...

    def exists(self, key: str) -> bool: ...


def check_key(key: str) -> None:
    """ValueError unless the key is a plain relative path; one of a temporary file is refused as well."""
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key or key.endswith(_TMP):
        raise ValueError(f"{key!r} is not a valid blob key")


class DirectoryBlobs:
    """Blobs as files below `root`, which must exist and belongs to one process.

    A blob appears under its key by a rename, whole and synced. A crash may leave a `.tmp` file behind; it is no blob,
    and the next put of that key replaces it.
    """

    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        self._lock = threading.Lock()
        """Held over a put: seeing that a key is free and taking it must be one step."""
        self._durable_dirs: set[str] = set()
        """Directories whose own names we have synced. One found there may be of a life that ended before its sync."""

    def put(self, key: str, data: Buffer) -> bool:
        path = self._path(key)
        with self._lock:
            self._make_dirs(key)
            if self._fs.exists(path):
                # Perhaps a put that was killed before its last step: end it, for its name may not be durable yet.
                self._fs.sync_dir(parent(path))
                return False
            replace_file(self._fs, path, data)
            return True

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        file = self._fs.open(self._path(key))
        try:
            return read_exact(file, offset, size)
        finally:
            file.close()

    def size(self, key: str) -> int:
        file = self._fs.open(self._path(key))
        try:
            return file.size()
        finally:
            file.close()

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            self._fs.remove(path)
        except FileNotFoundError:
            if not self._fs.is_dir(parent(path)):
                return
        self._fs.sync_dir(parent(path))

    def list(self, prefix: str = "") -> list[str]:
        found: list[str] = []
        waiting = [prefix.rpartition("/")[0]]
        while waiting:
            directory = waiting.pop()
            path = f"{self._root}/{directory}" if directory else self._root
            if not self._fs.is_dir(path):
                continue
            for name in self._fs.list(path):
                key = f"{directory}/{name}" if directory else name
                if self._fs.is_dir(f"{self._root}/{key}"):
                    if key.startswith(prefix) or prefix.startswith(key):
                        waiting.append(key)
                elif key.startswith(prefix) and not key.endswith(_TMP):
                    found.append(key)
        return sorted(found)

    def exists(self, key: str) -> bool:
        path = self._path(key)
        return self._fs.exists(path) and not self._fs.is_dir(path)

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{key}"

    def _make_dirs(self, key: str) -> None:
        directory = self._root
        for name in key.split("/")[:-1]:
            above, directory = directory, f"{directory}/{name}"
            if directory in self._durable_dirs:
                continue
            if not self._fs.exists(directory):
                self._fs.mkdir(directory)
            self._fs.sync_dir(above)
            self._durable_dirs.add(directory)
