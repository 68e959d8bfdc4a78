"""The shapes of successful answers. Unknown fields are ignored, so that a newer server is understood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec

from topics.client.transport import Answer
from topics.model.config import TopicConfig
from topics.model.errors import BadAnswer
from topics.model.record import Gap, GapReason, Record

T = TypeVar("T")


class Configured(msgspec.Struct, frozen=True):
    topic: str
    created: bool
    config: TopicConfig


class SegmentCounts(msgspec.Struct, frozen=True):
    hot: int = 0
    cold: int = 0
    hot_bytes: int = 0
    cold_bytes: int = 0


class TopicState(msgspec.Struct, frozen=True):
    topic: str
    head_seq: int
    """Highest seq ever assigned; 0 when never written."""
    earliest_seq: int
    """Lowest live seq; head_seq + 1 when none is."""
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    type: str = "log"
    effective_priority: int = 0
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    epoch: int | None = None
    """New at every re-creation; give it to `diff` to notice one."""
    store: str | None = None
    created_ts: int | None = None
    durable_seq: int | None = None
    """All at or below it is synced; None for ephemeral topics."""
    segments: SegmentCounts | None = None
    groups: int = 0


class TopicSummary(msgspec.Struct, frozen=True):
    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool = False
    effective_priority: int = 0


class TopicPage(msgspec.Struct, frozen=True):
    topics: list[TopicSummary]
    next_cursor: str | None = None
    """Of the next page; None = this is the last."""


class Dropped(msgspec.Struct, frozen=True):
    topic: str
    deleted: bool
    """False: there was none. After a retry that may mean the first try did it."""
    routers_removed: list[str] = []


class Appended(msgspec.Struct, frozen=True):
    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool = False
    deduped: bool = False
    """True: an earlier append under the same idempotency key was answered again, and nothing was appended."""
    seqs: list[int] | None = None


class Deleted(msgspec.Struct, frozen=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class Batch(msgspec.Struct, frozen=True):
    """What a diff or a page of history gave."""

    topic: str
    records: list[Record]
    gap: Gap | None
    """Lost records before the ones that are here."""
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    """The end signal. `records` may be empty while the cursor moved."""
    lag: int

    def items(self) -> Iterator[Record | Gap]:
        if self.gap is not None:
            yield self.gap
        yield from self.records


class HistoryPage(msgspec.Struct, frozen=True):
    """A page of `/records`: its gaps stand among its records, in order."""

    items: list[Record | Gap]
    next_from_seq: int | None
    """Where the next page begins (inclusive)."""
    head_seq: int | None


class Router(msgspec.Struct, frozen=True):
    router: str
    source: str
    dest: str
    guarantee: str = "at_least_once"
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Any = None
    allow_cycle: bool = False
    forwarded_total: int = 0
    created: bool = False


class RouterPage(msgspec.Struct, frozen=True):
    routers: list[Router]
    next_cursor: str | None = None


class RouterDropped(msgspec.Struct, frozen=True):
    router: str
    deleted: bool


class Head(msgspec.Struct, frozen=True):
    epoch: int
    head_seq: int
    earliest_seq: int
    durable_seq: int | None = None
    loss_floor: int | None = None
    bytes_ahead: int | None = None


class Heads(msgspec.Struct, frozen=True):
    topics: dict[str, Head]
    """All at one instant."""
    store: str | None = None


class Segment(msgspec.Struct, frozen=True):
    first_seq: int
    end_seq: int
    records: int
    bytes: int
    tier: str
    sealed: bool
    generation: int
    parts: dict[str, Any]
    path: str | None = None
    deleted: list[tuple[int, int]] = []
    """Deletes that are not yet in the file."""
    idx_xxh3: str | None = None
    """Checksum of the whole `.idx` in hex, once it is sealed."""


class Span(msgspec.Struct, frozen=True):
    from_seq: int
    to_seq: int


class SegmentList(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    epoch: int
    head_seq: int
    earliest_seq: int
    segments: list[Segment]
    store: str | None = None
    durable_seq: int | None = None
    loss_floor: int | None = None
    tail: Span | None = None
    """What only `/records` can give."""
    gaps: list[tuple[int, int, str]] = []
    """Inclusive ranges of the asked seqs that were lost against anyone's will, and why."""


class At(msgspec.Struct, frozen=True):
    seq: int
    """Of the first live record at or after the asked time; head_seq + 1 if there is none."""
    ts: int | None = None
    topic: str = ""


class Part(msgspec.Struct, frozen=True):
    """Bytes of a segment's file."""

    data: bytes
    start: int
    """Offset of the first byte in the file."""
    size: int
    """Of the whole file."""
    etag: str | None


class Health(msgspec.Struct, frozen=True):
    status: str
    version: str
    uptime_ms: int


class Ready(msgspec.Struct, frozen=True):
    status: str
    topics: int = 0
    wal_replay_complete: bool = True


# -- records and tombstones as they stand on the wire ----------------------------------------------------------------


class WireGap(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str

    def gap(self) -> Gap:
        # The contract calls the reason informational: a new word of a newer server passes through.
        return Gap(self.gap_from, self.gap_to, cast(GapReason, self.reason))


class End(msgspec.Struct):
    """The last line of a stream: it was not cut."""

    next_from_seq: int
    head_seq: int


class WireItem(msgspec.Struct):
    """A record, or one of the lines that stand between records in a stream."""

    seq: int = msgspec.field(name="$seq", default=0)
    ts: int = msgspec.field(name="$ts", default=0)
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    key: str | None = msgspec.field(name="$key", default=None)
    data: msgspec.Raw = msgspec.Raw(b"null")
    meta: msgspec.Raw = msgspec.Raw(b"")
    """Empty where there is none; JSON text never is."""
    tombstone: WireGap | None = None
    end: End | None = None

    def record(self) -> Record:
        if not self.seq:
            raise BadAnswer("the server sent a record without $seq")
        return Record(self.seq, self.ts, self.tag, self.node, self.key, bytes(self.meta) or None, bytes(self.data))

    def item(self) -> Record | Gap:
        return self.record() if self.tombstone is None else self.tombstone.gap()


class WireDiff(msgspec.Struct):
    topic: str
    records: list[WireItem]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: WireGap | None = None

    def batch(self) -> Batch:
        return Batch(
            self.topic,
            [record.record() for record in self.records],
            None if self.tombstone is None else self.tombstone.gap(),
            self.next_from_seq,
            self.head_seq,
            self.earliest_seq,
            self.caught_up,
            self.lag,
        )


class WireLatest(msgspec.Struct):
    record: WireItem | None = None

    def found(self) -> Record | None:
        return None if self.record is None else self.record.record()


class WirePage(msgspec.Struct):
    records: list[WireItem]
    next_from_seq: int | None = None
    head_seq: int | None = None

    def page(self) -> HistoryPage:
        return HistoryPage([record.item() for record in self.records], self.next_from_seq, self.head_seq)


def decode(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAnswer(
            f"the answer is not the {kind.__name__} that was expected: {error}", status=answer.status
        ) from None
