"""Queues: claim jobs, and ack, nack or extend what was claimed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import U32, U64, AckIn, ClaimIn, ExtendIn, NackIn, RedriveIn, bounded, decode
from topics.broker.jobs import render_jobs
from topics.broker.queue import Settled
from topics.broker.steps import Steps
from topics.model import limits
from topics.model.errors import BatchTooLarge, InvalidRequest

_LEASE_ID: Final = re.compile("lease_([0-9A-Fa-f]+)")


def claim(service: Service, call: Call) -> Steps[Response]:
    (name,) = call.names
    if not call.body:
        raise InvalidRequest("the body is empty; a claim names at least its node")
    asked, _ = decode(call.json_body(), ClaimIn)
    most = bounded(asked.max, "max", U32)
    lease_ms = None if asked.lease_ms is None else bounded(asked.lease_ms, "lease_ms", U64)
    queues = service.broker.queues
    with service.broker.store.lock:
        queues.find(name)
    check_node(asked.node)
    hand = yield from queues.claim(name, asked.node, most, lease_ms)
    jobs, count = render_jobs(service.broker.store, hand)
    body = b'{"topic":%b,"claimed":[%b],"count":%d,"ready":%d,%b}' % (
        msgspec.json.encode(name), jobs, count, hand.ready, call.performance(service.now_ns()),
    )  # fmt: skip
    return Response(200, body)


def check_node(node: str) -> None:
    if not node:
        raise InvalidRequest("'node' is empty; name who claims")
    if len(node.encode("utf-8", "surrogatepass")) > limits.NODE_BYTES:
        raise InvalidRequest(f"'node' has more than {limits.NODE_BYTES} bytes")


def ack(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), AckIn)
    tokens = read_tokens(asked.node, asked.seqs, asked.lease_ids)
    done = yield from service.broker.queues.ack(call.names[0], asked.node, asked.seqs, tokens)
    return _answer(service, call, b"acked", done, _counts(done))


def nack(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), NackIn)
    tokens = read_tokens(asked.node, asked.seqs, asked.lease_ids)
    delay_ms = bounded(asked.delay_ms, "delay_ms", U64)
    done = yield from service.broker.queues.nack(call.names[0], asked.node, asked.seqs, tokens, delay_ms)
    return _answer(service, call, b"nacked", done, _counts(done))


def extend(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), ExtendIn)
    tokens = read_tokens(asked.node, asked.seqs, asked.lease_ids)
    lease_ms = bounded(asked.lease_ms, "lease_ms", U64)
    done = yield from service.broker.queues.extend(call.names[0], asked.node, asked.seqs, tokens, lease_ms)
    deadlines = b",".join([b'"%d":%d' % (seq, done.deadline) for seq in done.verdict.done])
    return _answer(service, call, b"extended", done, b'"deadlines":{%b}' % deadlines)


def read_tokens(node: str, seqs: list[int], lease_ids: list[str]) -> Sequence[int | None]:
    """The lease ids as numbers, one per seq; None where none is given."""
    if seqs:
        bounded(min(seqs), "seqs", U64)
        bounded(max(seqs), "seqs", U64)
    tokens = [_token(text) for text in lease_ids]
    if not node:
        raise InvalidRequest("'node' is empty; name who holds the leases")
    if len(seqs) > limits.SEQS_PER_CALL:
        raise BatchTooLarge(
            f"{len(seqs)} seqs are more than the {limits.SEQS_PER_CALL} of one call",
            seqs=len(seqs),
            max=limits.SEQS_PER_CALL,
        )
    if tokens and len(tokens) != len(seqs):
        raise InvalidRequest(f"{len(tokens)} lease ids do not go with {len(seqs)} seqs")
    return tokens or [None] * len(seqs)


def _token(text: str) -> int | None:
    if not text:
        return None
    # `int` alone would take more: signs, underscores, a second prefix, digits of other scripts.
    found = _LEASE_ID.fullmatch(text)
    if found is not None and (token := int(found[1], 16)) <= U64:
        return token
    raise InvalidRequest("a lease id is 'lease_' and a hexadecimal number, or empty where none is meant")


def synced_in(waited_ns: int) -> bytes:
    """For the performance block of a call whose answer waited for a sync."""
    return b',"fsync_ms":%.6f' % (waited_ns / 1e6) if waited_ns > 0 else b""


def _counts(done: Settled) -> bytes:
    return b'"ready":%d,"in_flight":%d' % (done.ready, done.in_flight)


def _answer(service: Service, call: Call, verb: bytes, done: Settled, more: bytes) -> Response:
    verdict = done.verdict
    why = b",".join([b'"%d":"%b"' % (seq, reason.encode()) for seq, reason in verdict.why.items()])
    body = b'{"topic":%b,"%b":%d,"skipped":[%b],"why":{%b},%b,%b}' % (
        msgspec.json.encode(call.names[0]), verb, len(verdict.done), ",".join(map(str, verdict.skipped)).encode(), why,
        more, call.performance(service.now_ns(), synced_in(done.synced_ns)),
    )  # fmt: skip
    return Response(200, body)


def redrive(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(empty=b"{}"), RedriveIn)
    if asked.to is not None:
        call.check_name(asked.to)
    moved = yield from service.broker.queues.redrive(
        call.names[0],
        asked.to,
        bounded(asked.max, "max", U32),
        bounded(asked.rate_per_s, "rate_per_s", U32),
        asked.dry_run,
        call.key.may_name,
    )
    return call.answer(moved, service.now_ns())
