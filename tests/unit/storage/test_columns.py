"""Many ranges at once come to the same as one after the other."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.format.control import LeaseEvent
from topics.format.ops import prepare
from topics.model.config import TopicConfig
from topics.model.group import GroupConfig
from topics.rules.group import Group
from topics.storage.columns import MANY, Ranges
from topics.storage.dead import DeadSet
from topics.storage.group import Groups
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.topic import Topic
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.ids import FakeIds

HEAD = 6000
LEASED = 500


def make_topic() -> Topic:
    """Records of many sizes in sealed segments, an open one and the tail; the last hundred are ordered only."""
    options = StoreOptions(wal_shards=1, segment_max_events=700)
    store = open_store(FakeDisk(1), "/data", options, FakeClock(), FakeIds(1), contextlib.nullcontext())
    store.drive(store.create("t", TopicConfig(type="queue")))
    for start in range(0, HEAD + 100, 100):
        batch = prepare([{"data": "x" * (seq % 37)} for seq in range(start, start + 100)])
        submission = store.append("t", batch).submission
        if start < HEAD:
            store.drive(submission)
        if start == HEAD // 2:
            copied = list(store.topic("t").tail.chunks)
            store.checkpoint()
    topic = store.topic("t")
    topic.tail.chunks[:0] = copied  # as when a checkpoint copied the first half of a chunk: nothing counts twice
    return topic


@pytest.fixture(scope="module")
def original() -> Topic:
    return make_topic()


def twin(original: Topic, dead: Ranges, floor: int) -> Topic:
    """A topic of the same records that dies by itself."""
    topic = Topic(original.id, original.name, original.config, original.directory, original.handles)
    topic.segments = [replace(segment) for segment in original.segments]
    topic.tail, topic.copied, topic.head = original.tail, original.copied, original.head
    topic.live, topic.bytes = original.live, original.bytes
    topic.ledger.bytes = original.bytes
    topic.ordered = topic.published()
    topic.ordered.head = original.ordered.head
    topic.apply_delete(floor, ())
    for one in dead:
        topic.apply_delete(0, (one,))
    assert topic.queue is not None
    rows = [(seq, seq, 1000, 1) for seq in range(1, LEASED)]
    topic.apply_lease(LeaseEvent.CLAIMED, "n", rows, 1)
    topic.groups = Groups({"g": Group("g", GroupConfig())})
    topic.groups.by_name["g"].leases.apply_claimed("n", [row for row in rows if row[0] not in topic.dead], 1)
    return topic


def state(topic: Topic) -> object:
    queue = topic.queue
    assert queue is not None
    assert topic.groups is not None
    return (
        topic.live, topic.bytes, topic.ledger.bytes,
        [(segment.live, segment.bytes) for segment in topic.segments if segment.live >= 0],
        topic.dead.floor, list(topic.dead.ranges()), topic.unflagged,
        dict(queue.leases.entries), dict(topic.groups.by_name["g"].leases.entries),
        [seq for seq in range(LEASED) if queue.is_gone(seq)],
    )  # fmt: skip


def ranges_of(gaps: list[tuple[int, int]]) -> Ranges:
    """From the distance to the one before, and the length."""
    ends = accumulate(gap + length for gap, length in gaps)
    return tuple((end - length, end - 1) for end, (_, length) in zip(ends, gaps, strict=True))


lengths = st.sampled_from([1, 1, 1, 2, 3, 63, 64, 65, 900])
gaps = st.tuples(st.integers(1, 30) | st.just(600), lengths)
apart = (st.lists(gaps, min_size=1, max_size=MANY) | st.lists(gaps, min_size=MANY, max_size=4 * MANY)).map(ranges_of)
before = st.lists(st.tuples(st.integers(1, 200), lengths), max_size=10).map(ranges_of)


@given(apart, before, st.sampled_from([0, 10, 650, 701, 3500]))
def test_many_ranges_die_like_one_after_the_other(original: Topic, ranges: Ranges, dead: Ranges, floor: int) -> None:
    together, single = twin(original, dead, floor), twin(original, dead, floor)
    died = together.apply_delete(0, ranges)
    assert died == sum(single.apply_delete(0, (one,)) for one in ranges)
    assert state(together) == state(single)


@given(apart, before, before, st.sampled_from([0, 10, 650, 3500]))
def test_many_ranges_measure_like_one_after_the_other(
    original: Topic, ranges: Ranges, dead: Ranges, ordered: Ranges, floor: int
) -> None:
    topic = twin(original, dead, floor)
    overlay = DeadSet()
    for first, last in ordered:
        overlay.mark(first, last)
    for also in (None, overlay):
        single = [topic.measure(first, last, also) for first, last in ranges]
        assert topic.measure_all(ranges, also) == (sum(live for live, _ in single), sum(size for _, size in single))


def test_ranges_that_overlap_or_come_out_of_order_die_once(original: Topic) -> None:
    ranges = tuple((seq, seq + 3) for seq in range(1, 400, 2))
    for several in (ranges, ranges[::-1], (*ranges, *ranges)):
        together, single = twin(original, (), 0), twin(original, (), 0)
        assert together.apply_delete(0, several) == 402
        for one in several:
            single.apply_delete(0, (one,))
        assert state(together) == state(single)


def test_nothing_left_counts_no_bytes_even_where_a_frame_rotted(original: Topic) -> None:
    topic = twin(original, ((HEAD // 2, HEAD),), 0)
    topic.bytes += 5
    topic.ledger.bytes += 5
    topic.apply_delete(0, tuple((seq, seq + 1) for seq in range(1, HEAD // 2, 2)))
    assert (topic.live, topic.bytes, topic.ledger.bytes) == (0, 0, 0)


def test_ranges_far_above_the_head_hit_nothing(original: Topic) -> None:
    topic = twin(original, (), 0)
    assert topic.apply_delete(0, tuple((2**64 - 2 * n, 2**64 - 2 * n) for n in range(100, 0, -1))) == 0
    assert topic.measure_all(tuple((HEAD + 1000 + 2 * n, HEAD + 1000 + 2 * n) for n in range(100))) == (0, 0)
