"""The snapshot files of a store: the newest two are kept, each read back before it counts."""

from __future__ import annotations

import msgspec

from topics.format.container import BadContainer
from topics.format.snapshot import Position, Snapshot, SnapshotHead, decode_snapshot, encode_snapshot
from topics.host.fs import Fs, read_file, replace_file
from topics.model.errors import CorruptFile
from topics.storage.paths import Paths, snapshot_number
from topics.storage.walfile import discard


class Snapshots:
    def __init__(self, fs: Fs, paths: Paths) -> None:
        self._fs = fs
        self._paths = paths
        self.next_id = 1
        self.kept: list[tuple[int, dict[str, Position]]] = []
        """(id, positions) of those that were verified, oldest first."""
        self.last_size = 0

    def load(self) -> tuple[Snapshot | None, list[tuple[str, str]]]:
        """The newest valid snapshot, and (path, why) of those that are not valid. Writes nothing."""
        numbers = sorted(
            number for name in self._names() if (number := snapshot_number(name)) is not None
        )  # fmt: skip
        self.next_id = (numbers[-1] if numbers else 0) + 1
        bad: list[tuple[str, str]] = []
        newest: Snapshot | None = None
        for number in numbers:
            path = self._paths.snapshot(number)
            try:
                snapshot = decode_snapshot(read_file(self._fs, path))
                if snapshot.id != number:
                    raise BadContainer(f"it states the id {snapshot.id}")
            except BadContainer as error:
                bad.append((path, error.why))
                continue
            newest = snapshot
            self.kept.append((number, snapshot.positions))
        return newest, bad

    def _names(self) -> list[str]:
        return self._fs.list(self._paths.meta) if self._fs.is_dir(self._paths.meta) else []

    def write(self, head: SnapshotHead, rows: list[bytes]) -> None:
        """Write, read back, and only then let the third newest go."""
        number = self.next_id
        self.next_id += 1
        head = msgspec.structs.replace(head, id=number)
        data = encode_snapshot(head, rows)
        path = self._paths.snapshot(number)
        replace_file(self._fs, path, data)
        if read_file(self._fs, path) != data:
            raise CorruptFile(path, 0, "what was read back is not what was written")
        self.last_size = len(data)
        self.kept.append((number, head.positions))
        self._prune()

    def _prune(self) -> None:
        del self.kept[:-2]
        keep = {number for number, _ in self.kept}
        for name in self._names():
            number = snapshot_number(name)
            if number is not None and number not in keep and number < self.next_id:
                discard(self._fs, f"{self._paths.meta}/{name}")

    @property
    def older(self) -> dict[str, Position] | None:
        """Positions of the older kept snapshot; None while there is only one: then nothing may be trimmed."""
        return self.kept[-2][1] if len(self.kept) >= 2 else None
