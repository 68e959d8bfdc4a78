"""Delivery: which readers of a topic are to be served, in what order, and a page rendered once for all who want it.

    append applied ─▶ Channel.release ─▶ heard ─▶ dirty ─▶ agenda ─▶ turn: a slice of readers ─▶ their sockets

The store releases a channel under its lock, from any thread; everything else runs on the loop. Delivery begins in the
turn of the loop that follows the one in which the writer's answer goes out. A turn serves about a hundred readers of
one topic, those who are up to date before those who catch up, and then whoever else waits for the loop has it. A
channel listens at its topic before it reads, so nothing that comes in between is missed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from topics.api.channel import Channel, Reader, Version
from topics.api.cohort import Cohort, Standing
from topics.api.events import Rendered
from topics.api.pump import Pump
from topics.broker.broker import Broker
from topics.broker.reading import read_page
from topics.broker.steps import Steps
from topics.host.processor import Courtesy
from topics.model.errors import NotFound, TopicsError
from topics.storage.durable import durable_seq
from topics.storage.topic import Topic

log = logging.getLogger("topics.api")

SLICE: Final = 100
"""Readers served in one turn of the loop: about a third of a millisecond of sending, which two threads share. Between
two turns of one hand-out those who were sent something may read it."""
READS: Final = 4
"""Pages read in one turn: those who catch up must not hold up those who are there."""
SAFE_S: Final = 0.01
"""How often a reader that waits for syncs looks again: a sync tells nobody whose records it made safe."""


class Agenda(Protocol):
    """In which order dirty channels get their turns. Each is in it at most once."""

    def add(self, channel: Channel) -> None: ...

    def take(self) -> Channel | None: ...

    def __len__(self) -> int: ...


class Hub:
    def __init__(self, broker: Broker, pump: Pump, agenda: Agenda) -> None:
        self.broker = broker
        self._pump = pump
        self._store = broker.store
        self._loop = pump.loop
        self._thread_id = pump.thread_id
        self._channels: dict[int, Channel] = {}
        self._agenda = agenda
        self._turn_soon = False
        self._courtesy = Courtesy(broker.clock)
        self._reads = 0
        """Pages that may still be read in this turn."""
        self.coalesce_s = 0.0
        """How long a topic that took something in waits for more of it before its readers are woken."""
        self.delivered = 0
        """Blocks handed to readers."""

    # -- readers come and go -------------------------------------------------------------------------------------------

    def join(self, topic: Topic, reader: Reader) -> None:
        channel = self._channels.get(topic.id)
        if channel is None:
            channel = self._channels[topic.id] = Channel(topic, self.heard)
        channel.behind.append(reader)
        self._soon(channel)

    def go_on(self, topic: Topic, reader: Reader) -> None:
        """A reader that had no room has some, or one that rested is to look again."""
        channel = self._channels.get(topic.id)
        if channel is None:
            self.join(topic, reader)
            return
        channel.remove(reader)
        channel.behind.append(reader)
        self.dirty(channel)

    def step_out(self, topic: Topic, reader: Reader) -> None:
        """A reader has something of its own to write."""
        channel = self._channels.get(topic.id)
        if channel is not None:
            channel.step_out(reader)

    def leave(self, topic: Topic, reader: Reader) -> None:
        """It is closed; where it waits to be served it is passed over."""
        channel = self._channels.get(topic.id)
        if channel is not None:
            channel.remove(reader)
            self._drop_if_empty(channel)

    def _drop_if_empty(self, channel: Channel) -> None:
        if not channel.is_empty:
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
            self._loop.call_soon(self._heard, channel, True)
        else:
            self._loop.call_soon_threadsafe(self._heard, channel, False)

    def _heard(self, channel: Channel, answered: bool = False) -> None:
        """`answered`: the turn of the loop that wrote it has ended, and what it had to say was sent."""
        if self.coalesce_s:
            # It listens again only when it is served: whatever comes until then is in the same page.
            self._loop.call_later(self.coalesce_s, self.woken, channel)
        else:
            self.woken(channel, answered and not self._pump.is_waking)

    def woken(self, channel: Channel, at_once: bool = False) -> None:
        channel.wake()
        self.dirty(channel, at_once)

    def dirty(self, channel: Channel, at_once: bool = False) -> None:
        """The one place where a topic is said to need delivery. `at_once`: nobody's answer waits for the end of this
        turn of the loop, so its own turn may begin in it."""
        if channel.topic.config.ttl_ms:
            swept = self._pump.run(self._swept(channel.topic.name))
            if isinstance(swept, asyncio.Future):
                swept.add_done_callback(lambda _: self._soon(channel))
                return
        self._soon(channel, at_once)

    def _swept(self, name: str) -> Steps[None]:
        """What is too old is gone before it could be delivered."""
        try:
            yield from self.broker.watched(name, pull=False)
        except TopicsError:
            pass  # the turn finds out

    def _soon(self, channel: Channel, at_once: bool = False) -> None:
        self._agenda.add(channel)
        if at_once and not self._turn_soon:
            self._turn()
        else:
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
            version = Version(topic.head, topic.live, topic.dead.floor)
        if not there:
            self._lose(channel)
            return False
        channel.renew(version)
        self.broker.clocks.read(topic, self.broker.clock.now_ms())
        self._reads = READS
        room = SLICE
        if channel.late:
            room -= self._serve_late(channel, SLICE // 2 if channel.behind else SLICE)
        self._serve_behind(channel, room)
        if channel.has_work:
            if channel.is_handing_out:
                self._courtesy.give_way()
            return True
        channel.forget()
        self._drop_if_empty(channel)
        return False

    def _serve_late(self, channel: Channel, room: int) -> int:
        """Those who are served together; how many were."""
        late, served = channel.late, 0
        while late and served < room:
            cohort = late[0]
            if not cohort.readers:
                late.popleft()
            elif cohort.rendered is not None:
                served += self._hand_out(channel, cohort, room - served)
            elif self._reads or cohort.standing in channel.shared:
                self._begin(channel, cohort)
            else:
                break
        return served

    def _begin(self, channel: Channel, cohort: Cohort[Reader]) -> None:
        standing = cohort.standing
        rendered = channel.shared.get(standing) or self._read(channel, standing, cohort.readers)
        if rendered is None:
            return
        if not rendered.caught_up:
            channel.disband()
        elif rendered.says_something:
            cohort.begin(rendered)
        else:
            cohort.pass_over(rendered.cursor)
            channel.settle(again=False)

    def _hand_out(self, channel: Channel, cohort: Cohort[Reader], most: int) -> int:
        rendered = cohort.rendered
        assert rendered is not None
        count = min(len(cohort.readers) - cohort.served, most)
        self.delivered += count
        for reader, rest in cohort.hand_out(count, self._loop.time()):
            if rest is None:
                self.delivered -= 1
            else:
                reader.queue(rest, rendered)
            channel.behind.append(reader)
        if cohort.is_done:
            cohort.end()
            channel.settle()
        return count

    def _serve_behind(self, channel: Channel, room: int) -> None:
        """Those who are served by themselves."""
        behind, shared = channel.behind, channel.shared
        for _ in range(min(len(behind), room)):
            reader = behind.popleft()
            if not reader.open:
                continue
            standing = reader.standing()
            rendered = shared.get(standing)
            if rendered is None:
                if not reader.ready():
                    continue
                if not self._reads:
                    behind.appendleft(reader)
                    break
                rendered = self._read(channel, standing, (reader,))
                if rendered is None:
                    continue
            if not reader.take(rendered):
                continue
            self.delivered += 1
            if rendered.caught_up:
                channel.rest(reader, rendered.cursor)
            elif reader.view.strong and not rendered.says_something:
                channel.resting[reader] = None
                self._look_again(channel)
            else:
                behind.append(reader)

    def _read(self, channel: Channel, standing: Standing, readers: Sequence[Reader]) -> Rendered | None:
        """The page for these readers; None if there is none, and they have been told, or wait to be."""
        self._reads -= 1
        topic = channel.topic
        view, cursor, epoch = standing
        through = None
        if view.strong:
            with self._store.lock:
                through = durable_seq(topic, self._store.shard_for(topic))
        try:
            page = read_page(self._store, topic, view.query(cursor, through, epoch))
        except NotFound:
            for reader in tuple(readers):
                channel.remove(reader)
                channel.resting[reader] = None  # dropped while it was read: the channel hears of it
            return None
        except Exception as error:
            readers = tuple(readers)
            for reader in readers:
                channel.remove(reader)
            for reader in readers:
                reader.failed(error)
            return None
        rendered = Rendered(page, cursor)
        channel.keep(standing, rendered)
        return rendered

    def _lose(self, channel: Channel) -> None:
        self._channels.pop(channel.topic.id, None)
        for reader in channel.dissolve():
            if reader.open:
                reader.lost()

    def _look_again(self, channel: Channel) -> None:
        if not channel.unsafe_soon:
            channel.unsafe_soon = True
            self._loop.call_later(SAFE_S, self._safer, channel)

    def _safer(self, channel: Channel) -> None:
        channel.unsafe_soon = False
        channel.wake_single()
        self.dirty(channel)
