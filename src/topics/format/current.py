"""CURRENT: which WAL files of a shard are alive, and how many bytes of each older one are valid. Plain text:

    wal-0000000000000007.log
    sealed wal-0000000000000005.log 67108351
    sealed wal-0000000000000006.log 0

The file is derived: without it recovery scans and follows the chain of first frames. It bounds the replay of older
files and so tells a damaged file from a torn tail.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_FILE: Final = r"wal-[0-9]{16}\.log"
_ACTIVE: Final = re.compile(_FILE)
_SEALED: Final = re.compile(rf"sealed ({_FILE}) (0|[1-9][0-9]{{0,18}})")


class Current(msgspec.Struct, frozen=True):
    active: str
    """Name of the file that takes writes."""
    sealed: tuple[tuple[str, int], ...] = ()
    """(name, valid length) of older live files, oldest first."""

    def encode(self) -> bytes:
        lines = [self.active, *(f"sealed {name} {length}" for name, length in self.sealed)]
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    @classmethod
    def decode(cls, text: bytes) -> Current:
        """ValueError on anything but what `encode` writes: a file of doubtful content is worth less than none."""
        lines = text.decode("ascii").split("\n")
        if lines.pop() != "" or not lines:
            raise ValueError("CURRENT does not end with a whole line")
        if not _ACTIVE.fullmatch(lines[0]):
            raise ValueError(f"CURRENT names {lines[0]!r} as the active file")
        sealed = []
        for line in lines[1:]:
            match = _SEALED.fullmatch(line)
            if match is None:
                raise ValueError(f"CURRENT holds the line {line!r}")
            sealed.append((match[1], int(match[2])))
        names = [lines[0], *(name for name, _ in sealed)]
        if len(set(names)) != len(names):
            raise ValueError("CURRENT names a file twice")
        return cls(lines[0], tuple(sealed))
