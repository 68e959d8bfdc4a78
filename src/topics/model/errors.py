"""Every error of the package, in one tree.

    TopicsError
    ├── InvalidRequest            the caller's input is at fault; nothing changed
    │   ├── InvalidRecord         one record of a batch
    │   ├── BatchTooLarge
    │   ├── RecordTooLarge
    │   ├── PayloadTooLarge       a request body beyond the ceiling
    │   ├── UnsupportedMediaType  a body of a type that this call does not take
    │   ├── NotAcceptable         no answer of a type that the caller takes
    │   ├── MethodNotAllowed
    │   ├── RangeNotSatisfiable   a byte range outside the file
    │   └── InvalidConfig         a setting; names the key, the value and the remedy
    ├── Denied                    who asks may not
    │   ├── Unauthorized          no key, or an unknown one
    │   ├── Forbidden             the key lacks a scope or a prefix
    │   └── HostNotAllowed        a `Host` or `Origin` that is not ours
    ├── NotFound
    │   ├── TopicNotFound
    │   ├── RouterNotFound
    │   ├── GroupNotFound
    │   ├── SegmentGone           evicted, deleted or replaced since it was listed
    │   └── RecordsLost           a reader that takes no gaps met one
    ├── Conflict
    │   ├── TopicExists           also an incompatible change of `type`
    │   ├── TopicNotEmpty
    │   ├── NotAQueue             a call that needs jobs, on a log
    │   ├── TopicFull             a `reject` topic has no room
    │   ├── RouterCycle           the edge would close a cycle
    │   ├── PartExists            a staged part of this name has other bytes
    │   ├── PartMissing           a commit names a part that is not staged
    │   ├── TxnForeign            the app of a transaction was last used by another query
    │   ├── GroupExists           an incompatible change of `mode`
    │   ├── StaleGeneration       a member that joined again since, or whose session is over
    │   ├── GroupHasMembers       a seek that would pull the cursor from under live members
    │   ├── Recreated             the topic is another instance than the caller knew
    │   └── GenerationChanged     the segment was rewritten since it was listed
    ├── Unavailable               try again later
    │   ├── Throttled             a queue or a limit is full
    │   │   └── StageFull         open stages hold all they may
    │   ├── ReadOnly              a shard stopped after a failed write or sync
    │   ├── DiskFull              no room for the next WAL file; heals when space returns
    │   ├── NotReady              the server is still replaying its log
    │   ├── ShuttingDown
    │   ├── Unreachable           a client got no answer; the call may or may not have happened
    │   ├── StreamCut             a streamed answer ended before its end was said
    │   └── StoreClosed
    ├── BadAnswer                 what answered does not speak our contract
    └── StorageError
        ├── CorruptFile           proven data is damaged; names file and offset
        │   └── CorruptRecord
        ├── UnknownVersion        not a directory of ours, or of a newer one
        ├── StoreLocked           another process holds the directory
        └── WriteFailed           the outcome of this write is unknown until the store is reopened

A class has a stable `code`, never reused, and its facts as fields.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TopicsError(Exception):
    """The root. `code` is stable; `facts` are what a machine wants to know."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Any] = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)


class InvalidRequest(TopicsError):
    code = "invalid_request"


class InvalidRecord(InvalidRequest):
    """Record number `index` of the batch breaks a rule."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"record {index}: {why}", index=index, why=why)


class BatchTooLarge(InvalidRequest):
    code = "batch_too_large"


class RecordTooLarge(InvalidRequest):
    code = "record_too_large"


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"


class UnsupportedMediaType(InvalidRequest):
    code = "unsupported_media_type"


class NotAcceptable(InvalidRequest):
    code = "not_acceptable"


class MethodNotAllowed(InvalidRequest):
    code = "method_not_allowed"


class RangeNotSatisfiable(InvalidRequest):
    code = "range_not_satisfiable"


class InvalidConfig(InvalidRequest):
    code = "invalid_config"


class Denied(TopicsError):
    code = "denied"


class Unauthorized(Denied):
    code = "unauthorized"


class Forbidden(Denied):
    code = "forbidden"


class HostNotAllowed(Denied):
    code = "host_not_allowed"


class NotFound(TopicsError):
    code = "not_found"


class TopicNotFound(NotFound):
    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist; create it first", topic=topic)


class RouterNotFound(NotFound):
    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f"router {router!r} does not exist", router=router)


class GroupNotFound(NotFound):
    code = "group_not_found"

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(f"topic {topic!r} has no group {group!r}; create it first", topic=topic, group=group)


class SegmentGone(NotFound):
    code = "segment_gone"


class RecordsLost(NotFound):
    code = "records_lost"


class Conflict(TopicsError):
    code = "conflict"


class TopicExists(Conflict):
    code = "topic_exists_incompatible"


class TopicNotEmpty(Conflict):
    code = "topic_not_empty"


class NotAQueue(Conflict):
    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is a log, not a queue; a queue is created with type queue", topic=topic)


class TopicFull(Conflict):
    code = "topic_full"


class RouterCycle(Conflict):
    code = "router_cycle"


class PartExists(Conflict):
    code = "part_exists"


class PartMissing(Conflict):
    code = "part_missing"


class TxnForeign(Conflict):
    code = "txn_foreign"


class GroupExists(Conflict):
    code = "group_exists_incompatible"


class StaleGeneration(Conflict):
    code = "stale_generation"


class GroupHasMembers(Conflict):
    code = "group_has_members"


class Recreated(Conflict):
    code = "recreated"


class GenerationChanged(Conflict):
    code = "generation_changed"


class Unavailable(TopicsError):
    code = "unavailable"


class Throttled(Unavailable):
    code = "throttled"


class StageFull(Throttled):
    code = "stage_full"


class ReadOnly(Unavailable):
    code = "read_only"


class DiskFull(Unavailable):
    code = "disk_full"


class NotReady(Unavailable):
    code = "not_ready"


class ShuttingDown(Unavailable):
    code = "shutting_down"


class Unreachable(Unavailable):
    code = "unreachable"


class StreamCut(Unavailable):
    code = "stream_cut"


class StoreClosed(Unavailable):
    code = "store_closed"


class BadAnswer(TopicsError):
    code = "bad_answer"


class StorageError(TopicsError):
    code = "storage_error"


class CorruptFile(StorageError):
    """Bytes that were proven durable are not what was written."""

    code = "storage_damaged"

    def __init__(self, path: str, offset: int, why: str, **facts: Any) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: {why}", path=path, offset=offset, why=why, **facts)


class CorruptRecord(CorruptFile):
    """One record cannot be read; the rest of its topic can."""


class UnknownVersion(StorageError):
    code = "unknown_version"


class StoreLocked(StorageError):
    code = "store_locked"


class WriteFailed(StorageError):
    code = "write_failed"
