"""Bodies of the control frames: one small value per kind, with `encode` and `decode`.

`lp` below is a u32 length and as many bytes. `sel` is u8 0, or u8 1, u8 op, lp value. Every decoder checks a count
against the bytes that are left before it reads on, takes the whole body or raises BadBody, and never more memory
than a small multiple of the body.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Final, Self

import msgspec

from topics.format.fields import BadBody, FieldReader, lp
from topics.format.marks import FileMark, Mark, MarkRow, PlainMark, SnapshotMark, SyncMark, decode_mark
from topics.format.ops import pack_leases
from topics.model import limits
from topics.model.leaserows import LeaseRow

__all__ = [
    "BadBody",
    "Dedupe",
    "Delete",
    "EvictWatermark",
    "FileMark",
    "HeadWatermark",
    "Lease",
    "LeaseEvent",
    "LostRange",
    "LostReason",
    "Mark",
    "MarkRow",
    "PlainMark",
    "RouterBits",
    "RouterCreate",
    "RouterCursor",
    "RouterDelete",
    "Selector",
    "SelectorOp",
    "SnapshotMark",
    "SyncMark",
    "TokenWatermark",
    "TopicCreate",
    "TopicDelete",
    "decode_mark",
]

_U8: Final = struct.Struct("<B")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_U64x2: Final = struct.Struct("<QQ")
_U64x3: Final = struct.Struct("<QQQ")


class SelectorOp(enum.IntEnum):
    EQ = 0
    GLOB = 1


class Selector(msgspec.Struct, frozen=True):
    """Which tags: equal to `value`, or (Glob) beginning with it; the `*` itself is not stored."""

    op: int
    value: str

    def matches(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag.startswith(self.value) if self.op == SelectorOp.GLOB else tag == self.value


def _encode_selector(selector: Selector | None) -> bytes:
    if selector is None:
        return b"\0"
    return struct.pack("<BB", 1, selector.op) + lp(selector.value.encode())


def _read_selector(reader: FieldReader) -> Selector | None:
    if not reader.flag():
        return None
    op = reader.u8()
    if op not in (SelectorOp.EQ, SelectorOp.GLOB):
        raise BadBody(f"selector op {op} is unknown")
    return Selector(op, reader.text())


def _encode_optional(value: int | None) -> bytes:
    return b"\0" if value is None else b"\1" + _U64.pack(value)


class TopicCreate(msgspec.Struct, frozen=True):
    """Also the body of ConfigUpdate: lp name, lp config."""

    name: str
    config_json: bytes

    def encode(self) -> bytes:
        return lp(self.name.encode()) + lp(self.config_json)

    @classmethod
    def decode(cls, body: bytes) -> TopicCreate:
        reader = FieldReader(body)
        value = cls(reader.text(), reader.lp())
        reader.finish()
        return value


class TopicDelete(msgspec.Struct, frozen=True):
    """lp name, lp empty. The frame's topic_id says which topic; the name is for people."""

    name: str

    def encode(self) -> bytes:
        return lp(self.name.encode()) + lp(b"")

    @classmethod
    def decode(cls, body: bytes) -> TopicDelete:
        reader = FieldReader(body)
        value = cls(reader.text())
        reader.lp()
        reader.finish()
        return value


class RouterBits(enum.IntFlag):
    PRESERVE_NODE = 1
    PRESERVE_TAG = 2
    CREATE_DEST = 4
    ALLOW_CYCLE = 8
    EXACTLY_ONCE = 16


class RouterCreate(msgspec.Struct, frozen=True):
    """lp name, lp source, lp dest, u8 bits, sel filter, u64 cursor, u64 dest_base; ours then three u64 ids."""

    name: str
    source: str
    dest: str
    bits: int
    filter: Selector | None
    cursor: int
    dest_base: int
    router_id: int = 0
    """The three ids are 0 in a frame of the reference, which has none."""
    source_id: int = 0
    dest_id: int = 0

    def encode(self) -> bytes:
        return b"".join(
            (
                lp(self.name.encode()),
                lp(self.source.encode()),
                lp(self.dest.encode()),
                _U8.pack(self.bits),
                _encode_selector(self.filter),
                _U64x2.pack(self.cursor, self.dest_base),
                _U64x3.pack(self.router_id, self.source_id, self.dest_id),
            )
        )

    @classmethod
    def decode(cls, body: bytes) -> RouterCreate:
        reader = FieldReader(body)
        name, source, dest, bits = reader.text(), reader.text(), reader.text(), reader.u8()
        selector = _read_selector(reader)
        cursor, dest_base = reader.u64(), reader.u64()
        ids = (reader.u64(), reader.u64(), reader.u64()) if reader.left() else (0, 0, 0)
        reader.finish()
        return cls(name, source, dest, bits, selector, cursor, dest_base, *ids)


