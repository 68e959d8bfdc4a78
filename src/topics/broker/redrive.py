"""Dead letters go back to where they came from, at a rate that their queue can bear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from topics.broker.deadletters import DELIVERIES, FROM, SRC_SEQ, append_there, mark_of
from topics.broker.steps import Nap, Steps, asked, settled
from topics.format.ops import prepare
from topics.model.errors import Forbidden, TopicNotFound
from topics.model.job import Redriven
from topics.model.record import Gap, Record
from topics.storage.delete import order_seqs
from topics.storage.scan import check_there, scan
from topics.storage.store import Store
from topics.storage.submission import Submission
from topics.storage.topic import Topic

_SLICE: Final = 256
_SLICE_BYTES: Final = 4 << 20
_TICK_MS: Final = 50
"""At a rate, this much of it is moved at once."""


def redrive(
    store: Store, topic: Topic, to: str | None, most: int, rate_per_s: int, dry_run: bool,
    allowed: Callable[[str], bool],
) -> Steps[Redriven]:  # fmt: skip
    """Append each at `to`, or where it came from, durable; then delete it here. A copy that was made before is not
    made again."""
    letters = [(seq, to or source) for seq, source in _letters(store, topic)]
    chosen = letters[:most]
    for name in dict.fromkeys(name for _, name in chosen):
        if not allowed(name):
            raise Forbidden(f"this key may not use the topic {name!r}", topic=name)
        if name not in store.topics:
            raise TopicNotFound(name)
    if dry_run:
        return Redriven(len(chosen), len(letters))
    step = max(rate_per_s * _TICK_MS // 1000, 1) if rate_per_s else _SLICE
    pause_ms = step * 1000 // rate_per_s if rate_per_s else 0
    moved = 0
    for start in range(0, len(chosen), step):
        moved += yield from _move(store, topic, dict(chosen[start : start + step]))
        if pause_ms and start + step < len(chosen):
            nap = Nap(pause_ms)
            yield nap
            if nap.refused:
                break
    return Redriven(moved, len(letters) - moved)


def _records(store: Store, topic: Topic, first: int, last: int) -> Iterator[Record]:
    for item in scan(store, topic, first - 1, last + 1, _SLICE, _SLICE_BYTES):
        if not isinstance(item, Gap):
            yield from item.records()


def _letters(store: Store, topic: Topic) -> list[tuple[int, str]]:
    """(seq, where it came from) of every record that says so."""
    found = []
    for record in _records(store, topic, topic.earliest_seq, topic.head):
        source = record.meta.get(FROM) if isinstance(record.meta, dict) else None
        if isinstance(source, str):
            found.append((record.seq, source))
    return found


def _move(store: Store, topic: Topic, chosen: dict[int, str]) -> Steps[int]:
    appends = []
    for record in _records(store, topic, min(chosen), max(chosen)):
        if record.seq not in chosen:
            continue
        prepared = prepare([_job(record)], checked=True)
        key = f"redrive:{topic.id}:{mark_of(topic, record)}"
        append = yield from append_there(store, chosen[record.seq], prepared, key, create=False)
        appends.append((record.seq, append))
    done = []
    for seq, append in appends:
        yield from settled(append.submission)
        done.append(seq)
    if not done:
        return 0

    def order() -> Submission | None:
        check_there(store, topic)
        return order_seqs(topic, store.shard_for(topic), store.clock.now_ms(), done)

    yield from settled((yield from asked(store, order)))
    return len(done)


def _job(record: Record) -> dict[str, Any]:
    """As it was before it died."""
    meta = msgspec.json.decode(record.meta_raw or b"{}", type=dict[str, msgspec.Raw])
    for mark in (FROM, DELIVERIES, SRC_SEQ):
        meta.pop(mark, None)
    text = msgspec.json.encode(meta) if meta else None
    return {"data": record.raw, "tag": record.tag, "node": record.node, "key": record.key, "meta": text}
