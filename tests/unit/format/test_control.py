from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.format.control import (
    BadBody,
    Dedupe,
    Delete,
    EvictWatermark,
    FileMark,
    HeadWatermark,
    Lease,
    LostRange,
    LostReason,
    MarkRow,
    PlainMark,
    RouterCreate,
    RouterCursor,
    RouterDelete,
    Selector,
    SnapshotMark,
    SyncMark,
    TokenWatermark,
    TopicCreate,
    TopicDelete,
    decode_mark,
)
from topics.format.group import RUN, GroupOp
from topics.model.leaserows import LeaseRun

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
selectors = st.none() | st.builds(Selector, st.sampled_from([0, 1]), text)
ranges = st.tuples(u64, u64).map(lambda pair: (min(pair), max(pair)))

bodies = st.one_of(
    st.builds(TopicCreate, text, st.binary(max_size=30)),
    st.builds(TopicDelete, text),
    st.builds(RouterCreate, text, text, text, st.integers(0, 31), selectors, u64, u64, u64, u64, u64),
    st.builds(RouterDelete, text),
    st.builds(RouterCursor, u64, u64, u64),
    st.builds(
        Delete,
        before_seq=st.none() | u64,
        match=selectors,
        seqs=st.lists(u64, max_size=5).map(tuple),
        bound=st.none() | u64,
        ranges=st.lists(ranges, max_size=5).map(tuple),
    ),
    st.builds(EvictWatermark, u64, u64, u64),
    st.builds(HeadWatermark, u64),
    st.builds(
        Lease, st.integers(0, 4), u64, u64, u64, text, st.lists(st.tuples(u64, u64, u64, u64), max_size=3).map(tuple)
    ),
    st.builds(TokenWatermark, u64),
    st.builds(
        GroupOp,
        st.integers(0, 11),
        text,
        text,
        u64,
        u64,
        st.binary(max_size=20),
        st.lists(st.tuples(u64, u64, u64, u64), max_size=3).map(tuple)
        | st.builds(
            lambda seq, count, *rest: LeaseRun(range(seq, seq + count), *rest),
            st.integers(0, 1 << 63),
            st.integers(0, 5),
            st.integers(0, 1 << 63),
            u64,
            u64,
        ),
    ),
    st.builds(Dedupe, text, u64, u32),
    ranges.flatmap(lambda pair: st.builds(LostRange, st.just(pair[0]), st.just(pair[1]), st.integers(0, 4))),
)
rows = st.builds(MarkRow, u64, u64, u64, u64, u64, u64, u64, u32)
marks = st.one_of(
    st.builds(PlainMark, u64),
    st.builds(SnapshotMark, u64, u64, st.lists(rows, max_size=3).map(tuple)),
    st.builds(SyncMark, u64, u64, u64),
    st.builds(FileMark, u64, u64, u64, u64),
)


@given(bodies)
def test_body_decodes_to_what_was_encoded(value: Any) -> None:
    assert type(value).decode(value.encode()) == value


@given(marks)
def test_mark_decodes_to_what_was_encoded(mark: Any) -> None:
    assert decode_mark(mark.encode()) == mark


@given(bodies, st.data())
def test_cut_body_is_refused(value: Any, data: st.DataObject) -> None:
    body = value.encode()
    cut = body[: data.draw(st.integers(0, max(0, len(body) - 1)))]
    try:
        found = type(value).decode(cut)
    except BadBody:
        return
    # The only cuts that leave a whole body are those before an optional last part.
    assert found.encode() == cut or isinstance(found, RouterCreate)


@given(bodies)
def test_trailing_bytes_are_refused(value: Any) -> None:
    body = value.encode()
    if isinstance(value, Delete) and not value.ranges:
        body += struct.pack("<I", 0)
    with pytest.raises(BadBody):
        type(value).decode(body + b"\0")


