"""What a store was told and what it answered, and the question asked after every crash: is that still so?

Per topic instance: every payload that was ever sent for a seq, what was acked in which class, what was deleted. `check`
reads the recovered store and asserts

- acked is a subset of recovered (class rules), or the seq was deleted, or it lies in a reported range;
- recovered is a subset of sent: nothing invented, nothing that was gone at an earlier recovery returns;
- a batch is whole or absent; no reported range covers a live record; counts agree with reading; times never fall.

What a recovery has shown counts as durable from then on: it was written again and synced before the store opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.crash.staged_ledger import StagedLedger
from topics.model.config import Durability
from topics.model.record import Gap, Record
from topics.storage.reader import FrameBatch, fetch, plan
from topics.storage.store import Store

Crash = Literal["kill", "power"]
CHOSEN = ("cap", "ttl", "mixed")
"""Losses that the topic's config asks for."""


@dataclass
class Batch:
    first: int
    payloads: list[bytes]
    acked: bool = False

    @property
    def seqs(self) -> range:
        return range(self.first, self.first + len(self.payloads))


@dataclass
class TopicLedger:
    name: str
    id: int
    state: Literal["making", "there", "ending", "ended"] = "making"
    sent: dict[int, set[bytes]] = field(default_factory=dict)
    tags: dict[int, str | None] = field(default_factory=dict)
    acked: dict[int, tuple[bytes, Durability]] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    """Seqs that an earlier recovery showed."""
    deleted: dict[int, Durability | None] = field(default_factory=dict)
    """Seqs that a delete was asked for, and the class in which it was acked; None = its outcome is unknown."""
    handed: int = 0
    """Highest seq acked in a class that never hands a seq twice."""
    batches: list[Batch] = field(default_factory=list)
    keys: dict[str, Batch] = field(default_factory=dict)
    """Appends under an idempotency key, acked."""

    def send(self, first: int, payloads: list[bytes], tag: str | None) -> Batch:
        batch = Batch(first, payloads)
        self.batches.append(batch)
        for seq, payload in zip(batch.seqs, payloads, strict=True):
            self.sent.setdefault(seq, set()).add(payload)
            self.tags[seq] = tag
        return batch

    def ack(self, batch: Batch, cls: Durability) -> None:
        assert batch.first > self.handed, f"seq {batch.first} of {self.name} was handed before (up to {self.handed})"
        batch.acked = True
        for seq, payload in zip(batch.seqs, batch.payloads, strict=True):
            self.acked[seq] = (payload, cls)
        if cls >= Durability.DISK:
            self.handed = batch.seqs[-1]

    def matching(self, before_seq: int | None, tag: str | None) -> list[int]:
        return [
            seq
            for seq in self.sent
            if (before_seq is None or seq < before_seq) and (tag is None or _matches(self.tags[seq], tag))
        ]

    def ask_delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.deleted.setdefault(seq, None)

    def ack_delete(self, seqs: Iterable[int], cls: Durability) -> None:
        for seq in seqs:
            self.deleted[seq] = max(cls, self.deleted.get(seq) or cls)


def _matches(tag: str | None, wanted: str) -> bool:
    if tag is None:
        return False
    return tag.startswith(wanted[:-1]) if wanted.endswith("*") else tag == wanted


class Ledger:
    def __init__(self) -> None:
        self.topics: dict[int, TopicLedger] = {}
        self.staged = StagedLedger()

    def check(self, store: Store, crash: Crash) -> None:
        """The store was opened after `crash`: hold it against everything that was said before."""
        known = {topic.id: topic for topic in store.by_id.values()}
        for topic_id in known:
            assert topic_id in self.topics, f"topic {topic_id} was never made"
        for told in list(self.topics.values()):
            if told.id not in known:
                assert told.state != "there", f"topic {told.name} ({told.id}) is gone"
                del self.topics[told.id]
                continue
            assert told.state != "ended", f"topic {told.name} ({told.id}) came back"
            told.state = "there"
            _check_topic(store, told, crash)
        names = [told.name for told in self.topics.values()]
        assert len(names) == len(set(names)), f"two topics share a name: {names}"
        self.staged.check(store)

    def check_live(self, store: Store) -> None:
        """No crash since: a reader sees every acked record that nobody deleted."""
        for topic in store.by_id.values():
            told = self.topics[topic.id]
            seen, gaps = _seen(store, told)
            for seq, (payload, _) in told.acked.items():
                if seq not in told.deleted and not _covered(gaps, seq):
                    assert seen.get(seq) == payload, f"record {seq} of {told.name}: {payload!r}, read {seen.get(seq)!r}"


