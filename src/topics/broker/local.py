"""A queue in the same process: `log.queue("jobs")`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from topics.broker.jobs import Hand, read_records
from topics.broker.queue import Queues
from topics.broker.queue import Settled as Done
from topics.broker.steps import Steps
from topics.model import limits
from topics.model.arguments import check_seq, check_text, check_whole
from topics.model.errors import BatchTooLarge, InvalidRequest
from topics.model.job import Job, Redriven, Settled, split
from topics.storage.store import Store

T = TypeVar("T")


class Driver(Protocol):
    def __call__(self, steps: Steps[T]) -> T:
        """Run a use case to its end, waiting where it waits."""
        ...


class LocalQueue:
    """The calls of a queue's workers. A job is acked, nacked and extended under its lease; a bare seq under whichever
    lease the node has on it."""

    def __init__(self, store: Store, queues: Queues, drive: Driver, topic: str) -> None:
        self._store = store
        self._queues = queues
        self._drive = drive
        self.topic = topic

    def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> list[Job]:
        """Up to `max` jobs or 8 MiB of them, leased to `node`; `lease_ms` None = for as long as the queue says."""
        _check_node(node)
        check_whole(max=max, lease_ms=0 if lease_ms is None else lease_ms)
        hand: Hand = self._drive(self._queues.claim(self.topic, node, max, lease_ms))
        rows = {row[0]: row for row in hand.rows}
        return [
            Job(
                record.seq, record.ts, record.tag, record.raw, record.meta_raw, f"lease_{rows[record.seq][1]:x}",
                hand.deadline, rows[record.seq][3],
            )
            for record in read_records(self._store, hand.topic, list(rows))
        ]  # fmt: skip

    def ack(self, node: str, jobs: Iterable[Job | int]) -> Settled:
        """Done with them: they are deleted, in the topic's class, before this returns."""
        seqs, tokens = _named(node, jobs)
        return _told(self._drive(self._queues.ack(self.topic, node, seqs, tokens)))

    def nack(self, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0) -> Settled:
        """Give them back, to be claimed at once or after a while."""
        seqs, tokens = _named(node, jobs)
        check_whole(delay_ms=delay_ms)
        return _told(self._drive(self._queues.nack(self.topic, node, seqs, tokens, delay_ms)))

    def extend(self, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Settled:
        """Hold them for `lease_ms` from now on."""
        seqs, tokens = _named(node, jobs)
        check_whole(lease_ms=lease_ms)
        done = self._drive(self._queues.extend(self.topic, node, seqs, tokens, lease_ms))
        return _told(done, dict.fromkeys(done.verdict.done, done.deadline))

    def redrive(
        self, *, to: str | None = None, max: int = 1000, rate_per_s: int = 0, dry_run: bool = False
    ) -> Redriven:
        """Send the dead letters of this topic back where they came from, or `to` another one."""
        check_whole(max=max, rate_per_s=rate_per_s)
        return self._drive(self._queues.redrive(self.topic, to, max, rate_per_s, dry_run, lambda _: True))


def _check_node(node: str) -> None:
    check_text("node", node, limits.NODE_BYTES)
    if not node:
        raise InvalidRequest("'node' is empty; name who works")


def _named(node: str, jobs: Iterable[Job | int]) -> tuple[list[int], list[int | None]]:
    _check_node(node)
    seqs, lease_ids = split(jobs)
    if len(seqs) > limits.SEQS_PER_CALL:
        raise BatchTooLarge(f"{len(seqs)} jobs are more than the {limits.SEQS_PER_CALL} of one call")
    for seq in seqs:
        check_seq("seq", seq)
    return seqs, [int(text.removeprefix("lease_"), 16) if text else None for text in lease_ids]


def _told(done: Done, deadlines: dict[int, int] | None = None) -> Settled:
    verdict = done.verdict
    return Settled(len(verdict.done), verdict.skipped, verdict.why, deadlines or {})
