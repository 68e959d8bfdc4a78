"""Frames as the JSON of an answer, in Python: the readable twin of `kernel_render.pxi`.

A record is `{"$seq":…,"$ts":…,"$node":…,"$tag":…,"$key":…,"data":…,"meta":…}`; what it has not, or the caller does not
want, is left out. `data` and `meta` are copied as they are stored. A job has its lease behind the seq and no node; a
group's record has its delivery at the end.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.format import frame

WITH_TAGS: Final = 1
WITH_META: Final = 2
WITH_KEYS: Final = 4
WITH_DATA: Final = 8
AS_JOB: Final = 16
AS_DELIVERY: Final = 32

NODES_MAX: Final = 64
"""The most nodes one call leaves out."""

COMMA: Final = 0x2C
NEWLINE: Final = 0x0A


def record_json(
    seq: int,
    ts: int,
    flags: int,
    node: bytes,
    tag: bytes,
    parts: tuple[bytes | None, bytes | None, bytes],
    want: int,
    token: int = 0,
    deliveries: int = 0,
    deadline: int = 0,
) -> bytes:
    """One record; `parts` are key, meta and data as JSON text. The last three are of its lease."""
    key, meta, data = parts
    text = b'{"$seq":%d' % seq
    if want & AS_JOB:
        text += b',"lease_id":"lease_%x","deadline":%d,"deliveries":%d' % (token, deadline, deliveries)
    text += b',"$ts":%d' % ts
    if flags & frame.NODE and not want & AS_JOB:
        text += b',"$node":' + msgspec.json.encode(str(node, "utf-8"))
    if want & WITH_TAGS and flags & frame.TAG:
        text += b',"$tag":' + msgspec.json.encode(str(tag, "utf-8"))
    if want & WITH_KEYS and key is not None:
        text += b',"$key":' + key
    if want & WITH_DATA:
        text += b',"data":' + data
    if want & WITH_META and meta is not None:
        text += b',"meta":' + meta
    if want & AS_DELIVERY:
        text += b',"delivery":{"count":%d,"token":%d,"deadline":%d}' % (deliveries, token, deadline)
    return text + b"}"
