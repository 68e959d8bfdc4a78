"""Open segment files and mappings of the whole store, least recently used out first.

A mapping lives on until its last reader leaves, whatever is unlinked or pushed out meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress

from topics.format.checksum import xxh3_64
from topics.format.mending import NO_PLACE, make_index
from topics.format.ops import find_blank
from topics.format.segment import ENTRY
from topics.format.tags import TagIndex
from topics.host.files import NO_DESCRIPTORS
from topics.host.fs import File, Fs, read_exact
from topics.host.memory import is_resident
from topics.model import limits
from topics.model.errors import StorageError
from topics.storage.segment import Segment


class Handles:
    __slots__ = ("_files", "_fresh", "_fresh_bytes", "_fs", "_indexes", "_known", "_lock", "_maps", "absent")

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._lock = threading.RLock()
        self._files: OrderedDict[str, File] = OrderedDict()
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._indexes: OrderedDict[str, TagIndex] = OrderedDict()
        self._known: dict[str, int] = {}
        """By path, the hash of each `.idx` that was proven in this life."""
        self._fresh: deque[tuple[str, int]] = deque()
        self._fresh_bytes = 0
        """The newest sealed `.data` files, which stay in memory even if nobody reads them."""
        self.absent: set[str] | None = None
        """While the WAL is replayed: `.data` files that were asked for and are not there. A pair may have been dropped
        since the snapshot that lists it; whether it was is known when all is replayed. None = an absent one raises."""

    def leave_to_parent(self) -> None:
        """In a forked child, where whoever held the lock is no more: what is being read goes on to say so."""
        self._lock = threading.RLock()

    def file(self, path: str) -> File:
        """The file at `path`, open for reading and writing."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = self._open(path, write=True)
                if len(self._files) > limits.OPEN_FILES:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def _open(self, path: str, write: bool = False) -> File:
        """An absent file stays a FileNotFoundError: whoever asked knows whether it may be."""
        try:
            try:
                return self._fs.open(path, write=write)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                with self._lock:  # others are in the middle of a look
                    self._files.clear()
                    self._maps.clear()
                return self._fs.open(path, write=write)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(path, error) from error

    def written(self, path: str, size: int) -> None:
        """A `.data` file was sealed and synced. Readers come for the newest; of older ones those that nobody mapped
        give their memory back, so that writing fast does not fill the machine's memory with bytes nobody asked for."""
        old: list[str] = []
        with self._lock:
            self._fresh.append((path, size))
            self._fresh_bytes += size
            while self._fresh_bytes > limits.FRESH_BYTES:
                oldest, gone = self._fresh.popleft()
                self._fresh_bytes -= gone
                if oldest not in self._maps:
                    old.append(oldest)
        for oldest in old:
            with suppress(OSError):
                unread = self._fs.open(oldest)
                unread.uncache()
                unread.close()

    def data(self, segment: Segment) -> memoryview:
        """The bytes of a sealed segment. Shorter than promised if the file is: readers check every frame's bounds."""
        return self._mapped(segment.path("data"))

    def sidecar(self, segment: Segment, part: str) -> memoryview:
        """A sidecar of a sealed segment: `tags` or `keys`."""
        return self._open_map(segment.path(part))

    def index(self, path: str, make: Callable[[], TagIndex]) -> TagIndex:
        """The parsed sidecar at `path`, made where it is not at hand: proving one costs more than searching it."""
        with self._lock:
            found = self._indexes.get(path)
            if found is not None:
                self._indexes.move_to_end(path)
                return found
        found = make()
        with self._lock:
            self._indexes[path] = found
            while len(self._indexes) > limits.OPEN_MAPPINGS:
                self._indexes.popitem(last=False)
        return found

    def entries(self, segment: Segment, start: int, count: int) -> memoryview:
        """Entries start .. start + count of a segment, proven against MANIFEST's hash or rebuilt from `.data`.

        Nothing else than a look at them tells entries that turned to zeros since they were proven, or were never proven
        because their pair still grows: whoever used those would pass over their records in silence."""
        low, high = start * ENTRY.size, (start + count) * ENTRY.size
        path = segment.path("idx")
        if segment.sealed or segment.foreign:
            found = self._entries(segment, path, high)[low:high]
        else:
            try:
                found = memoryview(read_exact(self.file(path), low, high - low))
            except (OSError, EOFError) as error:
                raise unreadable(path, error) from error
        return found if find_blank(found, count) == count else self._made_again(segment, path)[low:high]

    def _entries(self, segment: Segment, path: str, size: int) -> memoryview:
        with self._lock:
            view = self._maps.get(path)
            if view is not None and len(view) >= size:
                self._maps.move_to_end(path)
                return view
        view = self._proven(segment)
        self._remember(path, view)
        return view

    def _made_again(self, segment: Segment, path: str) -> memoryview:
        self._known.pop(path, None)
        view = memoryview(self.rebuilt(segment))
        if segment.sealed:
            self._remember(path, view)
        return view

    def is_warm(self, segment: Segment, start: int, count: int, bytes_max: int) -> bool:
        """True if entries start .. start + count of a sealed segment, and about `bytes_max` bytes of what they point
        at, can be read without waiting for the disk."""
        with self._lock:
            index, data = self._maps.get(segment.path("idx")), self._maps.get(segment.path("data"))
        low, high = start * ENTRY.size, (start + count) * ENTRY.size
        if index is None or data is None or len(index) < high:
            return False
        first = ENTRY.unpack_from(index, low)[0]
        last, length, *_ = ENTRY.unpack_from(index, high - ENTRY.size)
        return is_resident(data, min(first, len(data)), min(last + length, first + bytes_max, len(data)))

    def _proven(self, segment: Segment) -> memoryview:
        size = segment.count * ENTRY.size
        if segment.sealed:
            try:
                path = segment.path("idx")
                view = self._open_map(path)[:size]
                # Proven once in this life is enough: each frame read through an entry is checked anyway, and each
                # entry for being one.
                known = self._known.get(path) == segment.idx_xxh3
                if len(view) == size and (known or self._check(path, view, segment)):
                    return view
            except (FileNotFoundError, ValueError):
                pass
        return memoryview(self.rebuilt(segment))

    def _check(self, path: str, view: memoryview, segment: Segment) -> bool:
        if xxh3_64(view) != segment.idx_xxh3:
            return False
        self._known[path] = segment.idx_xxh3
        return True

    def is_index_whole(self, segment: Segment) -> bool:
        """Whether the `.idx` of a sealed segment is on the disk as MANIFEST says, whatever it is read from."""
        if xxh3_64(self._hints(segment)) == segment.idx_xxh3:
            return True
        self._open(segment.path("data"))  # absent = the pair was dropped meanwhile, and raises
        return False

    def rebuilt(self, segment: Segment) -> bytes:
        """Entries made from `.data` alone; seqs that cannot be found there are marked so that reading one says so."""
        try:
            data = self._open_map(segment.path("data"))
        except ValueError:
            data = memoryview(b"")
        except FileNotFoundError:
            if self.absent is None:
                raise
            self.absent.add(segment.path("data"))
            return NO_PLACE * segment.count
        whole = data[: min(len(data), segment.data_len)]
        return make_index(whole, segment.first_seq, segment.count, segment.data_len, lambda: self._hints(segment))

    def _hints(self, segment: Segment) -> bytes:
        """The `.idx` as it lies there: nobody vouches for it."""
        try:
            file = self._open(segment.path("idx"))
            return read_exact(file, 0, min(segment.count, file.size() // ENTRY.size) * ENTRY.size)
        except (OSError, EOFError, StorageError):
            return b""

    def _mapped(self, path: str) -> memoryview:
        with self._lock:
            view = self._maps.get(path)
            if view is not None:
                self._maps.move_to_end(path)
                return view
        view = self._open_map(path)
        self._remember(path, view)
        return view

    def _open_map(self, path: str) -> memoryview:
        file = self._open(path)
        try:
            return file.map()
        except OSError as error:
            raise unreadable(path, error) from error

    def _remember(self, path: str, view: memoryview) -> None:
        with self._lock:
            self._maps[path] = view
            self._maps.move_to_end(path)
            while len(self._maps) > limits.OPEN_MAPPINGS:
                self._maps.popitem(last=False)

    def mapped(self, path: str) -> memoryview:
        """The bytes of a file that is read once: it pushes out nothing that others keep open."""
        return self._open_map(path)

    def forget(self, segment: Segment) -> None:
        """Drop what is kept of a segment before it is unlinked or its files change shape."""
        self.forget_paths(*(segment.path(part) for part in ("data", "idx", "tags", "keys")))

    def forget_paths(self, *paths: str) -> None:
        with self._lock:
            for path in paths:
                self._indexes.pop(path, None)
                self._files.pop(path, None)
                self._maps.pop(path, None)
                self._known.pop(path, None)

    def close_files(self) -> None:
        """Let go of the files, for somebody who needs their descriptors more."""
        with self._lock:
            self._files.clear()

    def close(self) -> None:
        """Let go of everything. A reader in the middle of a file keeps that one open until it is done: closing it here
        could give its descriptor to another file meanwhile."""
        with self._lock:
            self._files.clear()
            self._maps.clear()
            self._indexes.clear()


def unreadable(path: str, error: Exception) -> StorageError:
    return StorageError(f"{path} cannot be read: {error}", path=path)
