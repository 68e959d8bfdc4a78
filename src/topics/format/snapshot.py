"""The metadata snapshot: what recovery starts from. JSON in a container, no payloads.

It states, per WAL group, the synced position P up to which every frame's effect is contained in it and beyond which
none is; per topic everything that cannot be had from its segments.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.format.container import BadContainer, Buffer, unwrap, wrap

MAGIC: Final = b"PTM1"


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Everything in files below `file`, and in it below `offset`, is contained in the snapshot."""

    file: int
    offset: int


class SegmentRow(msgspec.Struct, array_like=True):
    first: int
    count: int
    """Entries, holes included."""
    data_len: int
    """Trusted bytes of `.data`."""
    sealed: bool
    idx_xxh3: int
    generation: int
    tags: bool
    keys: bool | None = None


class TopicRow(msgspec.Struct, kw_only=True):
    id: int
    name: str
    config: msgspec.Raw
    created_ts: int
    head: int
    ckpt_seq: int
    """Last seq handed or skipped at or before P, copied or not. Replay skips Appends at or below it."""
    ceiling: int
    """Reserved head of a `disk` topic."""
    evict_floor: int
    expiry_floor: int
    trim_floor: int
    delete_below: int
    lost: list[tuple[int, int, int]]
    """(first, last, reason) of ranges that readers are told of."""
    live: int
    bytes: int
    last_ts: int
    segments: list[SegmentRow]
    """All of them; only the last may be unsealed, and its lengths are the ones to trust."""
    dead: list[tuple[int, int]]
    """Seqs above the floors and up to ckpt_seq that no reader gets."""
    unflagged: list[tuple[int, int]]
    """Deleted ranges whose frames do not carry the delete flag yet."""
    dedupe: list[tuple[str, int, int, int]]
    """(key, first seq, count, ts), oldest first."""
    txns: list[tuple[str, str, int, int, int]] = []
    """(transaction, query, first seq, count, ts) of commits of staged parts that are remembered."""
    tokens: tuple[int, int] = (1, 0)
    """The next lease id or token, as a clean stop knows it, and the highest one that is reserved."""
    queue: QueueRow | None = None
    groups: list[GroupRow] = []


class QueueRow(msgspec.Struct, array_like=True):
    """The leases of a queue, in wall time."""

    position: int
    holders: list[str]
    columns: bytes
    """Packed: see rules/lease_columns.py."""
    dead_lettered: int
    at_ms: int
    """When it was so."""


class GroupRow(msgspec.Struct, array_like=True):
    """A consumer group, in wall time."""

    name: str
    config: msgspec.Raw
    position: int
    """The next seq that was never handed out; of a stream group, the one that is committed."""
    holders: list[str]
    columns: bytes
    """Packed: see rules/lease_columns.py."""
    counters: list[int]
    members: list[tuple[str, int]]
    """(name, generation)."""
    used_ms: int
    at_ms: int
    """When it was so."""


class RouterRow(msgspec.Struct, array_like=True):
    id: int
    name: str
    source: str
    dest: str
    source_id: int
    dest_id: int
    bits: int
    filter: tuple[int, str] | None
    start: int
    """The cursor it was made with."""
    cursor: int
    """As of the mark in the dest's shard: ahead of it, copies would be missing."""
    forwarded: int


class VerdictRow(msgspec.Struct, frozen=True, array_like=True):
    """A decided commit over several topics: its Prepares may lie behind the positions of their groups, the frame that
    decided them before that of shard 0."""

    txn: str
    rows: list[tuple[int, int, int]]
    """(topic id, first seq, count)."""
    places: list[tuple[str, int]]
    """(WAL group, file number) of the Prepares."""


class SnapshotHead(msgspec.Struct, kw_only=True):
    id: int
    ts: int
    clean: bool
    """Written by a clean stop: no frame follows the positions."""
    next_topic_id: int
    next_wal: int
    shards: int
    """WAL shards of the layout in use; other groups listed below are on their way out."""
    positions: dict[str, Position]
    """By WAL group key: "" for the flat layout, "shard-NN" otherwise."""
    routers: list[RouterRow] = []
    verdicts: list[VerdictRow] = []
    dropped: list[int] = []
    """Topics that ended, where a file or a frame of theirs may still be there: the frame that ended them may lie below
    the positions."""
    half: bool = False
    """The first of two that are written one behind the other, because the one before them is not to be fallen back to.
    Found as the newest, both are still to be written."""


class Snapshot(SnapshotHead, kw_only=True):
    topics: list[TopicRow]


class _Wire(SnapshotHead, kw_only=True):
    topics: list[msgspec.Raw]


_decoder: Final = msgspec.json.Decoder(Snapshot)


def encode_row(row: TopicRow) -> bytes:
    return msgspec.json.encode(row)


def encode_snapshot(head: SnapshotHead, rows: list[bytes]) -> bytes:
    """`rows` are topics already encoded, so that unchanged ones cost a copy."""
    wire = _Wire(
        id=head.id,
        ts=head.ts,
        clean=head.clean,
        half=head.half,
        next_topic_id=head.next_topic_id,
        next_wal=head.next_wal,
        shards=head.shards,
        positions=head.positions,
        routers=head.routers,
        verdicts=head.verdicts,
        dropped=head.dropped,
        topics=[msgspec.Raw(row) for row in rows],
    )
    return wrap(MAGIC, msgspec.json.encode(wire))


def decode_snapshot(buf: Buffer) -> Snapshot:
    """The snapshot, or BadContainer."""
    body = unwrap(MAGIC, buf)
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadContainer(f"body is not a snapshot: {error}") from None
