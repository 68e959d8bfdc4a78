"""Routers: configure, look at, list, drop."""

from __future__ import annotations

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import RouterIn, decode, selector
from topics.broker.listing import PAGE_SIZE, decode_cursor, encode_cursor
from topics.broker.routing import RouterRow, RouterSpec, RouterView, view_of
from topics.broker.steps import Steps
from topics.format.control import RouterBits
from topics.model.errors import Forbidden, RouterNotFound
from topics.storage.routers import Router


class RouterConfigured(RouterView, frozen=True, kw_only=True):
    created: bool


class RouterState(RouterView, frozen=True, kw_only=True):
    forwarded_total: int


class RouterDropped(msgspec.Struct):
    router: str
    deleted: bool


class RouterList(msgspec.Struct, omit_defaults=True):
    routers: list[RouterRow]
    next_cursor: str | None = None


def put_router(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    asked, _ = decode(call.json_body(), RouterIn)
    spec = RouterSpec(asked.source, asked.dest, _bits(asked), selector(asked.filter))
    call.check_name(asked.source)
    call.check_name(asked.dest)
    created = yield from service.broker.routing.put(name, spec)
    shown = RouterConfigured(**msgspec.structs.asdict(view_of(spec, name)), created=created)
    return call.answer(shown, service.now_ns(), 201 if created else 200)


def _bits(asked: RouterIn) -> RouterBits:
    bits = RouterBits(0)
    for wanted, bit in (
        (asked.preserve_node, RouterBits.PRESERVE_NODE),
        (asked.preserve_tag, RouterBits.PRESERVE_TAG),
        (asked.create_dest, RouterBits.CREATE_DEST),
        (asked.allow_cycle, RouterBits.ALLOW_CYCLE),
        (asked.guarantee == "exactly_once", RouterBits.EXACTLY_ONCE),
    ):
        if wanted:
            bits |= bit
    return bits


def get_router(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    _check_names(call, service.broker.routing.find(name))
    router = yield from service.broker.routing.pulled(name)
    shown = RouterState(**msgspec.structs.asdict(view_of(router, name)), forwarded_total=router.forwarded)
    return call.answer(shown, service.now_ns())


def drop_router(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    try:
        _check_names(call, service.broker.routing.find(name))
    except RouterNotFound:
        pass  # whatever the name is: nothing to drop
    deleted = yield from service.broker.routing.drop(name)
    return call.answer(RouterDropped(name, deleted), service.now_ns())


def _check_names(call: Call, router: Router) -> None:
    """A router shows two topics; who may not see all three names is not told which one it was."""
    if not all(map(call.key.may_name, (router.name, router.source, router.dest))):
        raise Forbidden("this key may not use that router")


def list_routers(service: Service, call: Call) -> Response:
    query = call.query
    rows, following = service.broker.routing.page(
        query.get("prefix", ""),
        query.get("source", ""),
        query.get("dest", ""),
        decode_cursor(query.get("cursor", "")),
        call.number("page_size", PAGE_SIZE),
        call.key.may_name,
    )
    cursor = None if following is None else encode_cursor(following)
    return call.answer(RouterList(rows, cursor), service.now_ns())
