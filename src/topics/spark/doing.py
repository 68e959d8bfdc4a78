"""What a round is at, for whoever looks meanwhile from another thread."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Writing:
    """Tasks write files of a table. How far each is only the file system tells while they run."""

    topic: str
    records: int
    """That will be in the table."""
    folder: str
    known: frozenset[str]
    """Names that were in the folder before."""
    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def bytes(self) -> int:
        """Written so far, as this machine sees it."""
        return sum(size for name, size in _files(self.folder) if name not in self.known)


def _files(folder: str) -> list[tuple[str, int]]:
    """Names and sizes; of a folder that is not there any more none, which whoever writes there will tell."""
    try:
        with os.scandir(folder) as entries:
            return [(one.name, one.stat().st_size) for one in entries if one.name.endswith(".parquet")]
    except OSError:
        return []


class Doing:
    now: Writing | None = None

    @contextmanager
    def writing(self, topic: str, records: int, folder: str) -> Iterator[None]:
        self.now = Writing(topic, records, folder, frozenset(name for name, _ in _files(folder)))
        try:
            yield
        finally:
            self.now = None
