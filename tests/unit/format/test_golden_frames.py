"""The bytes of every kind of frame, written down once.

An encoder and a decoder that are changed together still agree with each other, and with no file of yesterday. So each
body stands here as literal bytes, in the order of the tables in docs/internals/formats.md, a group of digits per field.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any

import pytest

from topics.format import frame
from topics.format.control import (
    Dedupe,
    Delete,
    EvictWatermark,
    FileMark,
    HeadWatermark,
    Lease,
    LeaseEvent,
    LostRange,
    LostReason,
    MarkRow,
    PlainMark,
    RouterBits,
    RouterCreate,
    RouterCursor,
    RouterDelete,
    Selector,
    SelectorOp,
    SnapshotMark,
    SyncMark,
    TokenWatermark,
    TopicCreate,
    TopicDelete,
    decode_mark,
)
from topics.format.envelope import encode_envelope, split_envelope
from topics.format.frame import Kind, decode_frame, encode_frame
from topics.format.group import GroupEvent, GroupOp
from topics.format.staged import StageCommit, StageVerdict
from topics.model.leaserows import LeaseRun

NUMBERS = {
    Kind.APPEND: 1,
    Kind.TOPIC_CREATE: 2,
    Kind.TOPIC_DELETE: 3,
    Kind.ROUTER_CREATE: 4,
    Kind.ROUTER_DELETE: 5,
    Kind.DELETE: 6,
    Kind.EVICT_WATERMARK: 7,
    Kind.CHECKPOINT_MARK: 8,
    Kind.CONFIG_UPDATE: 9,
    Kind.LEASE: 10,
    Kind.HEAD_WATERMARK: 11,
    Kind.ROUTER_CURSOR: 64,
    Kind.DEDUPE: 65,
    Kind.LOST_RANGE: 66,
    Kind.TOKEN_WATERMARK: 80,
    Kind.STAGE_COMMIT: 85,
    Kind.STAGE_PREPARE: 86,
    Kind.STAGE_VERDICT: 87,
    Kind.GROUP: 90,
}

BODIES: list[tuple[Kind, str, Any]] = [
    (
        Kind.TOPIC_CREATE,
        "06000000 6f7264657273  14000000 7b226361705f7265636f726473223a313030307d",
        TopicCreate("orders", b'{"cap_records":1000}'),
    ),
    (Kind.CONFIG_UPDATE, "01000000 74  02000000 7b7d", TopicCreate("t", b"{}")),
    (Kind.TOPIC_DELETE, "06000000 6f7264657273  00000000", TopicDelete("orders")),
    (
        Kind.ROUTER_CREATE,
        "01000000 72  03000000 737263  04000000 64657374  15  01 01 02000000 6575"
        "1100000000000000 1200000000000000 1300000000000000 1400000000000000 1500000000000000",
        RouterCreate("r", "src", "dest", 21, Selector(1, "eu"), 17, 18, 19, 20, 21),
    ),
    (
        Kind.ROUTER_CREATE,
        "00000000  00000000  00000000  00  00"
        "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000",
        RouterCreate("", "", "", 0, None, 1, 2, 3, 4, 5),
    ),
    (Kind.ROUTER_DELETE, "02000000 c3a9", RouterDelete("\xe9")),
    (
        Kind.DELETE,
        "01 0900000000000000  01 00 02000000 6575  02000000 0300000000000000 0400000000000000  01 0a00000000000000"
        "02000000 0500000000000000 0600000000000000 0800000000000000 0800000000000000",
        Delete(before_seq=9, match=Selector(0, "eu"), seqs=(3, 4), bound=10, ranges=((5, 6), (8, 8))),
    ),
    (Kind.DELETE, "00  00  00000000  00", Delete()),
    (
        Kind.EVICT_WATERMARK,
        "1000000000000000 1100000000000000 0c00000000000000",
        EvictWatermark(evict_floor=16, earliest_seq=17, expiry_floor=12),
    ),
    (
        Kind.LEASE,
        "02  0700000000000000 e803000000000000 0300000000000000  02000000 7731",
        Lease(event=2, lease_id=7, deadline=1000, deliveries=3, node="w1"),
    ),
    (
        Kind.LEASE,
        "00  0700000000000000 e803000000000000 0100000000000000  00000000"
        "01000000 0500000000000000 0800000000000000 e903000000000000 0200000000000000",
        Lease(event=0, lease_id=7, deadline=1000, deliveries=1, node="", more=((5, 8, 1001, 2),)),
    ),
    (Kind.HEAD_WATERMARK, "0010000000000000", HeadWatermark(4096)),
    (
        Kind.ROUTER_CURSOR,
        "0300000000000000 6400000000000000 5800000000000000",
        RouterCursor(router_id=3, cursor=100, forwarded_total=88),
    ),
    (Kind.DEDUPE, "03000000 6b2d31  2a00000000000000 05000000", Dedupe("k-1", first_seq=42, count=5)),
    (Kind.LOST_RANGE, "0500000000000000 0900000000000000 02", LostRange(first=5, last=9, reason=2)),
    (Kind.TOKEN_WATERMARK, "0100010000000000", TokenWatermark(65537)),
    (
        Kind.STAGE_COMMIT,
        "02000000 7478  01000000 71  0b00000000000000 e803000000000000"
        "02000000 0700000000000000 03000000 0800000000000000 04000000",
        StageCommit("tx", "q", first_seq=11, ts=1000, parts=((7, 3), (8, 4))),
    ),
    (
        Kind.STAGE_PREPARE,
        "02000000 7478  00000000  0b00000000000000 e803000000000000  01000000 0700000000000000 03000000",
        StageCommit("tx", "", first_seq=11, ts=1000, parts=((7, 3),)),
    ),
    (
        Kind.STAGE_VERDICT,
        "02000000 7478  01000000 0200000000000000 0b00000000000000 0300000000000000",
        StageVerdict("tx", ((2, 11, 3),)),
    ),
    (
        Kind.GROUP,
        "04  02000000 6731  01000000 6d  1100000000000000 0200000000000000  02000000 7b7d"
        "01000000 0500000000000000 0900000000000000 e803000000000000 0300000000000000",
        GroupOp(4, "g1", "m", number=17, lost=2, text=b"{}", rows=((5, 9, 1000, 3),)),
    ),
    (
        Kind.GROUP,
        "04  01000000 67  00000000  0800000000000000 0000000000000000  00000000"
        "03000080 0500000000000000 0900000000000000 e803000000000000 0100000000000000",
        GroupOp(4, "g", number=8, rows=LeaseRun(range(5, 8), 9, 1000, 1)),
    ),
]

MARKS: list[tuple[str, Any]] = [
    ("2900000000000000", PlainMark(41)),
    (
        "2900000000000000  01 0600000000000000 01000000"
        "0100000000000000 2800000000000000 0300000000000000 0200000000000000 0500000000000000"
        "0600000000000000 0004000000000000 23000000",
        SnapshotMark(
            41,
            snapshot_id=6,
            rows=(
                MarkRow(
                    topic_id=1,
                    ckpt_seq=40,
                    evict_floor=3,
                    expiry_floor=2,
                    delete_below=5,
                    segment_first=6,
                    data_len=1024,
                    idx_entries=35,
                ),
            ),
        ),
    ),
    ("0000000000000000  02 0c00000000000000 0020000000000000", SyncMark(0, file_number=12, synced=8192)),
    (
        "0000000000000000  03 0c00000000000000 0b00000000000000 0030000000000000",
        FileMark(0, number=12, previous=11, previous_length=12288),
    ),
]

ENVELOPES: list[tuple[bytes, tuple[str | None, bytes | None, bytes]]] = [
    (b'{"d":{"n":1}}', (None, None, b'{"n":1}')),
    (b'{"k":"k\\"1","m":{"a":2},"d":[1]}', ('k"1', b'{"a":2}', b"[1]")),
    (b'{"k":"k","d":null}', ("k", None, b"null")),
    (b'{"m":{},"d":0}', (None, b"{}", b"0")),
]

CODES: dict[type[IntEnum | IntFlag], dict[str, int]] = {
    SelectorOp: {"EQ": 0, "GLOB": 1},
    RouterBits: {"PRESERVE_NODE": 1, "PRESERVE_TAG": 2, "CREATE_DEST": 4, "ALLOW_CYCLE": 8, "EXACTLY_ONCE": 16},
    LeaseEvent: {"CLAIMED": 0, "RELEASED": 1, "EXTENDED": 2, "ACKED": 3, "DEAD": 4},
    LostReason: {"SKIPPED": 0, "CRASH": 1, "CORRUPT": 2, "RESTART": 3, "SOURCE_TRIM": 4},
    GroupEvent: {
        "PUT": 0,
        "DROP": 1,
        "JOINED": 2,
        "LEFT": 3,
        "CLAIMED": 4,
        "RELEASED": 5,
        "EXTENDED": 6,
        "SETTLED": 7,
        "PARKED": 8,
        "DEAD": 9,
        "COMMITTED": 10,
        "SOUGHT": 11,
        "KEPT": 12,
    },
}


def named(vector: tuple[Any, ...]) -> str:
    return str(vector[0].name).lower()


def test_every_kind_has_its_number_and_a_vector_here() -> None:
    assert {kind: int(kind) for kind in Kind} == NUMBERS
    others = {Kind.APPEND, Kind.CHECKPOINT_MARK}  # their bodies stand in ENVELOPES and MARKS
    assert {kind for kind, _, _ in BODIES} == set(Kind) - others


@pytest.mark.parametrize("codes", CODES, ids=lambda codes: codes.__name__)
def test_every_code_inside_a_body_has_its_number(codes: type[IntEnum | IntFlag]) -> None:
    assert {code.name: int(code) for code in codes} == CODES[codes]


def test_flags_have_their_bits() -> None:
    assert (frame.TAG, frame.NODE, frame.DURABLE, frame.MORE) == (1, 2, 4, 8)


@pytest.mark.parametrize(("kind", "text", "value"), BODIES, ids=map(named, BODIES))
def test_body_has_the_golden_bytes_in_both_directions(kind: Kind, text: str, value: Any) -> None:
    assert value.encode().hex() == bytes.fromhex(text).hex()
    assert type(value).decode(bytes.fromhex(text)) == value


@pytest.mark.parametrize(("text", "mark"), MARKS, ids=[type(mark).__name__ for _, mark in MARKS])
def test_mark_has_the_golden_bytes_in_both_directions(text: str, mark: Any) -> None:
    assert mark.encode().hex() == bytes.fromhex(text).hex()
    assert decode_mark(bytes.fromhex(text)) == mark


def test_router_of_the_reference_has_no_ids() -> None:
    text = "01000000 72  01000000 73  01000000 64  03  00  1100000000000000 1200000000000000"
    assert RouterCreate.decode(bytes.fromhex(text)) == RouterCreate("r", "s", "d", 3, None, 17, 18, 0, 0, 0)


@pytest.mark.parametrize(("body", "parts"), ENVELOPES)
def test_envelope_has_the_golden_bytes_in_both_directions(
    body: bytes, parts: tuple[str | None, bytes | None, bytes]
) -> None:
    key, meta, data = parts
    assert encode_envelope(data, meta, key) == body
    assert split_envelope(body) == parts


def test_frame_around_a_body_has_the_golden_bytes_in_both_directions() -> None:
    text = (
        "3b000000 42 0c 0700000000000000 0000000000000000 2a68e5cf8b010000 0000 0000 11000000"
        "05000000000000000900000000000000 02"
    )
    encoded = encode_frame(66, 7, bytes.fromhex(text)[38:], ts=1_700_000_000_042, flags=12)
    assert encoded[:-8].hex() == bytes.fromhex(text).hex()
    assert encoded[-8:].hex() == "752bec93ffcf2668"
    found = decode_frame(encoded, 0, len(encoded))
    assert (found.kind, found.flags, found.topic_id, found.seq, found.ts) == (66, 12, 7, 0, 1_700_000_000_042)
