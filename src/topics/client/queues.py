"""A queue of a server, seen by its workers: `client.queue("jobs")`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from topics.client.answers import decode
from topics.client.calls import JSON, Call, encode, given, path, send
from topics.client.transport import HttpRequest
from topics.model.job import Job, Redriven, Settled, Why, split

T = TypeVar("T")


class _WireJob(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    lease_id: str
    deadline: int
    deliveries: int
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def job(self) -> Job:
        meta = None if self.meta is msgspec.UNSET else bytes(self.meta)
        return Job(
            self.seq, self.ts, self.tag, bytes(self.data), meta, self.lease_id, self.deadline, self.deliveries
        )  # fmt: skip


class _WireClaim(msgspec.Struct):
    claimed: list[_WireJob]


class _WireSettled(msgspec.Struct):
    skipped: list[int]
    why: dict[int, Why] = {}
    acked: int = 0
    nacked: int = 0
    extended: int = 0
    deadlines: dict[int, int] = {}

    def settled(self) -> Settled:
        return Settled(self.acked + self.nacked + self.extended, self.skipped, self.why, self.deadlines)


def claim(topic: str, node: str, most: int, lease_ms: int | None) -> Call[list[Job]]:
    """Not repeated by itself: whoever was answered without hearing it holds jobs that they do not know of."""
    body = given(node=node, max=most, lease_ms=lease_ms)
    return Call(
        HttpRequest("POST", path("topics", topic, "claim"), {"content-type": JSON, "accept": JSON}, encode(body)),
        lambda answer: [job.job() for job in decode(answer, _WireClaim).claimed],
        False,
    )


def settle(topic: str, verb: str, node: str, jobs: Iterable[Job | int], **more: Any) -> Call[Settled]:
    seqs, lease_ids = split(jobs)
    body = {"node": node, "seqs": seqs, "lease_ids": lease_ids, **given(**more)}
    return Call(
        HttpRequest("POST", path("topics", topic, verb), {"content-type": JSON, "accept": JSON}, encode(body)),
        lambda answer: decode(answer, _WireSettled).settled(),
    )


def redrive(topic: str, to: str | None, most: int, rate_per_s: int, dry_run: bool) -> Call[Redriven]:
    """The server takes as long as the rate demands. Not repeated by itself: twice, it could move twice as many."""
    body = {**given(to=to), "max": most, "rate_per_s": rate_per_s, "dry_run": dry_run}
    extra_s = most / rate_per_s if rate_per_s else 0.0
    return send("POST", path("topics", topic, "redrive"), body, Redriven, safe=dry_run, extra_s=extra_s)


class Caller(Protocol):
    def __call__(self, call: Call[T]) -> T: ...


class AsyncCaller(Protocol):
    def __call__(self, call: Call[T]) -> Awaitable[T]: ...


class Queue:
    """The same calls for the workers of one queue. A job is acked, nacked and extended under its lease; a bare seq
    under whichever lease the node has on it."""

    def __init__(self, call: Caller, topic: str) -> None:
        self._call = call
        self.topic = topic

    def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> list[Job]:
        return self._call(claim(self.topic, node, max, lease_ms))

    def ack(self, node: str, jobs: Iterable[Job | int]) -> Settled:
        """Done with them: they are deleted, in the topic's class, before this returns."""
        return self._call(settle(self.topic, "ack", node, jobs))

    def nack(self, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0) -> Settled:
        """Give them back, to be claimed at once or after a while."""
        return self._call(settle(self.topic, "nack", node, jobs, delay_ms=delay_ms))

    def extend(self, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Settled:
        """Hold them for `lease_ms` from now on."""
        return self._call(settle(self.topic, "extend", node, jobs, lease_ms=lease_ms))

    def redrive(
        self, *, to: str | None = None, max: int = 1000, rate_per_s: int = 0, dry_run: bool = False
    ) -> Redriven:
        """Send the dead letters of this topic back where they came from, or `to` another one."""
        return self._call(redrive(self.topic, to, max, rate_per_s, dry_run))


class AsyncQueue:
    """`Queue`, awaited."""

    def __init__(self, call: AsyncCaller, topic: str) -> None:
        self._call = call
        self.topic = topic

    async def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> list[Job]:
        return await self._call(claim(self.topic, node, max, lease_ms))

    async def ack(self, node: str, jobs: Iterable[Job | int]) -> Settled:
        """Done with them: they are deleted, in the topic's class, before this returns."""
        return await self._call(settle(self.topic, "ack", node, jobs))

    async def nack(self, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0) -> Settled:
        """Give them back, to be claimed at once or after a while."""
        return await self._call(settle(self.topic, "nack", node, jobs, delay_ms=delay_ms))

    async def extend(self, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Settled:
        """Hold them for `lease_ms` from now on."""
        return await self._call(settle(self.topic, "extend", node, jobs, lease_ms=lease_ms))

    async def redrive(
        self, *, to: str | None = None, max: int = 1000, rate_per_s: int = 0, dry_run: bool = False
    ) -> Redriven:
        """Send the dead letters of this topic back where they came from, or `to` another one."""
        return await self._call(redrive(self.topic, to, max, rate_per_s, dry_run))
