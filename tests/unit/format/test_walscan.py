from __future__ import annotations

import mmap
import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import NOW, assert_same, damaged, needs_kernel, wal_bytes
from topics.format import ops as ops_module
from topics.format import walscan
from topics.format.frame import DURABLE, KNOWN_KINDS, MORE, BadFrame, Kind, decode_frame, encode_frame
from topics.format.marks import FileMark, SyncMark
from topics.format.segment import ENTRY, ENTRY_SIZE

END = walscan.OFFSETS_END


def append(seq: int, topic_id: int = 1, *, more: bool = False, body: bytes = b'{"d":1}', **names: Any) -> bytes:
    return encode_frame(Kind.APPEND, topic_id, body, seq=seq, ts=NOW + seq, flags=MORE if more else 0, **names)


def control(more: bool = False) -> bytes:
    return encode_frame(Kind.HEAD_WATERMARK, 1, bytes(8), ts=NOW, flags=MORE if more else 0)


def scan(ops: ModuleType, data: bytes, start: int = 0) -> tuple[Any, bytearray]:
    entries = bytearray()
    return ops.scan_wal(data, start, len(data), entries), entries


def test_neighbouring_appends_of_one_topic_are_one_run(ops: ModuleType) -> None:
    frames = [append(5, more=True), append(6), append(7), append(9), append(1, 2), append(10)]
    data = b"".join(frames)
    found, entries = scan(ops, data)
    size = len(frames[0])
    assert found.items == [
        (1, 1, 5, 3, 0, 0, 3 * size, NOW + 5, NOW + 7, 3),
        (1, 1, 9, 1, 3, 3 * size, 4 * size, NOW + 9, NOW + 9, 1),
        (1, 2, 1, 1, 4, 4 * size, 5 * size, NOW + 1, NOW + 1, 1),
        (1, 1, 10, 1, 5, 5 * size, 6 * size, NOW + 10, NOW + 10, 1),
    ]
    assert (found.end, found.stop, found.frames, found.reason) == (len(data), len(data), 6, "end")
    assert [entry[0] for entry in ENTRY.iter_unpack(entries)] == [i * size for i in range(6)]


def test_control_frame_ends_a_run_and_keeps_its_place(ops: ModuleType) -> None:
    data = append(1) + control() + append(2)
    found, _entries = scan(ops, data)
    one, two = len(append(1)), len(append(1) + control())
    assert [item[0] for item in found.items] == [1, Kind.HEAD_WATERMARK, 1]
    assert found.items[1] == (Kind.HEAD_WATERMARK, 1, 0, NOW, 0, one, two)


def test_entries_of_the_scan_follow_those_already_there(ops: ModuleType) -> None:
    entries = bytearray(3 * ENTRY_SIZE)
    data = b"junk" + append(1) + append(2)
    found = ops.scan_wal(data, 4, len(data), entries)
    assert found.items[0][4] == 3
    assert len(entries) == 5 * ENTRY_SIZE
    assert ENTRY.unpack_from(entries, 3 * ENTRY_SIZE)[0] == 4


def test_zeros_to_the_end_are_a_clean_end(ops: ModuleType) -> None:
    for zeros in (1, 3, 4, 5, 45, 46, 1000):
        found, _entries = scan(ops, append(1) + bytes(zeros))
        assert (found.reason, found.stop, found.end) == ("zeros", len(append(1)), len(append(1)))


def test_zeros_before_other_bytes_are_bad(ops: ModuleType) -> None:
    for tail in (b"\1", bytes(3) + b"\1", bytes(4) + b"\1", bytes(1000) + append(2)):
        found, _entries = scan(ops, append(1) + bytes(4) + tail)
        assert (found.reason, found.stop, found.end) == ("bad", len(append(1)), len(append(1)))
        assert "zeros" in found.why


@pytest.mark.parametrize("tail", [b"", bytes(100), b"garbage" * 20, append(3)[:-1]])
def test_unfinished_submission_is_cut_back(ops: ModuleType, tail: bytes) -> None:
    whole = append(1) + control(more=True) + append(2)
    open_part = append(3, more=True) + append(4, more=True) + control(more=True)
    found, entries = scan(ops, whole + open_part + tail)
    assert (found.reason, found.end, found.frames) == ("unfinished", len(whole), 3)
    assert found.stop == len(whole + open_part)
    assert len(entries) == 2 * ENTRY_SIZE
    assert found.items[-1][3:7] == (1, 1, len(append(1) + control()), len(whole))


