"""Staged append over the wire: parts, commits in one topic or several, what is open, and aborts."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import TypeVar

import msgspec

from topics.api.append import read_records
from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service
from topics.api.wire import StageCommitIn, StageCommitsIn, decode
from topics.broker.listing import PAGE_SIZE, decode_cursor, encode_cursor
from topics.broker.staging import Chore, Outcome, StageState, Work
from topics.broker.steps import Nap, Steps
from topics.model import limits
from topics.rules.txns import parse_txn
from topics.storage.submission import Submission

T = TypeVar("T")


class PartStored(msgspec.Struct):
    txn: str
    part: str
    count: int | msgspec.UnsetType = msgspec.UNSET
    bytes: int | msgspec.UnsetType = msgspec.UNSET
    committed: bool | msgspec.UnsetType = msgspec.UNSET
    """True: the transaction is over, and nothing was stored."""


class CommitOut(msgspec.Struct):
    txn: str
    first_seq: int | None
    last_seq: int | None
    count: int
    repeated: bool


class TopicCommit(msgspec.Struct):
    first_seq: int | None
    last_seq: int | None
    count: int


class CommitsOut(msgspec.Struct):
    txn: str
    topics: dict[str, TopicCommit]
    repeated: bool


class Aborted(msgspec.Struct):
    txn: str
    aborted: bool
    state: str | msgspec.UnsetType = msgspec.UNSET
    """`committed` where nothing was aborted."""


class StageList(msgspec.Struct, omit_defaults=True):
    staged: list[StageState]
    next_cursor: str | None = None


async def put_part(service: Service, call: Call) -> Response:
    topic, txn, part = call.names
    parse_txn(txn)
    may_create = call.flag("create", True)
    # Up to 32 MiB of JSON: read, checked and encoded in a thread.
    prepared = await service.loop.run_in_executor(_pool(service), read_records, call, limits.PART_RECORDS)
    stored = await drive(service, service.staged.put(topic, txn, part, prepared, may_create))
    if stored.committed:
        return call.answer(PartStored(txn, part, committed=True), service.now_ns())
    shown = PartStored(txn, part, stored.count, stored.bytes)
    return call.answer(shown, service.now_ns(), 201 if stored.created else 200)


async def commit(service: Service, call: Call) -> Response:
    topic, txn = call.names
    body, _ = decode(call.json_body(), StageCommitIn)
    done = await drive(service, service.staged.commit(txn, {topic: body.parts}, body.query or ""))
    found = done[topic]
    shown = CommitOut(txn, found.first_seq, found.last_seq, found.count, found.repeated)
    return call.answer(shown, service.now_ns())


async def commit_topics(service: Service, call: Call) -> Response:
    (txn,) = call.names
    body, _ = decode(call.json_body(), StageCommitsIn)
    for topic in body.topics:
        call.check_name(topic)
    done = await drive(service, service.staged.commit(txn, body.topics, body.query or ""))
    topics = {name: _seqs(found) for name, found in done.items()}
    repeated = all(found.repeated for found in done.values())
    return call.answer(CommitsOut(txn, topics, repeated), service.now_ns())


def _seqs(found: Outcome) -> TopicCommit:
    return TopicCommit(found.first_seq, found.last_seq, found.count)


def list_stages(service: Service, call: Call) -> Response:
    (topic,) = call.names
    states, following = service.staged.list(
        topic, call.query.get("prefix", ""), decode_cursor(call.query.get("cursor", "")),
        call.number("page_size", PAGE_SIZE),
    )  # fmt: skip
    cursor = None if following is None else encode_cursor(following)
    return call.answer(StageList(states, cursor), service.now_ns())


def get_stage(service: Service, call: Call) -> Response:
    topic, txn = call.names
    return call.answer(service.staged.state(topic, txn), service.now_ns())


async def abort(service: Service, call: Call) -> Response:
    topic, txn = call.names
    aborted = await drive(service, service.staged.abort(topic, txn))
    shown = Aborted(txn, True) if aborted else Aborted(txn, False, "committed")
    return call.answer(shown, service.now_ns())


async def drive(service: Service, work: Work[T]) -> T:
    """Run a use case: chores on the pool, waits in the pump. A chore goes on also when the client leaves."""
    while True:
        try:
            wait = next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(wait, Chore):
            await service.loop.run_in_executor(_pool(service), wait.run)
        else:
            waited = service.pump.run(_once(wait))
            if waited is not None:
                await waited


def _pool(service: Service) -> Executor:
    return service.stagers or service.readers


def _once(wait: Submission | Nap) -> Steps[None]:
    yield wait
