"""The Rust program's snapshot: its bytes, its positions, and bytes that only look like one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.storage.rust.directory import (
    Topic,
    append,
    delete,
    head_watermark,
    number,
    record,
    segment_frame,
    signed,
    snapshot,
    snapshot_router,
    text,
)
from topics.format.checksum import xxh3_64
from topics.format.container import BadContainer
from topics.format.control import Delete, HeadWatermark, Selector, SelectorOp
from topics.format.frame import decode_frame
from topics.format.rustsnapshot import UnknownSnapshot, decode_rust_snapshot, read_record
from topics.format.segment import decode_segment_frame

APPEND = (
    "48000000010707000000000000002a000000000000002a68e5cf8b01000005000c000d0000006e6f64654174656e616e743a6a6f622d31"
    "7b2264223a7b226e223a317d7d9e818d17413a43d3"
)
DELETE = (
    "450000000604070000000000000000000000000000002b68e5cf8b010000000000001b0000000001010700000074656e616e743a0000"
    "0000012b0000000000000093b39f5e59a90fac"
)
HEAD = "320000000b04070000000000000000000000000000000c0000000000000000000000080000000010000000000000a0ef243195a2cc8a"
SEGMENT = (
    "40000000032a000000000000002a68e5cf8b01000005000c000d0000006e6f64654174656e616e743a6a6f622d317b2264223a7b226e223a"
    "317d7d12d81f426cfb8b6d00"
)


def test_the_directories_of_these_tests_have_the_bytes_of_the_reference() -> None:
    ts = 1_700_000_000_042
    assert append(7, 42, {"n": 1}, ts=ts, node="nodeA", tag="tenant:job-1").hex() == APPEND
    assert delete(7, match=(1, "tenant:"), bound=43, ts=ts + 1).hex() == DELETE
    assert head_watermark(7, 4096, ts=12).hex() == HEAD
    plain = segment_frame(42, {"n": 1}, ts=ts, tag="tenant:job-1")
    assert len(plain) == len(bytes.fromhex(SEGMENT)) - len("nodeA")


def test_frames_of_the_reference_are_read() -> None:
    raw = bytes.fromhex(APPEND)
    found = decode_frame(raw, 0, len(raw))
    assert (found.topic_id, found.seq, found.node, found.tag) == (7, 42, b"nodeA", b"tenant:job-1")
    assert found.body == b'{"d":{"n":1}}'
    raw = bytes.fromhex(DELETE)
    body = Delete.decode(decode_frame(raw, 0, len(raw)).body)
    assert (body.match, body.bound, body.ranges) == (Selector(SelectorOp.GLOB, "tenant:"), 43, ())
    raw = bytes.fromhex(HEAD)
    assert HeadWatermark.decode(decode_frame(raw, 0, len(raw)).body).ceiling == 4096
    raw = bytes.fromhex(SEGMENT)
    assert (decode_segment_frame(raw, 0, len(raw)).seq, decode_segment_frame(raw, 0, len(raw)).deleted) == (42, False)


def test_a_snapshot_begins_with_its_mark_its_version_its_length_and_its_hash() -> None:
    data = snapshot([Topic("a", 1, 0)])
    assert data[:8] == bytes.fromhex("534e503103000000")
    assert struct.unpack_from("<IQ", data, 8) == (len(data) - 20, xxh3_64(data[20:]))


def full() -> bytes:
    records = [
        record(3, {"a": [1, 2]}, ts=-7, node="n", tag="t", meta={"m": True}),
        record(4, None, ts=1 << 40),
        record(9, raw=b'{ "spaced" : 1 }'),
        record(10, raw=b"not json"),
    ]
    topic = Topic("a", 7, 12, records, base=2, evict=1, expiry=2, delete_floor=1, delete_below=2, trim=1)
    router = snapshot_router("r", "a", "b", cursor=4, total=2, match=(1, "x:"), exactly_once=True)
    return snapshot([topic, Topic("b", 8, 0)], [router], positions=[(3, 40), (4, 0)], keys=["", "shard-01"], next_id=9)


def test_every_field_of_a_snapshot_is_read() -> None:
    data = full()
    found = decode_rust_snapshot(data)
    assert (found.id, found.ts, found.next_topic_id) == (1, 2000, 9)
    topic = found.topics[0]
    assert (topic.name, topic.id, topic.base, topic.head) == ("a", 7, 2, 12)
    assert (topic.evict_floor, topic.expiry_floor, topic.trim_floor) == (1, 2, 1)
    assert (topic.delete_floor, topic.delete_below) == (1, 2)
    assert list(topic.seqs) == [3, 4, 9, 10]
    assert list(topic.nulls) == [4, 10]
    assert list(topic.broken) == [10]
    records = [read_record(memoryview(data), at) for at in topic.places]
    assert [one.data for one in records] == [b'{"a":[1,2]}', b"null", b'{"spaced":1}', b"null"]
    assert (records[0].node, records[0].tag, records[0].meta, records[0].ts) == (b"n", b"t", b'{"m":true}', 0)
    assert [len(one.frame(7, one.ts)) for one in records] == list(topic.sizes)
    router = found.routers[0]
    assert (router.name, router.source, router.dest, router.cursor, router.forwarded) == ("r", "a", "b", 4, 2)
    assert (router.bits, router.filter) == (1 | 2 | 16, Selector(SelectorOp.GLOB, "x:"))


def test_a_frame_made_of_a_record_is_a_valid_append() -> None:
    data = full()
    topic = decode_rust_snapshot(data).topics[0]
    raw = read_record(memoryview(data), topic.places[0]).frame(7, 55)
    found = decode_frame(raw, 0, len(raw))
    assert (found.topic_id, found.seq, found.ts, found.node, found.tag) == (7, 3, 55, b"n", b"t")
    assert found.body == b'{"m":{"m":true},"d":{"a":[1,2]}}'


def test_positions_go_by_group_key() -> None:
    found = decode_rust_snapshot(snapshot(positions=[(3, 40), (4, 9)], keys=["shard-00", ""], first=(3, 40)))
    assert [found.position(key) for key in ("", "shard-00", "shard-01")] == [(4, 9), (3, 40), None]


def test_without_keys_the_flat_group_has_the_first_position_and_a_shard_the_one_of_its_number() -> None:
    flat = decode_rust_snapshot(snapshot(first=(2, 77)))
    assert [flat.position(key) for key in ("", "shard-00")] == [(2, 77), None]
    one = decode_rust_snapshot(snapshot(first=(2, 77), positions=[(2, 77)]))
    assert [one.position(key) for key in ("", "shard-00")] == [(2, 77), (2, 77)]
    two = decode_rust_snapshot(snapshot(first=(2, 77), positions=[(2, 77), (5, 1)]))
    assert [two.position(key) for key in ("", "shard-01", "shard-02")] == [None, (5, 1), None]


def sealed(body: bytes) -> bytes:
    return b"SNP1" + struct.pack("<IIQ", 3, len(body), xxh3_64(body)) + body


def test_any_changed_byte_is_noticed() -> None:
    data = full()
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 0x10
        with pytest.raises(BadContainer):
            decode_rust_snapshot(spoiled)


def test_a_snapshot_that_is_cut_or_goes_on_is_refused() -> None:
    data = full()
    for size in range(len(data)):
        with pytest.raises(BadContainer):
            decode_rust_snapshot(data[:size])
        if size >= 20:
            with pytest.raises(BadContainer):
                decode_rust_snapshot(sealed(data[20:size]))
    with pytest.raises(BadContainer):
        decode_rust_snapshot(data + b"\0")
    with pytest.raises(BadContainer):
        decode_rust_snapshot(sealed(data[20:] + b"\0"))


def test_another_version_is_told_from_damage() -> None:
    with pytest.raises(UnknownSnapshot, match="version 4"):
        decode_rust_snapshot(snapshot(version=4))


@pytest.mark.parametrize(
    "topic",
    [
        Topic("a", 1, 5, [record(3), record(3)]),
        Topic("a", 1, 5, [record(4), record(3)]),
        Topic("a", 1, 5, [record(6)]),
        Topic("a", 1, 5, [record(1)], base=2),
        Topic("a", 0, 5),
        Topic("a", 1, 1 << 63),
        Topic("a", 1 << 63, 5),
    ],
)
def test_seqs_and_ids_that_cannot_be_are_refused(topic: Topic) -> None:
    with pytest.raises(BadContainer):
        decode_rust_snapshot(snapshot([topic]))


def test_two_topics_of_one_name_or_id_are_refused() -> None:
    for other in (Topic("a", 2, 0), Topic("b", 1, 0)):
        with pytest.raises(BadContainer, match="twice"):
            decode_rust_snapshot(snapshot([Topic("a", 1, 0), other]))


def test_a_node_or_tag_that_fits_into_no_frame_is_refused() -> None:
    for tag in ("x" * 65_536, b"\xff"):
        raw = number(1) + signed(0) + b"\0" + b"\1" + text(tag) + text(b"1") + b"\0" + number(1)
        with pytest.raises(BadContainer, match="too long or not UTF-8"):
            decode_rust_snapshot(snapshot([Topic("a", 1, 5, [raw])]))


@given(st.binary(max_size=200))
def test_hostile_bodies_are_read_or_refused(body: bytes) -> None:
    try:
        found = decode_rust_snapshot(sealed(body))
    except BadContainer:
        return
    assert found.next_topic_id >= 0


@given(st.data())
def test_hostile_changes_to_a_body_are_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(full()[20:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_rust_snapshot(sealed(bytes(body)))
    except BadContainer:
        return
    for topic in found.topics:
        assert list(topic.seqs) == sorted(set(topic.seqs))
        assert all(seq <= topic.head for seq in topic.seqs)