class RouterDelete(msgspec.Struct, frozen=True):
    """lp name."""

    name: str

    def encode(self) -> bytes:
        return lp(self.name.encode())

    @classmethod
    def decode(cls, body: bytes) -> RouterDelete:
        reader = FieldReader(body)
        value = cls(reader.text())
        reader.finish()
        return value


class RouterCursor(msgspec.Struct, frozen=True):
    """Three u64. In one submission with the copies it accounts for."""

    router_id: int
    cursor: int
    forwarded_total: int

    def encode(self) -> bytes:
        return _U64x3.pack(self.router_id, self.cursor, self.forwarded_total)

    @classmethod
    def decode(cls, body: bytes) -> RouterCursor:
        reader = FieldReader(body)
        value = cls(reader.u64(), reader.u64(), reader.u64())
        reader.finish()
        return value


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """u8 has [u64 before_seq], sel match, u32 n, n x u64 seqs, u8 has [u64 bound]; ours then u32 m, m x (first, last).

    `ranges` (both ends inclusive) are the seqs that `match` hit when the delete was ordered: live apply and replay
    use them and never evaluate the selector again. They are left out when there are none, as in a frame of the
    reference, where the selector itself, below `bound`, has to be replayed.
    """

    before_seq: int | None = None
    match: Selector | None = None
    seqs: tuple[int, ...] = ()
    bound: int | None = None
    """head + 1 when the delete was ordered."""
    ranges: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        if len(self.ranges) > limits.DELETE_RANGES:
            raise ValueError(f"{len(self.ranges)} ranges are more than the {limits.DELETE_RANGES} of one frame")
        parts = [
            _encode_optional(self.before_seq),
            _encode_selector(self.match),
            _U32.pack(len(self.seqs)),
            struct.pack(f"<{len(self.seqs)}Q", *self.seqs),
            _encode_optional(self.bound),
        ]
        if self.ranges:
            parts.append(_U32.pack(len(self.ranges)))
            parts.append(struct.pack(f"<{2 * len(self.ranges)}Q", *chain.from_iterable(self.ranges)))
        return b"".join(parts)

    @classmethod
    def decode(cls, body: bytes) -> Delete:
        reader = FieldReader(body)
        before_seq = reader.u64() if reader.flag() else None
        match = _read_selector(reader)
        seqs = reader.u64s(reader.u32())
        bound = reader.u64() if reader.flag() else None
        ranges: tuple[tuple[int, int], ...] = ()
        if reader.left():
            count = reader.u32()
            if count > limits.DELETE_RANGES:
                raise BadBody(f"{count} ranges are more than the {limits.DELETE_RANGES} of one frame")
            flat = reader.u64s(2 * count)
            ranges = tuple(zip(flat[::2], flat[1::2], strict=True))
            if any(first > last for first, last in ranges):
                raise BadBody("a range ends before it begins")
        reader.finish()
        return cls(before_seq=before_seq, match=match, seqs=seqs, bound=bound, ranges=ranges)


class EvictWatermark(msgspec.Struct, frozen=True):
    """Three u64 in this order."""

    evict_floor: int
    earliest_seq: int
    expiry_floor: int

    def encode(self) -> bytes:
        return _U64x3.pack(self.evict_floor, self.earliest_seq, self.expiry_floor)

    @classmethod
    def decode(cls, body: bytes) -> EvictWatermark:
        reader = FieldReader(body)
        value = cls(reader.u64(), reader.u64(), reader.u64())
        reader.finish()
        return value


