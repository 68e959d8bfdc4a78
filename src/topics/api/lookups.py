"""Exact lookups, where topics stand, and what a change of retention would remove."""

from __future__ import annotations

import msgspec

from topics.api.call import Call
from topics.api.diff import WAIT_MS_MAX
from topics.api.history import PAGE, PAGE_BYTES, PAGE_MAX, include
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import U32, U64, HeadsIn, PlanIn, bounded, decode, tag_selector
from topics.broker.heads import HeadRow
from topics.broker.history import Range
from topics.broker.lookups import TagCount
from topics.broker.steps import Steps
from topics.model.errors import InvalidRequest


class Heads(msgspec.Struct):
    topics: dict[str, HeadRow]
    store: str


class TagNames(msgspec.Struct):
    topic: str
    tags: list[TagCount]


def at(service: Service, call: Call) -> Steps[Response]:
    ts = call.maybe_number("ts")
    if ts is None:
        raise InvalidRequest("say the time in ms since 1970, as ?ts=")
    found = yield from service.broker.at(call.names[0], ts)
    return call.answer(found, service.now_ns())


def tags(service: Service, call: Call) -> Steps[Response]:
    match = call.query.get("match")
    if not match:
        raise InvalidRequest("say which tag, as ?match=tag or ?match=prefix*")
    wanted = Range(from_seq=call.maybe_number("from_seq"))
    history = yield from service.broker.tagged(call.names[0], tag_selector(match), wanted)
    limit = min(call.number("limit", PAGE) or PAGE, PAGE_MAX)
    texts = history.page(limit, PAGE_BYTES, include(call.query.get("include")))
    body = b'{"topic":%b,"records":[%b],"next_from_seq":%d,"head_seq":%d,%b}' % (
        msgspec.json.encode(history.topic.name),
        b",".join(texts),
        history.next_from_seq,
        history.head_seq,
        call.performance(service.now_ns()),
    )
    return Response(200, body)


def tag_names(service: Service, call: Call) -> Steps[Response]:
    limit = min(max(call.number("limit", 100), 1), 1000)
    found = yield from service.broker.tag_names(call.names[0], call.query.get("prefix", ""), limit)
    return call.answer(TagNames(call.names[0], found), service.now_ns())


def heads(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), HeadsIn)
    if (asked.topics is None) == (asked.pattern is None):
        raise InvalidRequest('name topics as {"topics":{"name":next_seq}}, or give a pattern')
    for name, next_seq in (asked.topics or {}).items():
        call.check_name(name)
        bounded(next_seq, name, U64)
    pattern = asked.pattern or ""
    rows = yield from service.broker.heads(
        asked.topics,
        pattern.removesuffix("*"),
        not pattern.endswith("*"),
        call.key.may_name,
        min(bounded(asked.wait_ms, "wait_ms", U32), WAIT_MS_MAX),
    )
    return call.answer(Heads(rows, service.broker.store.store_id), service.now_ns())


def retention_plan(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(empty=b"{}"), PlanIn)
    changes = {
        name: bounded(value, name, U64)
        for name, value in msgspec.structs.asdict(asked).items()
        if value is not msgspec.UNSET
    }
    plan = yield from service.broker.retention_plan(call.names[0], changes)
    return call.answer(plan, service.now_ns())
