"""Time that moves only when a test says so."""

from __future__ import annotations


class FakeClock:
    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ns = monotonic

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Let time pass, on both clocks."""
        assert ms >= 0, "time does not go back; step_wall sets the wall clock"
        self._now_ms += ms
        self._monotonic_ns += ms * 1_000_000

    def step_wall(self, ms: int) -> None:
        """Set the wall clock `ms` ahead, or back; no time passes."""
        self._now_ms += ms
