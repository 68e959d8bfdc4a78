"""Every call of the contract as a pure function: arguments in, a `Call` out that says what to send and how to read the
answer. Neither client adds anything to it but the sending.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics.client.answers import (
    Appended,
    Batch,
    Configured,
    Deleted,
    Dropped,
    Heads,
    Health,
    HistoryPage,
    Ready,
    Router,
    RouterDropped,
    RouterPage,
    TopicPage,
    TopicState,
    WireDiff,
    WireLatest,
    WirePage,
    decode,
)
from topics.client.fields import RECORD, ROUTER, check_config, check_names
from topics.client.transport import Answer, HttpRequest
from topics.model.errors import InvalidRequest
from topics.model.finite import holds_non_finite
from topics.model.record import Record

T = TypeVar("T")

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
WAIT_MS_MAX: Final = 30_000
"""The server waits no longer than this, whatever was asked."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    request: HttpRequest
    read: Callable[[Answer], T]
    safe: bool = True
    """Sent twice it does what it does once: it may be repeated when no answer came."""
    extra_s: float = 0.0
    """Time that the server was asked to wait; not counted against the deadline."""


def path(*segments: str) -> str:
    # A key's prefix is compared with the undecoded name, so a name stays as it is wherever a path allows it.
    return "/v0/" + "/".join(quote(segment, safe=":") for segment in segments)


def query(**values: str | int | bool | None) -> str:
    """`?a=1&b=true` of the values that are given."""
    given = {name: _text(value) for name, value in values.items() if value is not None}
    return "?" + urlencode(given, quote_via=quote) if given else ""


def _text(value: str | int | bool) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def given(**values: Any) -> dict[str, Any]:
    """The fields that are not None: one left out gets the server's default."""
    return {name: value for name, value in values.items() if value is not None}


def get(target: str, kind: type[T], accept: str = JSON) -> Call[T]:
    return Call(HttpRequest("GET", target, {"accept": accept}), lambda answer: decode(answer, kind))


def send(method: str, target: str, body: Any, kind: type[T], *, safe: bool = True, extra_s: float = 0.0) -> Call[T]:
    return Call(
        HttpRequest(method, target, {"content-type": JSON, "accept": JSON}, encode(body), waits=extra_s > 0),
        lambda answer: decode(answer, kind),
        safe,
        extra_s,
    )


def encode(body: Any) -> bytes:
    """Its JSON. A NaN or an infinity, which the encoder writes as null, is refused; it is looked for only if the text
    holds a null at all."""
    try:
        text = msgspec.json.encode(body)
        if b"null" in text and holds_non_finite(body):
            raise ValueError("it holds a NaN or an infinity")
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"this cannot be written as JSON: {error}") from error
    return text


# -- topics ------------------------------------------------------------------------------------------------------------


def create(topic: str, config: Mapping[str, Any]) -> Call[Configured]:
    check_config(config)
    return send("PUT", path("topics", topic), dict(config), Configured)


def configure(topic: str, changes: Mapping[str, Any]) -> Call[Configured]:
    check_config(changes)
    return send("PATCH", path("topics", topic), dict(changes), Configured)


def info(topic: str, touch: bool | None) -> Call[TopicState]:
    return get(path("topics", topic) + query(touch=touch), TopicState)


def topics_page(prefix: str | None, page_size: int | None, cursor: str | None, touch: bool | None) -> Call[TopicPage]:
    return get(path("topics") + query(prefix=prefix, page_size=page_size, cursor=cursor, touch=touch), TopicPage)


def drop(topic: str, if_empty: bool | None) -> Call[Dropped]:
    target = path("topics", topic) + query(if_empty=if_empty)
    return Call(HttpRequest("DELETE", target, {"accept": JSON}), lambda answer: decode(answer, Dropped))


# -- records -----------------------------------------------------------------------------------------------------------


def append(
    topic: str,
    records: Iterable[Any],
    *,
    node: str | None,
    idempotency_key: str | None,
    create: bool | None,
    config: Mapping[str, Any] | None,
    return_seqs: bool,
    disable_backpressure: bool | None,
) -> Call[Appended]:
    check_config(config or ())
    body = given(
        node=node,
        idempotency_key=idempotency_key,
        create=create,
        config=None if config is None else dict(config),
        disable_backpressure=disable_backpressure,
    )
    body["records"] = wire_records(records)
    target = path("topics", topic) + query(return_seqs=return_seqs)
    return send("POST", target, body, Appended, safe=idempotency_key is not None)


def wire_records(records: Iterable[Any]) -> list[Any]:
    if isinstance(records, Mapping | str | bytes):
        raise InvalidRequest(f"records is a {type(records).__name__}; give a list of mappings, each with 'data'")
    return [wire_record(record) for record in records]


def wire_record(record: Any) -> Any:
    """A record to append: a mapping with `data` and perhaps `tag`, `node`, `key`, `meta`, `delay_ms`, or any value that
    msgspec writes as such an object. Bytes in `data` and `meta` are JSON text, as in the embedded log."""
    if not isinstance(record, Mapping):
        return record
    if "data" not in record:
        raise InvalidRequest("a record has no 'data'; give {'data': …}, where None stands for JSON null")
    if not record.keys() <= RECORD:
        check_names(record, RECORD, "a record")
    fields = {name: value for name, value in record.items() if value is not None or name == "data"}
    for name in ("data", "meta"):
        if isinstance(fields.get(name), bytes | bytearray | memoryview):
            fields[name] = msgspec.Raw(bytes(fields[name]))
    return fields


