from __future__ import annotations

import pytest

from topics.model import limits
from topics.storage.dedupe import Dedupe, Remembered


def test_a_key_is_known_up_to_the_end_of_its_window() -> None:
    dedupe = Dedupe()
    dedupe.add("k", Remembered(5, 2, 1000))
    assert dedupe.get("k", 1000, 60) == Remembered(5, 2, 1000)
    assert dedupe.get("k", 1060, 60) is not None
    assert dedupe.get("k", 1061, 60) is None
    assert dedupe.get("other", 1000, 60) is None


def test_expired_keys_are_forgotten_oldest_first() -> None:
    dedupe = Dedupe()
    for n in range(5):
        dedupe.add(f"k{n}", Remembered(n + 1, 1, 100 * n))
    dedupe.expire(now_ms=350, window_ms=100)
    assert [row[0] for row in dedupe.rows()] == ["k3", "k4"]


def test_keys_of_lost_records_are_forgotten() -> None:
    dedupe = Dedupe()
    for n in range(1, 6):
        dedupe.add(f"k{n}", Remembered(n, 1, 0))
    dedupe.drop_in(2, 3)
    assert [row[1] for row in dedupe.rows()] == [1, 4, 5]


def test_the_oldest_key_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DEDUPE_KEYS", 3)
    dedupe = Dedupe()
    for n in range(5):
        dedupe.add(f"k{n}", Remembered(n, 1, n))
    assert len(dedupe) == 3
    assert [row[0] for row in dedupe.rows()] == ["k2", "k3", "k4"]


def test_a_key_used_again_is_the_newest() -> None:
    dedupe = Dedupe()
    dedupe.add("a", Remembered(1, 1, 1))
    dedupe.add("b", Remembered(2, 1, 2))
    dedupe.add("a", Remembered(3, 1, 3))
    assert dedupe.rows() == [("b", 2, 1, 2), ("a", 3, 1, 3)]
