"""The snapshot of the Rust program, for the import of its directories: read, never written.

    off  size   field
      0     4   "SNP1"
      4     4   version, 3
      8     4   body_len
     12     8   xxh3_64 of the body
     20         the body, in postcard:

    snapshot    id, ts, next_topic_id, checkpoint, topics, routers
    checkpoint  wal_idx, wal_offset, last_seq, [(idx, offset)], [group key]
    topic       name, topic_id, epoch, config, base, head, evict, expiry, delete_floor, delete_below, bytes, live_count,
                [record], source_trim
    record      seq, ts (signed), node?, tag?, data, meta?, bytes
    router      name, source, dest, node, tag, create_dest, allow_cycle, exactly_once, (op, value)?, cursor, total,
                dest_base

It holds every live payload, so a record here is a few numbers and the place of its bytes; the frame that stands for it
is made when it is wanted. Valid iff the checksum matches, the body is taken whole, and in every topic the records'
seqs rise and lie between base and head.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

import msgspec

from topics.format.checksum import Buffer, xxh3_64
from topics.format.container import BadContainer
from topics.format.control import RouterBits, Selector, SelectorOp
from topics.format.envelope import encode_envelope
from topics.format.frame import OVERHEAD, Kind, encode_frame
from topics.format.jsontext import DEPTH_LIMIT, BadJson
from topics.format.ops import compact_json
from topics.format.postcard import BadPostcard, PostcardReader
from topics.format.segment import NODE, TAG

MAGIC: Final = b"SNP1"
VERSION: Final = 3
HEADER: Final = 20
SEQ_MAX: Final = 1 << 62
"""No log gets so far; beyond it numbers stop to be exact in the columns that we count with."""
NULL: Final = b"null"
_NAME_MAX: Final = 0xFFFF
_FRAME_DATA_MAX: Final = 32 * 1024 * 1024
"""Of data and meta together: what a frame holds with room to spare, and 32 times what the Rust program takes."""


class UnknownSnapshot(BadContainer):
    """A snapshot of another version of the Rust program: whole perhaps, and not for us to judge."""


class RustRecord(msgspec.Struct, frozen=True, gc=False):
    seq: int
    ts: int
    node: bytes | None
    tag: bytes | None
    data: bytes
    """Compact JSON text; `null` also where the snapshot holds none."""
    meta: bytes | None
    broken: bool
    """Its data or meta are no JSON."""

    @property
    def accounted(self) -> int:
        return len(self.data) + (len(self.meta) if self.meta is not None else 0)

    @property
    def flags(self) -> int:
        return (TAG if self.tag is not None else 0) | (NODE if self.node is not None else 0)

    @property
    def frame_size(self) -> int:
        """Of its Append, without making it: the envelope is `{"d":…}`, or `{"m":…,"d":…}`."""
        envelope = 6 + len(self.data) + (5 + len(self.meta) if self.meta is not None else 0)
        return OVERHEAD + len(self.node or b"") + len(self.tag or b"") + envelope

    def frame(self, topic_id: int, ts: int) -> bytes:
        """The Append that would have logged it."""
        body = encode_envelope(self.data, self.meta, None)
        node, tag = self.node or b"", self.tag or b""
        return encode_frame(Kind.APPEND, topic_id, body, seq=self.seq, ts=ts, flags=self.flags, node=node, tag=tag)


@dataclass(slots=True)
class RustTopic:
    """Floors are last-lost seqs."""

    name: str
    id: int
    config: bytes
    base: int
    head: int
    evict_floor: int
    expiry_floor: int
    delete_floor: int
    delete_below: int
    trim_floor: int = 0
    seqs: array[int] = field(default_factory=lambda: array("Q"))
    places: array[int] = field(default_factory=lambda: array("Q"))
    """Where each record begins in the file."""
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    """Bytes of its frame."""
    times: array[int] = field(default_factory=lambda: array("q"))
    flags: bytearray = field(default_factory=bytearray)
    accounted: array[int] = field(default_factory=lambda: array("Q"))
    nulls: array[int] = field(default_factory=lambda: array("Q"))
    """Seqs of the records whose data is null."""
    broken: array[int] = field(default_factory=lambda: array("Q"))
    """Seqs of the records whose data or meta are no JSON."""

    def add(self, record: RustRecord, place: int) -> None:
        self.seqs.append(record.seq)
        self.places.append(place)
        self.sizes.append(record.frame_size)
        self.times.append(record.ts)
        self.flags.append(record.flags)
        self.accounted.append(record.accounted)
        if record.data == NULL:
            self.nulls.append(record.seq)
        if record.broken:
            self.broken.append(record.seq)


@dataclass(frozen=True, slots=True)
class RustRouter:
    name: str
    source: str
    dest: str
    bits: int
    filter: Selector | None
    cursor: int
    """Last source seq that was copied or passed over."""
    forwarded: int = 0


@dataclass(slots=True)
class RustSnapshot:
    id: int = 0
    ts: int = 0
    next_topic_id: int = 1
    first: tuple[int, int] = (0, 0)
    """(file, offset) of the flat group, where no key says which group is which."""
    positions: list[tuple[int, int]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    topics: list[RustTopic] = field(default_factory=list)
    routers: list[RustRouter] = field(default_factory=list)

    def position(self, key: str) -> tuple[int, int] | None:
        """(file, offset) up to which the snapshot has a group's frames; None = it has none of them."""
        if self.keys:
            at = self.keys.index(key) if key in self.keys else len(self.positions)
        elif not key:
            return self.first if len(self.positions) <= 1 else None
        else:
            at = int(key.removeprefix("shard-"))
        return self.positions[at] if at < len(self.positions) else None


