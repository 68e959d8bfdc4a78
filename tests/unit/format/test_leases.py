"""Rows of leases as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import assert_same, needs_kernel
from topics.format.control import Lease, LeaseEvent
from topics.model.leaserows import LeaseRow, LeaseRun

numbers = st.integers(0, 5) | st.integers(0, (1 << 64) - 1) | st.integers(-1, 1 << 65)
plain = st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=6)
runs = st.builds(
    lambda first, count, *rest: LeaseRun(range(first, first + count), *rest),
    numbers,
    st.integers(0, 4),
    numbers,
    numbers,
    numbers,
)
rows: st.SearchStrategy[Sequence[LeaseRow]] = plain | runs


@needs_kernel
@given(rows=rows, start=st.integers(-1, 7), shift=st.integers(-3, 3) | st.integers(-(1 << 65), 1 << 65))
def test_twins_pack_the_same_rows(rows: Sequence[LeaseRow], start: int, shift: int) -> None:
    assert_same("pack_leases", rows, start, shift)


def test_a_deadline_is_shifted_and_none_stays_none(ops: ModuleType) -> None:
    packed = ops.pack_leases([(1, 2, 3, 4), (5, 6, 0, 7), (8, 9, 3, 1)], 1, 100)
    assert struct.unpack("<8Q", packed) == (5, 6, 0, 7, 8, 9, 103, 1)


def test_a_number_that_does_not_fit_is_refused(ops: ModuleType) -> None:
    with pytest.raises(OverflowError):
        ops.pack_leases([(1, 1 << 64, 0, 1)], 0, 0)


def test_the_body_of_a_call_is_read_back_as_its_rows() -> None:
    rows = [(4, 10, 1000, 1), (5, 11, 1000, 1), (9, 12, 0, 3)]
    lease = Lease.decode(Lease.body_of(LeaseEvent.CLAIMED, "w", rows, 7))
    assert lease.rows(4) == [(4, 10, 1007, 1), (5, 11, 1007, 1), (9, 12, 0, 3)]
    assert lease.encode() == Lease.body_of(LeaseEvent.CLAIMED, "w", rows, 7)
