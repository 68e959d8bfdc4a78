"""Every error of the package, in one tree.

    TopicsError
    ├── InvalidRequest            the caller's input is at fault; nothing changed
    │   ├── InvalidRecord         one record of a batch
    │   ├── BatchTooLarge
    │   └── RecordTooLarge
    ├── NotFound
    │   └── TopicNotFound
    ├── Conflict
    │   ├── TopicExists           also an incompatible change of `type`
    │   ├── TopicNotEmpty
    │   └── TopicFull             a `reject` topic has no room
    ├── Unavailable               try again later
    │   ├── Throttled             a queue or a limit is full
    │   ├── ReadOnly              a shard stopped after a failed write or sync
    │   ├── DiskFull              no room for the next WAL file; heals when space returns
    │   └── StoreClosed
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


class NotFound(TopicsError):
    code = "not_found"


class TopicNotFound(NotFound):
    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist; create it first", topic=topic)


class Conflict(TopicsError):
    code = "conflict"


class TopicExists(Conflict):
    code = "topic_exists_incompatible"


class TopicNotEmpty(Conflict):
    code = "topic_not_empty"


class TopicFull(Conflict):
    code = "topic_full"


class Unavailable(TopicsError):
    code = "unavailable"


class Throttled(Unavailable):
    code = "throttled"


class ReadOnly(Unavailable):
    code = "read_only"


class DiskFull(Unavailable):
    code = "disk_full"


class StoreClosed(Unavailable):
    code = "store_closed"


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
