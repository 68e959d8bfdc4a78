"""The value of a record's JSON text, whatever its numbers.

An append keeps a number as it is spelled, and JSON bounds neither its digits nor its exponent. The fast decoder refuses
those that Python has no ready form for; these few texts are read again, slowly.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from topics.model.errors import StorageError

_DIGITS: Final = 512
"""Digits that become a number in one go: Python may be told to refuse more than 640."""


def parse_json(text: bytes | bytearray | str) -> Any:
    """The value of strict JSON; ValueError for anything else. A float that is out of range is an infinity, as Python's
    own `json` has it; an integer has all its digits."""
    try:
        return msgspec.json.decode(text)
    except msgspec.ValidationError:  # a number out of range: what is no JSON is told by the class above it
        shown = text if isinstance(text, str) else str(text, "utf-8")
        return json.loads(shown, parse_int=_whole, parse_constant=_refuse)


def parse_part(text: bytes, name: str, seq: int) -> Any:
    """The same, of the `data` or `meta` of a stored record."""
    try:
        return parse_json(text)
    except ValueError as error:
        raw = "raw" if name == "data" else f"{name}_raw"
        raise StorageError(f"{name!r} of record {seq} is not JSON: {error}; .{raw} has its bytes", seq=seq) from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _whole(text: str) -> int:
    """An integer of any length, by halves: digit by digit would take time in the square of their number, which is why
    Python refuses more than 4,300."""
    if len(text) <= _DIGITS:
        return int(text)
    digits = text.lstrip("-")
    parts = [int(digits[max(end - _DIGITS, 0) : end]) for end in range(len(digits), 0, -_DIGITS)]
    power = 10**_DIGITS
    while len(parts) > 1:
        highs = [*parts[1::2], 0]
        parts = [low + high * power for low, high in zip(parts[::2], highs, strict=False)]
        power *= power
    return -parts[0] if text.startswith("-") else parts[0]
