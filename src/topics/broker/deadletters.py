"""Dead letters: jobs that were handed out too often go to another topic, and from there, when asked, back.

The copy is durable before the job ends in its queue, and carries an idempotency key: a crash in between may repeat the
copy, which is then known, but loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from topics.broker.jobs import read_records
from topics.broker.steps import Steps, asked, settled
from topics.format.ops import prepare
from topics.format.prepared import Prepared
from topics.model.config import Durability, TopicConfig
from topics.model.errors import InvalidRequest, TopicsError
from topics.model.record import Record
from topics.storage.append import Append, order_append
from topics.storage.leasing import Now, order_dead, order_revival, queue_of
from topics.storage.scan import check_there
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst
from topics.storage.topic import Topic

FROM: Final = "$dead_letter_from"
DELIVERIES: Final = "$dead_letter_deliveries"
SRC_SEQ: Final = "$dead_letter_src_seq"

_SEQS_AGAIN: Final = (Durability.EPHEMERAL, Durability.MEMORY)

Letters = list[tuple[int, Append]]
"""The seq here, and its copy there."""


def bury(store: Store, topic: Topic, seqs: Sequence[int], now: Callable[[], Now]) -> Steps[None]:
    """Move jobs that are in hand to the dead letters of their queue. Those it does not get there are claimable again.
    Raises nothing of its own: whoever claimed has got what there was for them."""
    left = set(seqs)
    moved: list[int] = []
    appends: Letters = []
    try:
        moved = yield from _copy(store, topic, seqs, appends)
        ended = (yield from asked(store, lambda: _end(store, topic, moved, now()))) if moved else None
        left.difference_update(moved)
        yield from settled(ended)
    except TopicsError:
        _keep(store, topic, left, moved, now)
    except BaseException:  # whoever claimed went away in the middle
        _keep(store, topic, left, [seq for seq, _ in appends], now)
        _revive(store, topic, left, now)
        raise
    back = _revive(store, topic, left, now)
    if back is not None and not back.settled:
        yield back


def _keep(store: Store, topic: Topic, left: set[int], copied: Sequence[int], now: Callable[[], Now]) -> None:
    """What has a letter, or is getting one, must not be worked on beside it: what is left of that stays spent, and the
    next claim finds its letter known."""
    spent = left.intersection(copied)
    left -= spent
    with store.lock:
        queue_of(topic).leases.give_back(spent, now().ms)


def _end(store: Store, topic: Topic, moved: list[int], now: Now) -> Submission | None:
    check_there(store, topic)
    return order_dead(topic, store.shard_for(topic), moved, now)


def _revive(store: Store, topic: Topic, seqs: set[int], now: Callable[[], Now]) -> Submission | None:
    with store.lock:
        try:
            return order_revival(topic, store.shard_for(topic), sorted(seqs), now())
        except TopicsError:
            queue_of(topic).leases.give_back(seqs, now().ms)
            return None


def _copy(store: Store, topic: Topic, seqs: Sequence[int], appends: Letters) -> Steps[list[int]]:
    """The seqs whose copies are durable. `appends` is told of each copy once it is ordered."""
    config = topic.config
    if config.dead_letter is None:
        return []
    name = config.dead_letter
    for record in read_records(store, topic, sorted(seqs)):
        marks = {FROM: topic.name, DELIVERIES: str(config.max_deliveries), SRC_SEQ: str(record.seq)}
        prepared = make_letter(record, marks)
        key = f"dead:{topic.id}:{mark_of(topic, record)}"
        try:
            append = yield from append_there(store, name, prepared, key, create=True)
        except TopicsError:
            continue  # no room for this one: those that got there are dead all the same
        appends.append((record.seq, append))
    return (yield from arrived(appends))


def arrived(appends: Letters) -> Steps[list[int]]:
    """The seqs of those that are durable, once all of them are done."""
    moved = []
    for seq, append in appends:
        submission = append.submission
        if submission is not None and not submission.settled:
            yield submission
        if submission is None or submission.error is None:
            moved.append(seq)
    return moved


def append_there(
    store: Store, name: str, prepared: Prepared, key: str, create: bool, anew: bool = False
) -> Steps[Append]:
    """Append to another topic, done once it is synced. The caps of one that rejects are not asked. `anew`: what was
    appended by this key and is gone is appended once more."""

    def order() -> Append | Submission | None:
        if create and name not in store.topics:
            return store.create(name, TopicConfig().resolved())
        dest = store.topic(name)
        if key in dest.gates:
            raise WaitFirst(dest.gates[key])
        wall_ms = store.clock.now_ms()
        known = dest.dedupe.get(key, wall_ms, dest.ordered.config.idempotency_window_ms)
        if known is not None and not (anew and _is_gone(dest, known.first_seq)):
            return Append(dest, known.first_seq, known.records, known.ts, deduped=True)
        shard = store.writer_of(dest, len(prepared.frames))
        store.check_quota(prepared)
        mono_ns = store.clock.monotonic_ns()
        return order_append(dest, shard, prepared, wall_ms, mono_ns, key, store.options.reserve_seqs, sync=True)

    while True:
        found = yield from asked(store, order)
        if isinstance(found, Append):
            return found
        yield from settled(found)


def mark_of(topic: Topic, record: Record) -> str:
    """What tells a record of a topic from every other one, for the key of its copy. After a crash a class that keeps no
    promise about seqs gives them out again, and by its seq alone another record would be taken for a repeat."""
    if topic.ordered.config.commit_class in _SEQS_AGAIN:
        return f"{record.seq}@{record.ts}"
    return str(record.seq)


def _is_gone(topic: Topic, seq: int) -> bool:
    overlay = topic.ordered.overlay
    return topic.dead.next_live(seq, seq + 1) != seq or (overlay is not None and seq in overlay)


def make_letter(record: Record, marks: dict[str, str]) -> Prepared:
    """The record and where it came from. What would outgrow a limit by the addition loses its own meta first."""
    own: dict[str, Any] = {}
    if isinstance(record.meta, dict):
        own = msgspec.json.decode(record.meta_raw or b"{}", type=dict[str, msgspec.Raw])
    for meta in (msgspec.json.encode({**own, **marks}), msgspec.json.encode(marks), record.meta_raw):
        try:
            return prepare([_fields(record, meta)], checked=True)
        except InvalidRequest:
            continue
    raise AssertionError("a record that was taken once is taken again")


def _fields(record: Record, meta: bytes | None) -> dict[str, Any]:
    return {"data": record.raw, "tag": record.tag, "node": record.node, "key": record.key, "meta": meta}
