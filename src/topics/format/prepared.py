"""What the batch functions hand out: a batch ready to be stamped, and what a scan of the WAL found."""

from __future__ import annotations

from typing import Literal

ScanReason = Literal["end", "zeros", "bad", "unfinished"]


class Prepared:
    """A checked batch as frames without topic, seq, time and checksum; `stamp` fills those in once they are known."""

    __slots__ = ("accounted", "count", "delays", "ends", "entries", "frames", "has_tags")

    def __init__(
        self,
        frames: bytearray,
        entries: bytearray,
        count: int,
        accounted: int,
        has_tags: bool,
        ends: bytes | None = None,
    ) -> None:
        self.frames = frames
        """Append frames back to back."""
        self.entries = entries
        """20 bytes each (see segment.py), offsets relative to `frames`, ts 0."""
        self.count = count
        self.accounted = accounted
        """Compact data + meta bytes of all records."""
        self.has_tags = has_tags
        self.delays: list[int] | None = None
        """For a queue: ms, per record, until it may be claimed."""
        self.ends = ends
        """Where several requests share the batch: how many records there are up to the end of each (u32). In the log
        each of them is a submission of its own; None = all of it is one."""

    def __repr__(self) -> str:
        return f"Prepared({self.count} records, {len(self.frames)} frame bytes, {self.accounted} accounted)"


class WalScan:
    """What lies in a WAL file: whole submissions up to `end`, and why the scan stopped at `stop`."""

    __slots__ = ("end", "frames", "items", "reason", "stop", "why")

    def __init__(
        self, items: list[tuple[int, ...]], end: int, frames: int, stop: int, reason: ScanReason, why: str
    ) -> None:
        self.items = items
        """In order. A run of Append frames of one topic with consecutive seqs: (1, topic_id, first_seq, count,
        entry_index, start_offset, end_offset, first_ts, last_ts, accounted). A control frame: (kind, topic_id, seq,
        ts, flags, offset, end_offset)."""
        self.end = end
        """End of the last whole submission."""
        self.frames = frames
        """Frames in whole submissions."""
        self.stop = stop
        self.reason: ScanReason = reason
        """end: all was read. zeros: nothing but zeros follows. bad: no valid frame at `stop`. unfinished: the last
        submission is not whole, whatever follows it."""
        self.why = why

    def __repr__(self) -> str:
        return f"WalScan({self.frames} frames to {self.end}, stop {self.stop}, {self.reason}: {self.why})"
