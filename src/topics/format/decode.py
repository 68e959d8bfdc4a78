"""Frames checked, filtered and laid out as Arrow columns, in Python: the readable twin of `kernel_decode.pxi`.

What a scan of a whole topic does with each frame, in one walk: is it whole, is it live, is it wanted, where do its
parts go. Readers that want single records use `verify` and `make_records` instead.
"""

from __future__ import annotations

from typing import Final

from topics.format import frame
from topics.format.checksum import Buffer
from topics.format.columns import TextColumn, int_column, text_column
from topics.format.envelope import BadEnvelope, decode_key, split_raw
from topics.format.layout import WAL_LAYOUT, check_dead, check_entries, check_layout, parts_of, segment_fault, wal_fault
from topics.format.segment import DELETED, ENTRY, ENTRY_SIZE, HOLE

COLUMN_TAG: Final = 1
COLUMN_NODE: Final = 2
COLUMN_KEY: Final = 4
COLUMN_DATA: Final = 8
COLUMN_META: Final = 16
COLUMN_TS: Final = 32

Texts = tuple[TextColumn | None, TextColumn | None, TextColumn | None, TextColumn | None, TextColumn | None]
Decoded = tuple[int, int, bytes, bytes | None, Texts]
"""(walked, rows, seqs as int64, times as int64, (tag, node, key, data, meta)); None = was not wanted."""


def decode_columns(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    topic_id: int,
    base: int,
    dead: bytes | None,
    want: int,
    check: bool,
    tag: bytes | None = None,
    tag_prefix: bool = False,
    node: bytes | None = None,
    key: bytes | None = None,
) -> Decoded:
    """The records that are live and wanted, as columns.

    `walked` entries were looked at: `count`, or the index of the first whose frame is not whole, not of its seq (WAL:
    of this topic) or not an envelope. With `check` False the checksum is not computed; everything else is looked at
    all the same. Holes, dead entries and frames with the deleted flag are passed over. A record is wanted if it has
    `tag` (or begins with it), `node` and `key`, as far as they are given.
    """
    check_layout(layout)
    check_entries(entries, start_index, count)
    check_dead(dead, count)
    view = memoryview(buf)
    fault = wal_fault if layout == WAL_LAYOUT else segment_fault
    tail = 8 if layout == WAL_LAYOUT else 9
    seqs: list[int] = []
    times: list[int] = []
    texts: list[list[bytes | None]] = [[], [], [], [], []]
    needs_key = bool(want & COLUMN_KEY) or key is not None
    needs_body = needs_key or bool(want & (COLUMN_DATA | COLUMN_META))
    walked = count
    for i in range(count):
        offset, length, _ts, entry_flags, _accounted = ENTRY.unpack_from(entries, (start_index + i) * ENTRY_SIZE)
        if entry_flags & HOLE or (dead is not None and dead[i]):
            continue
        at = offset - base
        try:
            flags, ts, node_at, tag_at, body_at = parts_of(view, at, length, layout)
        except ValueError:
            walked = i
            break
        if layout != WAL_LAYOUT and view[at + length - 1] == DELETED:
            continue
        if fault(view, at, length, first_seq + i, topic_id, check):
            walked = i
            break
        found_tag = bytes(view[tag_at:body_at]) if flags & frame.TAG else None
        found_node = bytes(view[node_at:tag_at]) if flags & frame.NODE else None
        if not _is_wanted(tag, tag_prefix, found_tag) or not _is_wanted(node, False, found_node):
            continue
        found_key, meta, data = None, None, b""
        if needs_body:
            try:
                raw_key, meta, data = split_raw(bytes(view[body_at : at + length - tail]))
                name = decode_key(raw_key) if needs_key else None
            except BadEnvelope:
                walked = i
                break
            found_key = None if name is None else name.encode()
            if not _is_wanted(key, False, found_key):
                continue
        seqs.append(first_seq + i)
        times.append(ts)
        for column, value in zip(texts, (found_tag, found_node, found_key, data, meta), strict=True):
            column.append(value)
    tags, nodes, keys, datas, metas = (
        text_column(column) if want & 1 << number else None for number, column in enumerate(texts)
    )
    return (
        walked,
        len(seqs),
        int_column(seqs),
        int_column(times) if want & COLUMN_TS else None,
        (tags, nodes, keys, datas, metas),
    )


def _is_wanted(wanted: bytes | None, prefix: bool, found: bytes | None) -> bool:
    if wanted is None:
        return True
    if found is None:
        return False
    return found.startswith(wanted) if prefix else found == wanted
