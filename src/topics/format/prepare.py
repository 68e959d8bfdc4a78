"""From an append's records to frames: every rule about one record is checked here, before anything else happens.

A record is a mapping, or an object with attributes, of `data` and optionally `tag`, `node`, `key`, `meta`. None (and
an UNSET attribute) means absent, except for `data`, where it is JSON null. A `meta` of JSON null is absent too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from topics.format import frame, segment
from topics.format.envelope import encode_envelope
from topics.format.jsontext import BadJson, scan_json
from topics.format.prepared import Prepared
from topics.format.values import encode_value, is_text, refuse_bytes
from topics.model import limits
from topics.model.errors import BatchTooLarge, InvalidRecord, RecordTooLarge

FIELDS: Final = ("data", "tag", "node", "key", "meta")
_HASH: Final = bytes(8)


def prepare(
    records: Sequence[Mapping[str, Any]],
    *,
    default_node: str | None = None,
    checked: bool = False,
    strict_fields: bool = True,
    frames_max: int = limits.APPEND_BYTES,
) -> Prepared:
    """The batch as unstamped frames. `checked`: texts in `data` are compact strict JSON already.

    Raises InvalidRecord or RecordTooLarge for the first record that breaks a rule; both carry its `index`. Where the
    frames take more than `frames_max` bytes it is BatchTooLarge.
    """
    frames = bytearray()
    entries = bytearray()
    total = 0
    has_tags = False
    for index, record in enumerate(records):
        if strict_fields:
            check_names(index, record)
        data, meta, tag_bytes, node_bytes, key = check_fields(index, record, default_node)
        flags = 0
        if tag_bytes is not None:
            flags |= frame.TAG
            has_tags = True
        if node_bytes is not None:
            flags |= frame.NODE
        node_bytes, tag_bytes = node_bytes or b"", tag_bytes or b""
        meta_text = None if meta is None else _meta(index, meta)
        data_text = _json(index, "data", data, checked=checked)[0]
        accounted = len(data_text) + (len(meta_text) if meta_text is not None else 0)
        if accounted > limits.RECORD_BYTES:
            raise too_large(index, accounted)
        body = encode_envelope(data_text, meta_text, key)
        size = len(node_bytes) + len(tag_bytes) + len(body)
        offset = len(frames)
        if offset + size + frame.OVERHEAD > frames_max:
            raise batch_too_large(frames_max)
        frames += frame.HEAD.pack(
            size + frame.OVERHEAD - 4, frame.Kind.APPEND, flags, 0, 0, 0, len(node_bytes), len(tag_bytes), len(body)
        )
        frames += node_bytes
        frames += tag_bytes
        frames += body
        frames += _HASH
        entries += segment.encode_entry(offset, size + frame.OVERHEAD, 0, flags, accounted)
        total += accounted
    return Prepared(frames, entries, len(entries) // segment.ENTRY_SIZE, total, has_tags)


def batch_too_large(frames_max: int) -> BatchTooLarge:
    return BatchTooLarge(f"the batch takes more than {frames_max} bytes in the log; append it in parts", max=frames_max)


def too_large(index: int, accounted: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"record {index}: data and meta take {accounted} bytes; the limit is {limits.RECORD_BYTES}",
        index=index,
        limit=limits.RECORD_BYTES,
    )


def check_names(index: int, record: Any) -> None:
    if isinstance(record, Mapping):
        for name in record:
            if name not in FIELDS:
                raise InvalidRecord(index, f"unknown field {name!r}; known: {', '.join(FIELDS)}")


def check_fields(
    index: int, record: Any, default_node: str | None
) -> tuple[Any, Any, bytes | None, bytes | None, str | None]:
    """(data, meta, tag, node, key): the texts checked, data and meta as they came. None = absent but for data."""
    if isinstance(record, Mapping):
        data, tag, node, key, meta = (record.get(name, msgspec.UNSET) for name in FIELDS)
    else:
        data, tag, node, key, meta = (getattr(record, name, msgspec.UNSET) for name in FIELDS)
    if data is msgspec.UNSET:
        if not isinstance(record, Mapping):
            raise InvalidRecord(index, f"it is of type {type(record).__name__}; a record is a mapping with 'data'")
        raise InvalidRecord(index, "it has no 'data'")
    tag_bytes = _text(index, "tag", tag, limits.TAG_BYTES)
    if node is None or node is msgspec.UNSET:
        node = default_node
    node_bytes = _text(index, "node", node, limits.NODE_BYTES)
    key_bytes = _text(index, "key", key, limits.KEY_BYTES)
    key = None if key_bytes is None else key_bytes.decode("utf-8")
    return data, None if meta is msgspec.UNSET else meta, tag_bytes, node_bytes, key


def _text(index: int, name: str, value: Any, limit: int) -> bytes | None:
    if value is None or value is msgspec.UNSET:
        return None
    if not isinstance(value, str):
        raise InvalidRecord(index, f"{name!r} is of type {type(value).__name__}, not str")
    try:
        text = value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRecord(index, f"{name!r} holds half of a surrogate pair") from None
    if len(text) > limit:
        raise InvalidRecord(index, f"{name!r} has {len(text)} bytes; the limit is {limit}")
    return text


def _json(index: int, name: str, value: Any, *, checked: bool = False, count_keys: bool = False) -> tuple[bytes, int]:
    """The compact text of `value` and, if wanted, the number of keys of the object it may be."""
    given = is_text(value)
    if given:
        text = bytes(value)
        if checked:
            return text, 0
    else:
        try:
            text = encode_value(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(index, f"{name!r} has no JSON form: {error}") from None
    try:
        found = scan_json(text, limits.JSON_DEPTH, count_keys)
    except BadJson as error:
        raise InvalidRecord(index, f"{name!r} is not JSON: {error}") from None
    if not given:
        refuse_bytes(index, name, value)
    return found


def _meta(index: int, value: Any) -> bytes | None:
    text, keys = _json(index, "meta", value, count_keys=True)
    if text == b"null":
        return None
    if len(text) > limits.META_BYTES:
        raise InvalidRecord(index, f"'meta' has {len(text)} bytes; the limit is {limits.META_BYTES}")
    if keys > limits.META_KEYS:
        raise InvalidRecord(index, f"'meta' has {keys} keys; the limit is {limits.META_KEYS}")
    return text
