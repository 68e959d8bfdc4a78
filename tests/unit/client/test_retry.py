"""When a call is tried again: decisions over a clock that the test moves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from topics.client.retry import PAUSE_S_MIN, TRY_S_MIN, Attempts, RetryPolicy
from topics.model.errors import Conflict, InvalidRequest, Throttled, TopicsError, Unavailable, Unreachable

LATER = Throttled("later", status=429)
GONE = Unreachable("nobody")


class Tries:
    def __init__(
        self,
        policy: RetryPolicy,
        *,
        safe: bool = True,
        extra_s: float = 0.0,
        chance: float = 1.0,
        draw: Callable[[], float] | None = None,
    ) -> None:
        self.at = 100.0
        self.attempts = Attempts(
            policy, safe=safe, extra_s=extra_s, now=lambda: self.at, chance=draw or (lambda: chance)
        )

    def fail(self, error: TopicsError, took_s: float = 0.0) -> float | None:
        self.attempts.next_timeout_s()
        self.at += took_s
        pause = self.attempts.pause_s(error)
        self.at += pause or 0.0
        return pause


def test_pauses_double_up_to_their_bound() -> None:
    tries = Tries(RetryPolicy(backoff_s=1, backoff_s_max=5, deadline_s=1000))
    assert [tries.fail(GONE) for _ in range(5)] == [1, 2, 4, 5, 5]


def test_pause_is_drawn_below_its_bound() -> None:
    assert Tries(RetryPolicy(backoff_s=1), chance=0.25).fail(GONE) == 0.25


def test_server_that_is_away_is_not_asked_in_a_tight_loop() -> None:
    assert Tries(RetryPolicy(backoff_s=1), chance=0.0).fail(GONE) == PAUSE_S_MIN
    assert Tries(RetryPolicy(backoff_s=0)).fail(GONE) == PAUSE_S_MIN


@pytest.mark.parametrize("seed", range(50))
def test_server_that_is_away_is_asked_until_the_deadline_however_the_draws_fall(seed: int) -> None:
    draws = random.Random(seed)
    tries = Tries(RetryPolicy(), draw=draws.random)
    count = 0
    while tries.fail(GONE) is not None:
        count += 1
    assert tries.at - 100.0 == pytest.approx(30.0 - TRY_S_MIN, abs=PAUSE_S_MIN)
    assert count < 60


@pytest.mark.parametrize("chance", [0.0, 0.001, 0.5])
def test_unlucky_draws_shorten_the_pauses_and_not_the_patience(chance: float) -> None:
    tries = Tries(RetryPolicy(deadline_s=5), chance=chance)
    while tries.fail(GONE) is not None:
        pass
    assert tries.at - 100.0 == pytest.approx(5.0 - TRY_S_MIN, abs=PAUSE_S_MIN)


def test_no_pause_is_shorter_than_the_server_asked() -> None:
    asked = Throttled("later", status=429, retry_after_s=3.0)
    assert Tries(RetryPolicy(backoff_s=1), chance=0.0).fail(asked) == 3.0 + PAUSE_S_MIN
    assert Tries(RetryPolicy(backoff_s=1), chance=0.5).fail(asked) == 3.5


def test_nothing_is_tried_past_the_deadline() -> None:
    assert Tries(RetryPolicy(deadline_s=10)).fail(GONE, took_s=9.96) is None
    assert Tries(RetryPolicy(deadline_s=10)).fail(Throttled("", status=429, retry_after_s=10.0)) is None
    assert Tries(RetryPolicy(deadline_s=10), extra_s=30).fail(GONE, took_s=20) is not None


def test_each_try_gets_what_is_left() -> None:
    tries = Tries(RetryPolicy(deadline_s=10), chance=0.0)
    assert tries.attempts.next_timeout_s() == 10
    tries.at += 4
    assert tries.attempts.next_timeout_s() == pytest.approx(6)
    tries.at += 60
    assert tries.attempts.next_timeout_s() == TRY_S_MIN


def test_pauses_have_a_bound_however_often_it_fails() -> None:
    tries = Tries(RetryPolicy(attempts_max=5000, deadline_s=1e9))
    assert [tries.fail(GONE) for _ in range(4999)][-1] == RetryPolicy().backoff_s_max


def test_number_of_tries_is_bounded() -> None:
    tries = Tries(RetryPolicy(attempts_max=3), chance=0.0)
    assert [tries.fail(GONE) for _ in range(3)] == [PAUSE_S_MIN, PAUSE_S_MIN, None]
    assert Tries(RetryPolicy(attempts_max=1)).fail(GONE) is None


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (LATER, True),
        (Unavailable("", status=503), True),
        (GONE, True),
        (Unavailable("", status=502), False),
        (Conflict("", status=409), False),
        (TopicsError("", status=500), False),
        (InvalidRequest("made here"), False),
    ],
)
def test_only_later_and_silence_are_tried_again(error: TopicsError, again: bool) -> None:
    assert (Tries(RetryPolicy()).fail(error) is not None) is again


@pytest.mark.parametrize("error", [LATER, GONE])
def test_unsafe_call_is_never_tried_again(error: TopicsError) -> None:
    assert Tries(RetryPolicy(), safe=False).fail(error) is None


@pytest.mark.parametrize("wrong", [{"deadline_s": 0}, {"attempts_max": 0}, {"backoff_s": -1}, {"backoff_s_max": -1}])
def test_policy_without_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
