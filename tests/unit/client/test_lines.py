"""Streams in pieces of any size, and how a cut is noticed."""

from __future__ import annotations

import io
import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.client.lines import ARROW_END, LINE_BYTES_MAX, ArrowPieces, RecordLines
from topics.model.errors import BadAnswer, StreamCut
from topics.model.record import Gap, Record

WHOLE = (
    b'{"$seq":1,"$ts":5,"$tag":"t","$node":"n","$key":"k","data":{"a":[1,2]},"meta":{}}\n'
    b'{"tombstone":{"gap_from":2,"gap_to":4,"reason":"cap"}}\n\n'
    b'{"$seq":5,"$ts":6,"data":null}\n'
    b'{"end":{"next_from_seq":6,"head_seq":5}}\n'
)
ITEMS = [
    Record(1, 5, "t", "n", "k", b"{}", b'{"a":[1,2]}'),
    Gap(2, 4, "cap"),
    Record(5, 6, None, None, None, None, b"null"),
]


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_items_do_not_depend_on_how_the_stream_is_cut_into_pieces(cuts: list[int]) -> None:
    decoder = RecordLines(None)
    items = [item for piece in pieces_of(WHOLE, cuts) for item in decoder.feed(piece)]
    decoder.finish()
    assert items == ITEMS
    assert decoder.end is not None
    assert (decoder.end.next_from_seq, decoder.end.head_seq) == (6, 5)


@given(st.integers(0, len(WHOLE) - 3))
def test_every_shorter_stream_was_cut(size: int) -> None:
    decoder = RecordLines(1)
    items = decoder.feed(WHOLE[:size])
    with pytest.raises(StreamCut) as caught:
        decoder.finish()
    assert items == ITEMS[: len(items)]
    assert caught.value.next_from_seq in (1, 2, 5, 6)


def test_last_line_may_lack_its_line_feed() -> None:
    decoder = RecordLines(None)
    decoder.feed(WHOLE[:-1])
    decoder.finish()


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"\xff\n", b"{}\n", b'{"$seq":"1"}\n'])
def test_line_that_is_no_record_is_a_bad_answer(line: bytes) -> None:
    with pytest.raises(BadAnswer):
        RecordLines(None).feed(line)


def test_nothing_may_follow_the_end() -> None:
    with pytest.raises(BadAnswer, match="after the end"):
        RecordLines(None).feed(WHOLE + b'{"$seq":6,"$ts":6,"data":1}\n')


def test_line_without_end_does_not_fill_the_memory() -> None:
    decoder = RecordLines(None)
    decoder.feed(b"x" * LINE_BYTES_MAX)
    with pytest.raises(BadAnswer, match="line"):
        decoder.feed(b"x")


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_arrow_stream_passes_unchanged_and_its_end_is_seen(cuts: list[int]) -> None:
    sink = io.BytesIO()
    batch = pa.record_batch({"seq": [1, 2]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    whole = sink.getvalue()
    assert whole.endswith(ARROW_END)
    decoder = ArrowPieces()
    passed = b"".join(part for piece in pieces_of(whole, cuts) for part in decoder.feed(piece))
    decoder.finish()
    assert passed == whole


@pytest.mark.parametrize("data", [b"", ARROW_END[:7], ARROW_END + b"x"])
def test_arrow_stream_without_end_was_cut(data: bytes) -> None:
    decoder = ArrowPieces()
    decoder.feed(data)
    with pytest.raises(StreamCut):
        decoder.finish()