class HeadWatermark(msgspec.Struct, frozen=True):
    """u64: no seq above it is acked before a higher ceiling is synced, so a restart knows which may be taken."""

    ceiling: int

    def encode(self) -> bytes:
        return _U64.pack(self.ceiling)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        reader = FieldReader(body)
        value = cls(reader.u64())
        reader.finish()
        return value


class LeaseEvent(enum.IntEnum):
    CLAIMED = 0
    RELEASED = 1
    EXTENDED = 2
    ACKED = 3
    DEAD = 4
    """Ours: it went to the dead letters; the Delete that takes it from the queue is in the same submission."""


class Lease(msgspec.Struct, frozen=True):
    """u8 event, u64 lease_id, u64 deadline, u64 deliveries, lp node; ours then u32 n, n x (u64 seq, lease_id, deadline,
    deliveries): the other jobs of the same call. The frame's seq names the first one."""

    event: int
    lease_id: int
    deadline: int
    deliveries: int
    node: str
    more: tuple[LeaseRow, ...] = ()

    def encode(self) -> bytes:
        fixed = struct.pack("<BQQQ", self.event, self.lease_id, self.deadline, self.deliveries)
        body = fixed + lp(self.node.encode())
        return body + _U32.pack(len(self.more)) + pack_leases(self.more, 0, 0) if self.more else body

    @classmethod
    def decode(cls, body: bytes) -> Lease:
        reader = FieldReader(body)
        fixed = (reader.u8(), reader.u64(), reader.u64(), reader.u64(), reader.text())
        more: tuple[LeaseRow, ...] = ()
        if reader.left():
            flat = iter(reader.u64s(4 * reader.u32()))
            more = tuple(zip(flat, flat, flat, flat, strict=True))
        reader.finish()
        if fixed[0] > LeaseEvent.DEAD:
            raise BadBody(f"lease event {fixed[0]} is unknown")
        return cls(*fixed, more)

    @staticmethod
    def body_of(event: LeaseEvent, node: str, rows: Sequence[LeaseRow], shift: int) -> bytes:
        """The body that says all of them; `shift` is added to every deadline but 0."""
        _, lease_id, deadline, deliveries = rows[0]
        deadline = deadline + shift if deadline else 0
        body = struct.pack("<BQQQ", event, lease_id, deadline, deliveries) + lp(node.encode())
        return body + _U32.pack(len(rows) - 1) + pack_leases(rows, 1, shift) if len(rows) > 1 else body

    def rows(self, seq: int) -> list[LeaseRow]:
        return [(seq, self.lease_id, self.deadline, self.deliveries), *self.more]


class TokenWatermark(HeadWatermark, frozen=True):
    """u64: no lease id, token or generation above it is given out before a higher one is synced."""


class Dedupe(msgspec.Struct, frozen=True):
    """lp key, u64 first_seq, u32 count: what an append with this idempotency key was given."""

    key: str
    first_seq: int
    count: int

    def encode(self) -> bytes:
        return lp(self.key.encode()) + struct.pack("<QI", self.first_seq, self.count)

    @classmethod
    def decode(cls, body: bytes) -> Dedupe:
        reader = FieldReader(body)
        value = cls(reader.text(), reader.u64(), reader.u32())
        reader.finish()
        return value


class LostReason(enum.IntEnum):
    SKIPPED = 0
    """Never handed out: not reported."""
    CRASH = 1
    CORRUPT = 2
    RESTART = 3
    SOURCE_TRIM = 4


class LostRange(msgspec.Struct, frozen=True):
    """u64 first, u64 last (inclusive), u8 reason."""

    first: int
    last: int
    reason: int

    def encode(self) -> bytes:
        return struct.pack("<QQB", self.first, self.last, self.reason)

    @classmethod
    def decode(cls, body: bytes) -> LostRange:
        reader = FieldReader(body)
        value = cls(reader.u64(), reader.u64(), reader.u8())
        reader.finish()
        if value.first > value.last:
            raise BadBody(f"lost range {value.first}..{value.last} ends before it begins")
        if value.reason > LostReason.SOURCE_TRIM:
            raise BadBody(f"lost reason {value.reason} is unknown")
        return value
