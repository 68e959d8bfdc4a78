"""Delivery: which readers of a topic are to be served, in what order, and a page rendered once for all who want it.

    append applied ─▶ Channel.release ─▶ heard ─▶ dirty ─▶ agenda ─▶ turn: a slice of readers ─▶ their sockets

The store releases a channel under its lock, from any thread; everything else runs on the loop. Two turns of the loop
lie between an append and its delivery, so that the writer's answer goes out first. A turn serves about a hundred
readers of one topic, and then whoever else waits for the loop has it. A channel listens at its topic before it reads,
so nothing that comes in between is missed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Final, Protocol

from topics.api.events import Rendered
from topics.api.pump import Pump
from topics.broker.broker import Broker
from topics.broker.reading import read_page
from topics.broker.steps import Steps
from topics.broker.watch import View
from topics.model.errors import NotFound, TopicsError
from topics.storage.durable import durable_seq
from topics.storage.topic import Topic

log = logging.getLogger("topics.api")

SLICE: Final = 100
"""Readers served in one turn of the loop: about a millisecond of sending."""
READS: Final = 4
"""Pages read in one turn: those who catch up must not hold up those who are there."""
SHARED_BYTES: Final = 4 << 20
"""Pages of one topic that are kept for readers to come in the same pass. A few hold those who read along; one who
catches up alone would otherwise leave its whole way behind."""
SAFE_S: Final = 0.01
"""How often a reader that waits for syncs looks again: a sync tells nobody whose records it made safe."""


Standing = tuple[View, int, int | None]
"""What a reader wants and where it is: its view, its cursor, and the instance of the topic that the cursor belongs to
if that is another one. Readers who agree in it get the same bytes."""


class Reader(Protocol):
    """One reader of one topic, as the hub sees it."""

    view: View
    open: bool

    def standing(self) -> Standing: ...

    def ready(self) -> bool:
        """Is there room for more? If not, it asks to `go_on` itself when there is. Asked before a page is read."""
        ...

    def take(self, rendered: Rendered) -> bool:
        """False if it was too much for now; the reader then asks to `go_on`."""
        ...

    def lost(self) -> None:
        """The topic is gone."""
        ...

    def failed(self, error: Exception) -> None:
        """The topic cannot be read."""
        ...


class Agenda(Protocol):
    """In which order dirty channels get their turns. Each is in it at most once."""

    def add(self, channel: Channel) -> None: ...

    def take(self) -> Channel | None: ...

    def __len__(self) -> int: ...


class InOrder:
    """First come, first served; one with more to do goes to the end."""

    def __init__(self) -> None:
        self._waiting: dict[Channel, None] = {}

    def add(self, channel: Channel) -> None:
        self._waiting[channel] = None

    def take(self) -> Channel | None:
        for channel in self._waiting:
            del self._waiting[channel]
            return channel
        return None

    def __len__(self) -> int:
        return len(self._waiting)


class Channel:
    """The readers of one topic."""

    __slots__ = ("_hub", "_shared_bytes", "behind", "listening", "resting", "shared", "topic", "unsafe_soon", "version")

    def __init__(self, hub: Hub, topic: Topic) -> None:
        self._hub = hub
        self.topic = topic
        self.resting: dict[Reader, None] = {}
        """Those who have everything."""
        self.behind: deque[Reader] = deque()
        """Those who may not; some have closed meanwhile."""
        self.listening = False
        self.version = (-1, -1, -1)
        self.shared: dict[Standing, Rendered] = {}
        """Pages of the present version."""
        self._shared_bytes = 0
        self.unsafe_soon = False

    def keep(self, standing: Standing, rendered: Rendered) -> None:
        size = sum(map(len, rendered.page.pieces))
        if self._shared_bytes + size > SHARED_BYTES:
            self.forget()
        self.shared[standing] = rendered
        self._shared_bytes += size

    def forget(self) -> None:
        self.shared.clear()
        self._shared_bytes = 0

    def release(self) -> None:
        """By the topic, under the store's lock: something was appended, or it is gone."""
        self.listening = False
        self._hub.heard(self)


