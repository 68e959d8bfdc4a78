"""Whether a value holds bytes: JSON has none, and encoders write base64, which no reader could tell from text."""

from __future__ import annotations

from typing import Any

import msgspec

_BYTES = (bytes, bytearray, memoryview)


def find_bytes(value: Any) -> str | None:
    """Where inside `value` the first bytes are, as Python would say it: `['key'][0]`. None = nowhere."""
    pending = [("", msgspec.to_builtins(value, enc_hook=_skip, builtin_types=_BYTES))]
    while pending:
        place, item = pending.pop()
        if isinstance(item, _BYTES):
            return place
        if isinstance(item, dict) and any(isinstance(name, _BYTES) for name in item):
            return f"{place}, as a key"
        parts: list[tuple[Any, Any]] = []
        if isinstance(item, dict):
            parts = list(item.items())
        elif isinstance(item, list | tuple):
            parts = list(enumerate(item))
        pending.extend((f"{place}[{name!r}]", part) for name, part in reversed(parts))
    return None


def _skip(value: Any) -> Any:
    """Raw text inside a value is JSON already."""
    if isinstance(value, msgspec.Raw):
        return None
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")
