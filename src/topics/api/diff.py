"""Reading from a cursor, and deleting."""

from __future__ import annotations

from typing import Final

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import U32, U64, DeleteIn, DiffIn, bounded, decode, node_filter, selector
from topics.broker.away import away
from topics.broker.reading import Page, Query
from topics.broker.steps import Steps
from topics.format.render import WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.model.errors import InvalidRequest

LIMIT: Final = 256
LIMIT_MAX: Final = 1000
BYTES: Final = 1 << 20
BYTES_MAX: Final = 8 << 20
WAIT_MS_MAX: Final = 30_000


def diff(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    asked, _ = decode(call.json_body(empty=b"{}"), DiffIn)
    limit = bounded(asked.limit, "limit", U32)
    size = bounded(asked.max_batch_bytes, "max_batch_bytes", U64)
    query = Query(
        from_seq=bounded(asked.from_seq, "from_seq", U64),
        limit=min(limit or LIMIT, LIMIT_MAX),
        bytes_max=min(size or BYTES, BYTES_MAX),
        exclude_nodes=node_filter(asked.node),
        want=WITH_DATA
        | (WITH_TAGS if asked.include_tags else 0)
        | (WITH_META if asked.include_meta else 0)
        | (WITH_KEYS if asked.include_keys else 0),
        epoch=None if asked.epoch is None else bounded(asked.epoch, "epoch", U64),
    )
    wait_ms = min(bounded(asked.wait_ms, "wait_ms", U32), WAIT_MS_MAX)
    page = yield from service.broker.diff(name, query, wait_ms)
    return _answer(call, page, service.now_ns())


def _answer(call: Call, page: Page, now_ns: int) -> Response:
    tombstone = b"null" if page.tombstone is None else msgspec.json.encode(page.tombstone)
    body = b"".join((
        b'{"topic":', msgspec.json.encode(page.topic),
        b',"records":[', b",".join(page.pieces),
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d,' % (
            page.next_from_seq, page.head_seq, page.earliest_seq,
            b"true" if page.caught_up else b"false", tombstone, page.head_seq - page.next_from_seq,
        ),
        call.performance(now_ns, b',"records_scanned":%d' % page.scanned),
        b"}",
    ))  # fmt: skip
    return Response(200, body)


def delete(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    asked, _ = decode(call.json_body(), DeleteIn)
    match = selector(asked.match)
    if asked.before_seq is None and match is None:
        raise InvalidRequest("say what to delete: before_seq, match or both")
    before = None if asked.before_seq is None else bounded(asked.before_seq, "before_seq", U64)
    search = None if match is None else service.broker.search_before_delete(name, match)
    found = None if search is None else (yield from away(service.broker.store, service.readers, search))
    done = yield from service.broker.delete(name, before, match, found)
    return call.answer(done, service.now_ns())