def test_run_that_reaches_into_an_unfinished_submission_is_shortened(ops: ModuleType) -> None:
    whole = append(1) + append(2)
    found, entries = scan(ops, whole + append(3, more=True))
    assert found.items == [(1, 1, 1, 2, 0, 0, len(whole), NOW + 1, NOW + 2, 2)]
    assert len(entries) == 2 * ENTRY_SIZE


def test_nothing_but_an_unfinished_submission_leaves_nothing(ops: ModuleType) -> None:
    found, entries = scan(ops, append(1, more=True))
    assert (found.items, found.end, found.frames, found.reason) == ([], 0, 0, "unfinished")
    assert not entries


def test_accounted_bytes_are_data_and_meta(ops: ModuleType) -> None:
    bodies = {
        b'{"d":{"n":1}}': 7,
        b'{"d":{"n":1},"m":[]}': 9,
        b'{"k":"abc","d":1}': 1,
        b'{"k":"abc","m":{"a":1},"d":12}': 9,
        b'{"m":5,"d":"x"}': 4,
    }
    for body, accounted in bodies.items():
        found, entries = scan(ops, append(1, body=body))
        assert found.items[0][9] == accounted
        assert int.from_bytes(ENTRY.unpack(entries)[4], "little") == accounted


def test_accounted_column_saturates(ops: ModuleType) -> None:
    body = b'{"d":"' + b"x" * (1 << 24) + b'"}'
    found, entries = scan(ops, append(1, body=body))
    assert ENTRY.unpack(entries)[4] == b"\xff\xff\xff"
    assert found.items[0][9] == (1 << 24) - 1


