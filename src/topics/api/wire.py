"""What requests look like: their shapes, and the one way from bytes to a checked value.

A body is read twice: once as text (strict JSON, depth, repeated names; whitespace goes), once as a shape whose payloads
stay text. Unknown fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics.format.control import Selector, SelectorOp
from topics.format.jsontext import DEPTH_LIMIT, TOO_DEEP, BadJson
from topics.format.ops import compact_body
from topics.model import limits
from topics.model.config import TopicConfig
from topics.model.errors import InvalidRecord, InvalidRequest
from topics.model.group import GroupConfig

BODY_DEPTH: Final = 127
"""Levels of a body, its own brace included; one more is refused."""

U64: Final = (1 << 64) - 1
U32: Final = (1 << 32) - 1


class RecordIn(Struct, gc=False):
    data: Raw
    tag: str | None = None
    node: str | None = None
    key: str | None = None
    meta: Raw | UnsetType = UNSET
    delay_ms: int | UnsetType = UNSET


class AppendIn(Struct):
    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool = False


class PublishIn(AppendIn, kw_only=True):
    """An append over a WebSocket."""

    op: str
    topic: str
    request_id: Raw | UnsetType = UNSET
    return_seqs: bool = True


class DiffIn(Struct):
    from_seq: int = 0
    limit: int = 256
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    include_keys: bool = False
    wait_ms: int = 0
    max_batch_bytes: int = 0
    epoch: int | None = None


class DeleteIn(Struct):
    before_seq: int | None = None
    match: str | list[str] | None = None


class RouterIn(Struct):
    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: str | list[str] | None = None
    allow_cycle: bool = False
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"


class HeadsIn(Struct):
    topics: dict[str, int] | None = None
    pattern: str | None = None
    wait_ms: int = 0


class WatchTopic(Struct):
    from_seq: int = 0
    tail: bool = False


class WatchIn(Struct):
    topics: dict[str, WatchTopic]
    node: str | list[str] | None = None
    limit: int = 256
    max_batch_bytes: int = 262_144
    heartbeat_ms: int = 15_000
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    include_keys: bool = False
    consistency: Literal["eventual", "strong"] = "eventual"


class SubscribeIn(Struct):
    op: str
    request_id: Raw | UnsetType = UNSET
    topic: str | None = None
    from_seq: int = 0
    tail: bool = False
    topics: dict[str, WatchTopic] | None = None
    node: str | list[str] | None = None
    limit: int = 1000
    max_batch_bytes: int = 1 << 20
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool = True
    include_keys: bool = False
    lenient: bool = False


class UnsubscribeIn(Struct):
    op: str
    request_id: Raw | UnsetType = UNSET
    topic: str | None = None
    topics: list[str] | None = None


class PingIn(Struct):
    op: str
    request_id: Raw | UnsetType = UNSET


class StageCommitIn(Struct):
    parts: list[str]
    query: str | None = None


class StageCommitsIn(Struct):
    topics: dict[str, list[str]]
    query: str | None = None


class PlanIn(Struct):
    cap_records: int | UnsetType = UNSET
    cap_bytes: int | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET


class ClaimIn(Struct):
    node: str
    max: int = 1
    lease_ms: int | None = None


class AckIn(Struct):
    node: str
    seqs: list[int]
    lease_ids: list[str] = []


class NackIn(AckIn):
    delay_ms: int = 0


class ExtendIn(AckIn, kw_only=True):
    lease_ms: int


class RedriveIn(Struct):
    to: str | None = None
    max: int = 1000
    rate_per_s: int = 0
    dry_run: bool = False


class PlaceIn(Struct, forbid_unknown_fields=True):
    seq: int | None = None
    ts: int | None = None


class GroupIn(GroupConfig, frozen=True, kw_only=True):
    start: Literal["earliest", "latest"] | PlaceIn = "earliest"


class JoinIn(Struct):
    member: str | None = None


class MemberIn(Struct):
    member: str
    generation: int | None = None


class FetchIn(MemberIn, kw_only=True):
    max: int = 100
    max_bytes: int | None = None
    wait_ms: int = 0
    claim_idle_ms: int | None = None


class GroupCommitIn(Struct):
    seq: int
    member: str | None = None
    generation: int | None = None


class SeqsIn(MemberIn, kw_only=True):
    seqs: list[int]
    tokens: list[int | None] | None = None


class GroupAckIn(SeqsIn, kw_only=True):
    seqs: list[int] = []
    ranges: list[tuple[int, int]] = []


class GroupNackIn(SeqsIn, kw_only=True):
    delay_ms: int = 0
    count: bool = True


class RejectIn(SeqsIn, kw_only=True):
    reason: str = ""


class GroupExtendIn(SeqsIn, kw_only=True):
    visibility_ms: int


class GroupClaimIn(MemberIn, kw_only=True):
    min_idle_ms: int
    max: int = 100
    seqs: list[int] | None = None


class SeekIn(Struct):
    to: Literal["earliest", "latest"] | PlaceIn
    force: bool = False
    dry_run: bool = False


T = TypeVar("T", bound=Struct)


def names_of(*shapes: type[Struct]) -> tuple[bytes, ...]:
    return tuple(
        dict.fromkeys(field.encode_name.encode() for shape in shapes for field in msgspec.structs.fields(shape))
    )


_NESTED: Final = (WatchIn, SubscribeIn, GroupIn, SeekIn)
"""Shapes with others in them, whose repeated names the text alone does not show."""

_DECODERS: Final[dict[type[Struct], msgspec.json.Decoder[Any]]] = {}
_NAMES: Final[dict[type[Struct], tuple[bytes, ...]]] = {
    AppendIn: names_of(AppendIn, RecordIn),
    PublishIn: names_of(PublishIn, RecordIn),
}


def decode(body: bytes, shape: type[T]) -> tuple[T, bool]:
    """The value, and whether its payloads were checked: with False `prepare` has to look at their depth again."""
    decoder = _DECODERS.get(shape)
    if decoder is None:
        decoder = _DECODERS[shape] = msgspec.json.Decoder(shape)
        _NAMES.setdefault(shape, names_of(shape))
    checked = True
    try:
        text, doubtful = compact_body(body, BODY_DEPTH, _NAMES[shape])
    except BadJson as error:
        if error.why != TOO_DEEP:
            raise InvalidRequest(f"the body is not JSON: {error}") from None
        # What lies in ignored fields may be deeper. The fields we know are looked at again.
        text, doubtful = _deep(body, _NAMES[shape])
        checked = False
    try:
        value: T = decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body does not have the right shape: {error}{_choices(str(error))}") from None
    if doubtful or (shape in _NESTED and len(text) <= _TAKEN_APART_MAX):
        _check_repeats(text, shape)
    elif isinstance(value, AppendIn) and value.config is not None:
        _check_config_repeats(text)
    return value, checked


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in _words(part)]


_CHOICES: Final = {
    field.encode_name: _words(field.type)
    for shape in (TopicConfig, RouterIn, WatchIn)
    for field in msgspec.structs.fields(shape)
}


def _choices(why: str) -> str:
    """What the field that `why` names may hold, where that is one of a few words."""
    words = _CHOICES.get(why.rpartition(".")[2].rstrip("`"), ()) if why.startswith("Invalid enum value") else ()
    return f"; it may be {', '.join(words)}" if words else ""


class _ConfigText(Struct):
    config: Raw


_CONFIG_TEXT: Final = msgspec.json.Decoder(_ConfigText)
_CONFIG_NAMES: Final = names_of(TopicConfig)


def _check_config_repeats(text: bytes) -> None:
    """Of a body whose other names are known to be good: only the config is looked at, however large the rest is."""
    config = bytes(_CONFIG_TEXT.decode(text).config)
    _, doubtful = compact_body(config, DEPTH_LIMIT, _CONFIG_NAMES)
    if doubtful:
        _refuse_repeats(_members(config), TopicConfig)


_RECORD: Final = msgspec.json.Decoder(RecordIn)
_RECORD_NAMES: Final = names_of(RecordIn)


def decode_record(line: bytes, index: int) -> RecordIn:
    """One record by itself, as a line of a bulk body holds it. Its payloads are checked."""
    try:
        text, doubtful = compact_body(line, limits.JSON_DEPTH + 1, _RECORD_NAMES)
        record = _RECORD.decode(text)
    except (BadJson, msgspec.DecodeError, RecursionError) as error:
        raise InvalidRecord(index, f"it is not a JSON record: {error}") from None
    if doubtful:
        _refuse_repeats(_members(text), RecordIn)
    return record


def _deep(body: bytes, names: tuple[bytes, ...]) -> tuple[bytes, bool]:
    try:
        return compact_body(body, DEPTH_LIMIT, names)
    except BadJson as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None


_TAKEN_APART_MAX: Final = 2 * limits.RECORD_BYTES


class _RecordsText(Struct):
    records: Raw


_RECORDS_TEXT: Final = msgspec.json.Decoder(_RecordsText)
_RAWS: Final = msgspec.json.Decoder(list[Raw])


class _Pairs(list[tuple[str, Any]]):
    """An object with all its members, repeated ones too."""


def _members(text: bytes) -> Any:
    """Every object with all its members. Numbers stay text: Python refuses to read those of thousands of digits.

    What is a byte in the body may be 50 in memory, so a large text is not taken apart: whoever sends more than a record
    may hold in one piece writes the names of its fields plainly, and once."""
    if len(text) > _TAKEN_APART_MAX:
        raise InvalidRequest(
            f"in one record, or beside the records, of more than {_TAKEN_APART_MAX} bytes no field may come twice, "
            "and field names may have no escapes"
        )
    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    except RecursionError:
        raise InvalidRequest("the body is nested too deep") from None


def _check_repeats(text: bytes, shape: type[Struct]) -> None:
    """Refuse a known field that comes twice. Rare and slow: the whole body as Python objects, a large one in pieces."""
    if issubclass(shape, AppendIn) and len(text) > _TAKEN_APART_MAX:
        records = bytes(_RECORDS_TEXT.decode(text).records)
        for record in _RAWS.decode(records):
            _, doubtful = compact_body(bytes(record), DEPTH_LIMIT, _RECORD_NAMES)
            if doubtful:
                _refuse_repeats(_members(bytes(record)), RecordIn)
        text = text.replace(records, b"[]", 1)
    _refuse_repeats_in(_members(text), shape)


def _refuse_repeats_in(value: Any, kind: Any) -> None:
    """Of a value of this kind, which it is known to be, and of what lies within it."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, _Pairs):
        _refuse_repeats(value, kind)
        kinds = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for name, member in value:
            _refuse_repeats_in(member, kinds.get(name))
    elif origin is dict and isinstance(value, _Pairs):
        for _, member in value:
            _refuse_repeats_in(member, parts[1])
    elif origin is list and isinstance(value, list):
        for member in value:
            _refuse_repeats_in(member, parts[0])
    elif origin is not Literal:
        for part in parts:  # of a union
            _refuse_repeats_in(value, part)


