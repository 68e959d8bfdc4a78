"""A record's `data` or `meta` as JSON text: bytes are text already, everything else is a value to encode."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from topics.model.binary import find_bytes
from topics.model.errors import InvalidRecord
from topics.model.finite import holds_non_finite

encode: Final = msgspec.json.Encoder().encode


def is_text(value: Any) -> bool:
    """Whether `value` is JSON text rather than a value. A str is a value: the JSON string of its characters."""
    return isinstance(value, bytes | bytearray | memoryview | msgspec.Raw)


def encode_value(value: Any) -> bytes:
    """Compact JSON of `value`; ValueError or TypeError if it has none.

    The encoder writes a NaN or an infinity as null. Such a value is refused instead; it is looked for only if the
    text holds a null at all, so the usual value pays one search.
    """
    try:
        text = encode(value)
    except RecursionError:
        raise ValueError("it is nested too deep or holds itself") from None
    if b"null" in text and holds_non_finite(value):
        raise ValueError("it holds a NaN or an infinity, which JSON cannot say")
    return text


def refuse_bytes(index: int, name: str, value: Any) -> None:
    """Raise InvalidRecord if `value`, which was encoded, holds bytes: what is read back would be another value."""
    place = find_bytes(value)
    if place is not None:
        raise InvalidRecord(
            index, f"{name!r} holds bytes at {name}{place}, which JSON cannot say: make them text first"
        )
