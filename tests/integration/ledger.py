"""What a process that may be killed at any instant said it would do and what was acknowledged to it, and whether a
store keeps that.

Every thread of every run writes one journal: a line before each operation and one after its acknowledgement. The
system keeps written bytes whoever is killed, so a line without its answer is an operation whose outcome nobody knows.

    append <topic> <run> <number> <count> <key>    acked <first_seq>
    tag <topic> <tag or prefix*>                   acked
    before <topic> <seq>                           acked
    drop <topic>                                   acked

A record tells who made it: (run, thread, number). Its bytes follow from that, so nothing else has to be written down.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import topics

THREADS = 4
CAP = 60
SHARED = {"shared-fsync": "fsync", "shared-disk": "disk", "shared-memory": "memory"}
CAPPED = "capped"
WINDOW_MS = 3_600_000

Maker = tuple[int, int, int]
"""(run, thread, number)"""


def own(thread: int) -> str:
    return f"own-{thread}"


def phoenix(thread: int) -> str:
    """The topic that this thread drops and makes again."""
    return f"phoenix-{thread}"


def configs() -> dict[str, dict[str, object]]:
    """Every topic of the workload."""
    wanted: dict[str, dict[str, object]] = {name: {"durability": cls} for name, cls in SHARED.items()}
    wanted[CAPPED] = {"durability": "disk", "cap_records": CAP}
    for thread in range(THREADS):
        wanted[own(thread)] = {"durability": ("disk", "fsync", "memory", "disk")[thread % 4]}
        wanted[phoenix(thread)] = {"durability": ("fsync", "disk")[thread % 2]}
    return {name: {"idempotency_window_ms": WINDOW_MS, **config} for name, config in wanted.items()}


def raw_of(maker: Maker) -> bytes:
    """In every other run all records have one size, because stale frames line up only then."""
    run, thread, number = maker
    pad = 24 if run % 2 else number * 7 % 90
    return b'{"by":[%d,%d],"n":"%06d","pad":"%s"}' % (run, thread, number, b"x" * pad)


def maker_of(raw: bytes) -> Maker:
    by, number = raw[7 : raw.index(b"]")], raw[raw.index(b'"n":"') + 5 :]
    run, thread = by.split(b",")
    return int(run), int(thread), int(number[:6])


def tag_of(maker: Maker) -> str:
    return f"t{maker[1]}.{maker[2] % 4}"


def records_of(run: int, thread: int, number: int, count: int) -> list[dict[str, object]]:
    makers = [(run, thread, number + i) for i in range(count)]
    return [{"data": raw_of(maker), "tag": tag_of(maker)} for maker in makers]


class Journal:
    """One thread's journal of one run."""

    def __init__(self, directory: Path, run: int, thread: int) -> None:
        path = directory / f"{run:04d}-{thread}.journal"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        line = " ".join(map(str, words)).encode() + b"\n"
        assert os.write(self._fd, line) == len(line)


@dataclass(slots=True)
class Batch:
    topic: str
    run: int
    thread: int
    number: int
    count: int
    key: str
    first_seq: int | None = None
    """Known once it was acked."""
    fate: str = "live"
    """`live`, `doubtful` (a delete without an answer may have hit it) or `gone`."""
    gone: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    """Numbers of its records that a delete by tag hit, surely or perhaps."""

    @property
    def numbers(self) -> range:
        return range(self.number, self.number + self.count)


class Ledger:
    """Everything that was journalled so far."""

    def __init__(self, directory: Path) -> None:
        self.batches: dict[tuple[int, int, int], Batch] = {}
        self._left: dict[tuple[str, int], list[Batch]] = {}
        """By topic and thread: batches that a delete may still hit."""
        self.below: dict[str, int] = {}
        """Deletes by seq that were acked."""
        self.below_asked: dict[str, int] = {}
        self.last: dict[int, Batch] = {}
        """The last append of each thread, if its outcome is unknown."""
        for thread in range(THREADS):
            for path in sorted(directory.glob(f"*-{thread}.journal")):
                self._read(thread, path)

    def _read(self, thread: int, path: Path) -> None:
        asked: list[str] = []
        text = path.read_bytes().decode()
        for line in text[: text.rfind("\n") + 1].splitlines():
            words = line.split()
            if words[0] == "acked":
                self._acked(thread, asked, words[1:])
                asked = []
            else:
                asked = words
                self._asked(thread, words)

    def _asked(self, thread: int, words: list[str]) -> None:
        kind, topic = words[0], words[1]
        if kind == "append":
            run, number, count = int(words[2]), int(words[3]), int(words[4])
            batch = self.batches.get((run, thread, number))
            if batch is None:
                batch = self.batches[run, thread, number] = Batch(topic, run, thread, number, count, words[5])
                self._left.setdefault((topic, thread), []).append(batch)
            self.last[thread] = batch
            return
        self.last.pop(thread, None)
        self._delete(thread, words, sure=False)

    def _acked(self, thread: int, asked: list[str], answer: list[str]) -> None:
        if asked[0] != "append":
            self._delete(thread, asked, sure=True)
            return
        batch = self.batches[int(asked[2]), thread, int(asked[3])]
        batch.first_seq = int(answer[0])
        self.last.pop(thread, None)

    def _delete(self, thread: int, words: list[str], sure: bool) -> None:
        kind, topic = words[0], words[1]
        if kind == "before":
            which = self.below if sure else self.below_asked
            which[topic] = max(which.get(topic, 0), int(words[2]))
            return
        left = self._left.get((topic, thread), [])
        for batch in left:
            if kind == "drop":
                batch.fate = "gone" if sure else "doubtful"
                continue
            hit = {n for n in batch.numbers if matches(tag_of((batch.run, thread, n)), words[2])}
            (batch.gone if sure else batch.doubtful).update(hit)
        if sure:
            left[:] = [batch for batch in left if batch.fate != "gone" and len(batch.gone) < batch.count]

    def unanswered(self, thread: int) -> Batch | None:
        """The append this thread may simply repeat, because it has an idempotency key."""
        batch = self.last.get(thread)
        return batch if batch is not None and batch.key != "-" else None


