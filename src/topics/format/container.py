"""A whole file under one checksum: MANIFEST, snapshot, `.tags`.

off  size  field
  0     4  magic     tells the kinds apart
  4     4  version   1
  8     8  body_len
 16     8  xxh3_64(body)
 24        body, to the end of the file
"""

from __future__ import annotations

import struct
from typing import Final

from topics.format.checksum import Buffer, xxh3_64

__all__ = ["HEADER", "VERSION", "BadContainer", "Buffer", "check", "unwrap", "wrap"]

VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIQQ")
HEADER: Final = _HEAD.size


class BadContainer(ValueError):
    """The bytes are not a whole container of the asked kind."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def wrap(magic: bytes, body: bytes) -> bytes:
    return _HEAD.pack(magic, VERSION, len(body), xxh3_64(body)) + body


def check(magic: bytes, buf: Buffer) -> memoryview:
    """The body in place, for files that are mapped rather than read."""
    view = memoryview(buf).cast("B")
    if len(view) < HEADER:
        raise BadContainer(f"{len(view)} bytes are too few for a header of {HEADER}")
    found, version, body_len, checksum = _HEAD.unpack_from(view)
    if found != magic:
        raise BadContainer(f"magic is {found!r}, not {magic!r}")
    if version != VERSION:
        raise BadContainer(f"version is {version}, not {VERSION}")
    body = view[HEADER:]
    if len(body) != body_len:
        raise BadContainer(f"body has {len(body)} bytes, the header says {body_len}")
    if xxh3_64(body) != checksum:
        raise BadContainer("checksum does not match")
    return body


def unwrap(magic: bytes, buf: Buffer) -> bytes:
    return bytes(check(magic, buf))
