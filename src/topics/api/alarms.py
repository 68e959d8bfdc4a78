"""Trouble of the store goes to the server's log: when it begins, and when it is over.

Clients are told at each call, health and metrics as long as it lasts; whoever reads the log the day after sees neither.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from topics.storage.store import Store
from topics.storage.trouble import describe_trouble

log = logging.getLogger("topics.trouble")

EVERY_S: Final = 1.0
QUIET_S: Final = 30.0
"""Trouble that comes back sooner than this is the same one: a disk at its brim is full and not full by turns."""


class Alarms:
    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._seen: dict[str, float] = {}
        """When it was last there, by what is in trouble."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.step(self._loop.time())
        self.start()

    def step(self, now_s: float) -> None:
        with self._store.lock:
            present = describe_trouble(self._store)
        for what, why in present.items():
            if what not in self._seen:
                log.error("%s", why)
            self._seen[what] = now_s
        for what, last_s in tuple(self._seen.items()):
            if now_s - last_s >= QUIET_S:
                del self._seen[what]
                log.warning("%s works again", what)
