"""Rows of leases, and runs of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.leaserows import LeaseRow, LeaseRun, as_run, in_a_row, is_twofold, seqs_of

numbers = st.integers(0, 4)
runs = st.builds(lambda first, count: LeaseRun(range(first, first + count), 50, 9, 1), numbers, st.integers(0, 6))
edge = st.none() | st.integers(-8, 8)
slices = st.builds(slice, edge, edge, st.sampled_from([None, 1, 2, -1]))


@given(runs, slices)
def test_a_run_is_the_sequence_of_its_rows(run: LeaseRun, part: slice) -> None:
    rows = [(seq, 50 + at, 9, 1) for at, seq in enumerate(run.seqs)]
    assert list(run) == rows
    assert run == rows
    assert len(run) == len(rows)
    assert list(run[part]) == rows[part]
    assert [run[at] for at in range(-len(rows), len(rows))] == rows + rows
    assert seqs_of(run) == run.seqs
    assert list(seqs_of(rows)) == list(run.seqs)


def test_a_run_ends_where_its_seqs_do() -> None:
    run = LeaseRun(range(3, 5), 1, 0, 1)
    with pytest.raises(IndexError):
        run[2]
    assert run != [(3, 1, 0, 1)]
    assert repr(run) == "LeaseRun(range(3, 5), 1, 0, 1)"


@given(st.lists(st.tuples(numbers, numbers, st.integers(0, 1), st.integers(0, 1)), max_size=4) | runs.map(list))
def test_rows_are_a_run_only_if_each_follows_the_last(rows: Sequence[LeaseRow]) -> None:
    follows = [(a[0] + 1, a[1] + 1, *a[2:]) == b for a, b in pairwise(rows)]
    found = as_run(rows)
    assert list(found) == list(rows)
    assert isinstance(found, LeaseRun) == (len(rows) > 1 and all(follows))


@given(st.lists(st.integers(1, 5), max_size=5))
def test_seqs_in_a_row_are_a_range(seqs: list[int]) -> None:
    found = in_a_row(seqs)
    assert list(found) == seqs
    follows = all(a + 1 == b for a, b in pairwise(seqs))
    assert isinstance(found, range) == (bool(seqs) and follows)
    assert is_twofold(found) == (len(set(seqs)) < len(seqs))
