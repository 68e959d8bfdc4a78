"""Where in a value bytes are."""

from __future__ import annotations

import dataclasses
import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from topics.model.binary import find_bytes


@dataclasses.dataclass
class Point:
    x: Any


class Row(msgspec.Struct):
    name: Any


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"x", ""),
        ([1, [2, bytearray(b"x")]], "[1][1]"),
        ({"a": {"b": memoryview(b"x")}, "c": b"y"}, "['a']['b']"),
        ({"a": 1, 5: (0, b"x")}, "[5][1]"),
        (Point([Row(b"x")]), "['x'][0]['name']"),
        ({"a": {b"k": 1}}, "['a'], as a key"),
    ],
)
def test_first_bytes_are_found_wherever_they_are(value: Any, place: str) -> None:
    assert find_bytes(value) == place


@pytest.mark.parametrize(
    "value",
    [
        None,
        "x",
        1.5,
        [],
        {},
        {"a": [1, {"b": "c"}]},
        {1, 2},
        Decimal(1),
        datetime.date(2020, 1, 1),
        msgspec.Raw(b"[1]"),
    ],
)
def test_values_without_bytes_have_none(value: Any) -> None:
    assert find_bytes(value) is None
    assert find_bytes([value, {"a": value}]) is None
