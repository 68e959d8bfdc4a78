"""Reading on and on: plan under the lock, fetch without it, and the truth about files that go away meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from topics.model.errors import CorruptFile, StorageError, TopicNotFound
from topics.model.record import Gap
from topics.rules.gap import floor_gap
from topics.storage.partfile import PartSource
from topics.storage.reader import FrameBatch, Slice, fetch, fetch_one, plan
from topics.storage.store import Store
from topics.storage.topic import Topic
from topics.storage.walfile import WalFile

_CORRUPT_MAX: Final = 100_000
"""Seqs that one Gap says are unreadable. More would keep a reader waiting while they are all looked at."""


def scan(
    store: Store,
    topic: Topic,
    cursor: int,
    end: int,
    count_max: int,
    bytes_max: int,
    past_missing: bool = False,
) -> Iterator[FrameBatch | Gap]:
    """Verified batches of the seqs after `cursor` and below `end`, and a Gap wherever some were lost. `past_missing`: a
    segment whose file is missing is such a Gap, too, and not an error."""
    held: Gap | None = None  # unreadable records are found one by one, and told as one where they are neighbours
    for item in _scan(store, topic, cursor, end, count_max, bytes_max, past_missing):
        corrupt = item if isinstance(item, Gap) and item.reason == "corrupt" else None
        if held is not None:
            if corrupt is not None and corrupt.gap_from == held.gap_to + 1 and held.missed < _CORRUPT_MAX:
                held = Gap(held.gap_from, corrupt.gap_to, corrupt.reason)
                continue
            yield held
        held = corrupt
        if corrupt is None:
            yield item
    if held is not None:
        yield held


def _scan(
    store: Store, topic: Topic, cursor: int, end: int, count_max: int, bytes_max: int, past_missing: bool
) -> Iterator[FrameBatch | Gap]:
    while True:
        with store.lock:
            check_there(store, topic)
            part = plan(topic, cursor, end, count_max)
        if part is None:
            return
        if isinstance(part, Gap):
            cursor = part.gap_to
            yield part
            if cursor + 1 >= end:
                return  # what a cap takes beyond the end meanwhile is not this reader's loss
            continue
        try:
            if part.count == 1 and (one := fetch_one(store.handles, part)) is not None:
                # The usual case of live reading. A record that fails its check goes the long way, which says so.
                cursor = part.first_seq
                yield one
                continue
            for item in fetch(store.handles, part, bytes_max):
                if isinstance(item, Gap):
                    if moved(store, topic, part, item.gap_from):
                        break
                    cursor = item.gap_to
                else:
                    cursor = item.first_seq + item.count - 1
                yield item
        except FileNotFoundError as error:
            damage = _damage_of(store, topic, part)
            if damage is None:
                continue
            if not past_missing:
                raise damage from error
            yield from _unreadable(part)
            cursor = part.last_seq
        except OSError as error:
            raise StorageError(f"topic {topic.name!r} cannot be read: {error}", path=error.filename) from error


def gaps_between(topic: Topic, cursor: int, end: int) -> list[Gap]:
    """What was lost of the seqs after `cursor` and below `end`. Under the store's lock."""
    found: list[Gap] = []
    if cursor + 1 >= end:
        return found
    gap = floor_gap(cursor, topic.evict_floor, topic.expiry_floor, topic.trim_floor)
    if gap is not None:
        found.append(gap)
        cursor = gap.gap_to
    while (lost := topic.lost.at_or_after(cursor + 1)) is not None and lost[0] < end:
        found.append(Gap(max(lost[0], cursor + 1), lost[1], lost[2]))
        cursor = lost[1]
    return found


def check_there(store: Store, topic: Topic) -> None:
    store.check_open()
    if store.by_id.get(topic.id) is not topic:
        raise TopicNotFound(topic.name)


def moved(store: Store, topic: Topic, part: Slice, seq: int) -> bool:
    """True if the record left the WAL, or its staged part, while it was read there: the file may be gone since."""
    if not isinstance(part.source, WalFile | PartSource):
        return False
    with store.lock:
        check_there(store, topic)  # of a dropped topic the file may be somebody else's by now
        return topic.copied >= seq or seq in topic.dead


def explain_missing(store: Store, topic: Topic, part: Slice, error: FileNotFoundError) -> None:
    """A file that was dropped while it was read is no trouble; any other absent one is."""
    damage = _damage_of(store, topic, part)
    if damage is not None:
        raise damage from error


def _damage_of(store: Store, topic: Topic, part: Slice) -> CorruptFile | None:
    with store.lock:
        check_there(store, topic)
        again = plan(topic, part.first_seq - 1, part.first_seq + 1, 1)
    if not isinstance(again, Slice) or again.segment is None or part.segment is None:
        return None
    # An `.idx` that is missing is made again, so it is the data.
    segment = again.segment
    return CorruptFile(segment.path("data"), 0, "it is missing", topic=topic.name, first_seq=segment.first_seq)


def _unreadable(part: Slice) -> Iterator[Gap]:
    """A Gap for each live seq of a slice."""
    for at in range(part.count):
        if part.dead is None or not part.dead[at]:
            yield Gap(part.first_seq + at, part.first_seq + at, "corrupt")
