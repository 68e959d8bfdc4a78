"""The functions that work on whole batches, in Python: the readable twin of `kernel.pyx`, and its stand-in.

`buf` is any contiguous buffer. `entries` are 20 bytes each (segment.py); a position in `buf` is an entry's offset
minus `base`. `layout` says what the entries point at: WAL frames or segment frames.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from topics.format import frame, segment
from topics.format.ack import render_ack
from topics.format.append_body import prepare_body
from topics.format.append_columns import prepare_columns
from topics.format.checksum import Buffer
from topics.format.checksum import portable as xxh3_64
from topics.format.columns import Columns, int_column, text_column
from topics.format.decode import decode_columns
from topics.format.envelope import BadEnvelope, accounted_bytes, decode_key, split_envelope, split_raw
from topics.format.frame import BadFrame
from topics.format.gather import Gather
from topics.format.jsontext import compact_body, compact_json
from topics.format.layout import SEGMENT_LAYOUT, WAL_LAYOUT
from topics.format.layout import check_dead as _check_dead
from topics.format.layout import check_entries as _check_entries
from topics.format.layout import check_layout as _check_layout
from topics.format.layout import parts_of as _parts
from topics.format.layout import segment_fault as _segment_fault
from topics.format.layout import wal_fault as _wal_fault
from topics.format.leases import pack_leases
from topics.format.prepare import prepare
from topics.format.render import AS_DELIVERY, AS_JOB, NODES_MAX, record_json
from topics.format.segment import ENTRY, ENTRY_SIZE, HOLE
from topics.format.staged import index_staged, restamp_staged, stage_frames
from topics.format.walscan import find_frames, find_sync_marks, scan_wal
from topics.model import limits
from topics.model.leaserows import LeaseRow

__all__ = [
    "SEGMENT_LAYOUT",
    "WAL_LAYOUT",
    "Gather",
    "collect_columns",
    "collect_keys",
    "collect_tags",
    "is_keyless",
    "compact_body",
    "compact_json",
    "decode_columns",
    "find_blank",
    "find_frames",
    "find_runs",
    "find_sync_marks",
    "index_staged",
    "make_records",
    "measure_entries",
    "pack_leases",
    "prepare",
    "prepare_body",
    "prepare_columns",
    "rebase",
    "rebuild_idx",
    "render_ack",
    "render_json",
    "restamp",
    "restamp_staged",
    "scan_wal",
    "split_envelope",
    "stage_frames",
    "stamp",
    "verify",
    "xxh3_64",
]

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_PLACE: Final = struct.Struct("<II")
_PLACE_IN_ENTRY: Final = struct.Struct("<II12x")
_STAMP: Final = struct.Struct("<BQQQ")
_NO_BYTES: Final = bytes(3)
_NO_LEASE: Final = (0, 0, 0, 0)


def stamp(
    frames: bytearray,
    entries: bytearray,
    count: int,
    topic_id: int,
    first_seq: int,
    ts: int,
    durable: bool,
    more_last: bool,
    ends: bytes | None = None,
) -> None:
    """Fill in what `prepare` could not know: topic, seqs, time, class, the borders of submissions, checksums.
    `ends` are those of `Prepared`."""
    borders = None if ends is None else {end for (end,) in _U32.iter_unpack(ends)}
    _check_entries(entries, 0, count)
    if first_seq + count > 1 << 64:
        raise OverflowError("seqs have 64 bits")
    for i in range(count):
        offset, length = _PLACE.unpack_from(entries, i * ENTRY_SIZE)
        if length < frame.OVERHEAD or offset + length > len(frames):
            raise ValueError(f"entry {i} points outside the frames")
    with memoryview(frames) as view:
        for i in range(count):
            offset, length, _ts, flags, _accounted = ENTRY.unpack_from(entries, i * ENTRY_SIZE)
            end = offset + length
            flags &= segment.KEPT
            if durable:
                flags |= frame.DURABLE
            if (more_last or i < count - 1) and (i == count - 1 or not borders or i + 1 not in borders):
                flags |= frame.MORE
            _STAMP.pack_into(view, offset + 5, flags, topic_id, first_seq + i, ts)
            _U64.pack_into(view, end - 8, xxh3_64(view[offset + 4 : end - 8]))
            _U64.pack_into(entries, i * ENTRY_SIZE + 8, ts)


def rebase(entries: bytearray, start_index: int, count: int, delta: int) -> None:
    """Move `count` entries by `delta` bytes. All of them or, with OverflowError, none."""
    _check_entries(entries, start_index, count)
    places = range(start_index * ENTRY_SIZE, (start_index + count) * ENTRY_SIZE, ENTRY_SIZE)
    moved = [_U32.unpack_from(entries, place)[0] + delta for place in places]
    if moved and not 0 <= min(moved) <= max(moved) <= 0xFFFF_FFFF:
        raise OverflowError("an offset does not fit into 32 bits")
    for place, offset in zip(places, moved, strict=True):
        _U32.pack_into(entries, place, offset)


def restamp(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    topic_id: int,
    dead: bytes | None,
    data_out: bytearray,
    idx_out: bytearray,
    data_base: int = 0,
) -> int:
    """Copy WAL Append frames as segment frames to the end of `data_out`, their entries to the end of `idx_out`.

    `data_out` begins at offset `data_base` of its file. Each frame is verified first; the result is the number copied:
    `count`, or the index of the first bad one. A record with dead[i] != 0, and a hole, becomes a hole entry.
    OverflowError, and both outputs as they were, if an offset would not fit into 32 bits.
    """
    _check_entries(entries, start_index, count)
    _check_dead(dead, count)
    view = memoryview(buf)
    lengths_before = len(data_out), len(idx_out)
    for i in range(count):
        offset, length, ts, entry_flags, accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        position = data_base + len(data_out)
        is_hole = bool(entry_flags & HOLE)
        grows_by = 0
        if not is_hole:
            if _wal_fault(view, offset, length, first_seq + i, topic_id):
                return i
            frame_len, _kind, flags, _topic_id, seq, ts, node_len, tag_len, data_len = frame.HEAD.unpack_from(
                view, offset
            )
            is_hole = dead is not None and dead[i] != 0
            grows_by = 0 if is_hole else length - 8
        if position + grows_by > 0xFFFF_FFFF:
            del data_out[lengths_before[0] :]
            del idx_out[lengths_before[1] :]
            raise OverflowError("a segment stays below 4 GiB")
        if is_hole:
            idx_out += ENTRY.pack(position, 0, ts, HOLE, _NO_BYTES)
            continue
        flags &= segment.KEPT
        head = segment.HEAD.pack(frame_len - 8, flags, seq, ts, node_len, tag_len, data_len)
        covered = head + view[offset + frame.HEADER : offset + length - 8]
        data_out += covered
        data_out += _U64.pack(xxh3_64(memoryview(covered)[4:]))
        data_out.append(0)
        idx_out += ENTRY.pack(position, length - 8, ts, flags, accounted)
    return count


def find_runs(entries: Buffer, count: int, bytes_max: int, far: int) -> list[tuple[int, int, int, int]]:
    """(first, end, byte, end byte) of the runs of entries whose frames lie near each other: the next one begins at most
    `far` bytes from where the last one ends. As many entries as `bytes_max` bytes hold, at least one."""
    _check_entries(entries, 0, count)
    places = list(_PLACE_IN_ENTRY.iter_unpack(memoryview(entries)[: count * ENTRY_SIZE]))
    runs: list[tuple[int, int, int, int]] = []
    total = 0
    for i, (offset, length) in enumerate(places):
        total += length
        if i and total > bytes_max:
            break
        end = offset + length
        if runs and abs(offset - sum(places[i - 1])) <= far:
            low, _, base, before = runs.pop()
            runs.append((low, i + 1, base, max(before, end)))
        else:
            runs.append((i, i + 1, offset, end))
    return runs


def measure_entries(entries: Buffer, count: int, dead: bytes | None) -> tuple[int, int]:
    """How many of the first `count` entries are not dead, and their accounted bytes."""
    _check_entries(entries, 0, count)
    _check_dead(dead, count)
    sizes = np.frombuffer(entries, dtype="<u4", count=5 * count).reshape(-1, 5)[:, 4] >> np.uint32(8)
    if dead is not None:
        sizes = sizes[np.frombuffer(dead, dtype=np.uint8, count=count) == 0]
    return len(sizes), int(sizes.sum(dtype=np.uint64))


def find_blank(entries: Buffer, count: int) -> int:
    """Index of the first of `count` entries that is neither a hole nor has a length, or `count`: zeros, which nobody
    wrote."""
    _check_entries(entries, 0, count)
    column = np.frombuffer(entries, dtype=segment.ENTRY_DTYPE, count=count)
    blank = np.flatnonzero((column["length"] == 0) & (column["flags"] & HOLE == 0))
    return int(blank[0]) if len(blank) else count


def verify(
    buf: Buffer, entries: Buffer, start_index: int, count: int, first_seq: int, layout: int, topic_id: int, base: int
) -> int:
    """Index of the first entry whose frame is not whole, not of this seq (WAL: of this topic), or `count`.

    Holes pass.
    """
    _check_entries(entries, start_index, count)
    _check_layout(layout)
    view = memoryview(buf)
    fault = _wal_fault if layout == WAL_LAYOUT else _segment_fault
    for i in range(count):
        offset, length, _ts, flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        if flags & HOLE:
            continue
        if fault(view, offset - base, length, first_seq + i, topic_id):
            return i
    return count


def make_records(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    base: int,
    dead: bytes | None,
    record_type: Callable[..., Any],
) -> list[Any]:
    """A record of each entry that is neither a hole nor dead. Frames are not verified: call `verify` first."""
    _check_entries(entries, start_index, count)
    _check_dead(dead, count)
    _check_layout(layout)
    view = memoryview(buf)
    tail = 8 if layout == WAL_LAYOUT else 9
    records = []
    for i in range(count):
        offset, length, _ts, entry_flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        if entry_flags & HOLE or (dead is not None and dead[i]):
            continue
        at = offset - base
        flags, ts, node_at, tag_at, body_at = _parts(view, at, length, layout)
        tag = str(view[tag_at:body_at], "utf-8") if flags & frame.TAG else None
        node = str(view[node_at:tag_at], "utf-8") if flags & frame.NODE else None
        key, meta, data = split_envelope(bytes(view[body_at : at + length - tail]))
        records.append(record_type(first_seq + i, ts, tag, node, key, meta, data))
    return records


def render_json(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    base: int,
    dead: bytes | None,
    want: int,
    exclude_nodes: tuple[bytes, ...],
    limit: int,
    budget: int,
    forced: bool,
    separator: int,
    leases: Sequence[LeaseRow] = (),
    deadline: int = 0,
) -> tuple[bytes, int, int, int]:
    """Records as JSON with the byte `separator` between them: (text, delivered, their accounted bytes, walked).

    Holes, dead entries and records of `exclude_nodes` are passed over. It ends when `limit` are delivered, or before a
    record that would push the accounted bytes past `budget`; with `forced` the first is delivered whatever its size.
    `walked` entries were delivered or passed over. Frames are not verified: call `verify` first. `leases` are those of
    jobs and deliveries, a row per entry.
    """
    _check_layout(layout)
    if len(exclude_nodes) > NODES_MAX:
        raise ValueError(f"{len(exclude_nodes)} nodes are more than {NODES_MAX}")
    _check_entries(entries, start_index, count)
    _check_dead(dead, count)
    leased = bool(want & (AS_JOB | AS_DELIVERY))
    if leased and len(leases) != count:
        raise ValueError(f"{len(leases)} leases do not go with {count} records")
    view = memoryview(buf)
    tail = 8 if layout == WAL_LAYOUT else 9
    texts: list[bytes] = []
    total = walked = 0
    for i in range(count):
        if len(texts) >= limit:
            break
        offset, length, _ts, entry_flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        if not (entry_flags & HOLE or (dead is not None and dead[i])):
            at = offset - base
            flags, ts, node_at, tag_at, body_at = _parts(view, at, length, layout)
            node = bytes(view[node_at:tag_at])
            if not (flags & frame.NODE and node in exclude_nodes):
                parts = split_raw(bytes(view[body_at : at + length - tail]))
                accounted = len(parts[2]) + len(parts[1] or b"")
                if total + accounted > budget and not (forced and not texts):
                    break
                tag = bytes(view[tag_at:body_at])
                _, token, _, deliveries = leases[i] if leased else _NO_LEASE
                lease = token, deliveries, deadline
                texts.append(record_json(first_seq + i, ts, flags, node, tag, parts, want, *lease))
                total += accounted
        walked = i + 1
    return bytes((separator,)).join(texts), len(texts), total, walked


def collect_tags(
    buf: Buffer, entries: Buffer, start_index: int, count: int, layout: int, base: int
) -> list[bytes | None]:
    """The tag of each entry, None for a hole or a record without one."""
    _check_entries(entries, start_index, count)
    _check_layout(layout)
    view = memoryview(buf)
    tags: list[bytes | None] = []
    for i in range(count):
        offset, length, _ts, entry_flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        tag = None
        if not entry_flags & HOLE:
            flags, _frame_ts, _node_at, tag_at, body_at = _parts(view, offset - base, length, layout)
            if flags & frame.TAG:
                tag = bytes(view[tag_at:body_at])
        tags.append(tag)
    return tags


def collect_keys(
    buf: Buffer, entries: Buffer, start_index: int, count: int, layout: int, base: int
) -> list[bytes | None]:
    """The key of each entry, None for a hole or a record without one."""
    _check_entries(entries, start_index, count)
    _check_layout(layout)
    view = memoryview(buf)
    tail = 8 if layout == WAL_LAYOUT else 9
    keys: list[bytes | None] = []
    for i in range(count):
        offset, length, _ts, entry_flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        key = None
        if not entry_flags & HOLE:
            at = offset - base
            *_, body_at = _parts(view, at, length, layout)
            found = split_envelope(bytes(view[body_at : at + length - tail]))[0]
            key = None if found is None else found.encode()
        keys.append(key)
    return keys


def is_keyless(buf: Buffer, entries: Buffer, start_index: int, count: int, layout: int, base: int) -> bool:
    """True if every body begins with its data, as those do that we write without a key or meta: then none has a key.
    False says nothing; `collect_keys` does."""
    _check_entries(entries, start_index, count)
    _check_layout(layout)
    view = memoryview(buf)
    tail = 8 if layout == WAL_LAYOUT else 9
    keyless = True
    for i in range(count):
        offset, length, _ts, entry_flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        if not entry_flags & HOLE:
            at = offset - base
            *_, body_at = _parts(view, at, length, layout)
            keyless &= bytes(view[body_at : min(body_at + 5, at + length - tail)]) == b'{"d":'
    return keyless


def collect_columns(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    base: int,
    dead: bytes | None,
) -> Columns:
    """The records as columns. Frames are not verified: call `verify` first."""
    _check_layout(layout)
    _check_entries(entries, start_index, count)
    _check_dead(dead, count)
    view = memoryview(buf)
    tail = 8 if layout == WAL_LAYOUT else 9
    seqs, times = [], []
    texts: list[list[bytes | None]] = [[], [], [], [], []]
    for i in range(count):
        offset, length, _ts, entry_flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        if entry_flags & HOLE or (dead is not None and dead[i]):
            continue
        at = offset - base
        flags, ts, node_at, tag_at, body_at = _parts(view, at, length, layout)
        key, meta, data = split_raw(bytes(view[body_at : at + length - tail]))
        seqs.append(first_seq + i)
        times.append(ts)
        texts[0].append(bytes(view[tag_at:body_at]) if flags & frame.TAG else None)
        texts[1].append(bytes(view[node_at:tag_at]) if flags & frame.NODE else None)
        name = decode_key(key)
        texts[2].append(None if name is None else name.encode())
        texts[3].append(data)
        texts[4].append(meta)
    tags, nodes, keys, datas, metas = map(text_column, texts)
    return len(seqs), int_column(seqs), int_column(times), (tags, nodes, keys, datas, metas)


def rebuild_idx(data: Buffer, first_seq: int, end: int) -> tuple[bytes, int, int]:
    """The `.idx` of a `.data`: (its bytes, end of the last valid frame, number of entries).

    Stops at the first frame that is not valid, goes back in seqs, leaves a gap larger than limits.HOLE_RUN, or would
    make the `.idx` longer than segment.IDX_BYTES_MAX.
    """
    view = memoryview(data)
    if not 0 <= end <= len(view):
        raise ValueError(f"end {end} lies outside a buffer of {len(view)} bytes")
    if end > 0xFFFF_FFFF:
        raise OverflowError("a segment stays below 4 GiB")
    idx = bytearray()
    at = 0
    expected = first_seq
    last_ts = 0
    while at < end:
        try:
            frame_len, flags, seq, ts, node_len, tag_len, _data_len = segment.check_segment_frame(view, at, end)
            gap = seq - expected
            if not 0 <= gap <= limits.HOLE_RUN or len(idx) + (gap + 1) * ENTRY_SIZE > segment.IDX_BYTES_MAX:
                break
            frame_end = at + 4 + frame_len
            accounted = accounted_bytes(bytes(view[at + segment.HEADER + node_len + tag_len : frame_end - 9]))
        except (BadFrame, BadEnvelope):
            break
        idx += ENTRY.pack(at, 0, last_ts, HOLE, _NO_BYTES) * gap
        idx += segment.encode_entry(at, frame_end - at, ts, flags & segment.KEPT, accounted)
        at = frame_end
        expected = seq + 1
        last_ts = ts
    return bytes(idx), at, len(idx) // ENTRY_SIZE
