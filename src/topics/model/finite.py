"""Whether a value can be said in JSON as it is: a NaN or an infinity cannot, and encoders write it as null."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def holds_non_finite(value: Any) -> bool:
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
