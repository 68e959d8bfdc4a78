"""Spans of seqs by a number."""

from __future__ import annotations

from topics.rules.spans import Spans


def test_a_span_is_one_item_and_its_seqs_come_in_order() -> None:
    spans = Spans([(7, 70)])
    spans.push(5, 10, 13)
    assert len(spans) == 2
    gone: set[int] = set()
    found = []
    while (first := spans.first(lambda _, seq: seq not in gone)) is not None:
        found.append(first)
        gone.add(first[1])
    assert found == [(5, 10), (5, 11), (5, 12), (7, 70)]
    assert not len(spans)


def test_what_does_not_count_gives_way_to_a_span_of_the_same_number() -> None:
    spans = Spans()
    spans.push(5, 10, 20)
    spans.push(5, 12, 14)
    assert spans.first(lambda _, seq: seq in (13, 18)) == (5, 13)


def test_only_what_is_due_is_taken_off() -> None:
    spans = Spans([(3, 1)])
    spans.push(4, 2, 5)
    assert spans.pop_until(2) is None
    assert spans.pop_until(4) == (3, range(1, 2))
    assert spans.pop_until(4) == (4, range(2, 5))
    assert spans.pop_until(9) is None
