"""Consumer groups: make and look at them, join, fetch, and settle what was fetched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from topics.api.call import Call
from topics.api.diff import WAIT_MS_MAX
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import (
    U32,
    U64,
    FetchIn,
    GroupAckIn,
    GroupClaimIn,
    GroupCommitIn,
    GroupExtendIn,
    GroupIn,
    GroupNackIn,
    JoinIn,
    MemberIn,
    PlaceIn,
    RejectIn,
    SeekIn,
    SeqsIn,
    bounded,
    decode,
)
from topics.broker.group import Asked, Batch, Where
from topics.broker.groupinfo import GroupState, PendingRow
from topics.broker.grouprecords import render_batch
from topics.broker.listing import PAGE_SIZE, decode_cursor, encode_cursor
from topics.broker.reading import Tombstone
from topics.broker.steps import Steps
from topics.model.errors import BatchTooLarge, Forbidden, InvalidRequest
from topics.model.group import GroupConfig
from topics.storage.grouping import GroupVerdict

SEQS_MAX: Final = 1000
RANGES_MAX: Final = 1000
REASON_BYTES: Final = 1024


class GroupConfigured(msgspec.Struct):
    group: str
    created: bool
    config: GroupConfig


class GroupDropped(msgspec.Struct):
    group: str
    deleted: bool


class GroupList(msgspec.Struct, omit_defaults=True):
    groups: list[GroupState]
    next_cursor: str | None = None


class Joined(msgspec.Struct):
    member: str
    generation: int


class Generation(msgspec.Struct):
    generation: int


class Committed(msgspec.Struct):
    committed: int


class PendingList(msgspec.Struct, omit_defaults=True):
    pending: list[PendingRow]
    next_cursor: str | None = None


class GroupAckOut(msgspec.Struct):
    acked: int
    stale: list[int]
    why: dict[int, str]
    committed: int


class GroupNackOut(msgspec.Struct):
    nacked: int
    stale: list[int]
    why: dict[int, str]


class RejectOut(msgspec.Struct):
    rejected: int
    stale: list[int]
    why: dict[int, str]


class GroupExtendOut(msgspec.Struct):
    extended: int
    stale: list[int]
    why: dict[int, str]
    deadlines: dict[int, int]


# -- groups ------------------------------------------------------------------------------------------------------------


def put_group(service: Service, call: Call) -> Steps[Response]:
    topic, name = call.names
    asked, _ = decode(call.json_body(empty=b"{}"), GroupIn)
    if asked.dead_letter is not None and not call.key.may_name(asked.dead_letter):
        raise Forbidden("this key may not use the dead-letter topic", topic=asked.dead_letter)
    fields = {field: getattr(asked, field) for field in GroupConfig.__struct_fields__}
    config = GroupConfig(**fields).resolved()
    created = yield from service.broker.groups.put(topic, name, config, _where(asked.start, "start"))
    return call.answer(GroupConfigured(name, created, config), service.now_ns(), 201 if created else 200)


def get_group(service: Service, call: Call) -> Steps[Response]:
    state = yield from service.broker.groups.state(*call.names)
    return call.answer(state, service.now_ns())


def list_groups(service: Service, call: Call) -> Steps[Response]:
    states, following = yield from service.broker.groups.listed(
        call.names[0],
        call.query.get("prefix", ""),
        decode_cursor(call.query.get("cursor", "")),
        call.number("page_size", PAGE_SIZE),
    )
    cursor = None if following is None else encode_cursor(following)
    return call.answer(GroupList(states, cursor), service.now_ns())


def drop_group(service: Service, call: Call) -> Steps[Response]:
    topic, name = call.names
    yield from service.broker.groups.drop(topic, name)
    return call.answer(GroupDropped(name, True), service.now_ns())


def seek(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), SeekIn)
    topic, name = call.names
    where = _where(asked.to, "to")
    sought = yield from service.broker.groups.seek(topic, name, where, asked.force, asked.dry_run)
    return call.answer(sought, service.now_ns())


def pending(service: Service, call: Call) -> Steps[Response]:
    topic, name = call.names
    after = decode_cursor(call.query.get("cursor", "")) or "0"
    if not (after.isascii() and after.isdigit() and len(after) <= 20):
        raise InvalidRequest("the cursor cannot be read; leave it out to start over")
    parked = call.flag("parked", False) if "parked" in call.query else None
    rows, following = yield from service.broker.groups.pending(
        topic, name, call.query.get("member"), call.number("min_idle_ms", 0), parked,
        call.number("limit", PAGE_SIZE), int(after),
    )  # fmt: skip
    cursor = None if following is None else encode_cursor(str(following))
    return call.answer(PendingList(rows, cursor), service.now_ns())


def _where(place: str | PlaceIn, field: str) -> Where:
    if not isinstance(place, PlaceIn):
        return Where(to="latest" if place == "latest" else "earliest")
    if (place.seq is None) == (place.ts is None):
        raise InvalidRequest(f'{field!r} is "earliest", "latest", {{"seq":n}} or {{"ts":ms}}')
    if place.seq is not None:
        return Where(seq=bounded(place.seq, "seq", U64))
    return Where(ts=bounded(place.ts or 0, "ts", U64))


# -- members -----------------------------------------------------------------------------------------------------------


def join(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(empty=b"{}"), JoinIn)
    topic, name = call.names
    member, generation = yield from service.broker.groups.join(topic, name, asked.member)
    return call.answer(Joined(member, generation), service.now_ns())


def leave(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), MemberIn)
    generation = yield from service.broker.groups.leave(_who(call, asked))
    return call.answer(Generation(generation), service.now_ns())


def heartbeat(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), MemberIn)
    generation = yield from service.broker.groups.heartbeat(_who(call, asked))
    return call.answer(Generation(generation), service.now_ns())


def _who(call: Call, asked: MemberIn) -> Asked:
    topic, group = call.names
    return Asked(topic, group, asked.member, _generation(asked.generation))


def _generation(asked: int | None) -> int | None:
    return None if asked is None else bounded(asked, "generation", U64)


# -- fetching ----------------------------------------------------------------------------------------------------------


def fetch(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), FetchIn)
    batch = yield from service.broker.groups.fetch(
        _who(call, asked),
        bounded(asked.max, "max", U32),
        None if asked.max_bytes is None else bounded(asked.max_bytes, "max_bytes", U64),
        min(bounded(asked.wait_ms, "wait_ms", U64), WAIT_MS_MAX),
        None if asked.claim_idle_ms is None else bounded(asked.claim_idle_ms, "claim_idle_ms", U64),
    )
    return _records(service, call, batch)


def claim(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), GroupClaimIn)
    if asked.seqs is not None:
        _check_seqs(asked.seqs)
    batch = yield from service.broker.groups.claim(
        _who(call, asked),
        bounded(asked.min_idle_ms, "min_idle_ms", U64),
        bounded(asked.max, "max", U32),
        asked.seqs,
    )
    return _records(service, call, batch)


def _records(service: Service, call: Call, batch: Batch) -> Response:
    records = render_batch(service.broker.store, batch)
    return Response(200, b"%b%b}" % (records_json(batch, records), call.performance(service.now_ns())))


def records_json(batch: Batch, records: bytes) -> bytes:
    """The answer to a fetch up to its performance."""
    gap = batch.gap
    tombstone = b"null"
    if gap is not None:
        shown = Tombstone(gap.gap_from, gap.gap_to, gap.reason, gap.missed, gap.gap_to + 1, batch.topic.head)
        tombstone = msgspec.json.encode(shown)
    return b'{"records":[%b],"tombstone":%b,"cursor":%d,"committed":%d,"pending_full":%b,%b' % (
        records, tombstone, batch.cursor, batch.committed,
        b"true" if batch.pending_full else b"false", b'"next_seq":%d,' % batch.cursor if batch.is_stream else b"",
    )  # fmt: skip


# -- what a holder does ------------------------------------------------------------------------------------------------


def commit(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), GroupCommitIn)
    topic, group = call.names
    who = Asked(topic, group, asked.member or "", _generation(asked.generation))
    committed = yield from service.broker.groups.commit(who, bounded(asked.seq, "seq", U64))
    return call.answer(Committed(committed), service.now_ns())


def ack(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), GroupAckIn)
    if asked.ranges and asked.tokens:
        raise InvalidRequest("'tokens' go with 'seqs' and not with 'ranges'")
    if len(asked.ranges) > RANGES_MAX:
        raise BatchTooLarge(f"{len(asked.ranges)} ranges are more than the {RANGES_MAX} of one call", max=RANGES_MAX)
    for first, last in asked.ranges:
        bounded(first, "ranges", U64)
        bounded(last, "ranges", U64)
        if first > last:
            raise InvalidRequest(f"the range {first}..{last} ends before it begins")
    verdict, committed = yield from service.broker.groups.ack(
        _who(call, asked), asked.seqs, tokens_of(asked), asked.ranges
    )
    shown = GroupAckOut(len(verdict.done), verdict.stale, _why(verdict), committed)
    return call.answer(shown, service.now_ns())


def nack(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), GroupNackIn)
    delay_ms = bounded(asked.delay_ms, "delay_ms", U64)
    verdict = yield from service.broker.groups.nack(
        _who(call, asked), asked.seqs, tokens_of(asked), delay_ms, asked.count
    )
    return call.answer(GroupNackOut(len(verdict.done), verdict.stale, _why(verdict)), service.now_ns())


def reject(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), RejectIn)
    if len(asked.reason.encode("utf-8", "surrogatepass")) > REASON_BYTES:
        raise InvalidRequest(f"'reason' has more than {REASON_BYTES} bytes")
    verdict, rejected = yield from service.broker.groups.reject(
        _who(call, asked), asked.seqs, tokens_of(asked), asked.reason
    )
    return call.answer(RejectOut(rejected, verdict.stale, _why(verdict)), service.now_ns())


def extend(service: Service, call: Call) -> Steps[Response]:
    asked, _ = decode(call.json_body(), GroupExtendIn)
    visibility_ms = bounded(asked.visibility_ms, "visibility_ms", U64)
    verdict, deadline = yield from service.broker.groups.extend(
        _who(call, asked), asked.seqs, tokens_of(asked), visibility_ms
    )
    shown = GroupExtendOut(len(verdict.done), verdict.stale, _why(verdict), dict.fromkeys(verdict.done, deadline))
    return call.answer(shown, service.now_ns())


def _why(verdict: GroupVerdict) -> dict[int, str]:
    return dict(verdict.why)


def tokens_of(asked: SeqsIn) -> Sequence[int | None]:
    """One per seq; None where none is given."""
    _check_seqs(asked.seqs)
    if asked.tokens is None:
        return [None] * len(asked.seqs)
    if len(asked.tokens) != len(asked.seqs):
        raise InvalidRequest(f"{len(asked.tokens)} tokens do not go with {len(asked.seqs)} seqs")
    return asked.tokens


def _check_seqs(seqs: list[int]) -> None:
    if len(seqs) > SEQS_MAX:
        raise BatchTooLarge(f"{len(seqs)} seqs are more than the {SEQS_MAX} of one call", seqs=len(seqs), max=SEQS_MAX)
    if seqs:
        bounded(min(seqs), "seqs", U64)
        bounded(max(seqs), "seqs", U64)
