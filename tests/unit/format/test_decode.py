"""decode_columns: one walk that checks, filters and lays out."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.test_entries import segment, stamped
from tests.unit.format.twins import NOW, TOPIC, assert_same, batches, damaged, needs_kernel
from topics.format.batchops import SEGMENT_LAYOUT, WAL_LAYOUT
from topics.format.decode import COLUMN_DATA, COLUMN_KEY, COLUMN_META, COLUMN_NODE, COLUMN_TAG, COLUMN_TS
from topics.format.segment import DELETED, ENTRY_SIZE

ALL = COLUMN_TAG | COLUMN_NODE | COLUMN_KEY | COLUMN_DATA | COLUMN_META | COLUMN_TS
BATCH: list[dict[str, Any]] = [
    {"data": {"n": 1}, "tag": "eu.x", "node": "n1"},
    {"data": "two", "key": 'k"\n', "meta": {"x": [1]}},
    {"data": [3], "tag": "eu", "key": "plain"},
    {"data": None},
]


def values(column: tuple[bytes | None, bytes, bytes] | None, rows: int) -> list[str | None]:
    assert column is not None
    bits, offsets, text = column
    at = memoryview(offsets).cast("i").tolist()
    return [
        text[at[row] : at[row + 1]].decode() if bits is None or bits[row >> 3] >> (row & 7) & 1 else None
        for row in range(rows)
    ]


@pytest.mark.parametrize("in_segment", [False, True])
def test_columns_hold_what_was_stored(ops: ModuleType, in_segment: bool) -> None:
    frames, entries = segment(ops, BATCH) if in_segment else stamped(ops, BATCH)
    layout = SEGMENT_LAYOUT if in_segment else WAL_LAYOUT
    walked, rows, seqs, times, texts = ops.decode_columns(
        frames, entries, 0, 4, 10, layout, TOPIC, 0, b"\0\0\0\1", ALL, True
    )
    assert (walked, rows) == (4, 3)
    assert memoryview(seqs).cast("q").tolist() == [10, 11, 12]
    assert memoryview(times).cast("q").tolist() == [NOW] * 3
    assert [values(column, rows) for column in texts] == [
        ["eu.x", None, "eu"],
        ["n1", None, None],
        [None, 'k"\n', "plain"],
        ['{"n":1}', '"two"', "[3]"],
        [None, '{"x":[1]}', None],
    ]


def test_only_what_is_wanted_comes_out(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)

    def seqs(**wanted: Any) -> list[int]:
        walked, _rows, found, times, texts = ops.decode_columns(
            frames, entries, 0, 4, 10, WAL_LAYOUT, TOPIC, 0, None, 0, True, **wanted
        )
        assert (walked, times, texts) == (4, None, (None,) * 5)
        return memoryview(found).cast("q").tolist()

    assert seqs() == [10, 11, 12, 13]
    assert seqs(tag=b"eu") == [12]
    assert seqs(tag=b"eu", tag_prefix=True) == [10, 12]
    assert seqs(tag=b"", tag_prefix=True) == [10, 12]
    assert seqs(node=b"n1") == [10]
    assert seqs(key=b'k"\n') == [11]
    assert seqs(key=b"plain", tag=b"eu") == [12]
    assert seqs(key=b"none") == []


def test_deleted_frames_of_a_segment_are_passed_over(ops: ModuleType) -> None:
    frames, entries = segment(ops, BATCH)
    marked = bytearray(frames)
    end = int.from_bytes(entries[2 * ENTRY_SIZE : 2 * ENTRY_SIZE + 4], "little")
    marked[end - 1] = DELETED  # the last byte of the second frame
    _walked, rows, seqs, _times, _texts = ops.decode_columns(
        marked, entries, 0, 4, 10, SEGMENT_LAYOUT, TOPIC, 0, None, 0, True
    )
    assert (rows, memoryview(seqs).cast("q").tolist()) == (3, [10, 12, 13])


def test_a_frame_that_fails_its_check_ends_the_walk(ops: ModuleType) -> None:
    frames, entries = segment(ops, BATCH)
    rotten = frames.replace(b'"two"', b'"twp"')
    found = ops.decode_columns(rotten, entries, 0, 4, 10, SEGMENT_LAYOUT, TOPIC, 0, None, COLUMN_DATA, True)
    assert found[:2] == (1, 1)
    trusted = ops.decode_columns(rotten, entries, 0, 4, 10, SEGMENT_LAYOUT, TOPIC, 0, None, COLUMN_DATA, False)
    assert trusted[:2] == (4, 4)
    moved = ops.decode_columns(frames, entries, 0, 4, 11, SEGMENT_LAYOUT, TOPIC, 0, None, COLUMN_DATA, False)
    assert moved[:2] == (0, 0)


@needs_kernel
@given(
    batch=batches,
    in_segment=st.booleans(),
    dead=st.none() | st.binary(min_size=8, max_size=8),
    want=st.integers(0, 63),
    check=st.booleans(),
    tag=st.none() | st.sampled_from([b"", b"a"]),
    prefix=st.booleans(),
    key=st.none() | st.sampled_from([b"", b"a"]),
    data=st.data(),
)
def test_twins_decode_the_same_columns(
    batch: list[dict[str, Any]],
    in_segment: bool,
    dead: bytes | None,
    want: int,
    check: bool,
    tag: bytes | None,
    prefix: bool,
    key: bytes | None,
    data: st.DataObject,
) -> None:
    from topics.format.ops import reference

    frames, entries = segment(reference, batch) if in_segment else stamped(reference, batch)
    frames = data.draw(damaged(st.just(frames)))
    layout = SEGMENT_LAYOUT if in_segment else WAL_LAYOUT
    assert_same(
        "decode_columns", frames, entries, 0, len(batch), 10, layout, TOPIC, 0, dead, want, check,
        tag=tag, tag_prefix=prefix, key=key,
    )  # fmt: skip
