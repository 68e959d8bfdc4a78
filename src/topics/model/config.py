"""A topic's configuration: the fields of the contract, their defaults and their checks."""

from __future__ import annotations

import enum
import re
from typing import Any, Literal

import msgspec

from topics.model import limits
from topics.model.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


class Durability(enum.IntEnum):
    """Commit classes, weakest first. The order is meaningful: a stronger class keeps all a weaker one keeps."""

    EPHEMERAL = 0
    MEMORY = 1
    DISK = 2
    FSYNC = 3


DurabilityName = Literal["ephemeral", "memory", "disk", "fsync"]
_CLASSES = {member.name.lower(): member for member in Durability}


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every field of the contract. Unknown fields are ignored, as on the wire."""

    type: Literal["log", "queue"] = "log"
    ttl_ms: int = 0
    """Age limit by `ts`; 0 = off."""
    cap_records: int = 0
    """Live records kept; 0 = off."""
    cap_bytes: int = 0
    """Accounted bytes kept; 0 = off."""
    discard: Literal["old", "reject"] = "old"
    durable: bool = False
    durability: DurabilityName | None = None
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    @property
    def commit_class(self) -> Durability:
        if self.durability is not None:
            return _CLASSES[self.durability]
        return Durability.FSYNC if self.durable else Durability.DISK

    def resolved(self) -> TopicConfig:
        """The config as it is stored and shown: `durability` filled in, clamped fields clamped."""
        name: Any = self.commit_class.name.lower()
        return msgspec.structs.replace(
            self,
            durability=name,
            durable=name == "fsync",
            lease_ms=min(max(self.lease_ms, 100), 86_400_000),
            claim_jitter_ms=min(self.claim_jitter_ms, 5_000),
        )


_U64 = ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms", "claim_jitter_ms", "max_deliveries")
_ALLOWED = {
    "type": "'log' or 'queue'",
    "discard": "'old' or 'reject'",
    "durability": "'ephemeral', 'memory', 'disk' or 'fsync'",
    **dict.fromkeys(_U64, "a whole number from 0 to 2^64-1"),
    **dict.fromkeys(("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable"), "True or False"),
    "priority": "a whole number of 32 bits, or None",
    "dead_letter": "the name of a topic, or None",
}
FIELDS = frozenset(f.name for f in msgspec.structs.fields(TopicConfig))


def make_config(fields: dict[str, Any]) -> TopicConfig:
    """Check `fields` and return the resolved config, or raise InvalidRequest naming the field."""
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        raise InvalidRequest(f"unknown config field {unknown[0]!r}; known: {', '.join(sorted(FIELDS))}")
    try:
        config = msgspec.convert(fields, TopicConfig, strict=True)
    except msgspec.ValidationError as error:
        raise _bad_value(fields, str(error)) from None
    check_config(config)
    return config.resolved()


def _bad_value(fields: dict[str, Any], why: str) -> InvalidRequest:
    """The decoder's complaint in our words: which field, what it is, what it may be."""
    place = re.search(r"`\$\.(\w+)", why)
    name = place.group(1) if place else ""
    if name not in FIELDS:
        return InvalidRequest(f"bad topic config: {why}")
    return InvalidRequest(f"config field {name!r} is {fields.get(name)!r}; it must be {_ALLOWED[name]}")


def check_config(config: TopicConfig) -> None:
    check_numbers(config)
    if config.dead_letter is not None:
        check_topic_name(config.dead_letter, "config field 'dead_letter'")


def check_numbers(config: TopicConfig) -> None:
    """What the decoder lets through: it knows whole numbers, not how large they may be."""
    for field in _U64:
        value = getattr(config, field)
        if not 0 <= value < 1 << 64:
            raise InvalidRequest(f"config field {field!r} is {value}; it must be {_ALLOWED[field]}")
    if config.priority is not None and not -(1 << 31) <= config.priority < 1 << 31:
        raise InvalidRequest(f"config field 'priority' is {config.priority}; it must fit in 32 bits")


def check_topic_name(name: str, what: str = "topic name") -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{what} {name!r} is not valid: 1 to {limits.TOPIC_NAME_BYTES} of A-Z a-z 0-9 . _ : -, "
            "the first a letter or digit"
        )


def check_router_name(name: str) -> None:
    """As a topic's, and `>` may follow the first letter: `source->dest` is a habit."""
    if not _ROUTER_NAME.fullmatch(name):
        raise InvalidRequest(
            f"router name {name!r} is not valid: 1 to {limits.TOPIC_NAME_BYTES} of A-Z a-z 0-9 . _ : - >, "
            "the first a letter or digit"
        )
