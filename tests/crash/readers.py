"""A reader that takes its time, as `Log.read` does it: planned under the lock, fetched without it."""

from __future__ import annotations

from topics.model.record import Gap, Record
from topics.storage.partfile import PartSource
from topics.storage.reader import Slice, fetch, plan
from topics.storage.store import Store
from topics.storage.topic import Topic
from topics.storage.walfile import WalFile
from topics.testing.loop import Steps
from topics.testing.oracle import Instance, Violation


def slow_read(store: Store, instance: Instance, topic: Topic) -> Steps:
    """Others write, delete, checkpoint and recycle meanwhile. What it gives was sent, and what was there all along is
    not missing. Returns True if it came to its end."""
    instance.settle()
    if instance.published is None:
        return False
    always = dict(instance.published.records)
    found: dict[int, Record] = {}
    end, cursor = topic.head + 1, 0
    while (part := plan(topic, cursor, end, 3)) is not None:
        yield None
        if isinstance(part, Gap):
            cursor = part.gap_to
            continue
        try:
            for item in fetch(store.handles, part, 4096):
                if not isinstance(item, Gap):
                    found |= {record.seq: record for record in item.records()}
                    cursor = item.first_seq + item.count - 1
                elif isinstance(part.source, WalFile | PartSource) and topic.copied >= item.gap_from:
                    break  # the record left the WAL while it was read there
                elif item.gap_from in topic.dead:
                    cursor = item.gap_to
                elif topic.id not in store.by_id:
                    return False  # dropped meanwhile; its WAL file may have been recycled since
                else:
                    raise Violation(f"{instance}: a slow reader is told that {item} is damaged")
        except FileNotFoundError as error:
            if topic.id not in store.by_id:
                return False
            again = plan(topic, part.first_seq - 1, part.first_seq + 1, 1)
            if isinstance(again, Slice) and again.segment is not None and part.segment is not None:
                raise Violation(f"{instance}: a file vanished under a reader: {error}") from error
        yield None
    instance.settle()
    if instance.published is not None:
        _check(instance, always, instance.published.records, found)
    return True


def _check(instance: Instance, before: dict[int, Record], after: dict[int, Record], found: dict[int, Record]) -> None:
    sent = before | after
    for seq, record in found.items():
        if seq in sent and sent[seq] != record:
            raise Violation(f"{instance}: a slow reader got {record}, sent was {sent[seq]}")
    missing = [seq for seq in before if seq in after and seq not in found]
    if missing:
        raise Violation(f"{instance}: a slow reader missed the records {missing}")