@pytest.mark.parametrize(
    "bad",
    [
        encode_frame(12, 1, bytes(8)),
        encode_frame(70, 1, bytes(8)),
        encode_frame(0, 1, bytes(8)),
        append(1, body=b"[]"),
        append(1, body=b'{"x":1}'),
        append(1, body=b""),
        append(1, node=b"\xff"),
        append(1, node=b"\xc3", tag=b"\xa9"),
        append(2)[:-1] + b"\0",
        struct.pack("<I", 0xFFFFFFFF) + append(2)[4:],
    ],
)
def test_frame_that_breaks_a_rule_stops_the_scan(ops: ModuleType, bad: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_frame(bad, 0, len(bad))
    found, _entries = scan(ops, append(1) + bad + append(2))
    assert (found.reason, found.stop, found.end) == ("bad", len(append(1)), len(append(1)))
    assert found.why


def test_seqs_at_the_end_of_their_range_do_not_wrap_into_a_run(ops: ModuleType) -> None:
    last = (1 << 64) - 1
    data = b"".join(encode_frame(Kind.APPEND, 1, b'{"d":1}', seq=seq) for seq in (last - 1, last, 0, 1))
    found, _entries = scan(ops, data)
    assert [item[2:4] for item in found.items] == [(last - 1, 2), (0, 2)]


def test_scan_of_a_wrong_range_is_refused(ops: ModuleType) -> None:
    for start, end in ((-1, 1), (2, 1), (0, 99)):
        with pytest.raises(ValueError, match="outside"):
            ops.scan_wal(bytes(10), start, end, bytearray())


def test_large_file_is_scanned_whole(ops: ModuleType) -> None:
    data = b"".join(append(seq, body=b'{"d":"%b"}' % (b"x" * 500)) for seq in range(1, 1001)) + bytes(300_000)
    found, entries = scan(ops, data)
    assert (found.frames, found.reason, len(found.items)) == (1000, "zeros", 1)
    assert len(entries) == 1000 * ENTRY_SIZE


@needs_kernel
@given(damaged(wal_bytes()) | st.binary(max_size=120), st.integers(0, 5))
def test_twins_scan_alike(data: bytes, skipped: int) -> None:
    assert_same("scan_wal", data, min(skipped, len(data)), len(data), bytearray(ENTRY_SIZE * skipped))


@given(damaged(wal_bytes()) | st.binary(max_size=300), st.integers(0, 20))
def test_any_bytes_are_frames_up_to_an_end(ops: ModuleType, data: bytes, start: int) -> None:
    """F-FUZZ-WAL-DECODER: a frame or the end, whatever is read, and nothing beyond it."""
    start = min(start, len(data))
    found, entries = scan(ops, data, start)
    assert start <= found.end <= found.stop <= len(data)
    at = start
    while at < found.end:
        frame = decode_frame(data, at, len(data))
        at = frame.end
    assert at == found.end
    assert all(start <= offset < found.end for offset, *_ in ENTRY.iter_unpack(entries))
    try:
        frame = decode_frame(data, found.stop, len(data))
    except BadFrame:
        return
    assert found.reason == "unfinished" and frame.end <= len(data)  # noqa: PT018


@given(wal_bytes())
def test_scan_finds_what_a_walk_of_single_frames_finds(ops: ModuleType, data: bytes) -> None:
    found, entries = scan(ops, data)
    at, frames, whole = 0, [], 0
    while at < len(data) and any(data[at : at + 4]):
        frame = decode_frame(data, at, len(data))
        frames.append(frame)
        at = frame.end
        if not frame.flags & MORE:
            whole = len(frames)
    del frames[whole:]
    assert found.frames == len(frames)
    assert found.end == (frames[-1].end if frames else 0)
    listed = []
    for item in found.items:
        if item[0] == Kind.APPEND:
            listed += [(1, item[1], item[2] + i) for i in range(item[3])]
        else:
            listed.append((item[0], item[1], item[2]))
    assert listed == [(frame.kind, frame.topic_id, frame.seq) for frame in frames]
    offsets = [entry[0] for entry in ENTRY.iter_unpack(entries)]
    assert offsets == [frame.offset for frame in frames if frame.kind == Kind.APPEND]


def sync_mark(number: int, synced: int, flags: int = DURABLE) -> bytes:
    return encode_frame(Kind.CHECKPOINT_MARK, 0, SyncMark(0, number, synced).encode(), ts=NOW, flags=flags)


def test_sync_marks_are_found_at_any_offset(ops: ModuleType) -> None:
    mark = sync_mark(3, 77)
    data = b"torn" + mark + b"C" * 9 + sync_mark(4, 1) + append(1) + sync_mark(3, 99, MORE) + mark[:-1]
    expected = [(4, 77), (data.index(sync_mark(3, 99, MORE)), 99)]
    assert ops.find_sync_marks(data, 0, len(data), 3) == expected
    assert ops.find_sync_marks(data, 5, len(data), 3) == expected[1:]
    assert ops.find_sync_marks(data, 0, 4 + len(mark), 3) == expected[:1]
    assert ops.find_sync_marks(data, 0, 4 + len(mark) - 1, 3) == []


def test_other_marks_are_no_evidence(ops: ModuleType) -> None:
    file_mark = encode_frame(Kind.CHECKPOINT_MARK, 0, FileMark(0, 3, 2, 10).encode())
    other_kind = encode_frame(Kind.HEAD_WATERMARK, 0, SyncMark(0, 3, 5).encode())
    broken = bytearray(sync_mark(3, 5))
    broken[-1] ^= 1
    data = file_mark + other_kind + broken
    assert ops.find_sync_marks(data, 0, len(data), 3) == []
    assert ops.find_sync_marks(b"", 0, 0, 3) == []


@needs_kernel
@given(damaged(wal_bytes()), st.sampled_from([3, 4]))
def test_twins_find_the_same_sync_marks(data: bytes, number: int) -> None:
    assert_same("find_sync_marks", data, 0, len(data), number)


def test_next_frame_is_found_behind_damage(ops: ModuleType) -> None:
    good = append(1)
    for junk in (b"", b"x", bytes(50), b"\xff" * 100, good[:-1], good[1:]):
        data = junk + good + b"tail"
        assert ops.find_frames(data, 0, len(data)) == len(junk)
    assert ops.find_frames(good, 0, len(good) - 1) == -1
    assert ops.find_frames(good, 1, len(good)) == -1
    assert ops.find_frames(b"", 0, 0) == -1


@needs_kernel
@given(damaged(wal_bytes()), st.integers(0, 60))
def test_twins_find_the_same_next_frame(data: bytes, start: int) -> None:
    assert_same("find_frames", data, min(start, len(data)), len(data))


def crowded(size: int, count: int) -> bytes:
    """Headers that all look like long frames, one after the other, none of them true."""
    body = size - 46
    head = struct.pack("<IBBQQQHHI", size - 4, 2, 0, 1, 0, 0, 0, 0, body)
    return head * count + bytes(size)


@needs_kernel
def test_bytes_made_to_look_like_frames_do_not_make_the_search_quadratic() -> None:
    # At most 64 MiB and 16 times the range are hashed; without a bound this would be 20 GB.
    from topics.format import kernel

    long_frame = append(1, body=b'{"d":"%b"}' % (b"x" * (1 << 20)))
    data = crowded(1 << 20, 20_000) + long_frame
    assert kernel.find_frames(data, 0, len(data)) == -1  # the price: found only by a search that starts behind
    assert kernel.find_frames(data, len(data) - len(long_frame) - 50, len(data)) == len(data) - len(long_frame)


def test_search_goes_on_with_short_frames_once_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walscan, "SEARCH_BYTES_MIN", 0)
    monkeypatch.setattr(walscan, "SEARCH_BYTES_FACTOR", 1)
    data = crowded(20_000, 20) + append(1)
    assert walscan.find_frames(data, 0, len(data)) == len(data) - len(append(1))


