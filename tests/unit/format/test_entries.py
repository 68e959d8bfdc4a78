"""Functions over frames that entries point at: rebase, restamp, verify, make_records, collect_tags, rebuild_idx."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import NOW, TOPIC, assert_same, batches, damaged, needs_kernel
from topics.format.batchops import SEGMENT_LAYOUT, WAL_LAYOUT
from topics.format.segment import (
    ENTRY,
    ENTRY_SIZE,
    HOLE,
    decode_segment_frame,
    encode_entry,
    encode_segment_frame,
)
from topics.model import limits
from topics.model.record import Record

BATCH: list[dict[str, Any]] = [
    {"data": {"n": 1}, "tag": "a", "node": "n1"},
    {"data": "two", "key": "k", "meta": {"x": [1]}},
    {"data": [3], "tag": "é"},
    {"data": None},
]


def stamped(ops: ModuleType, batch: list[dict[str, Any]], first_seq: int = 10) -> tuple[bytes, bytes]:
    prepared = ops.prepare(batch)
    ops.stamp(prepared.frames, prepared.entries, prepared.count, TOPIC, first_seq, NOW, True, False)
    return bytes(prepared.frames), bytes(prepared.entries)


def segment(ops: ModuleType, batch: list[dict[str, Any]], dead: bytes | None = None) -> tuple[bytes, bytes]:
    frames, entries = stamped(ops, batch)
    data, idx = bytearray(), bytearray()
    assert ops.restamp(frames, entries, 0, len(batch), 10, TOPIC, dead, data, idx) == len(batch)
    return bytes(data), bytes(idx)


def test_rebase_moves_only_the_entries_asked_for(ops: ModuleType) -> None:
    entries = bytearray(b"".join(encode_entry(offset, 50, 1, 0, 7) for offset in (0, 50, 100)))
    ops.rebase(entries, 1, 2, 1000)
    assert [entry[0] for entry in ENTRY.iter_unpack(entries)] == [0, 1050, 1100]
    ops.rebase(entries, 1, 1, -1050)
    assert [entry[:2] for entry in ENTRY.iter_unpack(entries)] == [(0, 50), (0, 50), (1100, 50)]
    ops.rebase(entries, 3, 0, 5)


def test_rebase_beyond_32_bits_changes_nothing(ops: ModuleType) -> None:
    entries = bytearray(b"".join(encode_entry(offset, 50, 1, 0, 7) for offset in (5, 0xFFFF_FFF0)))
    before = bytes(entries)
    for delta in (0x10, -6, 1 << 40, -(1 << 62), (1 << 63) - 1):
        with pytest.raises(OverflowError):
            ops.rebase(entries, 0, 2, delta)
        assert entries == before
    ops.rebase(entries, 0, 2, 0xF)
    assert ENTRY.unpack_from(entries, ENTRY_SIZE)[0] == 0xFFFF_FFFF


def test_entries_out_of_range_are_refused(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    for start, count in ((0, 5), (4, 1), (-1, 1), (0, -1), (1 << 60, 1), (5, 0)):
        with pytest.raises(ValueError, match="outside"):
            ops.verify(frames, entries, start, count, 10, WAL_LAYOUT, TOPIC, 0)
        with pytest.raises(ValueError, match="outside"):
            ops.rebase(bytearray(entries), start, count, 1)
        with pytest.raises(ValueError, match="outside"):
            ops.restamp(frames, entries, start, count, 10, TOPIC, None, bytearray(), bytearray())
        with pytest.raises(ValueError, match="outside"):
            ops.make_records(frames, entries, start, count, 10, WAL_LAYOUT, 0, None, Record)
        with pytest.raises(ValueError, match="outside"):
            ops.collect_tags(frames, entries, start, count, WAL_LAYOUT, 0)


places = st.one_of(st.integers(0, 100), st.integers(0, 0xFFFF_FFFF))


@needs_kernel
@given(
    st.lists(st.tuples(places, st.integers(0, 50) | st.just(0xFFFF_FFFF)), max_size=10),
    st.integers(-1, 300),
    st.sampled_from([0, 5, 100]),
)
def test_twins_find_the_same_runs(entries: list[tuple[int, int]], bytes_max: int, far: int) -> None:
    packed = b"".join(ENTRY.pack(offset, length, 0, 0, b"abc") for offset, length in entries)
    assert_same("find_runs", packed, len(entries), bytes_max, far)


@needs_kernel
@given(st.lists(st.binary(min_size=20, max_size=20), max_size=6), st.none() | st.binary(max_size=7), st.integers(0, 7))
def test_twins_measure_the_same_entries(entries: list[bytes], dead: bytes | None, count: int) -> None:
    assert_same("measure_entries", b"".join(entries), count, dead)


def test_only_live_entries_are_measured(ops: ModuleType) -> None:
    packed = b"".join(ENTRY.pack(0, 10, 0, 0, size.to_bytes(3, "little")) for size in (1, 2_000, 3_000_000))
    assert ops.measure_entries(packed, 3, None) == (3, 3_002_001)
    assert ops.measure_entries(packed, 3, b"\0\1\0") == (2, 3_000_001)
    assert ops.measure_entries(packed, 2, b"\1\1") == (0, 0)


@needs_kernel
@given(st.lists(st.binary(min_size=20, max_size=20) | st.just(bytes(20)), max_size=6), st.integers(0, 7))
def test_twins_find_the_same_blank_entry(entries: list[bytes], count: int) -> None:
    assert_same("find_blank", b"".join(entries), count)


def test_an_entry_of_zeros_is_no_hole(ops: ModuleType) -> None:
    data, idx = segment(ops, BATCH, b"\0\1\0\0")
    assert ops.find_blank(idx, 4) == 4
    blank = bytearray(idx)
    blank[2 * ENTRY_SIZE : 3 * ENTRY_SIZE] = bytes(ENTRY_SIZE)
    assert ops.find_blank(blank, 4) == 2
    assert ops.find_blank(blank, 2) == 2
    assert ops.verify(data, blank, 0, 4, 10, SEGMENT_LAYOUT, 0, 0) == 2


def test_runs_cover_as_many_entries_as_the_bytes_allow(ops: ModuleType) -> None:
    packed = b"".join(ENTRY.pack(offset, 10, 0, 0, b"abc") for offset in (100, 110, 125, 500, 510, 90))
    assert ops.find_runs(packed, 6, 1000, 5) == [(0, 3, 100, 135), (3, 5, 500, 520), (5, 6, 90, 100)]
    assert ops.find_runs(packed, 6, 1000, 4) == [(0, 2, 100, 120), (2, 3, 125, 135), (3, 5, 500, 520), (5, 6, 90, 100)]
    assert ops.find_runs(packed, 6, 40, 5) == [(0, 3, 100, 135), (3, 4, 500, 510)]
    assert ops.find_runs(packed, 6, 0, 5) == [(0, 1, 100, 110)]
    assert ops.find_runs(packed, 6, 1000, 1000) == [(0, 6, 100, 520)]
    assert ops.find_runs(b"", 0, 10, 5) == []
    with pytest.raises(ValueError, match="outside"):
        ops.find_runs(packed, 7, 10, 5)


def test_unknown_layout_is_refused(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    with pytest.raises(ValueError, match="layout"):
        ops.verify(frames, entries, 0, 4, 10, 2, TOPIC, 0)
    with pytest.raises(ValueError, match="layout"):
        ops.make_records(frames, entries, 0, 4, 10, -1, 0, None, Record)
    with pytest.raises(ValueError, match="layout"):
        ops.collect_tags(frames, entries, 0, 4, 7, 0)


def test_restamped_frames_are_those_of_the_segment_format(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    data, idx = bytearray(b"before"), bytearray()
    assert ops.restamp(frames, entries, 0, 4, 10, TOPIC, None, data, idx, data_base=100) == 4
    at = 6
    for i, (offset, length, ts, flags, accounted) in enumerate(ENTRY.iter_unpack(idx)):
        frame = decode_segment_frame(data, at, len(data))
        assert (offset, length, ts) == (100 + at, frame.end - at, NOW)
        assert (frame.seq, frame.ts, frame.flags, frame.deleted) == (10 + i, NOW, flags, False)
        assert data[at : frame.end] == encode_segment_frame(
            10 + i, NOW, frame.body, flags=flags, node=frame.node, tag=frame.tag
        )
        assert accounted == ENTRY.unpack_from(entries, i * ENTRY_SIZE)[4]
        at = frame.end
    assert at == len(data)


def test_dead_records_and_holes_become_holes(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    data, idx = bytearray(), bytearray()
    holed = bytearray(entries)
    holed[3 * ENTRY_SIZE : 4 * ENTRY_SIZE] = ENTRY.pack(0, 0, NOW - 5, HOLE, bytes(3))
    assert ops.restamp(frames, bytes(holed), 0, 4, 10, TOPIC, b"\0\1\0\0", data, idx) == 4
    rows = list(ENTRY.iter_unpack(idx))
    assert rows[1] == (rows[0][1], 0, NOW, HOLE, bytes(3))
    assert rows[2][0] == rows[0][1]
    assert rows[3] == (len(data), 0, NOW - 5, HOLE, bytes(3))
    assert ops.verify(data, idx, 0, 4, 10, SEGMENT_LAYOUT, 0, 0) == 4


def test_restamp_stops_before_the_first_bad_frame(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    whole_data, whole_idx = segment(ops, BATCH)
    for i in range(4):
        offset = ENTRY.unpack_from(entries, i * ENTRY_SIZE)[0]
        broken = bytearray(frames)
        broken[offset + 40] ^= 1
        data, idx = bytearray(), bytearray()
        assert ops.restamp(broken, entries, 0, 4, 10, TOPIC, None, data, idx) == i
        assert idx == whole_idx[: i * ENTRY_SIZE]
        assert data == whole_data[: len(data)]
        assert len(data) == sum(entry[1] for entry in ENTRY.iter_unpack(idx))


def test_restamp_refuses_another_topic_or_seq(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    assert ops.restamp(frames, entries, 0, 4, 10, TOPIC + 1, None, bytearray(), bytearray()) == 0
    assert ops.restamp(frames, entries, 0, 4, 11, TOPIC, None, bytearray(), bytearray()) == 0
    assert ops.restamp(frames, entries, 1, 3, 11, TOPIC, None, bytearray(), bytearray()) == 3


def test_restamp_beyond_4_gib_changes_nothing(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    data, idx = bytearray(b"d"), bytearray(b"i" * ENTRY_SIZE)
    total = sum(entry[1] - 8 for entry in ENTRY.iter_unpack(entries))
    fits = 0xFFFF_FFFF - total - 1
    with pytest.raises(OverflowError):
        ops.restamp(frames, entries, 0, 4, 10, TOPIC, None, data, idx, fits + 1)
    assert bytes(data) == b"d"
    assert bytes(idx) == b"i" * ENTRY_SIZE
    assert ops.restamp(frames, entries, 0, 4, 10, TOPIC, None, data, idx, fits) == 4


def test_restamp_copies_more_than_one_step(ops: ModuleType) -> None:
    batch: list[dict[str, Any]] = [{"data": b'"%b"' % (b"x" * 1_000_000)}] * 20
    data, idx = segment(ops, batch, bytes(19) + b"\1")
    assert ops.verify(data, idx, 0, 20, 10, SEGMENT_LAYOUT, 0, 0) == 20
    assert ops.rebuild_idx(data, 10, len(data)) == (idx[:-ENTRY_SIZE], len(data), 19)


def test_dead_flags_must_cover_the_entries(ops: ModuleType) -> None:
    frames, entries = stamped(ops, BATCH)
    with pytest.raises(ValueError, match="do not cover"):
        ops.restamp(frames, entries, 0, 4, 10, TOPIC, b"\0\0\0", bytearray(), bytearray())
    with pytest.raises(ValueError, match="do not cover"):
        ops.make_records(frames, entries, 0, 4, 10, WAL_LAYOUT, 0, b"\0\0\0", Record)


def test_verify_finds_each_damaged_record(ops: ModuleType) -> None:
    wal, segments = stamped(ops, BATCH), segment(ops, BATCH)
    for layout, (data, entries) in ((WAL_LAYOUT, wal), (SEGMENT_LAYOUT, segments)):
        assert ops.verify(data, entries, 0, 4, 10, layout, TOPIC, 0) == 4
        assert ops.verify(data, entries, 0, 4, 11, layout, TOPIC, 0) == 0
        for i in range(4):
            offset, length = ENTRY.unpack_from(entries, i * ENTRY_SIZE)[:2]
            for at in range(offset, offset + length - layout):
                broken = bytearray(data)
                broken[at] ^= 0x10
                assert ops.verify(broken, entries, 0, 4, 10, layout, TOPIC, 0) == i
    assert ops.verify(wal[0], wal[1], 0, 4, 10, WAL_LAYOUT, TOPIC + 1, 0) == 0
    assert ops.verify(segments[0], segments[1], 0, 4, 10, SEGMENT_LAYOUT, TOPIC + 1, 0) == 4


def test_verify_finds_entries_that_point_elsewhere(ops: ModuleType) -> None:
    data, entries = segment(ops, BATCH)
    for offset, length in ((0, 37), (1, 60), (len(data), 38), (0xFFFFFFFF, 0xFFFFFFFF), (0, 0xFFFFFFFF)):
        broken = ENTRY.pack(offset, length, 0, 0, bytes(3)) + entries[ENTRY_SIZE:]
        assert ops.verify(data, broken, 0, 4, 10, SEGMENT_LAYOUT, 0, 0) == 0
        assert ops.verify(data, broken, 1, 3, 11, SEGMENT_LAYOUT, 0, 0) == 3


def test_base_says_where_the_buffer_begins(ops: ModuleType) -> None:
    data, entries = segment(ops, BATCH)
    moved = bytearray(entries)
    ops.rebase(moved, 0, 4, 1000)
    assert ops.verify(data, moved, 0, 4, 10, SEGMENT_LAYOUT, 0, 1000) == 4
    assert ops.verify(data, moved, 0, 4, 10, SEGMENT_LAYOUT, 0, 1001) == 0
    assert ops.verify(data, moved, 0, 4, 10, SEGMENT_LAYOUT, 0, 0) == 0
    assert ops.make_records(data, moved, 0, 4, 10, SEGMENT_LAYOUT, 1000, None, Record) == ops.make_records(
        data, entries, 0, 4, 10, SEGMENT_LAYOUT, 0, None, Record
    )
    assert ops.collect_tags(data, moved, 0, 4, SEGMENT_LAYOUT, 1000) == [b"a", None, "é".encode(), None]


def test_records_hold_what_was_sent(ops: ModuleType) -> None:
    expected = [
        Record(10, NOW, "a", "n1", None, None, b'{"n":1}'),
        Record(11, NOW, None, None, "k", b'{"x":[1]}', b'"two"'),
        Record(12, NOW, "é", None, None, None, b"[3]"),
        Record(13, NOW, None, None, None, None, b"null"),
    ]
    for layout, (data, entries) in ((WAL_LAYOUT, stamped(ops, BATCH)), (SEGMENT_LAYOUT, segment(ops, BATCH))):
        assert ops.make_records(data, entries, 0, 4, 10, layout, 0, None, Record) == expected
        assert ops.make_records(data, entries, 1, 2, 11, layout, 0, None, Record) == expected[1:3]
        assert ops.make_records(data, entries, 0, 4, 10, layout, 0, b"\1\0\0\1", Record) == expected[1:3]
        assert ops.collect_tags(data, entries, 0, 4, layout, 0) == [b"a", None, "é".encode(), None]


def test_holes_give_no_record_and_no_tag(ops: ModuleType) -> None:
    data, idx = segment(ops, BATCH, b"\1\0\0\0")
    records = ops.make_records(data, idx, 0, 4, 10, SEGMENT_LAYOUT, 0, None, Record)
    assert [record.seq for record in records] == [11, 12, 13]
    assert ops.collect_tags(data, idx, 0, 4, SEGMENT_LAYOUT, 0) == [None, None, "é".encode(), None]


def test_record_bytes_outlive_the_buffer(ops: ModuleType) -> None:
    data, entries = segment(ops, BATCH)
    buf = bytearray(data)
    records = ops.make_records(buf, entries, 0, 4, 10, SEGMENT_LAYOUT, 0, None, Record)
    buf[:] = bytes(len(buf))
    assert records[0].raw == b'{"n":1}'
    buf.append(0)


def test_neighbours_share_a_tag_only_if_it_is_the_same(ops: ModuleType) -> None:
    batch = [{"data": i, "tag": tag, "node": tag} for i, tag in enumerate(["a", "a", "b", "", "", "a"])]
    data, entries = segment(ops, batch)
    records = ops.make_records(data, entries, 0, 6, 10, SEGMENT_LAYOUT, 0, None, Record)
    assert [record.tag for record in records] == [record.node for record in records] == ["a", "a", "b", "", "", "a"]


def test_reading_unverified_damage_raises_and_never_more(ops: ModuleType) -> None:
    data, _entries = segment(ops, BATCH)
    for offset, length in ((0, 37), (1, 60), (len(data), 38), (0xFFFFFFFF, 0xFFFFFFFF), (0, 0xFFFFFFFF)):
        broken = ENTRY.pack(offset, length, 0, 0, bytes(3))
        with pytest.raises(ValueError):
            ops.make_records(data, broken, 0, 1, 10, SEGMENT_LAYOUT, 0, None, Record)
        with pytest.raises(ValueError):
            ops.collect_tags(data, broken, 0, 1, SEGMENT_LAYOUT, 0)


def test_rebuilt_index_is_the_one_that_was_written(ops: ModuleType) -> None:
    data, idx = segment(ops, BATCH)
    assert ops.rebuild_idx(data, 10, len(data)) == (idx, len(data), 4)
    assert ops.rebuild_idx(data + b"more", 10, len(data)) == (idx, len(data), 4)
    deleted = data[:-1] + b"\xd5"
    assert ops.rebuild_idx(deleted, 10, len(data)) == (idx, len(data), 4)


def test_rebuilt_index_fills_gaps_with_holes(ops: ModuleType) -> None:
    frames = [encode_segment_frame(seq, NOW + seq, b'{"d":1}') for seq in (12, 13, 16)]
    data = b"".join(frames)
    idx, end, count = ops.rebuild_idx(data, 10, len(data))
    rows = list(ENTRY.iter_unpack(idx))
    size = len(frames[0])
    assert (end, count) == (len(data), 7)
    assert [(row[0], row[1], row[2], row[3]) for row in rows] == [
        (0, 0, 0, HOLE),
        (0, 0, 0, HOLE),
        (0, size, NOW + 12, 0),
        (size, size, NOW + 13, 0),
        (2 * size, 0, NOW + 13, HOLE),
        (2 * size, 0, NOW + 13, HOLE),
        (2 * size, size, NOW + 16, 0),
    ]


def test_rebuild_stops_at_the_first_frame_it_cannot_place(ops: ModuleType) -> None:
    good = encode_segment_frame(10, NOW, b'{"d":1}')
    too_far = encode_segment_frame(11 + limits.HOLE_RUN + 1, NOW, b'{"d":1}')
    just_there = encode_segment_frame(11 + limits.HOLE_RUN, NOW, b'{"d":1}')
    back = encode_segment_frame(10, NOW, b'{"d":1}')
    no_envelope = encode_segment_frame(11, NOW, b"[]")
    for bad in (too_far, back, no_envelope, b"\0" * 50, b"x", just_there[:-1]):
        _idx, end, count = ops.rebuild_idx(good + bad, 10, len(good + bad))
        assert (end, count) == (len(good), 1)
    _idx, end, count = ops.rebuild_idx(good + just_there, 10, len(good + just_there))
    assert (end, count) == (len(good + just_there), limits.HOLE_RUN + 2)
    assert ops.rebuild_idx(good, 11, len(good)) == (b"", 0, 0)
    with pytest.raises(ValueError, match="outside"):
        ops.rebuild_idx(good, 10, len(good) + 1)


def test_last_seq_of_all_can_be_indexed(ops: ModuleType) -> None:
    last = (1 << 64) - 1
    data = encode_segment_frame(last, NOW, b'{"d":1}') + encode_segment_frame(0, NOW, b'{"d":1}')
    assert ops.rebuild_idx(data, last, len(data))[1:] == (len(data) // 2, 1)
    assert ops.rebuild_idx(data[len(data) // 2 :], last, len(data) // 2) == (b"", 0, 0)


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    from topics.format import batchops

    return batchops


@needs_kernel
@given(batches, st.data())
def test_twins_agree_on_damaged_wal_frames(
    reference: ModuleType, batch: list[dict[str, Any]], data: st.DataObject
) -> None:
    frames, entries = stamped(reference, batch)
    check_all(frames, entries, len(batch), WAL_LAYOUT, data)


@needs_kernel
@given(batches, st.data())
def test_twins_agree_on_damaged_segments(
    reference: ModuleType, batch: list[dict[str, Any]], data: st.DataObject
) -> None:
    dead = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(batch), max_size=len(batch))))
    frames, entries = segment(reference, batch, dead)
    broken = check_all(frames, entries, len(batch), SEGMENT_LAYOUT, data)
    assert_same("rebuild_idx", broken, data.draw(st.sampled_from([1, 9, 10, 11])), len(broken))


def test_the_one_key_among_many_records_is_found_and_a_bad_frame_is_refused(ops: ModuleType) -> None:
    # Enough bytes that the kernel lets other threads run meanwhile.
    plain: list[dict[str, Any]] = [{"data": "x" * 1000}] * 400
    frames, entries = segment(ops, plain)
    assert ops.is_keyless(frames, entries, 0, 400, SEGMENT_LAYOUT, 0)
    keyed, places = segment(ops, [*plain, {"data": 1, "key": "k"}])
    assert not ops.is_keyless(keyed, places, 0, 401, SEGMENT_LAYOUT, 0)
    assert ops.is_keyless(keyed, places, 0, 400, SEGMENT_LAYOUT, 0)
    with pytest.raises(ValueError, match="points outside the buffer"):
        ops.is_keyless(frames[:-1], entries, 0, 400, SEGMENT_LAYOUT, 0)
    broken = bytearray(entries)
    broken[399 * ENTRY_SIZE + 4] ^= 1
    with pytest.raises(ValueError, match=r"points outside the buffer|do not match its entry"):
        ops.is_keyless(frames, broken, 0, 400, SEGMENT_LAYOUT, 0)


def check_all(frames: bytes, entries: bytes, count: int, layout: int, data: st.DataObject) -> bytes:
    broken = data.draw(damaged(st.just(frames)))
    broken_entries = data.draw(st.just(entries) | damaged(st.just(entries)))
    start = data.draw(st.sampled_from([0, 0, 0, 1]))
    base = data.draw(st.sampled_from([0, 0, 0, -5, 7]))
    dead = data.draw(st.none() | st.binary(min_size=count, max_size=count + 1))
    count -= start
    seq = 10 + start
    assert_same("verify", broken, broken_entries, start, count, seq, layout, TOPIC, base)
    assert_same("make_records", broken, broken_entries, start, count, seq, layout, base, dead, Record)
    assert_same("collect_tags", broken, broken_entries, start, count, layout, base)
    assert_same("collect_keys", broken, broken_entries, start, count, layout, base)
    assert_same("is_keyless", broken, broken_entries, start, count, layout, base)
    assert_same("restamp", broken, broken_entries, start, count, seq, TOPIC, dead, bytearray(b"x"), bytearray())
    delta = data.draw(st.integers(-(1 << 33), 1 << 33) | st.integers(-200, 200))
    assert_same("rebase", bytearray(broken_entries), start, count, delta)
    return broken


@needs_kernel
@given(st.binary(max_size=200), st.binary(max_size=100), st.integers(0, 5), st.integers(0, 1))
def test_twins_agree_on_random_bytes(buf: bytes, entries: bytes, count: int, layout: int) -> None:
    assert_same("verify", buf, entries, 0, count, 1, layout, 0, 0)
    assert_same("make_records", buf, entries, 0, count, 1, layout, 0, None, Record)
    assert_same("collect_tags", buf, entries, 0, count, layout, 0)
    assert_same("collect_keys", buf, entries, 0, count, layout, 0)
    assert_same("is_keyless", buf, entries, 0, count, layout, 0)
    assert_same("restamp", buf, entries, 0, count, 1, 0, None, bytearray(), bytearray())
    assert_same("rebuild_idx", buf, 1, len(buf))
