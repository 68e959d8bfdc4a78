"""A claimed job: a record of a queue, and the lease under which somebody has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from topics.model.payload import parse_part

Why = Literal["expired", "member", "token", "unknown", "settled"]
"""Why nothing was done about a job: its lease is over, somebody else's, or another one; nobody was ever given it; it is
done with."""


class Job(msgspec.Struct, frozen=True, gc=False):
    seq: int
    ts: int
    tag: str | None
    raw: bytes
    """The JSON text of `data`, as it was stored."""
    meta_raw: bytes | None
    lease_id: str
    """Never given out twice, and greater with every lease: a fencing token."""
    deadline: int
    """Wall time in ms: after it the job is anybody's again."""
    deliveries: int
    """How often it was handed out, this time included."""

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


class Settled(msgspec.Struct, frozen=True):
    """What an ack, a nack or an extend did."""

    done: int
    skipped: list[int]
    why: dict[int, Why]
    """By seq, for those that were skipped."""
    deadlines: dict[int, int] = {}
    """By seq, where leases were extended."""


class Redriven(msgspec.Struct, frozen=True):
    moved: int
    """With `dry_run`: how many would be."""
    left: int
    """Dead letters that are still there."""


def split(jobs: Iterable[Job | int]) -> tuple[list[int], list[str]]:
    """Seqs and lease ids of jobs, or of bare seqs, for which no lease is named."""
    named = [(job.seq, job.lease_id) if isinstance(job, Job) else (job, "") for job in jobs]
    return [seq for seq, _ in named], [lease_id for _, lease_id in named]
