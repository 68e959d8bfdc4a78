"""An index made from damaged frames: the damaged ones alone are without a place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.format.mending import NO_PLACE, has_lost_place, make_index
from topics.format.ops import rebuild_idx
from topics.format.segment import ENTRY, ENTRY_SIZE, HOLE, encode_segment_frame

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
