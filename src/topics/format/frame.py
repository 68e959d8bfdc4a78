"""A frame of the WAL. All integers little-endian.

    off  size   field
      0     4   frame_len    bytes after this field, at least 42
      4     1   kind         see Kind
      5     1   flags        1 has tag, 2 has node, 4 durable (fsync class), 8 more: the next frame belongs to the
                             same submission; the high four bits count the routers a record came through
      6     8   topic_id     0 on router, checkpoint and verdict frames
     14     8   seq          Append and Lease, else 0
     22     8   ts           commit time, ms
     30     2   node_len
     32     2   tag_len
     34     4   data_len
     38         node, tag, body
    end-8   8   xxh3_64 over [4, end-8): the length prefix is not covered, the sum below vouches for it

A frame is valid iff
  - frame_len = 34 + node_len + tag_len + data_len + 8, fits before the limit and into limits.FRAME_BYTES,
  - the checksum matches, the kind is known, node and tag are UTF-8,
  - the body of an Append is an envelope (see envelope.py). Bodies of control frames are decoded by control.py.

Files have no header and no padding. frame_len 0 is a clean end only if all that follows is zeros.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from topics.format.checksum import Buffer, xxh3_64
from topics.format.envelope import BadEnvelope, split_raw
from topics.model import limits


class Kind(enum.IntEnum):
    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    ROUTER_CREATE = 4
    ROUTER_DELETE = 5
    DELETE = 6
    EVICT_WATERMARK = 7
    CHECKPOINT_MARK = 8
    CONFIG_UPDATE = 9
    LEASE = 10
    HEAD_WATERMARK = 11
    ROUTER_CURSOR = 64
    DEDUPE = 65
    LOST_RANGE = 66
    TOKEN_WATERMARK = 80
    STAGE_COMMIT = 85
    STAGE_PREPARE = 86
    STAGE_VERDICT = 87
    GROUP = 90


KNOWN_KINDS: Final = frozenset(int(kind) for kind in Kind)

TAG: Final = 1
NODE: Final = 2
DURABLE: Final = 4
MORE: Final = 8

HEADER: Final = 38
OVERHEAD: Final = 46
"""Header and checksum: what a frame is longer than its node, tag and body."""

HEAD: Final = struct.Struct("<IBBQQQHHI")
_HASH: Final = struct.Struct("<Q")
_MIN_LEN: Final = OVERHEAD - 4


class BadFrame(ValueError):
    """The bytes at `offset` are not a valid frame."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"no valid frame at byte {offset}: {why}")
        self.offset = offset
        self.why = why


class UnknownKind(BadFrame):
    """A whole frame that a newer version wrote: not damage, and not ours to cut."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes
    """Empty unless flagged."""
    tag: bytes
    """Empty unless flagged."""
    body: bytes
    offset: int
    """Where the frame begins in the buffer it was read from."""
    end: int
    """Where the next one begins."""


def encode_frame(
    kind: int,
    topic_id: int,
    body: bytes = b"",
    *,
    seq: int = 0,
    ts: int = 0,
    flags: int = 0,
    node: bytes = b"",
    tag: bytes = b"",
) -> bytes:
    """One frame. A node or tag that is not empty sets its flag; pass the flag to say "present but empty"."""
    if node:
        flags |= NODE
    if tag:
        flags |= TAG
    size = len(node) + len(tag) + len(body)
    if size + _MIN_LEN > limits.FRAME_BYTES:
        raise ValueError(f"a frame of {size + OVERHEAD} bytes is longer than the limit of {limits.FRAME_BYTES}")
    covered = b"".join(
        (
            HEAD.pack(size + _MIN_LEN, kind, flags, topic_id, seq, ts, len(node), len(tag), len(body)),
            node,
            tag,
            body,
        )
    )
    return covered + _HASH.pack(xxh3_64(memoryview(covered)[4:]))


def check_frame(view: memoryview, offset: int, limit: int) -> tuple[int, int, int, int, int, int, int, int, int]:
    """The header of the valid frame at `offset`; BadFrame tells the first broken rule.

    All rules but the form of an Append's body, which its readers look at anyway.
    """
    if limit - offset < OVERHEAD:
        raise BadFrame(offset, f"only {limit - offset} bytes are left")
    head = HEAD.unpack_from(view, offset)
    frame_len, kind, _flags, _topic_id, _seq, _ts, node_len, tag_len, data_len = head
    if frame_len != _MIN_LEN + node_len + tag_len + data_len:
        raise BadFrame(offset, "its length does not match the lengths of its parts")
    if frame_len > limits.FRAME_BYTES:
        raise BadFrame(offset, f"its length {frame_len} is beyond the limit of {limits.FRAME_BYTES}")
    end = offset + 4 + frame_len
    if end > limit:
        raise BadFrame(offset, f"it ends {end - limit} bytes beyond the limit")
    if _HASH.unpack_from(view, end - 8)[0] != xxh3_64(view[offset + 4 : end - 8]):
        raise BadFrame(offset, "its checksum does not match")
    if kind not in KNOWN_KINDS:
        raise UnknownKind(offset, f"its kind {kind} is unknown")
    for start, size in ((offset + HEADER, node_len), (offset + HEADER + node_len, tag_len)):
        try:
            str(view[start : start + size], "utf-8")
        except UnicodeDecodeError:
            raise BadFrame(offset, "its node or tag is not UTF-8") from None
    return head


def decode_frame(buf: Buffer, offset: int, limit: int) -> Frame:
    """The frame at `offset`, which must end at or before `limit`; BadFrame if it is not valid."""
    view = memoryview(buf)
    if not 0 <= offset <= limit <= len(view):
        raise ValueError(f"range {offset}..{limit} lies outside a buffer of {len(view)} bytes")
    frame_len, kind, flags, topic_id, seq, ts, node_len, tag_len, _data_len = check_frame(view, offset, limit)
    end = offset + 4 + frame_len
    tag_at = offset + HEADER + node_len
    body = bytes(view[tag_at + tag_len : end - 8])
    if kind == Kind.APPEND:
        try:
            split_raw(body)
        except BadEnvelope as error:
            raise BadFrame(offset, f"its body is not an envelope: {error}") from None
    return Frame(
        Kind(kind),
        flags,
        topic_id,
        seq,
        ts,
        bytes(view[offset + HEADER : tag_at]) if flags & NODE else b"",
        bytes(view[tag_at : tag_at + tag_len]) if flags & TAG else b"",
        body,
        offset,
        end,
    )
