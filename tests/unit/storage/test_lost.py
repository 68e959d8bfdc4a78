from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.format.control import LostReason
from topics.storage.lost import LostRanges

REPORTED = [LostReason.CRASH, LostReason.CORRUPT, LostReason.RESTART, LostReason.SOURCE_TRIM]
adds = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20), st.sampled_from(REPORTED)), max_size=12)


def build(rows: list[tuple[int, int, LostReason]]) -> tuple[LostRanges, dict[int, LostReason]]:
    lost = LostRanges()
    plain: dict[int, LostReason] = {}
    for first, more, reason in rows:
        lost.add(first, first + more, reason)
        for seq in range(first, first + more + 1):
            plain.setdefault(seq, reason)
    return lost, plain


@given(adds)
def test_rows_are_disjoint_ascending_and_keep_what_was_known_first(rows: list[tuple[int, int, LostReason]]) -> None:
    lost, plain = build(rows)
    told = {seq: LostReason(reason) for first, last, reason in lost.rows for seq in range(first, last + 1)}
    assert told == plain
    assert [row[0] for row in lost.rows] == sorted(row[0] for row in lost.rows)
    assert sum(last - first + 1 for first, last, _ in lost.rows) == len(plain)


@given(adds, st.integers(0, 90))
def test_the_range_at_or_after_a_seq_is_the_nearest(rows: list[tuple[int, int, LostReason]], seq: int) -> None:
    lost, plain = build(rows)
    found = lost.at_or_after(seq)
    later = [at for at in plain if at >= seq]
    if not later:
        assert found is None
        return
    assert found is not None
    first, last, reason = found
    assert max(first, seq) == min(later)
    assert reason == plain[min(later)].name.lower()
    assert all(plain.get(at) == plain[min(later)] for at in range(first, last + 1))


@given(adds, st.integers(0, 90))
def test_a_floor_takes_away_what_it_says_itself(rows: list[tuple[int, int, LostReason]], floor: int) -> None:
    lost, plain = build(rows)
    lost.drop_through(floor)
    told = {seq for first, last, _ in lost.rows for seq in range(first, last + 1)}
    assert told == {seq for seq in plain if seq > floor}


def test_skipped_seqs_are_not_reported() -> None:
    lost = LostRanges()
    lost.add(3, 9, LostReason.SKIPPED)
    assert lost.rows == []
    assert lost.at_or_after(1) is None


def test_neighbours_of_one_reason_are_one_row() -> None:
    lost = LostRanges()
    lost.add(5, 6, LostReason.CRASH)
    lost.add(1, 4, LostReason.CRASH)
    lost.add(7, 7, LostReason.CORRUPT)
    assert lost.rows == [(1, 6, int(LostReason.CRASH)), (7, 7, int(LostReason.CORRUPT))]
