"""A consumer group's configuration: the fields of the contract, their defaults and their checks."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from topics.model import limits
from topics.model.config import check_topic_name
from topics.model.errors import InvalidRequest

Mode = Literal["queue", "stream"]

_U64: Final = (1 << 64) - 1
_RANGES: Final = {
    "visibility_ms": (100, limits.LEASE_MS),
    "max_deliveries": (0, (1 << 32) - 1),
    "max_pending": (1, limits.GROUP_PENDING),
    "session_ms": (100, limits.LEASE_MS),
    "max_hold_bytes": (0, _U64),
    "group_ttl_ms": (0, _U64),
}


class GroupFilter(msgspec.Struct, frozen=True):
    tag: str
    """Equal to it, or, where it ends in `*`, beginning with it."""


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode = "queue"
    filter: GroupFilter | None = None
    """Records without such a tag are not for this group."""
    visibility_ms: int = 30_000
    """How long a member has a record to itself."""
    max_deliveries: int = 0
    """How often a record is handed out at most; 0 = as often as it takes."""
    dead_letter: str | None = None
    """The topic that gets what was handed out too often or rejected; None = it is parked."""
    max_pending: int = 100_000
    session_ms: int = 120_000
    """How long a member is one without a word from it."""
    retention_guard: bool | None = None
    """Whether retention waits for this group; None = in queue mode it does."""
    max_hold_bytes: int = 1 << 30
    group_ttl_ms: int = 7 * 86_400_000

    def resolved(self) -> GroupConfig:
        """The config as it is stored and shown."""
        if self.retention_guard is not None:
            return self
        return msgspec.structs.replace(self, retention_guard=self.mode == "queue")


def check_group_config(topic: str, config: GroupConfig) -> None:
    for field, (least, most) in _RANGES.items():
        value = getattr(config, field)
        if not least <= value <= most:
            raise InvalidRequest(f"{field!r} is {value}; it must lie in {least}..{most}")
    if config.filter is not None and len(config.filter.tag.encode("utf-8", "surrogatepass")) > limits.TAG_BYTES:
        raise InvalidRequest(f"the tag of the filter has more than {limits.TAG_BYTES} bytes")
    if config.dead_letter is not None:
        check_topic_name(config.dead_letter, "'dead_letter'")
        if config.dead_letter == topic:
            raise InvalidRequest(
                f"the dead letters of a group of {topic!r} cannot go to {topic!r} itself", dead_letter=topic
            )


def check_member(name: str) -> None:
    if not name:
        raise InvalidRequest("'member' is empty; name who asks")
    if len(name.encode("utf-8", "surrogatepass")) > limits.NODE_BYTES:
        raise InvalidRequest(f"'member' has more than {limits.NODE_BYTES} bytes")
