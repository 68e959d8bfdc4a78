"""What is tried again, and when: pure decisions, for both clients.

Only a *safe* call is repeated: one that has the same effect whether it arrives once or twice. It is repeated when the
server said "later" (429, 503) or nothing at all, never sooner than `Retry-After` asks, and never past the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from topics.model.errors import InvalidRequest, TopicsError, Unreachable

STATUSES: Final = frozenset({429, 503})
TRY_S_MIN: Final = 0.05
"""Less time than this is not worth a try."""
PAUSE_S_MIN: Final = 0.05
"""However the draw falls, a server that is away is not asked in a tight loop."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    deadline_s: float = 30.0
    """For one call with all its repetitions; a long poll gets its wait on top."""
    attempts_max: int | None = None
    """Tries in all; 1 = never again, None = as many as the deadline has room for. Ten take some ten seconds where each
    fails at once, but with bad luck three."""
    backoff_s: float = 0.1
    """Bound of the first pause; each further one doubles it. The pause itself is drawn evenly below the bound, so that
    clients who failed together do not return together."""
    backoff_s_max: float = 5.0

    def __post_init__(self) -> None:
        too_few = self.attempts_max is not None and self.attempts_max < 1
        if self.deadline_s <= 0 or too_few or self.backoff_s < 0 or self.backoff_s_max < 0:
            raise InvalidRequest(f"{self} makes no sense: deadline above 0, at least one attempt, no negative pause")


class Attempts:
    """The tries of one call."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        safe: bool,
        extra_s: float,
        now: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._safe = safe
        self._now = now
        self._chance = chance
        """Evenly from 0 to 1."""
        self._made = 0
        self._deadline = now() + policy.deadline_s + extra_s

    def next_timeout_s(self) -> float:
        """Begin a try; how long it may take."""
        self._made += 1
        return max(self._deadline - self._now(), TRY_S_MIN)

    def pause_s(self, error: TopicsError) -> float | None:
        """How long to wait before the next try; None if this error is the answer."""
        most = self._policy.attempts_max
        if not self._safe or (most is not None and self._made >= most):
            return None
        if not isinstance(error, Unreachable) and error.facts.get("status") not in STATUSES:
            return None
        asked: float = error.facts.get("retry_after_s") or 0.0
        left = self._deadline - self._now() - TRY_S_MIN - asked
        if left < PAUSE_S_MIN:
            return None
        # A pause that is drawn too long for the deadline is cut: the last try comes at its very end.
        drawn = drawn_s(self._made, self._policy.backoff_s, self._policy.backoff_s_max, self._chance)
        return asked + min(drawn, left)


def drawn_s(failures: int, backoff_s: float, backoff_s_max: float, chance: Callable[[], float]) -> float:
    """A pause after so many failures in a row, drawn evenly below its bound."""
    return max(chance() * bound_s(failures, backoff_s, backoff_s_max), PAUSE_S_MIN)


def bound_s(failures: int, backoff_s: float, backoff_s_max: float) -> float:
    """The longest pause after so many failures in a row."""
    return min(backoff_s_max, backoff_s * 2.0 ** min(failures - 1, 60))