def auto_key(given: str | None, idempotent: bool) -> str | None:
    """The caller's idempotency key, else a fresh one: with a key, an append whose answer was lost may be sent again."""
    return given if given is not None or not idempotent else secrets.token_urlsafe(16)


def append_bulk(
    topic: str,
    body: bytes,
    kind: Literal["application/x-ndjson", "application/vnd.apache.arrow.stream"],
    *,
    node: str | None,
    idempotency_key: str | None,
    create: bool | None,
    return_seqs: bool,
) -> Call[Appended]:
    options = query(node=node, idempotency_key=idempotency_key, create=create, return_seqs=return_seqs)
    return Call(
        HttpRequest("POST", path("topics", topic) + options, {"content-type": kind, "accept": JSON}, body),
        lambda answer: decode(answer, Appended),
        safe=idempotency_key is not None,
    )


def diff(
    topic: str,
    *,
    from_seq: int,
    limit: int | None,
    node: str | list[str] | None,
    include_tags: bool,
    include_meta: bool,
    include_keys: bool,
    wait_ms: int,
    max_batch_bytes: int | None,
    epoch: int | None,
) -> Call[Batch]:
    body = given(
        from_seq=from_seq,
        limit=limit,
        node=node,
        include_tags=include_tags,
        include_meta=include_meta,
        include_keys=include_keys,
        wait_ms=wait_ms or None,
        max_batch_bytes=max_batch_bytes,
        epoch=epoch,
    )
    headers = {"content-type": JSON, "accept": JSON}
    return Call(
        HttpRequest("POST", path("topics", topic, "diff"), headers, encode(body), waits=wait_ms > 0),
        lambda answer: decode(answer, WireDiff).batch(),
        extra_s=min(wait_ms, WAIT_MS_MAX) / 1000,
    )


def delete(topic: str, before_seq: int | None, tag: str | None) -> Call[Deleted]:
    """A delete by tag alone is not safe to repeat: the second would also take what was appended in between."""
    match = None
    if tag is not None:
        match = ["tag", "Glob", tag] if tag.endswith("*") else ["tag", "Eq", tag]
    body = given(before_seq=before_seq, match=match)
    return send("POST", path("topics", topic, "delete"), body, Deleted, safe=before_seq is not None)


def latest(topic: str, key: str) -> Call[Record | None]:
    return Call(
        HttpRequest("GET", path("topics", topic, "keys", key), {"accept": JSON}),
        lambda answer: decode(answer, WireLatest).found(),
    )


def key_history(topic: str, key: str, from_seq: int | None, limit: int | None) -> Call[HistoryPage]:
    target = path("topics", topic, "keys", key) + query(history=True, from_seq=from_seq, limit=limit)
    return Call(HttpRequest("GET", target, {"accept": JSON}), lambda answer: decode(answer, WirePage).page())


def heads(topics: Mapping[str, int] | None, pattern: str | None, wait_ms: int) -> Call[Heads]:
    if (topics is None) == (pattern is None):
        raise InvalidRequest("heads needs either topics={name: next_seq} or pattern='orders.*'")
    body = given(topics=None if topics is None else dict(topics), pattern=pattern, wait_ms=wait_ms or None)
    return send("POST", path("heads"), body, Heads, extra_s=min(wait_ms, WAIT_MS_MAX) / 1000)


# -- routers -----------------------------------------------------------------------------------------------------------


def create_router(router: str, source: str, dest: str, options: Mapping[str, Any]) -> Call[Router]:
    check_names(options, ROUTER, "a router")
    return send("PUT", path("routers", router), {"source": source, "dest": dest, **options}, Router)


def router(router: str) -> Call[Router]:
    return get(path("routers", router), Router)


def routers_page(
    prefix: str | None, source: str | None, dest: str | None, page_size: int | None, cursor: str | None
) -> Call[RouterPage]:
    options = query(prefix=prefix, source=source, dest=dest, page_size=page_size, cursor=cursor)
    return get(path("routers") + options, RouterPage)


def drop_router(router: str) -> Call[RouterDropped]:
    return Call(
        HttpRequest("DELETE", path("routers", router), {"accept": JSON}), lambda answer: decode(answer, RouterDropped)
    )


# -- the server --------------------------------------------------------------------------------------------------------


def health() -> Call[Health]:
    return get(path("health"), Health)


def ready() -> Call[Ready]:
    """Not repeated on 503: that is an answer to this question."""
    call = get(path("ready"), Ready)
    return Call(call.request, call.read, safe=False)


def metrics() -> Call[str]:
    return Call(
        HttpRequest("GET", path("metrics"), {"accept": "text/plain"}),
        lambda answer: answer.body.decode("utf-8", "replace"),
    )


def metrics_json() -> Call[dict[str, Any]]:
    return get(path("metrics"), dict[str, Any])


def stats(prefix: str | None, limit: int | None) -> Call[dict[str, Any]]:
    return get(path("stats") + query(prefix=prefix, limit=limit), dict[str, Any])


def openapi() -> Call[dict[str, Any]]:
    return get("/openapi.json", dict[str, Any])
