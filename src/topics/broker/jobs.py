"""The jobs of a queue as those see them who claimed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from topics.format.ops import render_json
from topics.format.render import AS_JOB, COMMA, WITH_DATA, WITH_META, WITH_TAGS
from topics.model.leaserows import LeaseRow, seqs_of
from topics.model.record import Gap, Record
from topics.storage.alive import runs_of
from topics.storage.reader import FrameBatch, Slice, fetch_few, plan
from topics.storage.scan import check_there, scan
from topics.storage.store import Store
from topics.storage.topic import Topic

_WANT: Final = WITH_TAGS | WITH_META | WITH_DATA | AS_JOB
_SLICE_BYTES: Final = 4 << 20
_ALL: Final = 1 << 62
_FEW: Final = 32


@dataclass(slots=True)
class Hand:
    """What one claim got."""

    topic: Topic
    rows: Sequence[LeaseRow] = ()
    """Ascending by seq; times are monotonic."""
    deadline: int = 0
    """Wall time."""
    ready: int = 0


def batches(store: Store, topic: Topic, seqs: Sequence[int]) -> Iterator[FrameBatch]:
    """The records of ascending seqs that are still there and whole."""
    for first, last in runs_of(seqs):
        yield from _between(store, topic, first, last)


def _between(store: Store, topic: Topic, first: int, last: int) -> Iterator[FrameBatch]:
    quick = _few(store, topic, first, last) if last - first < _FEW else None
    if quick is not None:
        yield quick
        return
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


def render_leased(
    store: Store, topic: Topic, rows: Sequence[LeaseRow], want: int, deadline: int, separator: int
) -> tuple[bytes, int]:
    """The JSON of leased records, and how many. One that went meanwhile, or whose bytes are damaged, is left out."""
    texts: list[bytes] = []
    total = at = 0
    for batch in batches(store, topic, seqs_of(rows)):
        while rows[at][0] < batch.first_seq:
            at += 1
        text, count, _, _ = render_json(
            batch.buffer, batch.entries, 0, batch.count, batch.first_seq, batch.layout, batch.base, batch.dead, want,
            (), batch.count, _ALL, True, separator, rows[at : at + batch.count], deadline,
        )  # fmt: skip
        if count:
            texts.append(text)
            total += count
    return bytes((separator,)).join(texts), total


def render_jobs(store: Store, hand: Hand, separator: int = COMMA) -> tuple[bytes, int]:
    """The jobs of a hand as JSON, and how many there are."""
    return render_leased(store, hand.topic, hand.rows, _WANT, hand.deadline, separator)


def render_hands(store: Store, hands: Sequence[Hand]) -> list[tuple[bytes, int]]:
    """The same of hands that were dealt together."""
    if not hands:
        return []
    deadlines = [hand.deadline for hand in hands]
    return render_together(store, hands[0].topic, [hand.rows for hand in hands], deadlines, _WANT)


def render_together(
    store: Store, topic: Topic, hands: Sequence[Sequence[LeaseRow]], deadlines: Sequence[int], want: int
) -> list[tuple[bytes, int]]:
    """The JSON of what was dealt together, and how many each got. As a rule it is consecutive: it is read at once."""
    dealt = [rows for rows in hands if rows]
    batch = None
    if dealt:
        first, last, total = dealt[0][0][0], dealt[-1][-1][0], sum(map(len, dealt))
        if last - first == total - 1:
            found = list(_between(store, topic, first, last))
            if len(found) == 1 and found[0].first_seq == first and found[0].count == total:
                batch = found[0]
    texts: list[tuple[bytes, int]] = []
    for rows, deadline in zip(hands, deadlines, strict=True):
        count = len(rows)
        if batch is None or not rows or rows[-1][0] - rows[0][0] != count - 1:
            texts.append(render_leased(store, topic, rows, want, deadline, COMMA))
            continue
        seq = rows[0][0]
        at = seq - batch.first_seq
        dead = None if batch.dead is None else batch.dead[at : at + count]
        text, count, _, _ = render_json(
            batch.buffer, batch.entries, at, count, seq, batch.layout, batch.base, dead, want, (), count, _ALL, True,
            COMMA, rows, deadline,
        )  # fmt: skip
        texts.append((text, count))
    return texts
