"""A durable event log: open a directory, append, read, delete; nothing acknowledged is lost.

    with topics.open("./data") as log:
        log.create("orders", durability="fsync")
        log.append("orders", [{"data": {"id": 1}, "tag": "eu"}])
        for item in log.read("orders"):
            print(item)

Names are loaded when they are first used, so that importing one part of the package does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.embedded import Appended, Deleted, Log, TopicInfo, open
    from topics.model.config import TopicConfig
    from topics.model.errors import (
        BatchTooLarge,
        Conflict,
        CorruptFile,
        CorruptRecord,
        DiskFull,
        InvalidRecord,
        InvalidRequest,
        NotFound,
        ReadOnly,
        RecordTooLarge,
        StorageError,
        StoreClosed,
        StoreLocked,
        Throttled,
        TopicExists,
        TopicFull,
        TopicNotEmpty,
        TopicNotFound,
        TopicsError,
        Unavailable,
        UnknownVersion,
        WriteFailed,
    )
    from topics.model.record import Gap, Record

__all__ = [
    "Appended", "BatchTooLarge", "Conflict", "CorruptFile", "CorruptRecord", "Deleted", "DiskFull", "Gap",
    "InvalidRecord", "InvalidRequest", "Log", "NotFound", "ReadOnly", "Record", "RecordTooLarge", "StorageError",
    "StoreClosed", "StoreLocked", "Throttled", "TopicConfig", "TopicExists", "TopicFull", "TopicInfo",
    "TopicNotEmpty", "TopicNotFound", "TopicsError", "Unavailable", "UnknownVersion", "WriteFailed", "open",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("Appended", "Deleted", "Log", "TopicInfo", "open"), "topics.embedded"),
    **dict.fromkeys(("Gap", "Record"), "topics.model.record"),
    "TopicConfig": "topics.model.config",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "topics.model.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
