"""The jobs of a queue as those see them who claimed them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from topics.format.control import LeaseRow
from topics.format.frame import NODE
from topics.format.ops import render_json
from topics.format.render import NEWLINE, WITH_DATA, WITH_META, WITH_TAGS
from topics.model.record import Gap, Record
from topics.storage.alive import runs_of
from topics.storage.reader import FrameBatch, Slice, fetch_few, plan
from topics.storage.scan import check_there, scan
from topics.storage.store import Store
from topics.storage.tail import ENTRY_SIZE
from topics.storage.topic import Topic

_WANT: Final = WITH_TAGS | WITH_META | WITH_DATA
_NODE: Final = re.compile(rb',"\$node":"(?:[^"\\]|\\.)*"')
_SLICE_BYTES: Final = 4 << 20
_ALL: Final = 1 << 62
_FEW: Final = 32


@dataclass(slots=True)
class Hand:
    """What one claim got."""

    topic: Topic
    rows: list[LeaseRow] = field(default_factory=list)
    """Ascending by seq; times are monotonic."""
    deadline: int = 0
    """Wall time."""
    ready: int = 0


def batches(store: Store, topic: Topic, seqs: Sequence[int]) -> Iterator[FrameBatch]:
    """The records of ascending seqs that are still there and whole."""
    for first, last in runs_of(seqs):
        quick = _few(store, topic, first, last) if last - first < _FEW else None
        if quick is not None:
            yield quick
            continue
        for item in scan(store, topic, first - 1, last + 1, last - first + 1, _SLICE_BYTES):
            if not isinstance(item, Gap):
                yield item


def _few(store: Store, topic: Topic, first: int, last: int) -> FrameBatch | None:
    """All of them in one read; None = the long way has to find out what is the matter."""
    with store.lock:
        check_there(store, topic)
        part = plan(topic, first - 1, last + 1, last - first + 1)
    if not isinstance(part, Slice) or part.first_seq != first or part.last_seq != last:
        return None
    try:
        return fetch_few(store.handles, part)
    except OSError:
        return None


def read_records(store: Store, topic: Topic, seqs: Sequence[int]) -> list[Record]:
    return [record for batch in batches(store, topic, seqs) for record in batch.records()]


def render_jobs(store: Store, hand: Hand) -> list[tuple[int, bytes]]:
    """(seq, the JSON of the job). A job that went meanwhile, or whose bytes are damaged, is left out."""
    rows = {row[0]: row for row in hand.rows}
    jobs: list[tuple[int, bytes]] = []
    for batch in batches(store, hand.topic, list(rows)):
        text, count, _, _ = render_json(
            batch.buffer, batch.entries, 0, batch.count, batch.first_seq, batch.layout, batch.base, batch.dead, _WANT,
            (), batch.count, _ALL, True, NEWLINE,
        )  # fmt: skip
        if not count:
            continue
        with_node = any(flags & NODE for flags in bytes(batch.entries)[16::ENTRY_SIZE])
        for line in text.split(b"\n"):
            if not line:
                continue
            head, _, rest = line.partition(b",")
            seq, token, _, deliveries = rows[int(head[8:])]
            node = _NODE.match(rest, rest.index(b",")) if with_node else None  # behind the time, and nowhere else
            if node is not None:
                rest = rest[: node.start()] + rest[node.end() :]
            shape = b'%b,"lease_id":"lease_%x","deadline":%d,"deliveries":%d,%b'
            jobs.append((seq, shape % (head, token, hand.deadline, deliveries, rest)))
    return jobs
