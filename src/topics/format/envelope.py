"""The body of an Append: compact JSON `{"d":<data>}`, or `{"k":"<key>","m":<meta>,"d":<data>}` with either left out.

The small parts come first, so that a scan for keys stops before `data`. The reference writes `{"d":…,"m":…}`; readers
take the fields in any order. `data` and `meta` were checked before they were written and the frame's checksum vouches
for them since, so splitting looks only for the borders of the fields:

  - A field is compact, so a field after `d` shows as `,"m":` or `,"k":`. Where neither follows, `data` runs to the
    last brace and is not looked at. This is every record of ours, and what makes reading fast.
  - Else the value's end is the first comma or brace outside strings and brackets.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

KEY_MARK: Final = b'"k":'
"""Bytes that every envelope with a key holds; what lies in `data` may hold them too."""

_STRUCTURE: Final = re.compile(rb'[^"\[\]{},]*+')
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class BadEnvelope(ValueError):
    """The body is not an envelope."""


def encode_envelope(data: bytes, meta: bytes | None, key: str | None) -> bytes:
    """`data` and `meta` are compact JSON texts."""
    if key is None and meta is None:
        return b'{"d":%b}' % data
    parts = [b"{"]
    if key is not None:
        parts.append(b'"k":%b,' % msgspec.json.encode(key))
    if meta is not None:
        parts.append(b'"m":%b,' % meta)
    parts.append(b'"d":%b}' % data)
    return b"".join(parts)


def split_envelope(body: bytes) -> tuple[str | None, bytes | None, bytes]:
    """(key, meta, data) of an envelope; ValueError if it is none."""
    key, meta, data = split_raw(body)
    return decode_key(key), meta, data


def accounted_bytes(body: bytes) -> int:
    """Compact data + meta bytes of an envelope: what a record counts for in caps and limits."""
    _key, meta, data = split_raw(body)
    return len(data) + (len(meta) if meta is not None else 0)


def decode_key(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadEnvelope("the key is not a JSON string") from None


def split_raw(body: bytes) -> tuple[bytes | None, bytes | None, bytes]:
    """As split_envelope, the key still as JSON text."""
    if type(body) is not bytes:
        body = bytes(body)
    end = len(body) - 1
    if end < 1 or body[0] != 0x7B or body[end] != 0x7D:
        raise BadEnvelope("it is not an object")
    fields: dict[bytes, bytes] = {}
    at = 1
    while True:
        name = body[at : at + 4]
        if name not in (b'"d":', b'"m":', b'"k":') or name in fields:
            raise BadEnvelope(f"there is no field of an envelope at byte {at}")
        at += 4
        if name == b'"d":' and body.find(b',"m":', at) < 0 and body.find(b',"k":', at) < 0:
            stop = end
        else:
            stop = _value_end(body, at, end)
        if stop == at:
            raise BadEnvelope(f"there is no value at byte {at}")
        fields[name] = body[at:stop]
        if stop == end:
            break
        at = stop + 1
    data = fields.get(b'"d":')
    if data is None:
        raise BadEnvelope("it holds no data")
    return fields.get(b'"k":'), fields.get(b'"m":'), data


def _value_end(body: bytes, at: int, end: int) -> int:
    """Offset of the comma or the last brace that ends the value at `at`."""
    depth = 0
    while True:
        match = _STRUCTURE.match(body, at)
        assert match is not None
        at = match.end()
        if at >= end:
            if depth:
                raise BadEnvelope("a bracket is not closed")
            return end
        byte = body[at]
        if byte == 0x22:
            match = _STRING.match(body, at, end)
            if match is None:
                raise BadEnvelope("a string is not closed")
            at = match.end()
            continue
        if byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
            if depth < 0:
                raise BadEnvelope("a bracket closes too early")
        elif not depth:
            return at
        at += 1
