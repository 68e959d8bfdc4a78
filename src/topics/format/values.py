"""A record's `data` or `meta` as JSON text: bytes are text already, everything else is a value to encode."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

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
    if b"null" in text and _has_non_finite(value):
        raise ValueError("it holds a NaN or an infinity, which JSON cannot say")
    return text


def _has_non_finite(value: Any) -> bool:
    pending = [msgspec.to_builtins(value, enc_hook=_skip)]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return True
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return False


def _skip(value: Any) -> Any:
    """Raw text inside a value holds no float; its grammar is checked with the rest of the text."""
    if isinstance(value, msgspec.Raw):
        return None
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")
