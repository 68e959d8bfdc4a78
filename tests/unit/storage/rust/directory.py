"""Directories as the Rust program leaves them, written from the contract: none of our own encoders is used."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from topics.format.checksum import xxh3_64
from topics.host.fs import Fs, write_all

APPEND, CREATE, DROP, ROUTE, UNROUTE, DELETE, EVICT, MARK, CONFIG, LEASE, HEAD = range(1, 12)


def frame(
    kind: int,
    topic_id: int = 0,
    data: bytes = b"",
    *,
    seq: int = 0,
    ts: int = 1000,
    node: str | None = None,
    tag: str | None = None,
    durable: bool = True,
) -> bytes:
    """A WAL frame."""
    names = (node or "").encode(), (tag or "").encode()
    flags = (tag is not None) | (node is not None) << 1 | durable << 2
    covered = struct.pack("<BBQQQHHI", kind, flags, topic_id, seq, ts, len(names[0]), len(names[1]), len(data))
    covered += names[0] + names[1] + data
    return struct.pack("<I", len(covered) + 8) + covered + struct.pack("<Q", xxh3_64(covered))


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def append(topic_id: int, seq: int, value: Any, *, meta: Any = None, **rest: Any) -> bytes:
    body = b'{"d":%b}' % compact(value) if meta is None else b'{"d":%b,"m":%b}' % (compact(value), compact(meta))
    return frame(APPEND, topic_id, body, seq=seq, **rest)


def lp(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(raw)) + raw


def create(topic_id: int, name: str, ts: int = 1000, **config: Any) -> bytes:
    return frame(CREATE, topic_id, lp(name) + lp(compact(config)), ts=ts)


def drop(topic_id: int, name: str) -> bytes:
    return frame(DROP, topic_id, lp(name) + lp(b""))


def optional(value: int | None) -> bytes:
    return b"\0" if value is None else b"\1" + struct.pack("<Q", value)


def selector(match: tuple[int, str] | None) -> bytes:
    return b"\0" if match is None else struct.pack("<BB", 1, match[0]) + lp(match[1])


def delete(
    topic_id: int,
    *,
    before: int | None = None,
    match: tuple[int, str] | None = None,
    seqs: Sequence[int] = (),
    bound: int | None = None,
    ts: int = 1000,
) -> bytes:
    body = optional(before) + selector(match) + struct.pack(f"<I{len(seqs)}Q", len(seqs), *seqs) + optional(bound)
    return frame(DELETE, topic_id, body, ts=ts)


def head_watermark(topic_id: int, ceiling: int, ts: int = 1000) -> bytes:
    return frame(HEAD, topic_id, struct.pack("<Q", ceiling), ts=ts)


def evict(topic_id: int, floor: int, earliest: int, expiry: int) -> bytes:
    return frame(EVICT, topic_id, struct.pack("<QQQ", floor, earliest, expiry))


def lease(topic_id: int, seq: int, event: int, lease_id: int, deadline: int, deliveries: int, node: str) -> bytes:
    return frame(LEASE, topic_id, struct.pack("<BQQQ", event, lease_id, deadline, deliveries) + lp(node), seq=seq)


def route(name: str, source: str, dest: str, *, bits: int = 3, cursor: int = 0, ts: int = 1000) -> bytes:
    return frame(
        ROUTE, 0, lp(name) + lp(source) + lp(dest) + bytes([bits]) + b"\0" + struct.pack("<QQ", cursor, 0), ts=ts
    )


def unroute(name: str, ts: int = 1000) -> bytes:
    return frame(UNROUTE, 0, lp(name), ts=ts)


def segment_frame(seq: int, value: Any, *, ts: int = 1000, tag: str | None = None, flag: int = 0) -> bytes:
    body = b'{"d":%b}' % compact(value)
    name = (tag or "").encode()
    covered = struct.pack("<BQQHHI", tag is not None, seq, ts, 0, len(name), len(body)) + name + body
    return struct.pack("<I", len(covered) + 9) + covered + struct.pack("<QB", xxh3_64(covered), flag)


# -- the snapshot ------------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def signed(value: int) -> bytes:
    return number(value << 1 if value >= 0 else (-value << 1) - 1)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return number(len(raw)) + raw


def maybe(value: str | bytes | None) -> bytes:
    return b"\0" if value is None else b"\1" + text(value)


def sequence(items: Sequence[bytes]) -> bytes:
    return number(len(items)) + b"".join(items)


def record(
    seq: int, value: Any = None, *, ts: int = 1000, node: str | None = None, tag: str | None = None, meta: Any = None,
    raw: bytes | None = None,
) -> bytes:  # fmt: skip
    data = compact(value) if raw is None else raw
    more = None if meta is None else compact(meta)
    counted = len(data) + len(more or b"")
    return number(seq) + signed(ts) + maybe(node) + maybe(tag) + text(data) + maybe(more) + number(counted)


@dataclass
class Topic:
    name: str
    id: int
    head: int
    records: list[bytes] = field(default_factory=list)
    base: int = 1
    evict: int = 0
    expiry: int = 0
    delete_floor: int = 0
    delete_below: int = 0
    trim: int = 0
    config: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        floors = (self.base, self.head, self.evict, self.expiry, self.delete_floor, self.delete_below)
        return b"".join(
            (
                text(self.name), number(self.id), number(1), text(compact(self.config)), *map(number, floors),
                number(0), number(len(self.records)), sequence(self.records), number(self.trim),
            )
        )  # fmt: skip


def snapshot_router(
    name: str, source: str, dest: str, *, cursor: int = 0, total: int = 0, match: tuple[int, str] | None = None,
    exactly_once: bool = False,
) -> bytes:  # fmt: skip
    flags = bytes([1, 1, 0, 0, exactly_once])
    filtered = b"\0" if match is None else b"\1" + bytes([match[0]]) + text(match[1])
    return text(name) + text(source) + text(dest) + flags + filtered + number(cursor) + number(total) + number(0)


def snapshot(
    topics: Sequence[Topic] = (),
    routers: Sequence[bytes] = (),
    *,
    number_id: int = 1,
    next_id: int = 100,
    first: tuple[int, int] = (1, 0),
    positions: Sequence[tuple[int, int]] = (),
    keys: Sequence[str] = (),
    version: int = 3,
) -> bytes:
    body = number(number_id) + number(2000) + number(next_id) + number(first[0]) + number(first[1]) + number(9)
    body += sequence([number(a) + number(b) for a, b in positions]) + sequence([text(key) for key in keys])
    body += sequence([topic.encode() for topic in topics]) + sequence(list(routers))
    return b"SNP1" + struct.pack("<IIQ", version, len(body), xxh3_64(body)) + body


# -- files -------------------------------------------------------------------------------------------------------------


class RustDirectory:
    """Files of the Rust program under `root`, each durable."""

    def __init__(self, fs: Fs, root: str = "/data") -> None:
        self.fs = fs
        self.root = root
        self._make(root)
        for name in ("meta", "wal", "topics"):
            self._make(f"{root}/{name}")

    def _make(self, path: str) -> None:
        if not self.fs.is_dir(path):
            self.fs.mkdir(path)
            self.fs.sync_dir(path.rsplit("/", 1)[0] or "/")

    def put(self, path: str, data: bytes) -> str:
        directory = f"{self.root}/{path}".rsplit("/", 1)[0]
        self._make(directory)
        file = self.fs.open(f"{self.root}/{path}", write=True, create=True)
        file.truncate(0)
        write_all(file, 0, [data])
        file.sync()
        self.fs.sync_dir(directory)
        return f"{self.root}/{path}"

    def wal(self, *frames: bytes, file: int = 1, group: str = "", zeros: int = 256) -> str:
        prefix = f"wal/{group}/" if group else "wal/"
        return self.put(f"{prefix}wal-{file:016d}.log", b"".join(frames) + bytes(zeros))

    def snapshot(self, data: bytes, file: int = 1) -> str:
        return self.put(f"meta/snapshot-{file:016d}.bin", data)

    def segment(self, topic_id: int, first: int, *frames: bytes) -> str:
        path = f"topics/{topic_id:08X}/seg-{first:016d}"
        offset, idx = 0, b""
        for one in frames:
            idx += struct.pack("<IIQB3x", offset, len(one), 1000, 0)
            offset += len(one)
        self.put(f"{path}.idx", idx)
        return self.put(f"{path}.data", b"".join(frames))