class Hub:
    def __init__(self, broker: Broker, pump: Pump, agenda: Agenda | None = None) -> None:
        self.broker = broker
        self._pump = pump
        self._store = broker.store
        self._loop = pump.loop
        self._thread_id = pump.thread_id
        self._channels: dict[int, Channel] = {}
        self._agenda: Agenda = InOrder() if agenda is None else agenda
        self._turn_soon = False
        self.coalesce_s = 0.0
        """How long a topic that took something in waits for more of it before its readers are woken."""
        self.delivered = 0
        """Blocks handed to readers."""

    # -- readers come and go -------------------------------------------------------------------------------------------

    def join(self, topic: Topic, reader: Reader) -> None:
        channel = self._channels.get(topic.id)
        if channel is None:
            channel = self._channels[topic.id] = Channel(self, topic)
        channel.behind.append(reader)
        self._soon(channel)

    def go_on(self, topic: Topic, reader: Reader) -> None:
        """A reader that had no room has some, or one that rested is to look again."""
        channel = self._channels.get(topic.id)
        if channel is None:
            self.join(topic, reader)
            return
        channel.resting.pop(reader, None)
        channel.behind.append(reader)
        self.dirty(channel)

    def leave(self, topic: Topic, reader: Reader) -> None:
        """It is closed; where it waits to be served it is passed over."""
        channel = self._channels.get(topic.id)
        if channel is not None:
            channel.resting.pop(reader, None)
            self._drop_if_empty(channel)

    def _drop_if_empty(self, channel: Channel) -> None:
        if channel.resting or any(reader.open for reader in channel.behind):
            return
        if self._channels.get(channel.topic.id) is channel:
            del self._channels[channel.topic.id]
        with self._store.lock:
            if channel.listening:
                channel.listening = False
                channel.topic.waiters.remove(channel)

    # -- what is to be done --------------------------------------------------------------------------------------------

    def heard(self, channel: Channel) -> None:
        """Under the store's lock, from any thread."""
        if threading.get_ident() == self._thread_id:
            self._loop.call_soon(self._heard, channel)
        else:
            self._loop.call_soon_threadsafe(self._heard, channel)

    def _heard(self, channel: Channel) -> None:
        if self.coalesce_s:
            # It listens again only when it is served: whatever comes until then is in the same page.
            self._loop.call_later(self.coalesce_s, self.woken, channel)
        else:
            self.woken(channel)

    def woken(self, channel: Channel) -> None:
        if channel.resting:
            channel.behind.extend(channel.resting)
            channel.resting.clear()
        self.dirty(channel)

    def dirty(self, channel: Channel) -> None:
        """The one place where a topic is said to need delivery."""
        if channel.topic.config.ttl_ms:
            swept = self._pump.run(self._swept(channel.topic.name))
            if isinstance(swept, asyncio.Future):
                swept.add_done_callback(lambda _: self._soon(channel))
                return
        self._soon(channel)

    def _swept(self, name: str) -> Steps[None]:
        """What is too old is gone before it could be delivered."""
        try:
            yield from self.broker.watched(name, pull=False)
        except TopicsError:
            pass  # the turn finds out

    def _soon(self, channel: Channel) -> None:
        self._agenda.add(channel)
        self.kick()

    def kick(self) -> None:
        """Somebody may be served who could not before."""
        if not self._turn_soon and len(self._agenda) > 0:
            self._turn_soon = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        channel = self._agenda.take()
        try:
            if channel is not None and self._serve(channel):
                self._agenda.add(channel)
        finally:
            self._turn_soon = len(self._agenda) > 0
            if self._turn_soon:
                self._loop.call_soon(self._turn)

    # -- serving -------------------------------------------------------------------------------------------------------

    def _serve(self, channel: Channel) -> bool:
        """One slice; True if there is more."""
        topic, store = channel.topic, self._store
        with store.lock:
            there = store.by_id.get(topic.id) is topic and not store.closed
            if there and not channel.listening:
                topic.waiters.append(channel)
                channel.listening = True
            version = (topic.head, topic.live, topic.dead.floor)
        if not there:
            self._lose(channel)
            return False
        if version != channel.version:
            channel.version = version
            channel.forget()
        self.broker.clocks.read(topic, self.broker.clock.now_ms())
        behind, resting, shared, reads = channel.behind, channel.resting, channel.shared, READS
        for _ in range(min(len(behind), SLICE)):
            reader = behind.popleft()
            if not reader.open:
                continue
            standing = reader.standing()
            rendered = shared.get(standing)
            if rendered is None:
                if not reader.ready():
                    continue
                if not reads:
                    behind.appendleft(reader)
                    break
                reads -= 1
                rendered = self._read(channel, reader, standing)
                if rendered is None:
                    continue
                channel.keep(standing, rendered)
            if not reader.take(rendered):
                continue
            self.delivered += 1
            if rendered.caught_up:
                resting[reader] = None
            elif reader.view.strong and not rendered.says_something:
                channel.resting[reader] = None
                self._look_again(channel)
            else:
                behind.append(reader)
        if behind:
            return True
        channel.forget()
        self._drop_if_empty(channel)
        return False

    def _read(self, channel: Channel, reader: Reader, standing: Standing) -> Rendered | None:
        topic = channel.topic
        view, cursor, epoch = standing
        through = None
        if view.strong:
            with self._store.lock:
                through = durable_seq(topic, self._store.shard_for(topic))
        try:
            page = read_page(self._store, topic, view.query(cursor, through, epoch))
        except NotFound:
            channel.resting[reader] = None  # dropped while it was read: the channel hears of it
            return None
        except Exception as error:
            reader.failed(error)
            return None
        return Rendered(page, cursor)

    def _lose(self, channel: Channel) -> None:
        self._channels.pop(channel.topic.id, None)
        for reader in (*channel.resting, *channel.behind):
            if reader.open:
                reader.lost()
        channel.resting.clear()
        channel.behind.clear()

    def _look_again(self, channel: Channel) -> None:
        if not channel.unsafe_soon:
            channel.unsafe_soon = True
            self._loop.call_later(SAFE_S, self._safer, channel)

    def _safer(self, channel: Channel) -> None:
        channel.unsafe_soon = False
        self.woken(channel)