def matches(tag: str, pattern: str) -> bool:
    return tag.startswith(pattern[:-1]) if pattern.endswith("*") else tag == pattern


def find_faults(log: topics.Log, ledger: Ledger) -> Iterator[str]:
    """Everything in which the store differs from what was promised, after nothing worse than kills."""
    if log.recovery_report:
        yield f"recovery reported {log.recovery_report}"
    found: dict[Maker, tuple[str, int]] = {}
    for name in log.topics():
        yield from _read_topic(log, ledger, name, found)
    for batch in ledger.batches.values():
        yield from _check_batch(log, ledger, batch, found)


def _read_topic(
    log: topics.Log, ledger: Ledger, name: str, found: dict[Maker, tuple[str, int]]
) -> Iterator[str]:  # fmt: skip
    last_seq = 0
    for item in log.read(name):
        if isinstance(item, topics.Gap):
            if name != CAPPED or item.reason != "cap":
                yield f"{name} says that {item} was lost"
            continue
        maker = maker_of(item.raw)
        if item.raw != raw_of(maker) or item.tag != tag_of(maker):
            yield f"{name} {item.seq} has other bytes than were appended: {item}"
        if item.seq <= last_seq:
            yield f"{name} {item.seq} comes after {last_seq}"
        last_seq = item.seq
        if item.seq < ledger.below.get(name, 0):
            yield f"{name} {item.seq} came back: all below {ledger.below[name]} was deleted"
        if maker in found:
            yield f"{maker} is in {found[maker]} and in {name} {item.seq}"
        found[maker] = (name, item.seq)


def _check_batch(
    log: topics.Log, ledger: Ledger, batch: Batch, found: dict[Maker, tuple[str, int]]
) -> Iterator[str]:  # fmt: skip
    there = {n: found.pop((batch.run, batch.thread, n), None) for n in batch.numbers}
    who = f"{batch.topic}: batch {batch.run}.{batch.thread}.{batch.number}+{batch.count} at {batch.first_seq}"
    present = {n for n, place in there.items() if place is not None}
    if batch.fate == "gone" and present:
        yield f"{who} came back: its topic was dropped"
    if back := present & batch.gone:
        yield f"{who} came back: {sorted(back)} were deleted by tag"
    first = batch.first_seq
    for n, place in there.items():
        if place is not None and (
            place[0] != batch.topic or (first is not None and place[1] != first + n - batch.number)
        ):
            yield f"{who}: record {n} is found as {place}"
    may_be_absent = batch.gone | batch.doubtful
    expected = {n for n in batch.numbers if n not in may_be_absent}
    if batch.fate != "live" or (first is None and not present):
        return
    if first is None:
        first = min(place[1] - (n - batch.number) for n, place in there.items() if place is not None)
    floor = ledger.below_asked.get(batch.topic, 0)
    if batch.topic == CAPPED:
        info = log.info(CAPPED)
        if info.evict_floor > max(info.head_seq - CAP + 1, 1):
            yield f"{CAPPED} evicted more than its cap asks for: {info}"
        floor = info.evict_floor
    missing = {n for n in expected - present if first + n - batch.number >= floor}
    if missing:
        yield f"{who} lacks {sorted(missing)}"


def check(log: topics.Log, ledger: Ledger) -> None:
    faults = list(find_faults(log, ledger))
    assert not faults, f"{len(faults)} faults, the first: " + "\n".join(faults[:8])
