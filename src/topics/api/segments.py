"""Segments: which there are, and their bytes, in ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from topics.api.call import Call
from topics.api.history import stream_pieces
from topics.api.http import Answer, Header, Response
from topics.api.service import Service
from topics.broker.segments import Part
from topics.broker.steps import Steps
from topics.model.errors import CorruptFile, GenerationChanged, RangeNotSatisfiable
from topics.storage.handles import Handles

BYTES: Final = b"application/octet-stream"
_AT_ONCE: Final = 256 * 1024
_PIECE: Final = 1 << 20
_RANGE: Final = re.compile(r"bytes=([0-9]*)-([0-9]*)")
_FAR: Final = 1 << 63


def list_segments(service: Service, call: Call) -> Steps[Response]:
    found = yield from service.broker.segments(
        call.names[0], call.number("from_seq", 1), call.maybe_number("to_seq"), service.show_paths
    )
    return call.answer(found, service.now_ns())


def segment_part(service: Service, call: Call) -> Steps[Answer]:
    name, first, kind = call.names
    first_seq = int(first) if first.isascii() and first.isdigit() and len(first) < 20 else 0
    part = yield from service.broker.segment_part(name, first_seq, kind)
    wanted = call.head.header(b"if-match")
    if wanted is not None and wanted.strip() != "*" and part.etag not in (tag.strip() for tag in wanted.split(",")):
        raise GenerationChanged(f"the segment is {part.etag} now", etag=part.etag)
    headers: list[Header] = [(b"etag", part.etag.encode()), (b"accept-ranges", b"bytes")]
    start, end = 0, part.size
    status = 200
    asked = byte_range(call.head.header(b"range"), part.size)
    if call.head.header(b"if-range") not in (None, part.etag):
        asked = None  # whoever has the beginning of another file wants this one whole
    if asked is not None:
        start, end = asked
        if start >= end:
            raise RangeNotSatisfiable(f"the file has {part.size} bytes", size=part.size)
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, part.size)))
        status = 206
    handles = service.broker.store.handles
    try:
        if end - start <= _AT_ONCE:
            return Response(status, part.read(handles, start, end), BYTES, headers)
        part.read(handles, start, start + 1)  # once the answer has begun it can only be cut
    except FileNotFoundError as error:
        again = yield from service.broker.segment_part(name, first_seq, kind)  # SegmentGone: it was dropped meanwhile
        if again.etag != part.etag:
            raise GenerationChanged(f"the segment is {again.etag} now", etag=again.etag) from None
        # An `.idx` that is missing is made again, so it is the data.
        path = again.segment.path("data")
        raise CorruptFile(path, 0, "it is missing", topic=name, first_seq=first_seq) from error
    stream = stream_pieces(service, BYTES, _pieces(part, handles, start, end))
    stream.status = status
    stream.headers = headers
    return stream


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Half-open; None = the whole file. What is not one range of bytes is ignored, as the standard allows."""
    match = _RANGE.fullmatch(header.strip()) if header is not None else None
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = (_offset(digits) for digits in match.groups())
    if first is None:
        assert last is not None
        return max(size - last, 0), size
    if last is None:
        return first, size
    return None if last < first else (first, min(last + 1, size))


def _offset(digits: str) -> int | None:
    """A number of any length; beyond every file all are the same."""
    if not digits:
        return None
    return int(digits) if len(digits) < 19 else _FAR


def _pieces(part: Part, handles: Handles, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, _PIECE):
        yield part.read(handles, at, min(at + _PIECE, end))