def _check_topic(store: Store, told: TopicLedger, crash: Crash) -> None:
    topic = store.by_id[told.id]
    seen, gaps = _seen(store, told)
    where = f"topic {told.name} ({told.id}) after {crash}"
    for seq, payload in seen.items():
        assert payload in told.sent.get(seq, ()), f"{where}: record {seq} is {payload!r}, sent {told.sent.get(seq)}"
        cls = told.deleted.get(seq)
        gone = cls is not None and (cls == Durability.FSYNC or crash == "kill")
        assert not gone, f"{where}: deleted record {seq} came back"
    for seq, (payload, cls) in told.acked.items():
        if seq in seen:
            assert seen[seq] == payload, f"{where}: record {seq} is {seen[seq]!r}, acked {payload!r}"
            continue
        firm = seq in told.durable or cls == Durability.FSYNC or (crash == "kill" and cls >= Durability.MEMORY)
        reason = _covered(gaps, seq)
        if seq in told.deleted or reason in CHOSEN:
            continue
        if cls == Durability.EPHEMERAL or (cls == Durability.MEMORY and not firm):
            continue
        assert not firm, f"{where}: acked record {seq} is lost (gap: {reason})"
        assert reason is not None, f"{where}: acked record {seq} is lost and nobody says so"
    for batch in told.batches:
        there = [seq in seen for seq in batch.seqs if seq not in told.deleted and _covered(gaps, seq) not in CHOSEN]
        assert all(there) or not any(there), f"{where}: batch {batch.seqs} is there in part: {there}"
    assert topic.head >= told.handed, f"{where}: head {topic.head} fell below {told.handed}, which was handed out"
    _settle(told, seen)


def _settle(told: TopicLedger, seen: dict[int, bytes]) -> None:
    """What is seen now is what there is: from here on it must neither shrink nor grow by itself."""
    told.sent = {seq: {payload} for seq, payload in seen.items()}
    told.tags = {seq: told.tags[seq] for seq in seen}
    told.acked = {seq: (payload, told.acked.get(seq, (b"", Durability.DISK))[1]) for seq, payload in seen.items()}
    told.durable = set(seen)
    told.deleted = {}
    told.batches = []
    told.handed = max([told.handed, *seen])


def _seen(store: Store, told: TopicLedger) -> tuple[dict[int, bytes], list[Gap]]:
    topic = store.by_id[told.id]
    records: list[Record] = []
    gaps: list[Gap] = []
    for item in read_all(store, told.name):
        if isinstance(item, Gap):
            gaps.append(item)
        else:
            records.append(item)
    seqs = [record.seq for record in records]
    assert seqs == sorted(set(seqs)), f"{told.name}: seqs are not ascending: {seqs}"
    times = [record.ts for record in records]
    assert times == sorted(times), f"{told.name}: times fall: {times}"
    for gap in gaps:
        covered = [seq for seq in seqs if gap.gap_from <= seq <= gap.gap_to]
        assert not covered, f"{told.name}: {gap} covers the live records {covered}"
    assert not [gap for gap in gaps if gap.reason == "corrupt"], f"{told.name}: {gaps}"
    assert topic.live == len(records), f"{told.name}: {topic.live} records counted, {len(records)} read"
    size = sum(len(record.raw) + len(record.meta_raw or b"") for record in records)
    assert topic.bytes == size, f"{told.name}: {topic.bytes} bytes counted, {size} read"
    return {record.seq: record.raw for record in records}, gaps


def _covered(gaps: list[Gap], seq: int) -> str | None:
    return next((gap.reason for gap in gaps if gap.gap_from <= seq <= gap.gap_to), None)


def read_all(store: Store, name: str, cursor: int = 0) -> list[Record | Gap]:
    """Everything after `cursor`, as a reader of the embedded log gets it."""
    topic = store.topic(name)
    end = topic.head + 1
    found: list[Record | Gap] = []
    while True:
        part = plan(topic, cursor, end, 1000)
        if part is None:
            return found
        if isinstance(part, Gap):
            found.append(part)
            cursor = part.gap_to
            continue
        for item in fetch(store.handles, part, 1 << 20):
            if isinstance(item, FrameBatch):
                found += item.records()
                cursor = item.first_seq + item.count - 1
            else:
                found.append(item)
                cursor = item.gap_to
