"""A table that is out of the way while its successor is written.

    orders ─put─▶ orders.old-1a2b3c4d ─┬─ back ─▶ orders                  the successor was not completed
                                       ├─ keep ─▶ orders.kept-1a2b3c4d    on purpose, for ever
                                       └─ drop ─▶ orders.gone-1a2b3c4d    and then nothing

Whoever is killed in between leaves a folder whose name tells how far it was. It is named by everybody who comes by and
removed by nobody: what a table holds may be nowhere else.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from topics.model.errors import Conflict, StorageError
from topics.spark.history import History, is_table, open_table


@dataclass(frozen=True, slots=True)
class Aside:
    folder: str
    """Where the table was, and its successor is."""
    mark: str

    @classmethod
    def put(cls, history: History) -> Aside:
        """Move the table's folder away; Conflict if somebody else did."""
        aside = cls(history.folder, uuid.uuid4().hex[:8])
        try:
            os.rename(aside.folder, aside.path)
        except FileNotFoundError:
            raise Conflict(f"the table {aside.folder} was moved away by somebody else, who writes it anew") from None
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

    def back(self) -> None:
        """Undo it; what was made in its place goes."""
        with self._told("put back"):
            if os.path.isdir(self.folder):
                shutil.rmtree(self.folder)
            os.rename(self.path, self.folder)

    def keep(self) -> str:
        """Where it stays."""
        with self._told("renamed"):
            os.rename(self.path, self._named("kept"))
        return self._named("kept")

    def drop(self) -> None:
        """Under another name first: half a table must not look like one that could be put back."""
        with self._told("removed"):
            os.rename(self.path, self._named("gone"))
            shutil.rmtree(self._named("gone"))

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """StorageError where the file system does not let it be done."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the table before {self.folder}, which is {self.path}, was not {done} ({error.strerror})",
                path=self.path,
            ) from None


def leftovers(folder: str, topic: str) -> str | None:
    """What lies beside the table of a topic because somebody did not end what they began, and what to do about it."""
    root, name = os.path.split(folder)
    pattern = re.compile(re.escape(name) + r"\.(old|gone)-[0-9a-f]{8}")
    matches = map(pattern.fullmatch, sorted(os.listdir(root)) if os.path.isdir(root) else ())
    told = [
        _words(folder, topic, path, match[1])
        for match in matches
        if match is not None and _is_of(path := os.path.join(root, match[0]), topic, match[1])
    ]
    return "; ".join(told) or None


def _words(folder: str, topic: str, path: str, fate: str) -> str:
    old, new = shlex.quote(path), shlex.quote(folder)
    if fate == "gone":
        return f"{path} is the rest of a table of topic {topic!r} that was being removed: rm -r {old}"
    return (
        f"{path} is the table of topic {topic!r} that was put aside to be written anew, by somebody who is still at it "
        f"or was killed. If killed, put it back (rm -rf {new} && mv {old} {new}), or remove it (rm -r {old}) once a "
        "run has written the new table, from what the topic still has"
    )


def _is_of(folder: str, topic: str, fate: str) -> bool:
    """Whether it is a table of this topic: another topic may bear the folder's whole name."""
    try:
        if not is_table(folder):
            return fate == "gone"
        return History(folder, topic, open_table(folder)).owner[1] == topic
    except StorageError:
        return True
