"""Dead letters of a consumer group. The copy is durable before the record is settled here, and carries an idempotency
key: a crash in between may repeat the copy, which is then known, but loses nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from topics.broker.deadletters import DELIVERIES, FROM, SRC_SEQ, Letters, append_there, arrived, make_letter, mark_of
from topics.broker.jobs import read_records
from topics.broker.steps import Steps, asked, settled
from topics.model import limits
from topics.model.errors import TopicsError
from topics.storage.grouping import Place, order_dead
from topics.storage.leasing import Now
from topics.storage.store import Store

GROUP: Final = "$dead_letter_group"
MEMBER: Final = "$dead_letter_member"
REASON: Final = "$dead_letter_reason"
SPENT: Final = "max_deliveries"


def bury_records(store: Store, place: Place, seqs: Sequence[int], reason: str, now: Callable[[], Now]) -> Steps[int]:
    """Move records that are in hand to the dead letters of their group; how many got there. The others are what they
    were before."""
    moved: list[int] = []
    leases = place.group.leases
    with store.lock:
        tokens = {row[0]: row[1] for row in leases.rows(sorted(seqs))}

    def is_ours(seq: int) -> bool:
        """False where a seek had it handed out anew: what becomes of it is said by who holds it now."""
        entry = leases.entries.get(seq)
        return entry is None or entry.token_of(seq) == tokens.get(seq)

    try:
        moved = yield from _copy(store, place, seqs, reason)
        ended = yield from asked(store, lambda: order_dead(place, [seq for seq in moved if is_ours(seq)], now()))
        yield from settled(ended)
    except TopicsError:
        moved = []
    finally:
        with store.lock:
            leases.give_back([seq for seq in seqs if is_ours(seq) and leases.under_way(seq) is None], now().ms)
    return len(moved)


def _copy(store: Store, place: Place, seqs: Sequence[int], reason: str) -> Steps[list[int]]:
    """The seqs whose copies are durable."""
    topic, group = place.topic, place.group
    name = group.config.dead_letter
    if name is None:
        return []
    appends: Letters = []
    for record in read_records(store, topic, sorted(seqs)):
        entry = group.leases.entries.get(record.seq)
        if entry is None:
            continue
        marks = {
            FROM: topic.name, DELIVERIES: str(entry.deliveries), SRC_SEQ: str(record.seq), GROUP: group.name,
            MEMBER: entry.holder, REASON: reason,
        }  # fmt: skip
        key = _letter_key(topic.id, group.name, mark_of(topic, record))
        # A group that went back may reject a record again whose letter somebody took away.
        try:
            append = yield from append_there(store, name, make_letter(record, marks), key, create=True, anew=True)
        except TopicsError:
            continue  # no room for this one: those that got there are settled all the same
        appends.append((record.seq, append))
    return (yield from arrived(appends))


def _letter_key(topic_id: int, group: str, mark: str) -> str:
    """Another one for each record of each group. Where the name leaves no room for that its digest stands for it: a key
    cut short would lose the mark, and the letters of other records would be taken for repeats."""
    key = f"dead:{topic_id}:{group}:{mark}"
    if len(key.encode()) <= limits.IDEMPOTENCY_KEY_BYTES:
        return key
    return f"dead:{topic_id}:sha256={hashlib.sha256(group.encode()).hexdigest()}:{mark}"
