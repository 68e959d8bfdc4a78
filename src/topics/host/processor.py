"""The processor, and whoever else waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from topics.host.clock import Clock

SHORT_NS: Final = 1_000_000
"""Somebody who reads what he was just sent is done by then."""
PATIENCE: Final = 100
"""Whoever keeps it for longer is left to the kernel for this many times as long: so it costs a hundredth at most."""


class Courtesy:
    """Lets others have the processor between two pieces of work, as long as they give it back soon.

    Where there are few processors, the one that reads what we send waits for the very processor that we send on. Then
    the first of many readers would get theirs only when the last has been sent to."""

    __slots__ = ("_again_ns", "_give", "_now_ns")

    def __init__(self, clock: Clock, give: Callable[[], None] = os.sched_yield) -> None:
        self._now_ns = clock.monotonic_ns
        self._give = give
        self._again_ns = 0

    def give_way(self) -> None:
        now_ns = self._now_ns()
        if now_ns < self._again_ns:
            return
        self._give()
        spent_ns = self._now_ns() - now_ns
        if spent_ns > SHORT_NS:
            self._again_ns = now_ns + PATIENCE * spent_ns