def _refuse_repeats(members: Iterable[tuple[str, Any]], shape: type[Struct]) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(shape)}
    seen: set[str] = set()
    for name, _ in members:
        if name in known and name in seen:
            raise InvalidRequest(f"the field {name!r} comes twice")
        seen.add(name)


def bounded(value: int, name: str, most: int) -> int:
    if not 0 <= value <= most:
        raise InvalidRequest(f"{name!r} is {value}; it must lie in 0..{most}")
    return value


def node_filter(node: str | list[str] | None) -> tuple[bytes, ...]:
    if node is None:
        return ()
    return tuple(name.encode() for name in ([node] if isinstance(node, str) else node))


def selector(match: str | list[str] | None) -> Selector | None:
    """The predicate over tags of a delete or a router."""
    if match is None:
        return None
    if isinstance(match, str):
        return tag_selector(match)
    if len(match) != 3 or match[0] != "tag" or match[1] not in ("Eq", "Glob"):
        raise InvalidRequest('tags are chosen by ["tag","Eq",value], ["tag","Glob","prefix*"] or a string')
    if match[1] == "Eq":
        return Selector(SelectorOp.EQ, match[2])
    if not match[2].endswith("*"):
        raise InvalidRequest("the value of a Glob must end in '*'")
    return Selector(SelectorOp.GLOB, match[2][:-1])


def tag_selector(text: str) -> Selector:
    return Selector(SelectorOp.GLOB, text[:-1]) if text.endswith("*") else Selector(SelectorOp.EQ, text)
