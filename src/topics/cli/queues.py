"""Commands for the workers of a queue, and for what became of their jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter

from topics.cli.exits import WrongUsage
from topics.cli.remote import LOCAL, Server
from topics.model.job import Job, Settled


def claim(topic: str, *, node: str, max: int = 1, lease_ms: int | None = None, server: Server = LOCAL) -> int:
    """Take jobs of a queue under a lease.

    Parameters
    ----------
    topic
        The queue.
    node
        Who works: only this name can ack them.
    max
        How many at most.
    lease_ms
        For how long; left out, as long as the queue says.
    """
    columns = ("seq", "lease_id", "deliveries", "deadline", "tag", "data")
    with server.client() as client:
        jobs = client.queue(topic).claim(node, max=max, lease_ms=lease_ms)
        server.output().rows(columns, (_row(job) for job in jobs), f"no job of {topic} is ready")
    return 0


def _row(job: Job) -> dict[str, object]:
    return {
        "seq": job.seq, "lease_id": job.lease_id, "deliveries": job.deliveries, "deadline": job.deadline,
        "tag": job.tag, "data": _shown(job),
    }  # fmt: skip


def _shown(job: Job) -> object:
    """Text as it is. Anything else as it was sent: there are numbers that no encoder writes again."""
    return job.data if job.raw.startswith(b'"') else msgspec.Raw(job.raw)


def ack(topic: str, *seqs: int, node: str, server: Server = LOCAL) -> int:
    """Say that jobs are done: they are deleted.

    Parameters
    ----------
    topic
        The queue.
    seqs
        Which jobs.
    node
        Who claimed them.
    """
    _check_named(seqs)
    with server.client() as client:
        return _tell(server, client.queue(topic).ack(node, seqs))


def nack(topic: str, *seqs: int, node: str, delay_ms: int = 0, server: Server = LOCAL) -> int:
    """Give jobs back.

    Parameters
    ----------
    topic
        The queue.
    seqs
        Which jobs.
    node
        Who claimed them.
    delay_ms
        When they may be claimed again.
    """
    _check_named(seqs)
    with server.client() as client:
        return _tell(server, client.queue(topic).nack(node, seqs, delay_ms=delay_ms))


def _check_named(seqs: tuple[int, ...]) -> None:
    if not seqs:
        raise WrongUsage("say which jobs, by the seqs that `topics claim` printed")


def _tell(server: Server, settled: Settled) -> int:
    """A job about which nothing could be done is a failure, whose reason is said."""
    told = msgspec.to_builtins(settled, str_keys=True)
    del told["deadlines"]  # of an extend, for which there is no command
    server.output().fields(told)
    return 1 if settled.skipped else 0


def redrive(
    topic: str,
    *,
    to: str | None = None,
    max: int = 1000,
    rate_per_s: int = 0,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    server: Server = LOCAL,
) -> int:
    """Send dead letters back to the queue they came from.

    Parameters
    ----------
    topic
        Where the dead letters are.
    to
        Another topic to send them to.
    max
        How many at most.
    rate_per_s
        How many a second; 0 = as fast as it goes.
    dry_run
        Only say how many would go.
    """
    with server.client() as client:
        moved = client.queue(topic).redrive(to=to, max=max, rate_per_s=rate_per_s, dry_run=dry_run)
        server.output().fields(msgspec.to_builtins(moved))
    return 0


COMMANDS: Final[dict[str, tuple[Callable[..., int], str]]] = {
    "claim": (claim, "Examples:\n\n    topics claim jobs --node worker-1 --max 8\n"),
    "ack": (ack, "Examples:\n\n    topics ack jobs 17 18 --node worker-1\n"),
    "nack": (nack, "Examples:\n\n    topics nack jobs 17 --node worker-1 --delay-ms 60000\n"),
    "redrive": (redrive, "Examples:\n\n    topics redrive jobs.dead --rate-per-s 100\n"),
}