@given(st.binary(max_size=80))
def test_garbage_is_refused_or_decoded_but_never_breaks(body: bytes) -> None:
    for kind in (
        TopicCreate,
        TopicDelete,
        RouterCreate,
        RouterDelete,
        RouterCursor,
        Delete,
        EvictWatermark,
        HeadWatermark,
        Lease,
        GroupOp,
        Dedupe,
        LostRange,
    ):
        try:
            kind.decode(body)
        except BadBody:
            continue
    try:
        decode_mark(body)
    except BadBody:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b"\0\0" + struct.pack("<I", 0xFFFFFFFF),
        b"\0\0" + bytes(4) + b"\0" + struct.pack("<I", 0xFFFFFFFF),
        b"\0\0" + bytes(4) + b"\0" + struct.pack("<I", 1_000_000),
        b"\2",
        b"\0\1\2" + struct.pack("<I", 0) + bytes(5),
        b"\0\0" + bytes(4) + b"\0" + struct.pack("<IQQ", 1, 5, 4),
    ],
)
def test_hostile_delete_asks_for_no_memory(body: bytes) -> None:
    with pytest.raises(BadBody):
        Delete.decode(body)


def test_a_run_of_rows_is_written_as_its_first_one() -> None:
    rows = LeaseRun(range(7, 1007), 40, 5000, 2)
    body = GroupOp(4, "g", "m", rows=rows).encode(shift=3)
    assert len(body) < 100
    assert list(GroupOp.decode(body).rows) == [(7 + at, 40 + at, 5003, 2) for at in range(1000)]


@pytest.mark.parametrize(
    ("count", "seq", "token"), [(0, 1, 1), (1, 1, 1), (20_000_000, 1, 1), (3, (1 << 64) - 2, 1), (3, 1, (1 << 64) - 2)]
)
def test_a_run_that_cannot_be_is_refused(count: int, seq: int, token: int) -> None:
    body = GroupOp(4, "g").encode()[:-4] + struct.pack("<IQQQQ", RUN + count, seq, token, 1, 1)
    with pytest.raises(BadBody, match="no run"):
        GroupOp.decode(body)


def test_delete_of_the_reference_has_no_ranges() -> None:
    body = b"\1" + struct.pack("<Q", 9) + b"\0" + struct.pack("<IQ", 1, 3) + b"\0"
    assert Delete.decode(body) == Delete(before_seq=9, seqs=(3,))
    assert Delete(before_seq=9, seqs=(3,)).encode() == body


def test_delete_with_too_many_ranges_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.model.limits.DELETE_RANGES", 2)
    with pytest.raises(ValueError, match="more than the 2"):
        Delete(ranges=((1, 1), (3, 3), (5, 5))).encode()


def test_router_of_the_reference_has_no_ids() -> None:
    ours = RouterCreate("r", "a", "b", 3, Selector(0, "t"), 5, 6, 7, 8, 9)
    found = RouterCreate.decode(ours.encode()[:-24])
    assert (found.router_id, found.source_id, found.dest_id) == (0, 0, 0)
    assert (found.name, found.filter, found.dest_base) == ("r", Selector(0, "t"), 6)


def test_selector_matches_equal_tags_or_prefixes() -> None:
    assert Selector(0, "a").matches("a")
    assert not Selector(0, "a").matches("ab")
    assert Selector(1, "a").matches("ab")
    assert Selector(1, "").matches("")
    assert not Selector(1, "b").matches("ab")
    assert not Selector(1, "").matches(None)
    assert not Selector(0, "").matches(None)


def test_unknown_codes_are_refused() -> None:
    with pytest.raises(BadBody, match="lease event"):
        Lease.decode(Lease(5, 1, 1, 1, "").encode())
    with pytest.raises(BadBody, match="reason"):
        LostRange.decode(LostRange(1, 2, max(LostReason) + 1).encode())
    with pytest.raises(BadBody, match="before it begins"):
        LostRange.decode(LostRange(3, 2, 1).encode())
    with pytest.raises(BadBody, match="extension"):
        decode_mark(bytes(8) + b"\x09")
