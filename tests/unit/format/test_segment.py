from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import damaged
from topics.format.frame import BadFrame
from topics.format.segment import (
    ACCOUNTED_MAX,
    DELETED,
    ENTRY,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    HOLE,
    OVERHEAD,
    decode_segment_frame,
    encode_entry,
    encode_segment_frame,
)

GOLDEN = bytes.fromhex(
    "40000000032a000000000000002a68e5cf8b01000005000c000d0000006e6f64654174656e616e743a6a6f622d317b2264223a7b226e22"
    "3a317d7d12d81f426cfb8b6d00"
)


def test_segment_frame_has_the_golden_bytes() -> None:
    assert encode_segment_frame(42, 1700000000042, b'{"d":{"n":1}}', node=b"nodeA", tag=b"tenant:job-1") == GOLDEN


def test_golden_frame_decodes_to_its_fields() -> None:
    frame = decode_segment_frame(b"xx" + GOLDEN, 2, 2 + len(GOLDEN))
    assert (frame.seq, frame.ts, frame.flags, frame.deleted) == (42, 1700000000042, 3, False)
    assert (frame.node, frame.tag, frame.body) == (b"nodeA", b"tenant:job-1", b'{"d":{"n":1}}')
    assert (frame.offset, frame.end) == (2, 2 + len(GOLDEN))


def test_only_the_one_byte_value_means_deleted() -> None:
    for value in range(256):
        frame = decode_segment_frame(GOLDEN[:-1] + bytes([value]), 0, len(GOLDEN))
        assert frame.deleted == (value == DELETED)
    assert encode_segment_frame(1, 1, b"{}", deleted=True)[-1] == DELETED


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.binary(max_size=40), st.booleans())
def test_decoding_gives_back_what_was_encoded(seq: int, ts: int, body: bytes, deleted: bool) -> None:
    data = encode_segment_frame(seq, ts, body, tag=b"t", deleted=deleted)
    frame = decode_segment_frame(data, 0, len(data))
    assert (frame.seq, frame.ts, frame.body, frame.deleted, frame.tag) == (seq, ts, body, deleted, b"t")
    assert len(data) == OVERHEAD + 1 + len(body)


def test_every_flipped_bit_but_the_deleted_flag_is_noticed() -> None:
    for at in range(len(GOLDEN) - 1):
        for bit in range(8):
            broken = bytearray(GOLDEN)
            broken[at] ^= 1 << bit
            with pytest.raises(BadFrame):
                decode_segment_frame(broken, 0, len(broken))


def test_every_cut_is_noticed() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(BadFrame):
            decode_segment_frame(GOLDEN, 0, size)


@given(damaged(st.just(GOLDEN + GOLDEN)) | st.binary(max_size=200), st.integers(0, 60))
def test_any_bytes_are_a_whole_frame_or_damage(data: bytes, at: int) -> None:
    """F-FUZZ-SEGMENT-DECODER: whatever is read, nothing but BadFrame comes of it, and no frame reaches beyond it."""
    at = min(at, len(data))
    try:
        frame = decode_segment_frame(data, at, len(data))
    except BadFrame:
        return
    assert at < frame.end <= len(data)
    assert data[at : frame.end - 1] == GOLDEN[:-1]


def test_entry_layouts_agree() -> None:
    assert ENTRY.size == ENTRY_SIZE == ENTRY_DTYPE.itemsize == 20
    data = encode_entry(1, 2, 3, HOLE, 0x030201) + encode_entry(4, 5, 6, 0, ACCOUNTED_MAX + 5)
    array = np.frombuffer(data, ENTRY_DTYPE)
    assert array["offset"].tolist() == [1, 4]
    assert array["length"].tolist() == [2, 5]
    assert array["ts"].tolist() == [3, 6]
    assert array["flags"].tolist() == [HOLE, 0]
    assert array["accounted"].tolist() == [[1, 2, 3], list(ACCOUNTED_MAX.to_bytes(3, "little"))]
