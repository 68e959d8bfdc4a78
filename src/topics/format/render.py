"""Frames as the JSON of an answer, in Python: the readable twin of `kernel_render.pxi`.

A record is `{"$seq":…,"$ts":…,"$node":…,"$tag":…,"$key":…,"data":…,"meta":…}`; what it has not, or the caller does not
want, is left out. `data` and `meta` are copied as they are stored.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.format import frame

WITH_TAGS: Final = 1
WITH_META: Final = 2
WITH_KEYS: Final = 4
WITH_DATA: Final = 8

NODES_MAX: Final = 64
"""The most nodes one call leaves out."""

COMMA: Final = 0x2C
NEWLINE: Final = 0x0A


def record_json(
    seq: int, ts: int, flags: int, node: bytes, tag: bytes, parts: tuple[bytes | None, bytes | None, bytes], want: int
) -> bytes:
    """One record; `parts` are key, meta and data as JSON text."""
    key, meta, data = parts
    text = b'{"$seq":%d,"$ts":%d' % (seq, ts)
    if flags & frame.NODE:
        text += b',"$node":' + msgspec.json.encode(str(node, "utf-8"))
    if want & WITH_TAGS and flags & frame.TAG:
        text += b',"$tag":' + msgspec.json.encode(str(tag, "utf-8"))
    if want & WITH_KEYS and key is not None:
        text += b',"$key":' + key
    if want & WITH_DATA:
        text += b',"data":' + data
    if want & WITH_META and meta is not None:
        text += b',"meta":' + meta
    return text + b"}"
