"""Answers that are written as bytes and never exist as objects: their shapes, for the description of the contract."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from topics.model.job import Why


class RecordOut(Struct, kw_only=True):
    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    """Server commit time, ms since 1970."""
    node: str | UnsetType = field(name="$node", default=UNSET)
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    key: str | UnsetType = field(name="$key", default=UNSET)
    data: Any | UnsetType = UNSET
    meta: Any | UnsetType = UNSET


class TombstoneOut(Struct):
    gap_from: int
    gap_to: int
    """Both inclusive."""
    reason: Literal["cap", "ttl", "mixed", "source_trim", "recreated", "crash", "restart", "corrupt"]
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class AppendOut(Struct, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool


class DiffOut(Struct):
    topic: str
    records: list[RecordOut]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: TombstoneOut | None
    lag: int


class ItemOut(Struct, kw_only=True):
    """A record; or, where some were lost, a tombstone and nothing else."""

    seq: int | UnsetType = field(name="$seq", default=UNSET)
    ts: int | UnsetType = field(name="$ts", default=UNSET)
    node: str | UnsetType = field(name="$node", default=UNSET)
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    key: str | UnsetType = field(name="$key", default=UNSET)
    data: Any | UnsetType = UNSET
    meta: Any | UnsetType = UNSET
    tombstone: TombstoneOut | UnsetType = UNSET


class RecordsOut(Struct, kw_only=True):
    topic: str
    records: list[ItemOut]
    next_from_seq: int
    head_seq: int


class KeyOut(Struct, kw_only=True):
    topic: str
    key: str
    record: RecordOut | UnsetType | None = UNSET
    """Null where no live record has the key; with `history` it is `records` instead."""
    records: list[RecordOut] | UnsetType = UNSET
    next_from_seq: int | UnsetType = UNSET
    head_seq: int | UnsetType = UNSET


class JobOut(Struct, kw_only=True):
    seq: int = field(name="$seq")
    lease_id: str
    """`lease_` and a hexadecimal number that no other lease of the topic ever has."""
    deadline: int
    """Ms since 1970: after it the job is anybody's."""
    deliveries: int
    ts: int = field(name="$ts")
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    data: Any
    meta: Any | UnsetType = UNSET


class ClaimOut(Struct):
    topic: str
    claimed: list[JobOut]
    count: int
    ready: int


class _SettledOut(Struct, kw_only=True):
    topic: str
    skipped: list[int]
    why: dict[str, Why]
    """Of those that were skipped, by seq."""


class AckOut(_SettledOut, kw_only=True):
    acked: int
    ready: int
    in_flight: int


class NackOut(_SettledOut, kw_only=True):
    nacked: int
    ready: int
    in_flight: int


class ExtendOut(_SettledOut, kw_only=True):
    extended: int
    deadlines: dict[str, int]
