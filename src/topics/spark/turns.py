"""Exporters take turns at a folder of tables.

A commit is a file that is not there yet, below the name of a folder, and a rebuild puts another folder under that name.
So whoever commits, makes a table or renames one holds the lock of all tables, for as long as it takes to look whether
the table is still the one it knew, and to act. Writing files and reading need no lock.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from topics.host.fs import OsFs, parent
from topics.host.turns import take_turn
from topics.model.errors import Conflict, StorageError

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOCK: Final = ".tables.lock"
"""Beside the tables. No topic has such a name, and a table's own may leave no room for a longer one."""
TURN_S: Final = 60.0
"""A turn is a commit, far below a second; who holds it for so long was stopped in the middle."""


@contextmanager
def turn_at(folder: str, wait_s: float = TURN_S) -> Iterator[None]:
    """At the tables beside this one; Conflict if somebody else does not end theirs."""
    root = parent(folder)
    path = os.path.join(root, LOCK)
    try:
        os.makedirs(root, exist_ok=True)
        lock = take_turn(path, wait_s)
    except BlockingIOError:
        raise Conflict(
            f"another exporter has been at the tables of {root} for {wait_s:.0f} s, holding {path}: if it hangs, end it"
        ) from None
    except OSError as error:
        raise StorageError(
            f"the file {path} cannot be locked ({error.strerror}), which keeps exporters apart: every exporter needs a "
            "file system with locks, and must be allowed to write this file",
            path=path,
        ) from None
    try:
        yield
    finally:
        lock.release()


def changed_since(folder: str, table: DeltaTable) -> str | None:
    """What has become of the table since it was loaded, if anything has."""
    from deltalake.exceptions import DeltaError

    try:
        now = type(table)(folder)
    except (DeltaError, OSError):
        return "it was moved away by somebody else, who writes it anew"
    if now.metadata().id != table.metadata().id:
        return "somebody else wrote it anew meanwhile"
    if now.version() != table.version():
        return "somebody else did so first"
    return None


def sync_version(folder: str, version: int) -> None:
    """The table's version outlasts a power cut: what it says, its name, and the names of its files. StorageError if
    nobody knows, Conflict if it is not there any more."""
    fs = OsFs()
    log = os.path.join(folder, "_delta_log")
    prefix = f"{version:020d}."
    try:
        for name in fs.list(log):
            if name.startswith(prefix) or name == "_last_checkpoint":
                file = fs.open(os.path.join(log, name))
                try:
                    file.sync()
                finally:
                    file.close()
        for directory in (log, folder, parent(folder)):
            sync_names(directory)
    except FileNotFoundError:
        raise Conflict(f"the table {folder} was moved away by somebody else, who writes it anew") from None
    except OSError as error:
        raise StorageError(
            f"whether version {version} of the table {folder} outlasts a power cut is unknown ({error.strerror}): "
            "look after the disk, the next round asks again",
            path=folder,
        ) from None


def sync_names(directory: str) -> None:
    """Of what is in it. A file system that knows no such call keeps them by itself."""
    try:
        OsFs().sync_dir(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
