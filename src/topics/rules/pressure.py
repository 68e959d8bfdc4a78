"""How hard the server is pressed, and what gives way. It costs latency, never data or order.

A sample every 100 ms gives one number from 0 to 1. As it rises, watchers are woken less often, commits gather more
company, routers step back, topics of negative priority wait, and at the very end writes are refused with a time to
come back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

SAMPLE_MS: Final = 100
READY_PER_WORKER: Final = 4
"""So many waiting topics per worker count as full pressure."""
LATENCY_MS_MAX: Final = 5.0
"""A topic that waits this long for its turn, on average, counts as full pressure."""
LATENCY_WEIGHT: Final = 0.3
"""Of the newest sample in the running average of waiting: about half a second of memory."""

COALESCE_FROM: Final = 0.2
COALESCE_MS_MAX: Final = 20.0
WIDEN_FROM: Final = 0.4
WINDOW_MS: Final = 0.5
WINDOW_MS_MORE: Final = 9.5
SHED_FROM: Final = 0.8
SHED_UNTIL: Final = 0.6
SHED_SAMPLES: Final = 5
"""Half a second above the mark is sustained; one bad sample sheds nothing."""
REFUSE_FROM: Final = 0.99


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen since the last sample."""

    ready: int
    """Topics waiting for delivery now."""
    workers: int
    waited_ms: float
    """How long the topics served since had waited, on average; 0 where none was served and none waits."""
    pool_busy: float
    """The share of the I/O pool's time that was in use, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Relief:
    """What the present pressure asks for."""

    pressure: float = 0.0
    coalesce_ms: float = 0.0
    """How long wake-ups of watchers are gathered."""
    window_ms: float = 0.0
    """How long a commit gathers company; 0 = no timer."""
    shed: bool = False
    """Routers run one band lower, and topics of negative priority get no turn."""

    def refuses(self, queue_full: bool, disable_backpressure: bool = False) -> bool:
        """Whether a write that finds its shard's queue so is answered with 429."""
        return queue_full and self.pressure >= REFUSE_FROM and not disable_backpressure


class Governor:
    """Samples in, relief out."""

    def __init__(self) -> None:
        self._latency_ms = 0.0
        self._above = 0
        self.relief = Relief()

    def sample(self, seen: Sample) -> Relief:
        self._latency_ms += LATENCY_WEIGHT * (seen.waited_ms - self._latency_ms)
        pressure = max(
            seen.ready / (READY_PER_WORKER * max(seen.workers, 1)),
            self._latency_ms / LATENCY_MS_MAX,
            seen.pool_busy,
        )
        pressure = 0.0 if math.isnan(pressure) else min(max(pressure, 0.0), 1.0)
        self._above = self._above + 1 if pressure > SHED_FROM else 0
        shed = pressure >= SHED_UNTIL if self.relief.shed else self._above >= SHED_SAMPLES
        self.relief = Relief(
            pressure=pressure,
            coalesce_ms=_share(pressure, COALESCE_FROM) * COALESCE_MS_MAX,
            window_ms=WINDOW_MS + WINDOW_MS_MORE * pressure if pressure > WIDEN_FROM else 0.0,
            shed=shed,
        )
        return self.relief


def _share(pressure: float, start: float) -> float:
    """How far the pressure is on its way from `start` to 1."""
    return max(pressure - start, 0.0) / (1.0 - start)
