"""What calls of an embedded log answer."""

from __future__ import annotations

import msgspec

from topics.model.config import TopicConfig


class Appended(msgspec.Struct, frozen=True):
    """What an append was given."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    ts: int
    deduped: bool
    """True: an earlier append under the same idempotency key was answered again, and nothing was appended."""


class Deleted(msgspec.Struct, frozen=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int


class TopicInfo(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    """New at every re-creation: a cursor kept from before belongs to another topic."""
    head_seq: int
    earliest_seq: int
    """First live seq; head_seq + 1 where none is."""
    evict_floor: int
    """Everything below it was lost to a cap or to age."""
    count: int
    bytes: int
    created_ts: int
    last_write_ts: int | None
    config: TopicConfig
    segments: int
    read_only: bool
    """Its WAL shard stopped after a failed write; reopen the store to write again."""
    trouble: str | None
    """Why writes are refused at this moment: the shard is read-only, or its disk is full. None = they are not."""

    @property
    def next_seq(self) -> int:
        return self.head_seq + 1
