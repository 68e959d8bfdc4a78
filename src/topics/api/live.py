"""Everything that lives longer than a request: watch sessions, open streams and sockets, their heartbeats, the hub."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from typing import Final, Protocol

from topics.api.agenda import ByPriority
from topics.api.alarms import Alarms
from topics.api.auth import Key, Slots
from topics.api.governor import Pressure
from topics.api.hub import Hub
from topics.api.pool import Pool
from topics.api.pump import Pump
from topics.broker.broker import Broker
from topics.broker.watch import Sessions
from topics.model.errors import Throttled

HEARTBEAT_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class LiveOptions:
    sessions_max: int = 10_000
    streams_max: int = 10_000
    streams_per_key_max: int = 1_000
    heartbeat_ms_min: int = 1_000
    frames_max: int = 1_024
    """Frames of one stream that the kernel has not taken; beyond it the stream lags, and nothing is queued for it."""
    bytes_max: int = 1 << 20
    """The same in bytes. One frame is always let through, so a stream holds this much or one frame."""


class Stop(Protocol):
    def shutdown(self) -> None:
        """Say goodbye and end."""
        ...


class Beating(Protocol):
    open: bool
    heartbeat_s: float
    sent_at: float
    """When something was last sent, on the loop's clock."""

    def beat(self) -> None: ...


class Live:
    def __init__(self, broker: Broker, pump: Pump, options: LiveOptions, pool: Pool | None = None) -> None:
        self.broker = broker
        self.pump = pump
        self.loop = pump.loop
        self.options = options
        self.sessions = Sessions(options.sessions_max)
        self.agenda = ByPriority(broker.clocks, broker.clock)
        self.hub = Hub(broker, pump, self.agenda)
        self.pressure = Pressure(self.hub, pump, self.agenda, pool)
        self.alarms = Alarms(broker.store, pump.loop)
        pump.forwarder.clocks = broker.clocks
        broker.patient = self.pressure.patient
        self.heartbeats = Heartbeats(pump.loop)
        self.lagging = 0
        """Streams that wait for their readers."""
        self._per_key = Slots(options.streams_per_key_max)
        self._open: dict[Stop, Key] = {}

    @property
    def streams(self) -> int:
        return len(self._open)

    def check_room(self, key: Key) -> None:
        limit = self.options.streams_max
        full = limit and len(self._open) >= limit
        if full or (self.options.streams_per_key_max and self._per_key.held(key) >= self.options.streams_per_key_max):
            raise Throttled("there are as many open streams as this server, or this key, may have; try again later")

    def enter(self, stream: Stop, key: Key) -> None:
        """A stream opens; Throttled if there are too many."""
        self.check_room(key)
        taken = self._per_key.take(key)
        assert taken
        self._open[stream] = key

    def leave(self, stream: Stop) -> None:
        """Safe to repeat."""
        key = self._open.pop(stream, None)
        if key is not None:
            self._per_key.give(key)

    def start(self) -> None:
        """On the loop: look at the pressure, and for trouble, from now on."""
        self.pressure.start()
        self.alarms.start()

    def stop(self) -> None:
        self.heartbeats.stop()
        self.pressure.stop()
        self.alarms.stop()
        for stream in tuple(self._open):
            stream.shutdown()


class Heartbeats:
    """One timer for all streams: whoever has been silent for its interval beats."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[float, int, Beating]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def add(self, stream: Beating) -> None:
        self._push(stream, self._loop.time() + stream.heartbeat_s)
        self._arm()

    def _push(self, stream: Beating, due: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, stream))

    def _arm(self) -> None:
        if not self._due or (self._timer is not None and self._at <= self._due[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = self._due[0][0]
        self._timer = self._loop.call_at(self._at, self._beat)

    def _beat(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._due and self._due[0][0] <= now + 0.001:
            _, _, stream = heapq.heappop(self._due)
            if not stream.open:
                continue
            if stream.sent_at + stream.heartbeat_s <= now + 0.001:
                stream.beat()
                stream.sent_at = now
            self._push(stream, stream.sent_at + stream.heartbeat_s)
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()
