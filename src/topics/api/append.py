"""Append: JSON, lines of JSON, or an Arrow stream; whichever, one atomic batch."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import msgspec

from topics.api.auth import Scope
from topics.api.call import JSON, Call
from topics.api.http import Answer, Later, Response
from topics.api.ndjson import records_of_lines
from topics.api.problems import told
from topics.api.service import Service
from topics.api.topics import check_dead_letter
from topics.api.wire import AppendIn, RecordIn, decode
from topics.broker.steps import Steps
from topics.format.ops import prepare, prepare_body, render_ack
from topics.format.prepared import Prepared
from topics.model import limits
from topics.model.config import TopicConfig, check_numbers
from topics.model.errors import BatchTooLarge, Forbidden, InvalidRecord, InvalidRequest, UnsupportedMediaType
from topics.storage.append import Append

NDJSON = b"application/x-ndjson"
ARROW = b"application/vnd.apache.arrow.stream"

_NO_MORE = b'{"records":[]}'


def append(service: Service, call: Call) -> Answer | Later | Steps[Answer]:
    (name,) = call.names
    kind = call.content_type()
    config: TopicConfig | None = None
    insist = False
    if kind.startswith(JSON):
        body, checked, batch = read_body(call.body, AppendIn)
        config = body.config
        if config is not None:
            check_new_config(service, call, name, config)
        key = body.idempotency_key if body.idempotency_key is not None else _header_key(call)
        prepared = prepared_of(body, checked, batch, key)
        may_create, insist = body.create, body.disable_backpressure
    elif kind.startswith((NDJSON, ARROW)):
        key = call.query.get("idempotency_key") or _header_key(call)
        prepared = _prepare_bulk(call, kind, limits.RECORDS_PER_BULK_APPEND, key)
        may_create = call.flag("create", True)
    else:
        raise UnsupportedMediaType(
            "send records as application/json, application/x-ndjson or application/vnd.apache.arrow.stream"
        )
    if may_create is None:
        may_create = config is None or config.auto_create
    ordered = service.broker.append_now(name, prepared, key)
    if ordered is None:
        return _append_and_wait(service, call, prepared, key, config, may_create, insist)
    if ordered.submission is None:
        return _settled(service, call, ordered)
    return service.pump.after(ordered.submission, partial(_settled, service, call, ordered))


def _append_and_wait(
    service: Service,
    call: Call,
    prepared: Prepared,
    key: str | None,
    config: TopicConfig | None,
    may_create: bool,
    insist: bool,
) -> Steps[Answer]:
    done = yield from service.broker.append(call.names[0], prepared, key, config, may_create, insist)
    first, count = done.first_seq, done.count
    if service.stats.watched:
        service.stats.appended(done.waited_ns)
    answer = _answer(
        call, done.topic, first, count, done.created, done.deduped, done.synced, done.waited_ns, service.now_ns()
    )
    if done.throttled_ns:
        # The performance block is the last of the body.
        answer.body = b'%b,"throttle_wait_ms":%.6f}}' % (answer.body[:-2], done.throttled_ns / 1e6)
    return answer


def _settled(service: Service, call: Call, ordered: Append) -> Response:
    """The answer to an append whose submission, if it has one, has come to its end."""
    submission = ordered.submission
    now_ns = service.now_ns()
    waited, synced = 0, False
    if submission is not None:
        if submission.error is not None:
            return told(submission.error)
        waited, synced = now_ns - ordered.ordered_ns, submission.needs_sync
        if service.stats.watched:
            service.stats.appended(waited)
    first, count = ordered.first_seq, ordered.count
    return _answer(call, ordered.topic.name, first, count, False, ordered.deduped, synced, waited, now_ns)


Body = TypeVar("Body", bound=AppendIn)


def read_records(call: Call, most: int) -> Prepared:
    """The records of a body in any of the three forms, at most `most`; maybe none. None of them may be delayed."""
    kind = call.content_type()
    if kind.startswith(JSON):
        body, checked, quick = read_body(call.body, AppendIn, most)
        batch = quick if quick is not None else _prepare(body.records, body.node, checked, most, None, least=0)
    elif kind.startswith((NDJSON, ARROW)):
        batch = _prepare_bulk(call, kind, most, None, least=0)
    else:
        raise UnsupportedMediaType(
            "send records as application/json, application/x-ndjson or application/vnd.apache.arrow.stream"
        )
    if batch.delays:
        raise InvalidRequest("a staged record has no 'delay_ms': when it is committed is when it is there")
    return batch


def read_body(
    text: bytes, shape: type[Body], most: int = limits.RECORDS_PER_APPEND
) -> tuple[Body, bool, Prepared | None]:
    """The body, whether its payloads were checked, and its batch where the body has the usual form: its records are
    then not decoded at all."""
    quick = prepare_body(text, most)
    if quick is not None:
        batch, rest, lacks_node = quick
        body = shape([]) if rest == _NO_MORE and shape is AppendIn else decode(rest, shape)[0]
        if body.node is None or not lacks_node:
            return body, True, batch
    return *decode(text, shape), None


def prepared_of(body: AppendIn, checked: bool, batch: Prepared | None, key: str | None) -> Prepared:
    """The batch of a JSON body as `read_body` gave it."""
    if batch is None:
        return _prepare(body.records, body.node, checked, limits.RECORDS_PER_APPEND, key)
    _check_key(key)
    return batch


def check_new_config(service: Service, call: Call, name: str, config: TopicConfig) -> None:
    """The config of a topic that this append would make needs admin; of one that exists it is ignored, if it is one."""
    check_numbers(config)
    if service.broker.exists(name):
        return
    if not call.key.may(Scope.ADMIN):
        raise Forbidden("an append that configures a new topic needs the admin scope", topic=name)
    check_dead_letter(call, config)


def _header_key(call: Call) -> str | None:
    raw = call.head.headers.get(b"idempotency-key")
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _prepare(
    records: list[RecordIn], node: str | None, checked: bool, most: int, key: str | None, least: int = 1
) -> Prepared:
    if len(records) < least:
        raise InvalidRequest("records is empty; an append needs at least one")
    if len(records) > most:
        raise BatchTooLarge(f"{len(records)} records are more than the {most} of one append")
    _check_key(key)
    prepared = prepare(records, default_node=node, checked=checked, strict_fields=False)  # type: ignore[arg-type]
    if any(record.delay_ms is not msgspec.UNSET for record in records):
        prepared.delays = [_delay(index, record) for index, record in enumerate(records)]
    return prepared


def _prepare_bulk(call: Call, kind: bytes, most: int, key: str | None, least: int = 1) -> Prepared:
    """A body of lines or of Arrow."""
    node = call.query.get("node") or None
    if kind.startswith(NDJSON):
        return _prepare(records_of_lines(call.body), node, True, most, key, least)
    # Loads pyarrow, which a server without Arrow clients never needs.
    from topics.api.arrow_in import prepare_texts, read_arrow, records_of_arrow

    table = read_arrow(call.body)
    if least <= table.num_rows <= most:
        _check_key(key)
        batch = prepare_texts(table, node)
        if batch is not None:
            return batch
    return _prepare(records_of_arrow(table), node, True, most, key, least)


def _delay(index: int, record: RecordIn) -> int:
    delay_ms = record.delay_ms
    if delay_ms is msgspec.UNSET:
        return 0
    # Arrow columns come with types of their own.
    if not isinstance(delay_ms, int) or isinstance(delay_ms, bool) or not 0 <= delay_ms <= limits.DELAY_MS:
        raise InvalidRecord(index, f"'delay_ms' is not a number of 0..{limits.DELAY_MS}")
    return delay_ms


def _check_key(key: str | None) -> None:
    if key is not None and len(key.encode()) > limits.IDEMPOTENCY_KEY_BYTES:
        raise InvalidRequest(f"the idempotency key has more than {limits.IDEMPOTENCY_KEY_BYTES} bytes")


def _answer(
    call: Call, topic: str, first: int, count: int, created: bool, deduped: bool, synced: bool, waited: int, now_ns: int
) -> Response:
    seqs = not call.head.query or call.flag("return_seqs", True)
    total = now_ns - call.head.received_ns
    body = render_ack(b"", topic.encode(), first, count, seqs, created, deduped, synced, waited, total)
    return Response(201 if created else 200, body)
