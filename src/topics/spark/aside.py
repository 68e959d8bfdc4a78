"""A table that is out of the way while its successor is written.

    orders ─put─▶ orders.old-1a2b3c4d ─┬─ back ─▶ orders                  the successor was not completed
                                       ├─ keep ─▶ orders.kept-1a2b3c4d    on purpose, for ever
                                       └─ drop ─▶ orders.gone-1a2b3c4d    and then nothing

Whoever is killed in between leaves a folder whose name tells how far it was. It is named by everybody who comes by and
removed by nobody: what a table holds may be nowhere else. And nobody writes the table's successor while one is `old`:
then there would be two tables of which neither holds everything.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from topics.host.fs import parent
from topics.model.errors import Conflict, StorageError
from topics.spark.history import History, is_table, open_table
from topics.spark.turns import changed_since, sync_names, turn_at


@dataclass(frozen=True, slots=True)
class Aside:
    folder: str
    """Where the table was, and its successor is."""
    mark: str

    @classmethod
    def put(cls, history: History) -> Aside:
        """Move the table's folder away; Conflict if it is not as it was loaded any more."""
        aside = cls(history.folder, uuid.uuid4().hex[:8])
        assert history.table is not None
        with turn_at(aside.folder):
            changed = changed_since(aside.folder, history.table)
            if changed is not None:
                raise Conflict(f"the table {aside.folder} was not put aside, {changed}")
            try:
                os.rename(aside.folder, aside.path)
            except OSError as error:
                raise StorageError(
                    f"the table {aside.folder} cannot be put aside while it is written anew ({error.strerror}), and "
                    "nothing was changed: move its folder elsewhere yourself, and a run writes the table anew",
                    path=aside.folder,
                ) from None
        history.table = None
        return aside

    @property
    def path(self) -> str:
        return self._named("old")

    def _named(self, fate: str) -> str:
        return f"{self.folder}.{fate}-{self.mark}"

    def back(self, made: str | None) -> None:
        """Undo it. What lies in its place goes if it is the table with the id `made`, before anything was committed to
        it; any other may hold what is nowhere else, so both stay, and whoever comes by names them."""
        with self._told("put back"):
            if os.path.lexists(self.folder):
                if not self._is_begun_only(made):
                    return
                shutil.rmtree(self.folder)
            os.rename(self.path, self.folder)

    def _is_begun_only(self, made: str | None) -> bool:
        try:
            if not is_table(self.folder):  # a table that was not made in the end
                return set(os.listdir(self.folder)) <= {"_delta_log"}
            table = open_table(self.folder)
        except StorageError:
            return False
        return str(table.metadata().id) == made and table.version() == 0

    def keep(self) -> str:
        """Where it stays."""
        with self._told("renamed"):
            os.rename(self.path, self._named("kept"))
        return self._named("kept")

    def drop(self) -> None:
        """Under another name first: half a table must not look like one that could be put back."""
        gone = self._named("gone")
        with self._told("removed"):
            os.rename(self.path, gone)
            sync_names(parent(gone))
        with self._told("removed", gone, turn=False):
            shutil.rmtree(os.path.realpath(gone))
            if os.path.islink(gone):
                os.unlink(gone)

    @contextmanager
    def _told(self, done: str, path: str | None = None, turn: bool = True) -> Iterator[None]:
        """StorageError where the file system does not let it be done. To remove a large table is no turn."""
        path = path or self.path
        try:
            with turn_at(self.folder) if turn else nullcontext():
                yield
        except OSError as error:
            raise StorageError(
                f"the table before {self.folder}, which is {path}, was not {done} ({error.strerror or error})",
                path=path,
            ) from None


def leftovers(folder: str, topic: str, fates: str = "old|gone") -> str | None:
    """What lies beside the table of a topic because somebody did not end what they began, and what to do about it."""
    root, name = os.path.split(folder)
    pattern = re.compile(rf"{re.escape(name)}\.({fates})-[0-9a-f]{{8}}")
    matches = map(pattern.fullmatch, sorted(os.listdir(root)) if os.path.isdir(root) else ())
    told = [
        _words(folder, topic, path, match[1])
        for match in matches
        if match is not None and _is_of(path := os.path.join(root, match[0]), topic, match[1])
    ]
    return "; ".join(told) or None


def put_aside(folder: str, topic: str) -> str | None:
    """The same of a table that may have to be put back."""
    return leftovers(folder, topic, "old")


def _words(folder: str, topic: str, path: str, fate: str) -> str:
    old, new = shlex.quote(path), shlex.quote(folder)
    if fate == "gone":
        return f"{path} is the rest of a table of topic {topic!r} that was being removed: rm -r {old}"
    told = (
        f"{path} is the table of topic {topic!r} that was put aside to be written anew, by somebody who is still at it "
        "or was killed. Nothing is exported before that is settled. If killed, "
    )
    if _holds_something(folder):
        kept = shlex.quote(".kept-".join(path.rsplit(".old-", 1)))
        return told + (
            f"{folder} has been written meanwhile, and each of the two may hold records that the other lacks: keep "
            f"the old one (mv {old} {kept}), or remove it (rm -r {old}) once you know that nothing of it is needed"
        )
    return told + (
        f"put it back (rm -rf {new} && mv {old} {new}), or remove it (rm -r {old}), and a run writes the new table "
        "from what the topic still has"
    )


def _holds_something(folder: str) -> bool:
    """Whether it is a table, and more than its first version, which is empty; also where nobody can tell."""
    try:
        return is_table(folder) and open_table(folder).version() > 0
    except StorageError:
        return True


def _is_of(folder: str, topic: str, fate: str) -> bool:
    """Whether it is a table of this topic: another topic may bear the folder's whole name."""
    try:
        if not is_table(folder):
            return fate == "gone"
        return History(folder, topic, open_table(folder)).owner[1] == topic
    except StorageError:
        return True
