"""Checks of what a caller passes, each with an error that names the argument and says what it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topics.model import limits
from topics.model.errors import BatchTooLarge, InvalidRecord, InvalidRequest


def check_batch(records: object, key: object) -> None:
    if type(records) is not list and (isinstance(records, (dict, str, bytes)) or not hasattr(records, "__len__")):
        raise InvalidRequest(f"records is a {type(records).__name__}; give a list of mappings, each with 'data'")
    count = len(records)
    if not count:
        raise InvalidRequest("records is empty; an append needs at least one")
    if count > limits.RECORDS_PER_APPEND:
        raise BatchTooLarge(f"{count} records are more than the {limits.RECORDS_PER_APPEND} of one append")
    if key is not None:
        check_text("idempotency_key", key, limits.IDEMPOTENCY_KEY_BYTES)


def check_text(name: str, value: object, bytes_max: int) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is of type {type(value).__name__}; it must be text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} holds half of a surrogate pair") from None
    if size > bytes_max:
        raise InvalidRequest(f"{name} has {size} bytes; the limit is {bytes_max}")


def check_seq(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise InvalidRequest(f"{name} is {value!r}; it must be a whole number from 0 to 2^64-1")


def check_whole(**values: object) -> None:
    """A float counts as none: lease rows have no place for it, and jobs that were dealt already would be lost."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(f"{name} is {value!r}; it must be a whole number")


def check_limit(value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidRequest(f"limit is {value!r}; it must be a whole number of at least 1, or None for no limit")


def split_delays(records: Sequence[Any]) -> tuple[Sequence[Any], list[int] | None]:
    """The records without their `delay_ms`, and these; None = no record has one."""
    if not any(isinstance(record, Mapping) and "delay_ms" in record for record in records):
        return records, None
    delays = []
    for index, record in enumerate(records):
        delay = record.get("delay_ms", 0) if isinstance(record, Mapping) else 0
        if isinstance(delay, bool) or not isinstance(delay, int) or not 0 <= delay <= limits.DELAY_MS:
            raise InvalidRecord(index, f"'delay_ms' is {delay!r}, not a number of 0..{limits.DELAY_MS}")
        delays.append(delay)
    bare = [
        {name: value for name, value in record.items() if name != "delay_ms"} if isinstance(record, Mapping) else record
        for record in records
    ]
    return bare, delays
