"""Ranges behave as the set of numbers they stand for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.testing.ranges import Ranges

SPAN = st.tuples(st.integers(0, 30), st.integers(0, 30))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "cut"]), SPAN), max_size=20)


def numbers(ranges: Ranges) -> set[int]:
    return {n for start, end in ranges for n in range(start, end)}


@given(STEPS, SPAN)
def test_ranges_are_the_numbers_in_them(steps: list[tuple[str, tuple[int, int]]], span: tuple[int, int]) -> None:
    ranges, model = Ranges(), set[int]()
    for step, (start, end) in steps:
        if step == "add":
            ranges.add(start, end)
            model |= set(range(start, end))
        elif step == "remove":
            ranges.remove(start, end)
            model -= set(range(start, end))
        else:
            ranges.cut(end)
            model = {n for n in model if n < end}
        assert numbers(ranges) == model
        spans = list(ranges)
        assert all(a < b for a, b in spans)
        assert all(one[1] < two[0] for one, two in pairwise(spans)), "ranges that touch are one"
    assert bool(ranges) == bool(model)
    start, end = span
    assert ranges.meets(start, end) == bool(model & set(range(start, end)))
    if start < end:
        assert {n for low, high in ranges.within(start, end) for n in range(low, high)} == model & set(
            range(start, end)
        )


@given(STEPS, STEPS)
def test_a_union_has_the_numbers_of_both_and_changes_neither(
    one: list[tuple[str, tuple[int, int]]], two: list[tuple[str, tuple[int, int]]]
) -> None:
    first, second = Ranges(), Ranges()
    for steps, ranges in ((one, first), (two, second)):
        for _, (start, end) in steps:
            ranges.add(start, end)
    before = numbers(first), numbers(second)
    assert numbers(first | second) == before[0] | before[1]
    assert (numbers(first), numbers(second)) == before


def test_ranges_print_themselves() -> None:
    ranges = Ranges()
    assert repr(ranges) == "(none)"
    ranges.add(1, 2)
    ranges.add(5, 9)
    assert repr(ranges) == "1..2 5..9"
