"""Where things lie inside a data directory, for readers of one that no store has open."""

from __future__ import annotations

import re
from typing import Final

from topics.host.fs import Fs

LOCK: Final = ".topics.lock"
FORMAT_LINE: Final = "topics-py 1"

_WAL: Final = re.compile(r"wal-(\d{16,20})\.log")
_SNAPSHOT: Final = re.compile(r"snapshot-(\d{16,20})\.bin")


def wal_path(directory: str, number: int) -> str:
    return f"{directory}/wal-{number:016d}.log"


def wal_number(name: str) -> int:
    match = _WAL.fullmatch(name)
    assert match is not None, "CURRENT names WAL files alone"
    return int(match.group(1))


def wal_numbers(fs: Fs, directory: str) -> list[int]:
    return _numbers(fs, directory, _WAL)


def snapshot_paths(fs: Fs, root: str) -> list[str]:
    """Newest first."""
    numbers = _numbers(fs, f"{root}/meta", _SNAPSHOT)
    return [f"{root}/meta/snapshot-{number:016d}.bin" for number in reversed(numbers)]


def group_directory(root: str, key: str) -> str:
    return f"{root}/wal/{key}" if key else f"{root}/wal"


def segment_path(root: str, topic_id: int, first_seq: int, part: str) -> str:
    return f"{root}/topics/{topic_id:08X}/seg-{first_seq:016d}.{part}"


def part_path(root: str, topic_id: int, number: int) -> str:
    return f"{root}/topics/{topic_id:08X}/staged/{number:016x}.part"


def _numbers(fs: Fs, directory: str, pattern: re.Pattern[str]) -> list[int]:
    names = fs.list(directory) if fs.is_dir(directory) else []
    return sorted(int(match.group(1)) for name in names if (match := pattern.fullmatch(name)))
