"""Coarse time shared by all connections of a listener: a `now` that costs nothing to read, and the Date header."""

from __future__ import annotations

from email.utils import formatdate

from topics.host.clock import Clock


class Ticker:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic_ns = clock.monotonic_ns
        self.now = 0.0
        """Monotonic seconds as of the last `tick`."""
        self.date = b""
        """The value of the Date header."""
        self._second = -1
        self.heads: dict[tuple[int, bytes], bytes] = {}
        """Starts of HTTP/1.1 answers by status and content type; they hold the date, so each second empties them."""
        self.tick()

    def tick(self) -> float:
        self.now = self.monotonic_ns() / 1e9
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            self.date = formatdate(second, usegmt=True).encode("ascii")
            self.heads.clear()
        return self.now
