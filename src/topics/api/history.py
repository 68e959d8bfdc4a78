"""The past of a topic, as one page of JSON or as a stream of lines or Arrow batches, paced by the reader's socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from topics.api.append import ARROW, NDJSON
from topics.api.call import JSON, Call
from topics.api.compress import quality_of
from topics.api.http import Answer, Response, Sink, Stream
from topics.api.service import Service
from topics.api.wire import tag_selector
from topics.broker.away import away
from topics.broker.history import ALL, History, Range
from topics.broker.steps import Steps
from topics.format.render import WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.model.errors import TopicsError

log = logging.getLogger("topics.api")

PAGE: Final = 1000
PAGE_MAX: Final = 10_000
PAGE_BYTES: Final = 8 << 20
_AHEAD_BYTES: Final = 2 << 20
"""What may wait for the socket before reading pauses."""

_KINDS: Final = (JSON, NDJSON, ARROW)
_INCLUDE: Final = {"tags": WITH_TAGS, "meta": WITH_META, "keys": WITH_KEYS, "data": WITH_DATA}


def records(service: Service, call: Call) -> Steps[Answer]:
    query = call.query
    wanted = Range(
        from_seq=call.maybe_number("from_seq"),
        to_seq=call.maybe_number("to_seq"),
        from_ts=call.maybe_number("from_ts"),
        to_ts=call.maybe_number("to_ts"),
        tag=tag_selector(query["tag"]) if query.get("tag") else None,
        node=query.get("node") or None,
        key=query.get("key") or None,
        limit=call.maybe_number("limit") or None,
        epoch=call.maybe_number("epoch"),
    )
    want = include(query.get("include"))
    history = yield from service.broker.history(call.names[0], wanted)
    kind = wanted_kind(call.head.headers.get(b"accept", b""))
    if kind == NDJSON:
        return stream_pieces(service, NDJSON, history.lines(want))
    if kind == ARROW:
        from topics.api.arrow_out import arrow_pieces  # loads pyarrow, when first asked for

        return stream_pieces(service, ARROW, arrow_pieces(history, want))
    limit = min(wanted.limit or PAGE, PAGE_MAX)
    return (yield from page_answer(service, call, history, limit, want))


def wanted_kind(accept: bytes) -> bytes:
    """What the client likes best of what there is; among equals the first, and JSON where it does not care."""
    kind, best, other = JSON, 0.0, 0.0
    for item in accept.lower().split(b","):
        name, *parameters = (part.strip() for part in item.split(b";"))
        quality = quality_of(parameters)
        if name in _KINDS and quality > best:
            kind, best = name, quality
        elif name in (b"*/*", b"application/*"):
            other = max(other, quality)
    return kind if best >= other else JSON


def include(words: str | None) -> int:
    """Unknown words are ignored; without any, everything is shown."""
    if words is None:
        return ALL
    want = 0
    for word in words.split(","):
        want |= _INCLUDE.get(word.strip(), 0)
    return want


def page_answer(
    service: Service, call: Call, history: History, limit: int, want: int, more: bytes = b""
) -> Steps[Response]:
    """One page. It may be large, and lie anywhere: it is read in a thread."""
    texts = yield from away(service.broker.store, service.readers, partial(history.page, limit, PAGE_BYTES, want))
    body = b'{"topic":%b,%b"records":[%b],"next_from_seq":%d,"head_seq":%d,%b}' % (
        msgspec.json.encode(history.topic.name),
        more,
        b",".join(texts),
        history.next_from_seq,
        history.head_seq,
        call.performance(service.now_ns()),
    )
    return Response(200, body)


def stream_pieces(service: Service, kind: bytes, pieces: Iterator[bytes]) -> Stream:
    async def run(sink: Sink) -> None:
        try:
            while True:
                piece = await service.loop.run_in_executor(service.readers, next, pieces, None)
                if piece is None:
                    break
                if sink.gone.is_set():
                    return
                if piece:
                    sink.write(piece)
                if sink.buffered > _AHEAD_BYTES:
                    await sink.drain()
            sink.finish()
        except asyncio.CancelledError:
            raise
        except TopicsError:
            sink.abort()  # the topic was dropped, or its files cannot be read; the cut says so
        except Exception:
            log.exception("a stream of records broke off")
            sink.abort()

    return Stream(200, kind, run)
