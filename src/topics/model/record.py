"""What a reader gets: a `Record`, or a `Gap` where records were lost against anyone's will."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from topics.model.payload import parse_part

GapReason = Literal["cap", "ttl", "mixed", "source_trim", "crash", "restart", "corrupt", "recreated"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One immutable event in a topic.

    `raw` is the JSON text of `data` as it was stored; `data` and `meta` parse on each use, so a scan that looks at
    seqs or tags alone never pays for JSON. A float beyond what a double holds is an infinity, an integer has all its
    digits; `raw` has each number as it was sent.
    """

    seq: int
    ts: int
    """Commit time in ms since 1970; never decreases within a topic."""
    tag: str | None
    node: str | None
    key: str | None
    meta_raw: bytes | None
    raw: bytes

    @property
    def data(self) -> Any:
        try:
            return msgspec.json.decode(self.raw)
        except ValueError:
            return parse_part(self.raw, "data", self.seq)

    @property
    def meta(self) -> Any:
        if self.meta_raw is None:
            return None
        try:
            return msgspec.json.decode(self.meta_raw)
        except ValueError:
            return parse_part(self.meta_raw, "meta", self.seq)


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Records `gap_from`..`gap_to` (both inclusive) are gone, and the reader did not choose it.

    With reason `recreated` the topic is another one than the cursor belongs to: the range is what it holds by now, from
    its first record on, which is read next. It is 1..0, no record at all, where it holds none yet.
    """

    gap_from: int
    gap_to: int
    reason: GapReason

    @property
    def missed(self) -> int:
        return self.gap_to - self.gap_from + 1
