from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.format.checksum import xxh3_64
from topics.format.control import Delete, HeadWatermark, Selector
from topics.format.frame import (
    DURABLE,
    HEADER,
    KNOWN_KINDS,
    MORE,
    NODE,
    OVERHEAD,
    TAG,
    BadFrame,
    Kind,
    decode_frame,
    encode_frame,
)
from topics.model import limits

APPEND = bytes.fromhex(
    "48000000010707000000000000002a000000000000002a68e5cf8b01000005000c000d0000006e6f64654174656e616e743a6a6f622d31"
    "7b2264223a7b226e223a317d7d9e818d17413a43d3"
)
DELETE = bytes.fromhex(
    "450000000604070000000000000000000000000000002b68e5cf8b010000000000001b0000000001010700000074656e616e743a000000"
    "00012b0000000000000093b39f5e59a90fac"
)
HEAD_WATERMARK = bytes.fromhex(
    "320000000b04070000000000000000000000000000000c0000000000000000000000080000000010000000000000a0ef243195a2cc8a"
)


def rehashed(frame: bytes | bytearray) -> bytes:
    return bytes(frame[:-8]) + struct.pack("<Q", xxh3_64(frame[4:-8]))


def test_append_frame_has_the_golden_bytes() -> None:
    frame = encode_frame(
        Kind.APPEND,
        7,
        b'{"d":{"n":1}}',
        seq=42,
        ts=1700000000042,
        flags=DURABLE,
        node=b"nodeA",
        tag=b"tenant:job-1",
    )
    assert frame == APPEND


def test_delete_frame_has_the_golden_bytes() -> None:
    body = Delete(match=Selector(1, "tenant:"), bound=43).encode()
    assert encode_frame(Kind.DELETE, 7, body, ts=1700000000043, flags=DURABLE) == DELETE
    assert Delete.decode(decode_frame(DELETE, 0, len(DELETE)).body) == Delete(match=Selector(1, "tenant:"), bound=43)


def test_head_watermark_frame_has_the_golden_bytes() -> None:
    assert encode_frame(Kind.HEAD_WATERMARK, 7, HeadWatermark(4096).encode(), ts=12, flags=DURABLE) == HEAD_WATERMARK


def test_golden_append_decodes_to_its_fields() -> None:
    frame = decode_frame(b"junk" + APPEND + b"junk", 4, 4 + len(APPEND))
    assert (frame.kind, frame.flags, frame.topic_id, frame.seq, frame.ts) == (Kind.APPEND, 7, 7, 42, 1700000000042)
    assert (frame.node, frame.tag, frame.body) == (b"nodeA", b"tenant:job-1", b'{"d":{"n":1}}')
    assert (frame.offset, frame.end) == (4, 4 + len(APPEND))


@given(
    kind=st.sampled_from([kind for kind in Kind if kind != Kind.APPEND]),
    topic_id=st.integers(0, (1 << 64) - 1),
    seq=st.integers(0, (1 << 64) - 1),
    ts=st.integers(0, (1 << 64) - 1),
    node=st.text(max_size=20),
    tag=st.text(max_size=20),
    body=st.binary(max_size=50),
    more=st.booleans(),
)
def test_decoding_gives_back_what_was_encoded(
    kind: Kind, topic_id: int, seq: int, ts: int, node: str, tag: str, body: bytes, more: bool
) -> None:
    frame = encode_frame(
        kind,
        topic_id,
        body,
        seq=seq,
        ts=ts,
        node=node.encode("utf-8", "ignore"),
        tag=tag.encode("utf-8", "ignore"),
        flags=MORE if more else 0,
    )
    found = decode_frame(frame, 0, len(frame))
    assert found.end == len(frame) == OVERHEAD + len(found.node) + len(found.tag) + len(body)
    assert (found.kind, found.topic_id, found.seq, found.ts, found.body) == (kind, topic_id, seq, ts, body)
    assert (found.node, found.tag) == (node.encode("utf-8", "ignore"), tag.encode("utf-8", "ignore"))
    assert bool(found.flags & MORE) == more


def test_present_but_empty_tag_keeps_its_flag() -> None:
    frame = encode_frame(Kind.APPEND, 1, b'{"d":1}', flags=TAG | NODE)
    assert decode_frame(frame, 0, len(frame)).flags == TAG | NODE


@pytest.mark.parametrize("at", range(len(APPEND)))
def test_every_flipped_bit_is_noticed(at: int) -> None:
    for bit in range(8):
        broken = bytearray(APPEND)
        broken[at] ^= 1 << bit
        with pytest.raises(BadFrame):
            decode_frame(broken, 0, len(broken))


def test_every_cut_is_noticed() -> None:
    for size in range(len(APPEND)):
        with pytest.raises(BadFrame):
            decode_frame(APPEND, 0, size)


def test_unknown_kinds_are_refused() -> None:
    for kind in range(256):
        frame = encode_frame(kind, 0, b'{"d":1}')
        if kind in KNOWN_KINDS:
            assert decode_frame(frame, 0, len(frame)).kind == kind
        else:
            with pytest.raises(BadFrame, match="kind"):
                decode_frame(frame, 0, len(frame))


@pytest.mark.parametrize("names", [{"node": b"\xff"}, {"tag": b"\xed\xa0\x80"}, {"node": b"\xc3", "tag": b"\xa9"}])
def test_names_that_are_not_utf8_are_refused(names: dict[str, bytes]) -> None:
    frame = encode_frame(Kind.HEAD_WATERMARK, 1, bytes(8), **names)  # type: ignore[arg-type]
    with pytest.raises(BadFrame, match="UTF-8"):
        decode_frame(frame, 0, len(frame))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"d":}', b'{"x":1}', b'{"m":1}', b'"d":1'])
def test_append_without_an_envelope_is_refused(body: bytes) -> None:
    frame = encode_frame(Kind.APPEND, 1, body)
    with pytest.raises(BadFrame, match="envelope"):
        decode_frame(frame, 0, len(frame))


def test_garbled_length_never_reads_beyond_the_limit() -> None:
    for frame_len in (0, 41, 43, 0x7FFFFFFF, 0xFFFFFFFF):
        broken = struct.pack("<I", frame_len) + APPEND[4:]
        with pytest.raises(BadFrame):
            decode_frame(broken, 0, len(broken))
    huge = bytearray(APPEND)
    huge[34:38] = struct.pack("<I", limits.FRAME_BYTES)
    huge[:4] = struct.pack("<I", 42 + 5 + 12 + limits.FRAME_BYTES)
    with pytest.raises(BadFrame, match="limit"):
        decode_frame(rehashed(huge), 0, len(huge))


def test_frame_beyond_the_size_limit_is_not_written() -> None:
    with pytest.raises(ValueError, match="longer than the limit"):
        encode_frame(Kind.DELETE, 1, bytes(limits.FRAME_BYTES))


def test_range_outside_the_buffer_is_refused() -> None:
    for offset, limit in ((-1, 10), (5, 4), (0, len(APPEND) + 1)):
        with pytest.raises(ValueError, match="outside"):
            decode_frame(APPEND, offset, limit)


def test_header_sizes_match_the_layout() -> None:
    assert (HEADER, OVERHEAD) == (38, 46)
    assert len(encode_frame(Kind.CHECKPOINT_MARK, 0)) == OVERHEAD
