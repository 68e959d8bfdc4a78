"""Calls over a topic's past: pages and streams of `/records`, the list of segments and the bytes of their files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar, Unpack

from topics.client.answers import At, HistoryPage, Part, SegmentList, WirePage, decode
from topics.client.calls import ARROW, JSON, NDJSON, Call, get, path, query
from topics.client.lines import ArrowPieces, Decoder, RecordLines
from topics.client.transport import Answer, HttpRequest
from topics.model.errors import BadAnswer, InvalidRequest
from topics.model.record import Gap, Record

T = TypeVar("T")


class Range(TypedDict, total=False):
    """What part of the past is meant. Seqs here are half-open, unlike the exclusive cursor of `diff`."""

    from_seq: int | None
    """First seq wanted; None = the earliest."""
    to_seq: int | None
    """First seq not wanted any more."""
    from_ts: int | None
    to_ts: int | None
    tag: str | None
    """Exact, or a prefix written `p*`."""
    node: str | None
    key: str | None
    limit: int | None
    include: Sequence[str] | None
    """Of `tags`, `meta`, `keys`, `data`; None = all."""
    epoch: int | None
    """The instance that is meant; another one raises `Recreated`."""


@dataclass(frozen=True, slots=True)
class StreamCall(Generic[T]):
    """A call whose answer is read while it comes. It may be opened again; once it gave something it is not repeated."""

    request: HttpRequest
    decoder: Callable[[], Decoder[T]]


def _target(topic: str, wanted: Range) -> str:
    unknown = set(wanted) - set(Range.__annotations__)
    if unknown:
        raise InvalidRequest(f"unknown option {min(unknown)!r}; known: {', '.join(Range.__annotations__)}")
    include = wanted.get("include")
    return path("topics", topic, "records") + query(
        from_seq=wanted.get("from_seq"),
        to_seq=wanted.get("to_seq"),
        from_ts=wanted.get("from_ts"),
        to_ts=wanted.get("to_ts"),
        tag=wanted.get("tag"),
        node=wanted.get("node"),
        key=wanted.get("key"),
        limit=wanted.get("limit"),
        include=",".join(include if include is not None else ("tags", "meta", "keys", "data")),
        epoch=wanted.get("epoch"),
    )


def page(topic: str, **wanted: Unpack[Range]) -> Call[HistoryPage]:
    return Call(
        HttpRequest("GET", _target(topic, wanted), {"accept": JSON}), lambda answer: decode(answer, WirePage).page()
    )


def lines(topic: str, **wanted: Unpack[Range]) -> StreamCall[Record | Gap]:
    start = wanted.get("from_seq")
    return StreamCall(HttpRequest("GET", _target(topic, wanted), {"accept": NDJSON}), lambda: RecordLines(start))


def arrow(topic: str, **wanted: Unpack[Range]) -> StreamCall[bytes]:
    return StreamCall(HttpRequest("GET", _target(topic, wanted), {"accept": ARROW}), ArrowPieces)


def at(topic: str, ts: int) -> Call[At]:
    return get(path("topics", topic, "at") + query(ts=ts), At)


def segments(topic: str, from_seq: int | None, to_seq: int | None) -> Call[SegmentList]:
    return get(path("topics", topic, "segments") + query(from_seq=from_seq, to_seq=to_seq), SegmentList)


def segment_part(
    topic: str, first_seq: int, part: str, *, start: int | None, end: int | None, if_match: str | None
) -> Call[Part]:
    """Bytes `start` (inclusive) to `end` (exclusive) of a segment's file; all of it without either."""
    if (start or 0) < 0 or (end is not None and end <= (start or 0)):
        raise InvalidRequest(f"the byte range {start} to {end} is empty or begins before the file")
    headers = {"accept": "*/*"}
    if start is not None or end is not None:
        headers["range"] = f"bytes={start or 0}-{'' if end is None else end - 1}"
    if if_match is not None:
        headers["if-match"] = if_match
    request = HttpRequest("GET", path("topics", topic, "segments", str(first_seq), part), headers)
    return Call(request, lambda answer: _part(answer, start or 0, end))


_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")


def _part(answer: Answer, start: int, end: int | None) -> Part:
    etag = answer.headers.get("etag")
    if answer.status != 206:
        # A server may answer a range with the whole file; what was asked for is cut out of it here.
        return Part(answer.body[start:end], start, len(answer.body), etag)
    told = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if told is None:
        raise BadAnswer("the server sent part of a file without saying which part", status=206)
    first, last, size = (int(number) for number in told.groups())
    if (
        first != start
        or last + 1 != min(size, end if end is not None else size)
        or last + 1 - first != len(answer.body)
    ):
        raise BadAnswer(
            f"bytes {start} to {end} were asked for; {len(answer.body)} came, named {told.group(0)!r}", status=206
        )
    return Part(answer.body, first, size, etag)
