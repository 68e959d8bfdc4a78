"""What an import has to say: what it took over, and everything it met that somebody should know of."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

import msgspec

LISTED: Final = 1000
"""Findings of one kind that are listed one by one; all of them are counted."""

FindingKind = Literal[
    "hole",
    "reserved",
    "out_of_order",
    "null",
    "broken_json",
    "ephemeral",
    "time_moved",
    "unknown_topic",
    "router_dropped",
    "group_restarted",
    "torn_tail",
    "bad_snapshot",
    "damage",
]

_MEANING: Final[dict[FindingKind, str]] = {
    "hole": "seqs are missing in the log; readers are told of a gap",
    "reserved": "seqs were reserved and not found; nobody gets them, and readers are told of a gap",
    "out_of_order": "records repeat a seq or come behind a higher one; of each seq the youngest counts",
    "null": "records are null where a segment has a payload; the segment was set aside",
    "broken_json": "records held no JSON and became null",
    "ephemeral": "records lived in the memory of the other program alone; readers are told of a gap",
    "time_moved": "records were older than the one before them; they got its time",
    "unknown_topic": "frames are of a topic that nobody made; their files were set aside",
    "router_dropped": "routers had no source or no dest",
    "group_restarted": "WAL groups had been removed and begun again; they were replayed from their start",
    "torn_tail": "WAL files end in the middle of a write",
    "bad_snapshot": "snapshots are not valid; an older one was used",
    "damage": "damage was read past",
}
"""What a finding of each kind is, and what was done about it."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: FindingKind
    topic: str = ""
    first: int = 0
    last: int = 0
    """Seqs, inclusive; 0 where it is not about seqs."""
    path: str = ""
    offset: int = 0
    why: str = ""

    def text(self) -> str:
        where = f"topic {self.topic!r}" if self.topic else ""
        if self.first:
            where += f" {self.first}" if self.first == self.last else f" {self.first}..{self.last}"
        if self.path:
            place = f"{self.path} at byte {self.offset}" if self.offset else self.path
            where = f"{where} ({place})" if where else place
        return f"{where}: {self.why}" if self.why else where


class ImportReport(msgspec.Struct):
    """Kept in `meta/import.json` of the directory that was taken over."""

    source: str = ""
    """The snapshot it began with; empty = there was none, all of it came from the WAL."""
    topics: int = 0
    records: int = 0
    """Live ones."""
    bytes: int = 0
    routers: int = 0
    frames: int = 0
    """Of the WAL, that came after the snapshot."""
    counts: dict[str, int] = {}
    """Findings by kind."""
    findings: list[Finding] = []
    set_aside: list[str] = []
    """Names in `quarantine/` of files that hold something that was not taken over."""

    def add(self, finding: Finding, times: int = 1) -> None:
        known = self.counts.get(finding.kind, 0)
        self.counts[finding.kind] = known + times
        if known < LISTED:
            self.findings.append(finding)

    def lines(self) -> list[str]:
        """What it took over, and one line for each kind of finding."""
        source = self.source or "its WAL alone"
        found = [
            f"the directory of the Rust program was imported from {source}: {self.topics} topics, "
            f"{self.records} records, {self.routers} routers"
        ]
        return found + self.finding_lines()

    def finding_lines(self) -> list[str]:
        listed = Counter(finding.kind for finding in self.findings)
        lines = []
        for kind, meaning in _MEANING.items():
            if listed[kind]:
                first = next(finding for finding in self.findings if finding.kind == kind)
                lines.append(f"import, {kind} ({self.counts[kind]}): {meaning}; the first: {first.text()}")
        return lines


def encode_report(report: ImportReport) -> bytes:
    return msgspec.json.encode(report)


def decode_report(data: bytes) -> ImportReport:
    return msgspec.json.decode(data, type=ImportReport)
