"""Packing, admission, ranges, payloads: arithmetic that needs neither a file nor a server."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.errors import InvalidRequest
from topics.spark.admission import Limits, Offer, admit
from topics.spark.packing import PARTITION_BYTES, pack
from topics.spark.payload import parse_texts
from topics.spark.places import ServerPlace, Span, WalPlace
from topics.spark.ranges import clipped, without


def span(start: int, count: int, size: int) -> Span:
    return Span("orders", 1, start, start + count, size, ServerPlace())


def test_segments_are_packed_to_about_128_mib() -> None:
    packed = pack([span(1 + 10 * n, 10, 2 << 20) for n in range(200)], cores=2)
    sizes = [sum(part.bytes for part in parts) for parts in packed]
    assert len(packed) == -(-200 * (2 << 20) // PARTITION_BYTES) == 4
    assert max(sizes) - min(sizes) <= 2 << 20


def test_last_round_of_tasks_leaves_no_core_idle() -> None:
    spans = [span(1 + 10 * n, 10, 1 << 20) for n in range(3 * 128)]
    assert [len(pack(spans, cores)) for cores in (1, 2, 3, 4, 5, 200)] == [3, 4, 3, 4, 5, 96]
    assert len(pack(spans, 2, bytes_max=512 << 20)) == 2
    assert len(pack(spans, 2, bytes_max=512 << 20, bytes_min=256 << 20)) == 1


def test_little_work_is_one_task() -> None:
    assert len(pack([span(1 + 10 * n, 10, 1000) for n in range(50)], cores=8)) == 1
    assert len(pack([span(1, 100, 64 << 20)], cores=4)) == 4
    assert pack([], cores=4) == []


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1 << 24)), max_size=30),
    least=st.integers(0, 12),
    records=st.none() | st.integers(1, 40),
)
def test_packing_keeps_every_seq_once_and_in_order(
    sizes: list[tuple[int, int]], least: int, records: int | None
) -> None:
    spans, at = [], 1
    for count, size in sizes:
        spans.append(span(at, count, size))
        at += count
    packed = pack(spans, 2, least, records)
    flat = [part for parts in packed for part in parts]
    assert [seq for part in flat for seq in range(part.start_seq, part.end_seq)] == list(range(1, at))
    if records is not None:
        assert all(sum(part.count for part in parts) <= records for parts in packed)


def test_a_cut_of_wal_entries_takes_its_own() -> None:
    whole = Span("a", 1, 10, 14, 80, WalPlace("wal", bytes(range(80))))
    part = whole.cut(11, 13)
    assert isinstance(part.place, WalPlace)
    assert part.place.entries == bytes(range(20, 60))


@given(
    offers=st.dictionaries(
        st.sampled_from("abcd"), st.tuples(st.integers(1, 99), st.integers(0, 500), st.integers(0, 10_000)), min_size=1
    ),
    records=st.none() | st.integers(1, 400),
    size=st.none() | st.integers(1, 20_000),
)
def test_admission_stays_inside_the_limit_and_never_stalls(
    offers: dict[str, tuple[int, int, int]], records: int | None, size: int | None
) -> None:
    asked = {name: Offer(start, start + count, weight) for name, (start, count, weight) in offers.items()}
    ends = admit(asked, Limits(records, size))
    taken = sum(ends[name] - offer.start for name, offer in asked.items())
    there = sum(offer.end - offer.start for offer in asked.values())
    assert all(offer.start <= ends[name] <= offer.end for name, offer in asked.items())
    assert taken >= min(there, 1)
    assert records is None or taken <= records
    if records is None and size is None:
        assert taken == there


@given(
    start=st.integers(0, 30),
    end=st.integers(0, 30),
    ranges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5),
)
def test_ranges_behave_like_sets_of_seqs(start: int, end: int, ranges: list[tuple[int, int]]) -> None:
    holes = sorted((min(pair), max(pair)) for pair in ranges)
    gone = {seq for first, last in holes for seq in range(first, last + 1)}
    left = {seq for low, high in without(start, end, holes) for seq in range(low, high)}
    assert left == set(range(start, end)) - gone
    inside = {seq for first, last in clipped(holes, start, end) for seq in range(first, last + 1)}
    assert inside == gone & set(range(start, end))


def test_payloads_that_do_not_fit_are_null_one_by_one() -> None:
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    texts = pa.array(['{"id":1,"more":[1]}', "5", '{"id":"x"}', None, '{"id":2,"name":"\\u00e9"}', "{}", "null"])
    found = parse_texts(texts, kind, fail=False)
    nothing = {"id": None, "name": None}
    assert found.to_pylist() == [{"id": 1, "name": None}, None, None, None, {"id": 2, "name": "é"}, nothing, None]
    assert found.type == kind
    with pytest.raises(InvalidRequest, match="onBadJson=null"):
        parse_texts(texts, kind, fail=True)
    assert parse_texts(texts[4:6], kind, fail=True).to_pylist() == [{"id": 2, "name": "é"}, nothing]
