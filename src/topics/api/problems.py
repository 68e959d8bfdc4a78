"""From an error to an answer: one table of statuses, one body."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from topics.api.http import Response
from topics.model import errors
from topics.model.errors import TopicsError

log = logging.getLogger("topics.api")

STATUS: Final[dict[type[TopicsError], int]] = {
    errors.InvalidRequest: 400,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.NotAcceptable: 406,
    errors.MethodNotAllowed: 405,
    errors.RangeNotSatisfiable: 416,
    errors.Unauthorized: 401,
    errors.Denied: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.TopicFull: 422,
    errors.GenerationChanged: 412,
    errors.Unavailable: 503,
    errors.Throttled: 429,
    errors.StorageError: 500,
    TopicsError: 500,
}
"""An error has the status of its nearest ancestor in this table."""

DETAIL: Final[dict[type[TopicsError], tuple[str, ...]]] = {
    errors.InvalidRequest: ("dead_letter",),
    errors.BatchTooLarge: ("seqs", "max"),
    errors.Forbidden: ("topic",),
    errors.TopicNotFound: ("topic",),
    errors.RouterNotFound: ("router",),
    errors.GroupNotFound: ("topic", "group"),
    errors.GroupExists: ("group", "existing_mode", "requested_mode"),
    errors.StaleGeneration: ("generation",),
    errors.GroupHasMembers: ("group", "members"),
    errors.SegmentGone: ("reason", "evict_floor"),
    errors.RouterCycle: ("cycle",),
    errors.TopicExists: (
        "topic", "existing_type", "requested_type", "router", "reason", "existing_source", "existing_dest",
    ),
    errors.TopicNotEmpty: ("topic", "count"),
    errors.NotAQueue: ("topic",),
    errors.TopicFull: ("topic", "cap_records", "cap_bytes", "head_seq", "earliest_seq", "pinned_by"),
    errors.Throttled: ("limit", "max"),
    errors.PartExists: ("txn", "part"),
    errors.PartMissing: ("topic", "txn", "part"),
    errors.TxnForeign: ("topic", "txn"),
    errors.ReadOnly: ("shard", "since"),
    errors.DiskFull: ("shard",),
    errors.NotReady: ("replay_progress",),
}  # fmt: skip
"""Which facts of an error its answer shows. What is not listed stays inside: paths, keys, other people's names."""

RETRY_LATER: Final = (b"retry-after", b"1")


def status_of(error: TopicsError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def message_of(error: TopicsError) -> str:
    """What storage has to say names files of this machine: that is for its own log."""
    if isinstance(error, errors.CorruptFile):
        return (
            "stored data is damaged: restore the file from a backup, or start the server once with recovery=salvage, "
            "which notes what is lost; the rest of the store is served"
        )
    if isinstance(error, errors.StorageError):
        return "the storage failed; the log of the server says how"
    if isinstance(error, errors.ReadOnly):
        return "the disk failed, and this part of the store is read-only; restart the server to write again"
    if isinstance(error, errors.DiskFull):
        return "the disk has no room for the next file of the WAL; free disk space to write again"
    return error.message or error.code


def detail_of(error: TopicsError) -> dict[str, Any]:
    if isinstance(error, errors.CorruptFile):
        # Directory and name are enough to find it, and tell nothing about where the data directory is.
        file = "/".join(str(error.facts["path"]).split("/")[-2:])
        more: dict[str, Any] = {name: error.facts[name] for name in ("topic", "first_seq") if name in error.facts}
        return {"file": file, "offset": error.facts["offset"], **more}
    shown = next((DETAIL[kind] for kind in type(error).__mro__ if kind in DETAIL), ())
    return {name: error.facts[name] for name in shown if error.facts.get(name) is not None}


def problem(error: TopicsError) -> Response:
    status = status_of(error)
    detail = detail_of(error)
    body: dict[str, Any] = {"code": error.code, "message": message_of(error)}
    if detail:
        body["detail"] = detail
    response = Response(status, msgspec.json.encode({"error": body}))
    if "allow" in error.facts:
        response.headers.append((b"allow", error.facts["allow"].encode()))
    if "size" in error.facts and status == 416:
        response.headers.append((b"content-range", b"bytes */%d" % error.facts["size"]))
    if status in (429, 503):
        response.headers.append(RETRY_LATER)
    return response


def told(error: TopicsError) -> Response:
    """The answer; what the storage has to say goes to the log as well."""
    if isinstance(error, errors.StorageError):
        log.error("%s", error.message)
    return problem(error)


def fault() -> Response:
    """Our own mistake; what it was is in the log, not in the answer."""
    return Response(500, b'{"error":{"code":"internal","message":"the server failed to answer this request"}}')
