"""WAL files that nobody needs any more, kept to become the next ones.

A recycled file costs half of what a new one does, or next to nothing where no zeros are written over it, and frees no
blocks. As many are kept as were begun since the last checkpoint.
"""

from __future__ import annotations

from topics.storage.paths import wal_name

_KEPT_MIN = 2
"""However little was written since the last checkpoint."""


class OldFiles:
    """Of one shard."""

    __slots__ = ("_directory", "_longest", "_rotations", "_usual", "kept")

    def __init__(self, directory: str, usual: int, longest: int) -> None:
        """`usual` and `longest`: bytes of a file, and of a hurried writer's."""
        self._directory = directory
        self._usual = usual
        self._longest = longest
        self._rotations = 0
        """Up to the last time files were retired."""
        self.kept: list[tuple[int, str]] = []
        """Valid length and path, oldest first."""

    def retire(self, gone: list[tuple[int, int]], rotations: int, stopping: bool = False) -> list[str]:
        """Keep some of the files (number, valid length) that nobody needs; the paths of the others, to be removed.
        `rotations`: all there were so far."""
        begun = 0 if stopping else rotations - self._rotations
        self._rotations = rotations
        small: list[str] = []
        for number, length in gone:
            path = f"{self._directory}/{wal_name(number)}"
            if self._usual < length * 2 and length <= self._longest:
                self.kept.append((length, path))
            else:
                small.append(path)
        at = max(len(self.kept) - max(begun, _KEPT_MIN), 0)
        oldest, self.kept = self.kept[:at], self.kept[at:]
        return [*[path for _, path in oldest], *small]

    def take(self, size: int, fill: bool) -> str | None:
        """The newest file to make one of `size` bytes of. It was half full at least, and is no longer than that, unless
        there is time to write zeros: what is too much goes back to the file system then."""
        longest = size if not fill else self._longest if size == self._usual else 0
        for at in range(len(self.kept) - 1, -1, -1):
            length, path = self.kept[at]
            if size < length * 2 and length <= longest:
                del self.kept[at]
                return path
        return None

    def give_up(self) -> list[str]:
        """All of them: the room they take is needed now."""
        kept, self.kept = self.kept, []
        return [path for _, path in kept]
