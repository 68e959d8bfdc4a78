"""Calls of the staged append. Each may be repeated when no answer came: that is what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from topics.client.answers import decode
from topics.client.calls import JSON, Call, get, given, path, query, send, wire_records
from topics.client.transport import HttpRequest


class StagedPart(msgspec.Struct, frozen=True):
    txn: str
    part: str
    count: int = 0
    bytes: int = 0
    """Of the records as they are stored."""
    committed: bool = False
    """True: the transaction was committed before, and nothing was stored."""


class StagedCommit(msgspec.Struct, frozen=True):
    txn: str
    first_seq: int | None
    last_seq: int | None
    count: int
    repeated: bool
    """True: it was committed before; these are the seqs of then, if they are still known."""


class StagedSeqs(msgspec.Struct, frozen=True):
    first_seq: int | None
    last_seq: int | None
    count: int


class StagedCommits(msgspec.Struct, frozen=True):
    txn: str
    topics: dict[str, StagedSeqs]
    repeated: bool


class PartInfo(msgspec.Struct, frozen=True):
    part: str
    count: int
    bytes: int


class StagedTxn(msgspec.Struct, frozen=True):
    txn: str
    state: str
    """`open` or `committed`."""
    parts: list[PartInfo] = []
    first_seq: int | None = None
    last_seq: int | None = None
    count: int = 0
    query: str = ""


class StagedPage(msgspec.Struct, frozen=True):
    staged: list[StagedTxn]
    next_cursor: str | None = None


class StagedAbort(msgspec.Struct, frozen=True):
    txn: str
    aborted: bool
    state: str = ""
    """`committed` where nothing was aborted."""


def _place(topic: str, txn: str, *more: str) -> str:
    return path("topics", topic, "staged", txn, *more)


def put(
    topic: str, txn: str, part: str, records: Iterable[Any], node: str | None, create: bool | None
) -> Call[StagedPart]:
    body = {**given(node=node), "records": wire_records(records)}
    return send("PUT", _place(topic, txn, part) + query(create=create), body, StagedPart)


def put_bulk(
    topic: str,
    txn: str,
    part: str,
    body: bytes,
    kind: Literal["application/x-ndjson", "application/vnd.apache.arrow.stream"],
    node: str | None,
    create: bool | None,
) -> Call[StagedPart]:
    target = _place(topic, txn, part) + query(node=node, create=create)
    return Call(
        HttpRequest("PUT", target, {"content-type": kind, "accept": JSON}, body),
        lambda answer: decode(answer, StagedPart),
    )


def commit(topic: str, txn: str, parts: Sequence[str], app_query: str | None) -> Call[StagedCommit]:
    return send("POST", _place(topic, txn, "commit"), given(parts=list(parts), query=app_query), StagedCommit)


def commit_topics(txn: str, topics: Mapping[str, Sequence[str]], app_query: str | None) -> Call[StagedCommits]:
    named = {topic: list(parts) for topic, parts in topics.items()}
    return send("POST", path("staged", txn, "commit"), given(topics=named, query=app_query), StagedCommits)


def page(topic: str, prefix: str | None, page_size: int | None, cursor: str | None) -> Call[StagedPage]:
    target = path("topics", topic, "staged") + query(prefix=prefix, page_size=page_size, cursor=cursor)
    return get(target, StagedPage)


def state(topic: str, txn: str) -> Call[StagedTxn]:
    return get(_place(topic, txn), StagedTxn)


def abort(topic: str, txn: str) -> Call[StagedAbort]:
    return Call(HttpRequest("DELETE", _place(topic, txn), {"accept": JSON}), lambda answer: decode(answer, StagedAbort))
