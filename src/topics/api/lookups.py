"""Exact lookups, where topics stand, and what a change of retention would remove."""

from __future__ import annotations

import msgspec

from topics.api.call import Call
from topics.api.diff import WAIT_MS_MAX
from topics.api.history import PAGE, PAGE_MAX, include, page_answer
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import U32, U64, HeadsIn, PlanIn, bounded, decode, tag_selector
from topics.broker.away import away
from topics.broker.heads import HeadRow
from topics.broker.history import Range
from topics.broker.lookups import TagCount
from topics.broker.steps import Steps
from topics.model import limits
from topics.model.errors import InvalidRequest


class Heads(msgspec.Struct):
    topics: dict[str, HeadRow]
    store: str


class TagNames(msgspec.Struct):
    topic: str
    tags: list[TagCount]


class OfKey(msgspec.Struct):
    topic: str
    key: str
    record: msgspec.Raw
    """Null where no live record has the key."""


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
    wanted = Range(from_seq=call.maybe_number("from_seq"), tag=tag_selector(match))
    history = yield from service.broker.history(call.names[0], wanted)
    history.told_gaps = False  # what was lost carries no tag any more
    return (yield from page_answer(service, call, history, _limit(call), include(call.query.get("include"))))


def key(service: Service, call: Call) -> Steps[Response]:
    """The newest live record of a key, or all of them in seq order."""
    topic, name = call.names
    want = include(call.query.get("include"))
    if call.flag("history", False) or call.number("history", 0):
        wanted = Range(from_seq=call.maybe_number("from_seq"), key=name)
        history = yield from service.broker.history(topic, wanted)
        history.told_gaps = False
        more = b'"key":%b,' % msgspec.json.encode(name)
        return (yield from page_answer(service, call, history, _limit(call), want, more))
    find = yield from service.broker.latest_of_key(topic, name, want)
    record = yield from away(service.broker.store, service.readers, find)
    return call.answer(OfKey(topic, name, msgspec.Raw(record or b"null")), service.now_ns())


def _limit(call: Call) -> int:
    return min(call.number("limit", PAGE) or PAGE, PAGE_MAX)


def tag_names(service: Service, call: Call) -> Steps[Response]:
    limit = min(max(call.number("limit", 100), 1), 1000)
    find = yield from service.broker.tag_names(call.names[0], call.query.get("prefix", ""), limit)
    found = yield from away(service.broker.store, service.readers, find)
    return call.answer(TagNames(call.names[0], found), service.now_ns())


def heads(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), HeadsIn)
    if (asked.topics is None) == (asked.pattern is None):
        raise InvalidRequest('name topics as {"topics":{"name":next_seq}}, or give a pattern')
    if asked.topics is not None and len(asked.topics) > limits.HEADS_TOPICS:
        raise InvalidRequest(f"{len(asked.topics)} topics are more than the {limits.HEADS_TOPICS} of one call")
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
