"""Checks of what a caller passes, each with an error that names the argument and says what it may be."""

from __future__ import annotations

from topics.model import limits
from topics.model.errors import BatchTooLarge, InvalidRequest


def check_batch(records: object, key: object) -> None:
    if isinstance(records, (dict, str, bytes)) or not hasattr(records, "__len__"):
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


def check_limit(value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidRequest(f"limit is {value!r}; it must be a whole number of at least 1, or None for no limit")
