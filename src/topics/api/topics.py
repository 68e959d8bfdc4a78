"""Topics: configure, look at, list, drop."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import decode
from topics.broker.listing import PAGE_SIZE, decode_cursor, encode_cursor
from topics.broker.state import TopicRow
from topics.broker.steps import Steps
from topics.format.jsontext import BadJson
from topics.format.ops import compact_json
from topics.model.config import FIELDS, TopicConfig
from topics.model.errors import Forbidden, InvalidRequest


class Configured(msgspec.Struct):
    topic: str
    created: bool
    config: TopicConfig


class Dropped(msgspec.Struct):
    topic: str
    deleted: bool
    routers_removed: list[str]


class TopicList(msgspec.Struct, omit_defaults=True):
    topics: list[TopicRow]
    next_cursor: str | None = None


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""What an ignored field holds stays text."""


def put_topic(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    config, _ = decode(call.json_body(empty=b"{}"), TopicConfig)
    check_dead_letter(call, config)
    created = yield from service.broker.put_topic(name, config)
    shown = Configured(name, created, config.resolved())
    return call.answer(shown, service.now_ns(), 201 if created else 200)


def patch_topic(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    body = call.json_body()
    decode(body, TopicConfig)  # for its shape and repeated fields; the merge needs to know which were given
    changes = _given(body)
    dead_letter = changes.get("dead_letter")
    if dead_letter is not None and not call.key.may_name(dead_letter):
        raise Forbidden("this key may not use the dead-letter topic", topic=dead_letter)
    config = yield from service.broker.patch_topic(name, changes)
    return call.answer(Configured(name, False, config), service.now_ns())


def _given(body: bytes) -> dict[str, Any]:
    try:
        fields = _MEMBERS.decode(compact_json(body, 1024))
    except BadJson as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    return {name: msgspec.json.decode(value) for name, value in fields.items() if name in FIELDS}


def check_dead_letter(call: Call, config: TopicConfig) -> None:
    """Dead letters are writes: they may not go where the key itself may not write."""
    if config.dead_letter is not None and not call.key.may_name(config.dead_letter):
        raise Forbidden("this key may not use the dead-letter topic", topic=config.dead_letter)


def get_topic(service: Service, call: Call) -> Steps[Response]:
    state = yield from service.broker.state(call.names[0], call.flag("touch", True))
    return call.answer(state, service.now_ns())


def list_topics(service: Service, call: Call) -> Steps[Response]:
    after = decode_cursor(call.query.get("cursor", ""))
    rows, following = yield from service.broker.list_topics(
        call.query.get("prefix", ""),
        after,
        call.number("page_size", PAGE_SIZE),
        call.flag("touch", False),
        call.key.may_name,
    )
    cursor = None if following is None else encode_cursor(following)
    return call.answer(TopicList(rows, cursor), service.now_ns())


def drop_topic(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    ended = yield from service.broker.drop_topic(name, call.flag("if_empty", False))
    if ended is not None:
        service.pump.background.checkpoint_now.set()
    return call.answer(Dropped(name, ended is not None, ended or []), service.now_ns())