def decode_rust_snapshot(buf: Buffer) -> RustSnapshot:
    """The snapshot, or BadContainer."""
    view = memoryview(buf)
    if len(view) < HEADER or bytes(view[:4]) != MAGIC:
        raise BadContainer("it does not begin with the mark of its kind")
    version = int.from_bytes(view[4:8], "little")
    if version != VERSION:
        raise UnknownSnapshot(f"it is of version {version}; version {VERSION} is known")
    if len(view) != HEADER + int.from_bytes(view[8:12], "little"):
        raise BadContainer("its length is not the stated one")
    if int.from_bytes(view[12:20], "little") != xxh3_64(view[HEADER:]):
        raise BadContainer("its checksum does not match")
    try:
        return _read_snapshot(PostcardReader(view, HEADER))
    except BadPostcard as error:
        raise BadContainer(str(error)) from None


def read_record(view: memoryview, at: int) -> RustRecord:
    """The record that begins at `at`, of a snapshot that was decoded before."""
    return _read_record(PostcardReader(view, at))


def _read_snapshot(reader: PostcardReader) -> RustSnapshot:
    found = RustSnapshot(reader.unsigned(), reader.unsigned(), reader.unsigned())
    found.first = (reader.unsigned(), reader.unsigned())
    reader.unsigned()  # the highest seq of any topic: nothing depends on it
    found.positions = [(reader.unsigned(), reader.unsigned()) for _ in range(reader.count())]
    found.keys = [reader.text() for _ in range(reader.count())]
    names: set[str] = set()
    ids: set[int] = {0}
    for _ in range(reader.count()):
        at = reader.at
        topic = _read_topic(reader)
        if topic.name in names or topic.id in ids:
            raise BadPostcard(at, f"topic {topic.name!r} of id {topic.id} comes twice, or its id is 0")
        names.add(topic.name)
        ids.add(topic.id)
        found.topics.append(topic)
    found.routers = [_read_router(reader) for _ in range(reader.count())]
    reader.finish()
    return found


def _read_topic(reader: PostcardReader) -> RustTopic:
    start = reader.at
    name, topic_id, _epoch, config = reader.text(), reader.unsigned(), reader.unsigned(), reader.raw()
    base, head, evict, expiry, delete_floor, delete_below = (_seq(reader) for _ in range(6))
    topic = RustTopic(name, topic_id, config, base, head, evict, expiry, delete_floor, delete_below)
    reader.unsigned()  # bytes and live_count follow from the records
    reader.unsigned()
    last = topic.base - 1
    for _ in range(reader.count()):
        at = reader.at
        record = _read_record(reader)
        if not last < record.seq <= topic.head:
            raise BadPostcard(at, f"record {record.seq} follows {last} in a topic that goes to {topic.head}")
        last = record.seq
        topic.add(record, at)
    topic.trim_floor = _seq(reader)
    if topic_id >= SEQ_MAX:
        raise BadPostcard(start, f"the topic id {topic_id} is out of all bounds")
    return topic


def _read_record(reader: PostcardReader) -> RustRecord:
    start = reader.at
    seq, ts = _seq(reader), reader.signed()
    node, tag = reader.optional_raw(), reader.optional_raw()
    data, meta = reader.raw(), reader.optional_raw()
    reader.unsigned()
    for text in (node, tag):
        if text is not None and (len(text) > _NAME_MAX or not _is_utf8(text)):
            raise BadPostcard(start, "a node or tag is too long or not UTF-8")
    if len(data) + len(meta or b"") > _FRAME_DATA_MAX:
        raise BadPostcard(start, f"record {seq} is larger than any frame")
    compact = _compact(data)
    compact_meta = None if meta is None else _compact(meta)
    broken = compact is None or (meta is not None and compact_meta is None)
    return RustRecord(seq, max(ts, 0), node, tag, NULL if compact is None else compact, compact_meta, broken)


def _read_router(reader: PostcardReader) -> RustRouter:
    name, source, dest = reader.text(), reader.text(), reader.text()
    bits = 0
    for bit in RouterBits:
        bits |= bit if reader.flag() else 0
    match = None
    if reader.flag():
        op = SelectorOp.EQ if reader.u8() == SelectorOp.EQ else SelectorOp.GLOB
        match = Selector(op, reader.text())
    cursor, total = _seq(reader), _seq(reader)
    _seq(reader)
    return RustRouter(name, source, dest, bits, match, cursor, total)


def _seq(reader: PostcardReader) -> int:
    at = reader.at
    value = reader.unsigned()
    if value >= SEQ_MAX:
        raise BadPostcard(at, f"the seq {value} is out of all bounds")
    return value


def _is_utf8(text: bytes) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _compact(text: bytes) -> bytes | None:
    """`text` as we store it, or None if it is no JSON."""
    try:
        return compact_json(text, DEPTH_LIMIT)
    except BadJson:
        return None
