from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.format.container import BadContainer, unwrap, wrap
from topics.format.control import Selector
from topics.format.tags import MAGIC, TagIndex, build_tags

tag_lists = st.lists(st.none() | st.text("ab:é", max_size=4).map(str.encode), max_size=30)


@given(tag_lists, st.integers(1, 1 << 60), st.sampled_from([0, 1]), st.text("ab:é", max_size=3))
def test_finds_what_a_walk_over_all_records_finds(
    tags: list[bytes | None], first_seq: int, op: int, value: str
) -> None:
    selector = Selector(op, value)
    expected = [first_seq + i for i, tag in enumerate(tags) if tag is not None and selector.matches(tag.decode())]
    found = TagIndex(build_tags(tags, first_seq)).find(selector)
    assert found.dtype == np.uint64
    assert found.tolist() == expected


@given(tag_lists, st.text("ab:é", max_size=2))
def test_names_are_sorted_and_begin_with_the_prefix(tags: list[bytes | None], prefix: str) -> None:
    known = sorted({tag for tag in tags if tag is not None})
    index = TagIndex(build_tags(tags, 1))
    assert index.names() == [tag.decode() for tag in known]
    assert index.names(prefix) == [tag.decode() for tag in known if tag.startswith(prefix.encode())]


def test_segment_without_tags_has_an_empty_sidecar() -> None:
    for tags in ([], [None, None]):
        index = TagIndex(build_tags(tags, 5))
        assert index.names() == []
        assert index.find(Selector(1, "")).tolist() == []


def test_sidecar_is_read_in_place() -> None:
    buf = bytearray(build_tags([b"b", None, b"a", b"b"], 10))
    index = TagIndex(memoryview(buf).toreadonly())
    assert index.find(Selector(0, "b")).tolist() == [10, 13]
    with pytest.raises(BufferError):
        buf.append(0)


def test_every_flipped_bit_is_noticed() -> None:
    whole = build_tags([b"b", None, b"a", b"b"], 10)
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1
        with pytest.raises(BadContainer):
            TagIndex(broken)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack("<QII", 1, 1, 0),
        struct.pack("<QII", 1, 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack("<QII", 1, 0, 0) + b"x",
        struct.pack("<QIIIII", 1, 1, 1, 9, 1, 0) + b"a",
        struct.pack("<QIIIII", 1, 1, 1, 1, 9, 0) + b"a",
        struct.pack("<QIIIIIIII", 1, 2, 2, 3, 2, 1, 2, 0, 1) + b"ab",
    ],
)
def test_columns_that_do_not_fit_are_refused(body: bytes) -> None:
    with pytest.raises(BadContainer):
        TagIndex(wrap(MAGIC, body))


@given(st.binary(max_size=60), st.data())
def test_hostile_body_is_refused_or_answers_within_bounds(noise: bytes, data: st.DataObject) -> None:
    body = bytearray(unwrap(MAGIC, build_tags([b"b", None, b"a", b"b", b"ab"], 10)))
    at = data.draw(st.integers(0, len(body)))
    body[at : at + len(noise)] = noise
    try:
        index = TagIndex(wrap(MAGIC, bytes(body)))
    except BadContainer:
        return
    for op in (0, 1):
        assert len(index.find(Selector(op, "a"))) <= len(body)
