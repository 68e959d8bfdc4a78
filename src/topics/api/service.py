"""What handlers work with: the broker and a few facts about this server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from topics.api.auth import Keyring
from topics.api.live import Live, LiveOptions
from topics.api.pool import Pool
from topics.api.pump import Pump
from topics.api.stats import Sampler
from topics.broker.broker import Broker
from topics.broker.staging import Staged
from topics.host.clock import Clock
from topics.host.ids import Ids, SystemIds


@dataclass(slots=True)
class Service:
    broker: Broker
    pump: Pump
    clock: Clock
    loop: asyncio.AbstractEventLoop
    readers: Executor
    """Threads for reads that may touch much or cold data."""
    stagers: Executor | None = None
    """Threads that write and read staged parts; None = those of reads. Apart, because a slow disk must not keep
    readers waiting."""
    show_paths: bool = False
    """Name files in answers: only where whoever asks is on this machine."""
    started_ns: int = 0
    recovery_ms: float = 0.0
    connections: Callable[[], int] = lambda: 0
    stats: Sampler = field(default_factory=Sampler)
    keyring: Keyring = field(default_factory=Keyring)
    ids: Ids = field(default_factory=SystemIds)
    live_options: LiveOptions = field(default_factory=LiveOptions)
    live: Live = field(init=False)
    staged: Staged = field(init=False)

    def __post_init__(self) -> None:
        pool = self.readers if isinstance(self.readers, Pool) else None
        self.live = Live(self.broker, self.pump, self.live_options, pool)
        self.staged = Staged(self.broker.store)

    def now_ns(self) -> int:
        return self.clock.monotonic_ns()