ROOM = 1 << 17
"""More than any drawn WAL is long."""


@pytest.fixture(scope="module")
def huge() -> memoryview:
    """Zeros of more than 4 GiB, of which only what is touched takes memory."""
    return memoryview(mmap.mmap(-1, END + ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def placed(huge: memoryview, frames: bytes, start: int) -> None:
    huge[END - ROOM : END + ROOM] = bytes(2 * ROOM)
    huge[start : start + len(frames)] = frames


@pytest.mark.parametrize(("short", "whole"), [(0, 3), (1, 2), (53, 2), (54, 1), (200, 0)])
def test_frames_end_where_offsets_do(ops: ModuleType, huge: memoryview, short: int, whole: int) -> None:
    size = len(append(1))
    start = END - 3 * size + short
    placed(huge, append(1) + append(2) + append(3), start)
    entries = bytearray()
    found = ops.scan_wal(huge, start, END + 4096, entries)
    assert (found.frames, found.end) == (whole, start + whole * size)
    assert [entry[0] for entry in ENTRY.iter_unpack(entries)] == [start + at * size for at in range(whole)]
    assert found.reason == ("zeros" if whole == 3 else "bad")
    assert ("lies beyond" in found.why) == (whole < 3)
    assert walscan.lies_beyond(huge, found.stop) == (whole < 3)


def test_frames_behind_the_last_offset_are_none(ops: ModuleType, huge: memoryview) -> None:
    for start in (END, END + 7):
        placed(huge, append(1), start)
        found = ops.scan_wal(huge, start, END + 4096, bytearray())
        assert (found.frames, found.reason, found.stop) == (0, "bad", start)
    placed(huge, append(1)[:-1] + b"?", END)
    assert "checksum" in ops.scan_wal(huge, END, END + 4096, bytearray()).why
    assert not walscan.lies_beyond(huge, END)


def test_zeros_behind_the_last_offset_are_a_clean_end(ops: ModuleType, huge: memoryview) -> None:
    placed(huge, append(1), END - 100)
    found = ops.scan_wal(huge, END - 100, END + 50, bytearray())
    assert (found.frames, found.reason) == (1, "zeros")


@needs_kernel
@given(wal_bytes(), st.integers(0, 500))
def test_twins_scan_the_same_across_the_last_offset(huge: memoryview, data: bytes, before: int) -> None:
    start = END - before
    placed(huge, data, start)
    seen = []
    for twin in (ops_module.reference, ops_module.kernel):
        assert twin is not None
        entries = bytearray()
        found = twin.scan_wal(huge, start, start + len(data), entries)
        seen.append(({name: getattr(found, name) for name in type(found).__slots__}, entries))
    assert seen[0] == seen[1]


def test_every_known_kind_is_a_frame_and_no_other_is(ops: ModuleType) -> None:
    for kind in range(2, 256):
        data = encode_frame(kind, 1, bytes(8), ts=NOW)
        assert scan(ops, data)[0].frames == (kind in KNOWN_KINDS), kind
