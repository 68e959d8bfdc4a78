"""An index made from damaged frames: the damaged ones alone are without a place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.format import mending
from topics.format.mending import NO_PLACE, has_lost_place, make_index
from topics.format.ops import rebuild_idx
from topics.format.segment import (
    ENTRY,
    ENTRY_SIZE,
    HEAD,
    HEADER,
    HOLE,
    OVERHEAD,
    encode_entry,
    encode_segment_frame,
)
from topics.model.limits import FRAME_BYTES, HOLE_RUN

FIRST = 300


def frames(count: int) -> list[bytes]:
    return [encode_segment_frame(FIRST + i, 1000 + i, b'{"d":"%d"}' % 10**i, tag=b"t" * (i % 3)) for i in range(count)]


def split(entries: bytes) -> list[bytes]:
    return [entries[at : at + ENTRY_SIZE] for at in range(0, len(entries), ENTRY_SIZE)]


def unasked() -> bytes:
    raise AssertionError("hints were asked for though all frames are whole")


def test_whole_frames_need_no_hints() -> None:
    data = b"".join(frames(5))
    entries = make_index(data, FIRST, 5, len(data), unasked)
    assert entries == rebuild_idx(data, FIRST, len(data))[0]
    assert not has_lost_place(entries)


def test_holes_behind_the_last_frame_are_no_damage() -> None:
    data = b"".join(frames(2))
    entries = split(make_index(data, FIRST, 4, len(data), unasked))
    assert [ENTRY.unpack(entry)[3] & HOLE for entry in entries] == [0, 0, HOLE, HOLE]


def sparse(seqs: list[int]) -> bytes:
    return b"".join(encode_segment_frame(seq, 1000 + seq, b'{"d":"x"}') for seq in seqs)


def test_any_number_of_deleted_records_between_whole_frames_are_holes() -> None:
    """More of them than two appends ever leave between them, twice."""
    seqs = [FIRST, FIRST + HOLE_RUN + 5, FIRST + HOLE_RUN + 6, FIRST + 3 * HOLE_RUN]
    data = sparse(seqs)
    entries = split(make_index(data, FIRST, 3 * HOLE_RUN + 9, len(data), unasked))
    assert len(entries) == 3 * HOLE_RUN + 9
    places = {FIRST + i: ENTRY.unpack(e)[0] for i, e in enumerate(entries) if not ENTRY.unpack(e)[3] & HOLE}
    size = len(data) // 4
    assert places == {seq: i * size for i, seq in enumerate(seqs)}
    assert ENTRY.unpack(entries[1]) == (size, 0, 1000 + FIRST, HOLE, bytes(3))


def test_records_behind_damage_and_many_deleted_ones_are_found() -> None:
    seqs = [FIRST, FIRST + 1, FIRST + 200, FIRST + 201, FIRST + 300 + HOLE_RUN]
    data = bytearray(sparse(seqs))
    size = len(data) // 5
    data[size + 30] ^= 1
    count = 400 + HOLE_RUN
    data += sparse([FIRST + count + 7])  # behind the last one that is counted
    entries = split(make_index(data, FIRST, count, len(data), lambda: b""))
    for i, seq in enumerate(seqs):
        want = NO_PLACE if i == 1 else encode_entry(i * size, size, 1000 + seq, 0, 1)
        assert entries[seq - FIRST][:12] == want[:12]
    lost = [FIRST + i for i, entry in enumerate(entries) if entry == NO_PLACE]
    assert lost == list(range(FIRST + 1, FIRST + 200))


def test_hint_of_a_hole_hides_no_record_that_a_search_finds() -> None:
    data = bytearray(sparse([FIRST, FIRST + 1, FIRST + 2]))
    size = len(data) // 3
    data[3] ^= 1
    hints = NO_PLACE + ENTRY.pack(size, 0, 0, HOLE, bytes(3)) + NO_PLACE
    entries = split(make_index(data, FIRST, 3, len(data), lambda: hints))
    assert entries[0] == NO_PLACE
    assert [ENTRY.unpack(entry)[:2] for entry in entries[1:]] == [(size, size), (2 * size, size)]


def test_what_only_looks_like_frames_is_hashed_for_a_bounded_time() -> None:
    """Headers one behind the other, each of which claims all the bytes there are."""
    size = 400_000
    data = bytearray(size)
    for at in range(0, size - 100, HEADER):
        length = min(size - at, FRAME_BYTES) - 4
        data[at : at + HEADER] = HEAD.pack(length, 0, FIRST, 0, 0, 0, length - OVERHEAD + 4)
    hashed = 0

    def counted(view: memoryview, start: int, first_seq: int, end_seq: int) -> tuple[bytearray, int]:
        nonlocal hashed
        hashed += len(view) - start
        return walk(view, start, first_seq, end_seq)

    walk = mending._walk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mending, "_walk", counted)
        assert make_index(data, FIRST, 9, size, lambda: b"") == NO_PLACE * 9
    assert size < hashed <= 66 * size


@given(st.data())
def test_only_damaged_frames_lose_their_place(data: st.DataObject) -> None:
    """Whichever bytes are damaged, and whatever the old index says."""
    made = frames(8)
    whole = b"".join(made)
    right = split(rebuild_idx(whole, FIRST, len(whole))[0])
    bad = data.draw(st.sets(st.integers(0, 7), min_size=1, max_size=4))
    spoiled = bytearray(whole)
    for index in bad:
        offset, length = ENTRY.unpack(right[index])[:2]
        at = data.draw(st.integers(0, length - 2))  # the last byte is the delete flag, which nothing vouches for
        spoiled[offset + at] ^= data.draw(st.integers(1, 255))
    hints = data.draw(st.sampled_from((b"".join(right), b"", b"".join(right[:3]), bytes(160), b"\xff" * 160)))
    hints = b"".join(entry if not ENTRY.unpack(entry)[3] & HOLE else NO_PLACE for entry in split(hints))
    found = split(make_index(bytes(spoiled), FIRST, 8, len(whole), lambda: hints))
    for index in range(8):
        if index not in bad:
            assert found[index] == right[index], f"entry {index} with {sorted(bad)} damaged"
        else:
            assert found[index] in (NO_PLACE, right[index])
    assert has_lost_place(b"".join(found)) == (NO_PLACE in found)


def test_bytes_that_are_not_there_are_without_a_place() -> None:
    made = frames(4)
    whole = b"".join(made)
    cut = whole[: len(made[0]) + len(made[1]) + 5]
    assert [entry == NO_PLACE for entry in split(make_index(cut, FIRST, 4, len(whole), lambda: b""))] == [
        False,
        False,
        True,
        True,
    ]


def test_a_search_in_vain_is_bounded() -> None:
    """A hundred thousand records are missing behind a damaged one, and their bytes are gone."""
    data = bytes(50_000)
    entries = make_index(data, FIRST, 100_000, len(data), lambda: b"")
    assert entries == NO_PLACE * 100_000
