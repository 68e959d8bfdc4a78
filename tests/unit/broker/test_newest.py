"""The short way to the newest record says what the long way says, whatever became of the record."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.engine import Bench
from topics.broker import reading
from topics.broker.reading import Query, read_page
from topics.format.control import LostReason
from topics.storage.reader import find_newest, plan

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["checkpoint", "reopen", "lose", "rotate"]), st.just(0)),
    ),
    max_size=12,
)


def take(bench: Bench, step: tuple[str, int]) -> None:
    word, number = step
    topic = bench.store.topics["a"]
    if word == "append":
        bench.append("a", *({"data": at, "node": f"n{at}"} for at in range(number)))
    elif word == "delete":
        bench.run(bench.broker.delete("a", max(topic.head + 2 - number, 1), None))
    elif word == "checkpoint":
        bench.store.checkpoint()
    elif word == "reopen":
        bench.store.checkpoint(clean=True)
        bench.store.release()
        bench.open()
    elif word == "lose":
        topic.apply_lost(topic.head, topic.head, LostReason.CORRUPT)
    else:
        bench.append("b", "x" * 40_000)


@given(
    steps=STEPS,
    durability=st.sampled_from(["ephemeral", "disk"]),
    caps=st.sampled_from([{}, {"cap_records": 2}, {"dedupe_node": True}]),
    behind=st.integers(0, 2),
    query=st.fixed_dictionaries(
        {}, optional={"limit": st.just(1), "epoch": st.integers(1, 2), "exclude_nodes": st.just((b"n0",))}
    ),
    through=st.sampled_from([None, 0, 1]),
)
@settings(max_examples=120, deadline=None)
def test_short_way_says_what_the_long_way_says(
    steps: list[tuple[str, int]],
    durability: str,
    caps: dict[str, Any],
    behind: int,
    query: dict[str, Any],
    through: int | None,
) -> None:
    bench = Bench()
    bench.append("a", 1, durability=durability, **caps)
    for step in steps:
        take(bench, step)
        topic = bench.store.topics["a"]
        wanted = Query(from_seq=max(topic.head - behind, 0), **query)
        if through is not None:
            wanted.through = topic.head - through
        page = read_page(bench.store, topic, wanted)
        with mock.patch.object(reading, "find_newest", return_value=None):
            assert read_page(bench.store, topic, wanted) == page
        found = find_newest(topic)
        if found is not None:
            assert plan(topic, topic.head - 1, topic.head + 1, 256) == found


def test_short_way_is_taken_by_whoever_reads_along() -> None:
    bench = Bench()
    bench.append("a", 1, 2)
    topic = bench.store.topics["a"]
    with mock.patch.object(reading, "scan", side_effect=AssertionError("the long way")):
        page = read_page(bench.store, topic, Query(from_seq=1))
        with pytest.raises(AssertionError):
            read_page(bench.store, topic, Query(from_seq=0))
    assert (page.count, page.next_from_seq, page.scanned) == (1, 2, 1)


def test_newest_record_that_fails_its_check_is_told_as_lost() -> None:
    bench = Bench()
    bench.append("a", 1, 2)
    topic = bench.store.topics["a"]
    found = find_newest(topic)
    assert found is not None
    assert found.source is not None
    with mock.patch.object(type(found.source), "read_at", return_value=bytes(64)):
        page = read_page(bench.store, topic, Query(from_seq=1))
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.reason, page.count) == (2, "corrupt", 0)
