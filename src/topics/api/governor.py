"""The pressure of this server, ten times a second, and what it asks of the parts.

What is measured and what follows from it is `rules/pressure.py`; here are the parts themselves: the hub gathers its
wake-ups, the pump its writes, routers step back, topics of negative priority wait.
"""

from __future__ import annotations

import asyncio
from typing import Final

from topics.api.agenda import ByPriority
from topics.api.hub import Hub
from topics.api.pool import Pool
from topics.api.pump import Pump
from topics.rules.pressure import SAMPLE_MS, Governor, Relief, Sample

WORKERS: Final = 8
"""What the loop counts for. It serves a waiting topic in a slice of about a millisecond at most and most in a fraction
of one, so it clears as many in the time that counts as full pressure as this many workers with one topic each."""


class Pressure:
    def __init__(self, hub: Hub, pump: Pump, agenda: ByPriority, pool: Pool | None) -> None:
        self._hub = hub
        self._pump = pump
        self._agenda = agenda
        self._pool = pool
        self._loop = pump.loop
        self._governor = Governor()
        self._timer: asyncio.TimerHandle | None = None
        self.waited_ms = 0.0
        """What topics waited for their turn, on average, in the last sample."""

    @property
    def relief(self) -> Relief:
        return self._governor.relief

    def patient(self) -> bool:
        """Whether an append that finds no room in its shard's queue may wait for some."""
        if self.relief.refuses(queue_full=True):
            self._pump.refused += 1
            return False
        return True

    def start(self) -> None:
        self._timer = self._loop.call_later(SAMPLE_MS / 1000, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.step()
        self.start()

    def step(self) -> None:
        before = self.relief
        self.waited_ms = self._agenda.turns.take()
        pool_busy = self._pool.take_waiting() if self._pool is not None else 0.0
        relief = self._governor.sample(Sample(len(self._agenda), WORKERS, self.waited_ms, pool_busy))
        self._pump.relief = relief
        self._pump.forwarder.lower = relief.shed
        self._hub.coalesce_s = relief.coalesce_ms / 1000
        if relief.shed != before.shed:
            self._agenda.shed(relief.shed)
            self._hub.kick()
