"""What is in a file of the data directory, as plain values, one entry after the other, up to where it makes no sense.

Bodies of control frames that cannot be read are told in place (`problem`): the frame's own checksum held, so the walk
goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from topics.format import control, frame, group, segment, staged
from topics.format.container import BadContainer
from topics.format.current import Current
from topics.format.envelope import BadEnvelope, split_envelope
from topics.format.fields import BadBody
from topics.format.frame import BadFrame
from topics.format.manifest import decode_manifest
from topics.format.ops import find_frames
from topics.format.snapshot import decode_snapshot
from topics.format.tags import KEYS_MAGIC, MAGIC, TagIndex
from topics.storage.paths import part_number, segment_first, snapshot_number, wal_number

Kind = Literal["wal", "data", "idx", "tags", "keys", "part", "manifest", "snapshot", "current", "text"]
Reason = Literal["end", "zeros", "damage", "limit"]
Parts = Iterator["dict[str, Any] | Stop"]

PREVIEW_BYTES: Final = 120
TEXT_BYTES: Final = 64 * 1024
"""FORMAT and BOOT are a few lines; of anything else that is called text this much is shown."""
ZEROS: Final = bytes(1 << 16)

BODIES: Final[dict[frame.Kind, Callable[[bytes], Any]]] = {
    frame.Kind.TOPIC_CREATE: control.TopicCreate.decode,
    frame.Kind.CONFIG_UPDATE: control.TopicCreate.decode,
    frame.Kind.TOPIC_DELETE: control.TopicDelete.decode,
    frame.Kind.ROUTER_CREATE: control.RouterCreate.decode,
    frame.Kind.ROUTER_DELETE: control.RouterDelete.decode,
    frame.Kind.ROUTER_CURSOR: control.RouterCursor.decode,
    frame.Kind.DELETE: control.Delete.decode,
    frame.Kind.EVICT_WATERMARK: control.EvictWatermark.decode,
    frame.Kind.HEAD_WATERMARK: control.HeadWatermark.decode,
    frame.Kind.CHECKPOINT_MARK: control.decode_mark,
    frame.Kind.LEASE: control.Lease.decode,
    frame.Kind.TOKEN_WATERMARK: control.TokenWatermark.decode,
    frame.Kind.DEDUPE: control.Dedupe.decode,
    frame.Kind.LOST_RANGE: control.LostRange.decode,
    frame.Kind.STAGE_COMMIT: staged.StageCommit.decode,
    frame.Kind.STAGE_PREPARE: staged.StageCommit.decode,
    frame.Kind.STAGE_VERDICT: staged.StageVerdict.decode,
    frame.Kind.GROUP: group.GroupOp.decode,
}


@dataclass(frozen=True, slots=True)
class Stop:
    """Where reading ended."""

    offset: int
    reason: Reason
    why: str

    @property
    def text(self) -> str:
        mark = "DAMAGE" if self.reason == "damage" else "end"
        return f"{self.offset:>10}  {mark}: {self.why}"


def kind_of(path: str) -> Kind:
    """By the name, as the store itself tells its files apart."""
    name = path.rstrip("/").rpartition("/")[2]
    if wal_number(name) is not None:
        return "wal"
    if snapshot_number(name) is not None:
        return "snapshot"
    if segment_first(name) is not None:
        suffixes: dict[str, Kind] = {"data": "data", "idx": "idx", "tags": "tags", "keys": "keys"}
        return suffixes[name.rpartition(".")[2]]
    if part_number(name) is not None:
        return "part"
    names: dict[str, Kind] = {"MANIFEST": "manifest", "CURRENT": "current"}
    return names.get(name, "text")


def parts_of(kind: Kind, view: memoryview, offset: int, *, full: bool, past_damage: bool) -> Parts:
    match kind:
        case "wal":
            yield from _frames(view, offset, full, past_damage)
        case "data":
            yield from _segment_frames(view, offset, full, past_damage)
        case "part":
            yield from _part(view, offset, full, past_damage)
        case "idx":
            yield from _entries(view, offset)
        case "tags":
            yield from _names(view, "tag", MAGIC)
        case "keys":
            yield from _names(view, "key", KEYS_MAGIC)
        case "manifest":
            yield from _container(view, decode_manifest)
        case "snapshot":
            yield from _container(view, decode_snapshot)
        case "current":
            yield from _current(view)
        case "text":
            yield from _text(view)


def _frames(view: memoryview, at: int, full: bool, past_damage: bool) -> Parts:
    end = len(view)
    open_chain = False
    while at < end:
        if _only_zeros(view, at):
            break
        try:
            found = frame.decode_frame(view, at, end)
        except BadFrame as error:
            following = find_frames(view, at + 1, end)
            yield _damage(at, error, following)
            if not past_damage or following < 0:
                return
            at, open_chain = following, False
            continue
        open_chain = bool(found.flags & frame.MORE)
        yield _frame(found, full)
        at = found.end
    if open_chain:
        yield Stop(at, "damage", "the last submission is not whole: its frames are cut when the store is opened")
    elif at < end:
        yield Stop(at, "zeros", f"nothing but zeros follows, {end - at} bytes")
    else:
        yield Stop(at, "end", "all was read")


def _damage(at: int, error: BadFrame, following: int) -> Stop:
    more = f"the next whole frame begins at byte {following}" if following >= 0 else "no whole frame follows"
    return Stop(at, "damage", f"{error.why}; {more}")


def _frame(found: frame.Frame, full: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "offset": found.offset,
        "what": found.kind.name.lower(),
        "length": found.end - found.offset,
        "topic_id": found.topic_id or None,
        "seq": found.seq or None,
        "ts": found.ts,
        "more": True if found.flags & frame.MORE else None,
        "durable": True if found.flags & frame.DURABLE else None,
        "hops": found.flags >> 4 or None,
    }
    if found.kind == frame.Kind.APPEND:
        return values | _record(found.flags, found.node, found.tag, found.body, full)
    decode = BODIES.get(found.kind)
    if decode is None:
        return values | {"body_bytes": len(found.body)}
    try:
        body = decode(found.body)
        return values | {"body": _plain(body), "of": type(body).__name__}
    except (BadBody, ValueError) as error:
        return values | {"problem": f"its body cannot be read: {error}"}


def _record(flags: int, node: bytes, tag: bytes, body: bytes, full: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "node": node.decode("utf-8", "replace") if flags & frame.NODE else None,
        "tag": tag.decode("utf-8", "replace") if flags & frame.TAG else None,
    }
    try:
        key, meta, data = split_envelope(body)
    except BadEnvelope as error:
        return values | {"problem": f"its body is not an envelope: {error}"}
    return values | {"key": key, "meta": _text_of(meta, full), "data": _text_of(data, full)}


def _segment_frames(view: memoryview, at: int, full: bool, past_damage: bool) -> Parts:
    end = len(view)
    while at < end and not _only_zeros(view, at):
        try:
            found = segment.decode_segment_frame(view, at, end)
        except BadFrame as error:
            following = segment.find_segment_frame(view, at + 1, end)
            yield _damage(at, error, following)
            if not past_damage or following < 0:
                return
            at = following
            continue
        yield {
            "offset": at,
            "what": "record",
            "length": found.end - at,
            "seq": found.seq,
            "ts": found.ts,
            "deleted": found.deleted or None,
            "hops": found.flags >> 4 or None,
        } | _record(found.flags, found.node, found.tag, found.body, full)
        at = found.end
    yield _after(view, at)


def _part(view: memoryview, at: int, full: bool, past_damage: bool) -> Parts:
    """The head of a staged part, and its records, which have no seq yet."""
    try:
        head = staged.decode_head(bytes(view[: staged.HEADER_MAX]))
    except BadBody as error:
        yield Stop(0, "damage", str(error))
        return
    if not at:
        yield {"offset": 0, "what": "part", **_plain(head)}
    yield from _segment_frames(view, max(at, head.size), full, past_damage)


def _entries(view: memoryview, at: int) -> Parts:
    whole = len(view) - len(view) % segment.ENTRY_SIZE
    if at % segment.ENTRY_SIZE:
        yield Stop(at, "damage", f"no entry begins here: entries have {segment.ENTRY_SIZE} bytes")
        return
    for start in range(at, whole, segment.ENTRY_SIZE):
        offset, length, ts, flags, accounted = segment.ENTRY.unpack_from(view, start)
        hole = bool(flags & segment.HOLE)
        yield {
            "offset": start,
            "what": "hole" if hole else "entry",
            "number": start // segment.ENTRY_SIZE,
            "at": None if hole else offset,
            "length": None if hole else length,
            "ts": ts,
            "has_tag": True if flags & segment.TAG else None,
            "has_node": True if flags & segment.NODE else None,
            "hops": flags >> 4 or None,
            "accounted": int.from_bytes(accounted, "little"),
        }
    if whole != len(view):
        yield Stop(whole, "damage", f"{len(view) - whole} bytes are left, fewer than an entry has")
    else:
        yield Stop(whole, "end", "all was read")


def _container(view: memoryview, decode: Callable[[memoryview], Any]) -> Parts:
    """Manifest and snapshot: the head first, then each row."""
    try:
        value = _plain(decode(view))
    except BadContainer as error:
        yield Stop(0, "damage", error.why)
        return
    rows = {name: value.pop(name) for name in ("segments", "topics", "routers") if isinstance(value.get(name), list)}
    yield {"offset": 0, "what": "head", **value}
    for name, items in rows.items():
        for item in items:
            yield {"what": name.removesuffix("s")} | (item if isinstance(item, dict) else {"row": item})
    yield Stop(len(view), "end", "all was read, its checksum holds")


def _names(view: memoryview, what: str, magic: bytes) -> Parts:
    try:
        index = TagIndex(view, magic)
        names = index.names()
    except (BadContainer, UnicodeDecodeError) as error:
        yield Stop(0, "damage", str(error))
        return
    for name in names:
        seqs = index.find(control.Selector(control.SelectorOp.EQ, name))
        yield {"what": what, what: name, "records": len(seqs), "first_seq": int(seqs[0]), "last_seq": int(seqs[-1])}
    yield Stop(len(view), "end", "all was read, its checksum holds")


def _current(view: memoryview) -> Parts:
    try:
        current = Current.decode(bytes(view))
    except ValueError as error:
        yield from _text(view, last=False)
        yield Stop(0, "damage", str(error))
        return
    yield {"what": "active", "file": current.active}
    for name, length in current.sealed:
        yield {"what": "sealed", "file": name, "valid_length": length}
    yield Stop(len(view), "end", "all was read")


def _text(view: memoryview, last: bool = True) -> Parts:
    for number, line in enumerate(bytes(view[:TEXT_BYTES]).decode("utf-8", "replace").splitlines(), 1):
        yield {"what": "line", "number": number, "text": line}
    if last:
        cut = len(view) > TEXT_BYTES
        yield Stop(min(len(view), TEXT_BYTES), "limit" if cut else "end", "more follows" if cut else "all was read")


def _after(view: memoryview, at: int) -> Stop:
    if at < len(view):
        return Stop(at, "zeros", f"nothing but zeros follows, {len(view) - at} bytes")
    return Stop(at, "end", "all was read")


def _only_zeros(view: memoryview, at: int) -> bool:
    """Looked at in full only where the first bytes are zeros, which no frame begins with."""
    if any(view[at : at + 4]):
        return False
    return all(
        view[start : start + len(ZEROS)] == ZEROS[: len(view) - start] for start in range(at, len(view), len(ZEROS))
    )


def _text_of(raw: bytes | None, full: bool) -> str | None:
    if raw is None:
        return None
    text = raw.decode("utf-8", "replace")
    if full or len(raw) <= PREVIEW_BYTES:
        return text
    return f"{raw[:PREVIEW_BYTES].decode('utf-8', 'replace')}… ({len(raw)} bytes)"


def _plain(value: Any) -> Any:
    """Structs as dictionaries; JSON text inside them as the value it is, other bytes as text."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, msgspec.Raw | bytes):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return bytes(value).decode("utf-8", "replace")
    return value
