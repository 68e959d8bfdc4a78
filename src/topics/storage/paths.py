"""Names inside a data directory. Topic names never reach the file system; topic ids do, in hex."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WAL = re.compile(r"wal-(\d{16,20})\.log")
_SNAPSHOT = re.compile(r"snapshot-(\d{16,20})\.bin")
_SEGMENT = re.compile(r"seg-(\d{16,20})\.(data|idx|tags|keys)")
_PART = re.compile(r"([0-9a-f]{16})\.part")
_GROUP = re.compile(r"shard-\d{2}")
_TOPIC = re.compile(r"([0-9A-F]{8,16})")

FLAT = ""
"""Key of the one WAL group of a store with a single shard."""


def wal_name(number: int) -> str:
    return f"wal-{number:016d}.log"


def snapshot_name(number: int) -> str:
    return f"snapshot-{number:016d}.bin"


def segment_name(first_seq: int, part: str) -> str:
    return f"seg-{first_seq:016d}.{part}"


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match.group(1)) if match else None


def wal_number(name: str) -> int | None:
    return _number(_WAL, name)


def snapshot_number(name: str) -> int | None:
    return _number(_SNAPSHOT, name)


def segment_first(name: str) -> int | None:
    return _number(_SEGMENT, name)


def part_name(number: int) -> str:
    return f"{number:016x}.part"


def part_number(name: str) -> int | None:
    match = _PART.fullmatch(name)
    return int(match.group(1), 16) if match else None


def topic_of(name: str) -> int | None:
    match = _TOPIC.fullmatch(name)
    return int(match.group(1), 16) if match else None


def is_group(name: str) -> bool:
    return _GROUP.fullmatch(name) is not None


def group_key(index: int, shards: int) -> str:
    return FLAT if shards == 1 else f"shard-{index:02d}"


@dataclass(frozen=True, slots=True)
class Paths:
    root: str

    @property
    def lock(self) -> str:
        return f"{self.root}/.topics.lock"

    @property
    def meta(self) -> str:
        return f"{self.root}/meta"

    @property
    def format(self) -> str:
        return f"{self.root}/meta/FORMAT"

    @property
    def boot(self) -> str:
        return f"{self.root}/meta/BOOT"

    @property
    def wal(self) -> str:
        return f"{self.root}/wal"

    @property
    def topics(self) -> str:
        return f"{self.root}/topics"

    @property
    def quarantine(self) -> str:
        return f"{self.root}/quarantine"

    @property
    def importing(self) -> str:
        """Where a store is made of a directory of the Rust program, until it is whole."""
        return f"{self.root}/.topics.import"

    @property
    def import_report(self) -> str:
        return f"{self.root}/meta/import.json"

    def snapshot(self, number: int) -> str:
        return f"{self.meta}/{snapshot_name(number)}"

    def group(self, key: str) -> str:
        return f"{self.wal}/{key}" if key else self.wal

    def topic(self, topic_id: int) -> str:
        return f"{self.topics}/{topic_id:08X}"
