"""The records of a fetch as its member sees them."""

from __future__ import annotations

from typing import Final

from topics.broker.group import Batch
from topics.broker.jobs import batches
from topics.format.ops import render_json
from topics.format.render import NEWLINE, WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.storage.store import Store

_WANT: Final = WITH_TAGS | WITH_META | WITH_DATA | WITH_KEYS
_ALL: Final = 1 << 62


def render_batch(store: Store, batch: Batch) -> list[bytes]:
    """The JSON of each record. One that went meanwhile, or whose bytes are damaged, is left out."""
    rows = {row[0]: row for row in batch.rows}
    tail = b',"deadline":%d}}' % batch.deadline
    records: list[bytes] = []
    for found in batches(store, batch.topic, list(rows)):
        text, count, _, _ = render_json(
            found.buffer, found.entries, 0, found.count, found.first_seq, found.layout, found.base, found.dead, _WANT,
            (), found.count, _ALL, True, NEWLINE,
        )  # fmt: skip
        if not count:
            continue
        lines = text.split(b"\n")
        if batch.is_stream:
            records += [line for line in lines if line]
            continue
        for line in lines:
            if line:
                _, token, _, deliveries = rows[int(line[8 : line.index(b",")])]
                records.append(b'%b,"delivery":{"count":%d,"token":%d%b' % (line[:-1], deliveries, token, tail))
    return records
