"""Whose turn it is: the hub's agenda by priority, as `rules/schedule.py` decides.

Most of the time one topic waits and is served at once; then no priority is ever asked for. All of it runs on the loop,
so one ready set is enough: there is one worker who could take from it.
"""

from __future__ import annotations

from topics.api.channel import Channel
from topics.broker.state import Clocks
from topics.host.clock import Clock
from topics.rules.schedule import Schedule, Urgency
from topics.storage.topic import Topic


class Turns:
    """How often and how long topics waited for their turn, since somebody last asked."""

    __slots__ = ("count", "waited_ms")

    def __init__(self) -> None:
        self.count = 0
        self.waited_ms = 0.0

    def add(self, waited_ns: int) -> None:
        self.count += 1
        self.waited_ms += waited_ns / 1e6

    def take(self) -> float:
        """The mean wait, in ms; counting begins anew."""
        mean = self.waited_ms / self.count if self.count else 0.0
        self.count, self.waited_ms = 0, 0.0
        return mean


class ByPriority:
    def __init__(self, clocks: Clocks, clock: Clock) -> None:
        self._clocks = clocks
        self._clock = clock
        self._ready: Schedule[Channel] = Schedule()
        self._since_ns: dict[Channel, int] = {}
        self._alone: Channel | None = None
        """The only one who waits, as long as that is so and nothing is shed."""
        self.turns = Turns()

    def __len__(self) -> int:
        """How many may be served now."""
        if self._alone is not None:
            return 1
        return len(self._ready) if self._ready.servable() else 0

    @property
    def waiting(self) -> int:
        """How many wait, also those that have to."""
        return len(self._since_ns)

    def add(self, channel: Channel) -> None:
        if channel in self._since_ns:
            return
        self._since_ns[channel] = self._clock.monotonic_ns()
        if self._alone is None and not self._ready and not self._ready.shed:
            self._alone = channel
            return
        if self._alone is not None:
            first, self._alone = self._alone, None
            self._mark(first)
        self._mark(channel)

    def _mark(self, channel: Channel) -> None:
        urgency = urgency_of(channel.topic, self._clocks, self._clock.now_ms())
        self._ready.mark(channel, urgency, self._since_ns[channel] // 1_000_000)

    def take(self) -> Channel | None:
        channel = self._alone
        if channel is not None:
            self._alone = None
        else:
            taken = self._ready.take(self._clock.monotonic_ns() // 1_000_000)
            if taken is None:
                return None
            channel = taken[0]
        self.turns.add(self._clock.monotonic_ns() - self._since_ns.pop(channel))
        return channel

    def shed(self, shed: bool) -> None:
        """Topics of negative priority wait, or do so no longer."""
        if self._alone is not None:
            first, self._alone = self._alone, None
            self._mark(first)
        self._ready.set_shed(shed, self._clock.monotonic_ns() // 1_000_000)


def urgency_of(topic: Topic, clocks: Clocks, now_ms: int) -> Urgency:
    consumed = clocks.of(topic).consumed_ms
    return Urgency(topic.config.priority, topic.config.auto_priority, None if consumed is None else now_ms - consumed)
