"""Staged parts: their header, the bodies of the frames that decide them, and the functions over their frames."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import NOW, TOPIC, assert_same, batches, damaged, needs_kernel
from topics.format.batchops import SEGMENT_LAYOUT
from topics.format.fields import BadBody
from topics.format.segment import ENTRY, ENTRY_SIZE, HOLE, decode_segment_frame
from topics.format.staged import PartHead, StageCommit, StageVerdict, decode_head, make_head
from topics.model.record import Record

BATCH: list[dict[str, Any]] = [
    {"data": {"n": 1}, "tag": "a", "node": "n1"},
    {"data": "two", "key": "k", "meta": {"x": [1]}},
    {"data": [3], "tag": "é"},
    {"data": None},
]


def staged(ops: ModuleType, batch: list[dict[str, Any]]) -> bytes:
    prepared = ops.prepare(batch)
    frames: bytes = ops.stage_frames(prepared.frames, prepared.entries, prepared.count)
    return frames


def test_head_of_a_part_says_whose_it_is_and_proves_its_frames() -> None:
    head = make_head("app@7", "0-uuid-1", 3, 400, 0x1234)
    assert decode_head(head.encode() + b"frames") == head
    assert head.size == len(head.encode())
    assert head.matches(0x1234)
    assert not head.matches(0x1235)
    assert not PartHead("app@8", *(head.part, head.count, head.frame_bytes, head.digest)).matches(0x1234)


def test_head_that_is_cut_or_garbled_is_refused() -> None:
    whole = make_head("t", "p", 1, 50, 9).encode()
    for end in range(len(whole)):
        with pytest.raises(BadBody):
            decode_head(whole[:end])
    with pytest.raises(BadBody):
        decode_head(b"\x02\0\0\0\xff\xff" + whole[5:])


def test_commit_and_verdict_bodies_come_back_as_they_went() -> None:
    commit = StageCommit("app@7", "query", 11, NOW, ((3, 5), (1, 2)))
    assert StageCommit.decode(commit.encode()) == commit
    assert commit.count == 7
    assert StageCommit.decode(StageCommit("t", "", 1, 2, ()).encode()).count == 0
    verdict = StageVerdict("app@7", ((1, 11, 7), (2, 1, 0)))
    assert StageVerdict.decode(verdict.encode()) == verdict
    for body in (commit.encode(), verdict.encode()):
        kind = StageCommit if body == commit.encode() else StageVerdict
        for bad in (body[:-1], body + b"\0"):
            with pytest.raises(BadBody):
                kind.decode(bad)


def test_golden_bytes_of_a_part_stay_the_same(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": {"n": 1}, "tag": "t", "node": "n"}])
    frames = ops.stage_frames(prepared.frames, prepared.entries, 1)
    assert frames.hex() == (
        "310000000300000000000000000000000000000000010001000d0000006e747b2264223a7b226e223a317d7ddc6fa2a74937b90000"
    )
    head = make_head("txn", "part", 1, len(frames), ops.xxh3_64(frames)).encode()
    assert head.hex() == "0300000074786e0400000070617274010000003500000000000000480ebea13c1b3bfd"


def test_staged_frames_have_no_seq_and_no_time(ops: ModuleType) -> None:
    frames = staged(ops, BATCH)
    at = 0
    for record in BATCH:
        frame = decode_segment_frame(frames, at, len(frames))
        assert (frame.seq, frame.ts, frame.deleted) == (0, 0, False)
        assert frame.tag.decode() == (record.get("tag") or "")
        at = frame.end
    assert at == len(frames)


def test_staged_frames_get_their_seqs_and_time_when_they_are_copied(ops: ModuleType) -> None:
    frames = b"head" + staged(ops, BATCH)
    entries = bytearray()
    end, accounted = ops.index_staged(frames, 4, len(frames), NOW, entries)
    assert end == len(frames)
    assert accounted == sum(len(record.raw) + len(record.meta_raw or b"") for record in _records(ops, BATCH))
    data, idx = bytearray(), bytearray()
    assert ops.restamp_staged(frames, entries, 0, 4, 10, None, data, idx) == 4
    assert ops.verify(data, idx, 0, 4, 10, SEGMENT_LAYOUT, 0, 0) == 4
    read = ops.make_records(data, idx, 0, 4, 10, SEGMENT_LAYOUT, 0, None, Record)
    assert read == _records(ops, BATCH)
    assert [entry[3] & 3 for entry in ENTRY.iter_unpack(idx)] == [3, 0, 1, 0]


def _records(ops: ModuleType, batch: list[dict[str, Any]]) -> list[Record]:
    prepared = ops.prepare(batch)
    ops.stamp(prepared.frames, prepared.entries, prepared.count, TOPIC, 10, NOW, True, False)
    read: list[Record] = ops.make_records(prepared.frames, prepared.entries, 0, len(batch), 10, 0, 0, None, Record)
    return read


def test_dead_staged_records_become_holes(ops: ModuleType) -> None:
    frames = staged(ops, BATCH)
    entries = bytearray()
    ops.index_staged(frames, 0, len(frames), NOW, entries)
    data, idx = bytearray(), bytearray()
    assert ops.restamp_staged(frames, entries, 0, 4, 10, b"\0\1\1\0", data, idx) == 4
    assert [entry[3] & HOLE for entry in ENTRY.iter_unpack(idx)] == [0, HOLE, HOLE, 0]


def test_copying_stops_at_a_staged_frame_that_rotted(ops: ModuleType) -> None:
    frames = bytearray(staged(ops, BATCH))
    entries = bytearray()
    ops.index_staged(frames, 0, len(frames), NOW, entries)
    third = ENTRY.unpack_from(entries, 2 * ENTRY_SIZE)[0]
    frames[third + 30] ^= 1
    data, idx = bytearray(), bytearray()
    assert ops.restamp_staged(frames, entries, 0, 4, 10, None, data, idx) == 2
    assert len(idx) == 2 * ENTRY_SIZE
    assert ops.index_staged(frames, 0, len(frames), NOW, bytearray())[0] == third


@needs_kernel
@given(batches, st.integers(0, 3), st.data())
def test_both_twins_treat_staged_frames_alike(batch: list[dict[str, Any]], skip: int, draw: st.DataObject) -> None:
    from topics.format import ops

    try:
        prepared = ops.reference.prepare(batch)
    except Exception:
        return
    made = assert_same("stage_frames", prepared.frames, prepared.entries, prepared.count)
    frames = draw.draw(damaged(st.just(made[1])))
    entries = bytearray()
    assert_same("index_staged", frames, 0, len(frames), NOW, entries)
    assert_same("index_staged", frames, min(skip, len(frames)), len(frames), NOW, entries)
    ops.reference.index_staged(made[1], 0, len(made[1]), NOW, entries)
    count = len(entries) // ENTRY_SIZE
    dead = draw.draw(st.none() | st.binary(min_size=count, max_size=count))
    for base in (0, skip):
        assert_same("restamp_staged", frames, bytes(entries), 0, count, 10, dead, bytearray(b"x"), bytearray(), 5, base)
    start = min(skip, count)
    assert_same("restamp_staged", frames, bytes(entries), start, count - start, 10, None, bytearray(), bytearray())


@needs_kernel
def test_both_twins_refuse_what_lies_outside() -> None:
    from topics.format import ops

    prepared = ops.reference.prepare(BATCH)
    frames = ops.reference.stage_frames(prepared.frames, prepared.entries, 4)
    entries = bytearray()
    ops.reference.index_staged(frames, 0, len(frames), NOW, entries)
    assert_same("stage_frames", prepared.frames, prepared.entries, 5)
    assert_same("stage_frames", prepared.frames[:50], prepared.entries, 4)
    assert_same("index_staged", frames, 5, 4, NOW, bytearray())
    assert_same("restamp_staged", frames, bytes(entries), 0, 5, 1, None, bytearray(), bytearray())
    assert_same("restamp_staged", frames, bytes(entries), 0, 4, 1, b"\0", bytearray(), bytearray())
    assert_same("restamp_staged", frames[:60], bytes(entries), 0, 4, 1, None, bytearray(), bytearray())
    full = 0xFFFF_FFFF - 10
    assert_same("restamp_staged", frames, bytes(entries), 0, 4, 1, None, bytearray(), bytearray(), full)
