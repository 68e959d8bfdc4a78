from __future__ import annotations

import pytest

from topics.rules.priority import effective_priority


@pytest.mark.parametrize(
    ("manual", "auto", "idle_ms", "waited_ms", "expected"),
    [
        (None, True, None, 0, 0),
        (None, True, 0, 0, 500),
        (None, True, 30_000, 0, 250),
        (None, True, 299_999, 0, 0),
        (None, True, 300_000, 0, 0),
        (None, True, -5, 0, 500),
        (None, False, 0, 0, 0),
        (7, True, 0, 0, 7),
        (0, True, 0, 0, 0),
        (5000, True, 0, 0, 1000),
        (-5000, True, None, 0, -1000),
        (0, False, None, 5, 1),
        (-1, False, None, 5, -1),
        (0, False, None, 99_999, 1000),
        (-3, False, None, 25, -1),
    ],
)
def test_priority_adds_manual_recency_and_waiting(
    manual: int | None, auto: bool, idle_ms: int | None, waited_ms: int, expected: int
) -> None:
    assert effective_priority(manual, auto, idle_ms, waited_ms) == expected
