"""What a store that is about to be let go of leaves in doubt: acknowledged writes that are not surely on the disk.

A checkpoint that fails at the end is no loss by itself: the WAL has all of it, and the next start replays it. Two
things are: bytes of the WAL that no sync covers, and a WAL file that somebody took away before it was copied.
"""

from __future__ import annotations

import threading

from topics.model.errors import StorageError, WriteFailed
from topics.storage.paths import wal_name
from topics.storage.store import Store
from topics.storage.trouble import in_words
from topics.storage.wal import Shard


def left_in_doubt(store: Store, saved: bool) -> StorageError | None:
    """Called when everything was written out as well as it went. `saved`: by a checkpoint, too."""
    found = [error for shard in store.shards if (error := _unsynced(shard) or _gone(store, shard, saved)) is not None]
    return found[0] if found else None


def _unsynced(shard: Shard) -> WriteFailed | None:
    file = shard.file
    if file is None or file.synced >= file.written:
        return None
    why = "" if shard.failed is None else f": {shard.failed.message}"
    error = WriteFailed(
        f"acknowledged writes may be lost: {file.written - file.synced} bytes of {file.path} were not synced when the "
        f"store was closed{why}",
        shard=shard.index,
        path=file.path,
        offset=file.synced,
    )
    error.__cause__ = shard.failed
    return error


def _gone(store: Store, shard: Shard, saved: bool) -> StorageError | None:
    if saved and not shard.stuck:
        return None  # its records are in segments
    position = store.positions.get(shard.key)
    paths = [f"{shard.directory}/{wal_name(n)}" for n, _ in shard.sealed if position is None or n >= position.file]
    for path in [*paths, *([] if shard.file is None else [shard.file.path])]:
        if not store.fs.exists(path):
            why = "" if store.trouble is None else f", and the last checkpoint failed: {in_words(store.trouble)}"
            error = StorageError(f"acknowledged writes are lost: {path} is gone{why}", path=path)
            error.__cause__ = store.trouble
            return error
    return None


def end_writing(store: Store) -> None:
    """A use case that was on its way when the store was closed may still want to write, or be in the middle of it."""
    for shard in store.shards:
        with store.lock:
            shard.end()
        while shard.writing or shard.syncing:
            threading.Event().wait(0.001)


def forget_frames(store: Store) -> None:
    """Errors that are kept to be told later hold, by their tracebacks, files that nobody else needs any more."""
    for error in (store.trouble, *store.stumbled.values(), *(shard.failed for shard in store.shards)):
        known: BaseException | None = error
        while known is not None:
            known.__traceback__ = None
            known = known.__cause__ or known.__context__
