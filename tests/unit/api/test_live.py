"""Bytes for live readers, heartbeats and the hub, without sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from topics.api.agenda import ByPriority
from topics.api.channel import SHARED_BYTES
from topics.api.cohort import Cohort, Form, Standing
from topics.api.events import Block, Rendered, sse_frame, text_frame
from topics.api.hub import READS, SLICE, Hub
from topics.api.live import Heartbeats
from topics.api.pump import Pump
from topics.broker.broker import Broker
from topics.broker.reading import Page
from topics.broker.watch import View, event_id, told_of
from topics.format.ops import prepare_body
from topics.host.clock import SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.model.config import TopicConfig
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.topic import Topic


def test_each_frame_of_a_block_is_a_chunk() -> None:
    block = Block([b"id: 1\n\n", b"x" * 300])
    assert block.chunked == b"7\r\nid: 1\n\n\r\n12c\r\n" + b"x" * 300 + b"\r\n"
    assert block.plain == b"id: 1\n\n" + b"x" * 300
    assert block.count == 2


@pytest.mark.parametrize(
    ("size", "head"),
    [(0, b"\x81\x00"), (125, b"\x81\x7d"), (126, b"\x81\x7e\x00\x7e"), (65_535, b"\x81\x7e\xff\xff"),
     (65_536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00")],
)  # fmt: skip
def test_length_of_a_text_frame_has_three_forms(size: int, head: bytes) -> None:
    assert text_frame(b"x" * size) == head + b"x" * size


def test_readers_of_one_page_share_its_bytes() -> None:
    rendered = Rendered(Page("a", 2, 1, 2, None, [b'{"$seq":1}', b'{"$seq":2}'], 2), 0)
    assert rendered.block(True) is rendered.block(False)
    assert rendered.messages()[0] is rendered.messages()[0]


@pytest.mark.parametrize("pieces", [[b'{"$seq":8}'], [b'{"$seq":7}', b'{"$seq":8}']])
def test_usual_block_is_said_in_one_go_and_in_the_same_words(pieces: list[bytes]) -> None:
    rendered = Rendered(Page('näme"', 8, 3, 8, None, pieces, len(pieces)), 6)
    told = told_of(rendered.page, said=False)
    frames = [
        sse_frame(one.kind.encode(), rendered.sse_data(one, first=False), event_id((('näme"', one.cursor),)))
        for one in told
    ]
    assert rendered.plain() == b"".join(frames)
    assert rendered.chunked() == b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames)
    assert [one.kind for one in told] == ["record", "caught-up"]


class Stub:
    """Beats at its interval, and keeps when."""

    def __init__(self, heartbeat_s: float) -> None:
        self.open = True
        self.heartbeat_s = heartbeat_s
        self.sent_at = 0.0
        self.beats = 0
        self.enough = asyncio.Event()

    def beat(self) -> None:
        self.beats += 1
        if self.beats == 3:
            self.enough.set()


def test_silent_streams_beat_and_closed_ones_do_not() -> None:
    async def run() -> None:
        heartbeats = Heartbeats(asyncio.get_running_loop())
        slow, quick, closed = Stub(60), Stub(0.005), Stub(0.005)
        for stream in (slow, quick, closed):
            heartbeats.add(stream)
        closed.open = False
        await asyncio.wait_for(quick.enough.wait(), 60)
        assert (slow.beats, closed.beats) == (0, 0)
        heartbeats.stop()

    asyncio.run(run())


class Fake:
    """A reader that keeps what it is given; `room` is how often it can take something."""

    def __init__(self, topic: Topic, cursor: int = 0, room: int = 1 << 30, view: View | None = None) -> None:
        self.topic = topic
        self.view = view or View()
        self.open = True
        self.cursor = cursor
        self.room = room
        self.pages: list[Rendered] = []
        self.is_lost = False
        self.form: Form = Rendered.plain
        self.cohort: Cohort[Any] | None = None
        self.slot = 0

    def standing(self) -> Standing:
        return self.view, self.cursor, None

    def ready(self) -> bool:
        return self.room > 0

    def take(self, rendered: Rendered) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.pages.append(rendered)
        self.cursor = rendered.cursor
        return True

    def share(self) -> int:
        return -1

    def stepped_out(self, cursor: int, sent_at: float) -> None:
        raise AssertionError("it is served by itself")

    def queue(self, rest: memoryview, rendered: Rendered) -> None:
        raise AssertionError("it is served by itself")

    def lost(self) -> None:
        self.open = False
        self.is_lost = True

    def failed(self, error: Exception) -> None:
        raise error


class World:
    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        clock = SystemClock()
        self.store = open_store(OsFs(), str(path / "s"), StoreOptions(), clock, SystemIds(), self.lock)
        self.pump = Pump(self.store, self.lock, asyncio.get_running_loop())
        self.broker = Broker(self.store, clock)
        self.agenda = ByPriority(self.broker.clocks, clock)
        self.hub = Hub(self.broker, self.pump, self.agenda)

    async def do(self, steps: Any) -> Any:
        done = self.pump.run(steps)
        return await done if isinstance(done, asyncio.Future) else done

    async def topic(self, name: str) -> Topic:
        await self.do(self.broker.put_topic(name, TopicConfig()))
        return self.store.topics[name]

    async def append(self, name: str, count: int = 1, size: int = 1) -> None:
        record = b'{"data":"%b"}' % (b"x" * size)
        quick = prepare_body(b'{"records":[' + b",".join([record] * count) + b"]}", 10_000)
        assert quick is not None
        await self.do(self.broker.append(name, quick[0], None, None, True))

    async def quiet(self) -> None:
        """Until nobody has a turn to come."""
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not len(self.agenda)

    async def close(self) -> None:
        self.pump.stop_waiting()
        await asyncio.to_thread(self.pump.close)


def in_world(path: Path, run: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = World(path)
        try:
            await asyncio.wait_for(run(world), 120)
        finally:
            await world.close()

    asyncio.run(whole())


def test_page_is_rendered_once_for_all_who_stand_at_its_cursor(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        readers = [Fake(topic) for _ in range(3 * SLICE)]
        for reader in readers:
            world.hub.join(topic, reader)
        await world.quiet()
        await world.append("a")
        await world.quiet()
        assert len({id(reader.pages[-1]) for reader in readers}) == 1
        assert {reader.cursor for reader in readers} == {1}

    in_world(tmp_path, run)


def test_reader_without_room_keeps_its_cursor_and_goes_on_when_asked(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        slow, quick = Fake(topic, room=1), Fake(topic)
        world.hub.join(topic, slow)
        world.hub.join(topic, quick)
        await world.quiet()
        for _ in range(3):
            await world.append("a")
            await world.quiet()
        assert (slow.cursor, quick.cursor) == (0, 3)
        slow.room = 10
        world.hub.go_on(topic, slow)
        await world.quiet()
        assert slow.cursor == 3

    in_world(tmp_path, run)


def test_dropped_topic_is_told_to_all_its_readers(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        resting, full = Fake(topic), Fake(topic, room=0)
        world.hub.join(topic, resting)
        world.hub.join(topic, full)
        await world.quiet()
        await world.do(world.broker.drop_topic("a", False))
        await world.quiet()
        assert resting.is_lost
        assert not full.is_lost, "one that cannot be told anything is told when it can"
        world.hub.go_on(topic, full)
        await world.quiet()
        assert full.is_lost

    in_world(tmp_path, run)


def test_topic_without_readers_is_not_listened_to(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        before = len(topic.waiters)
        reader = Fake(topic)
        world.hub.join(topic, reader)
        await world.quiet()
        assert len(topic.waiters) == before + 1
        reader.open = False
        world.hub.leave(topic, reader)
        assert len(topic.waiters) == before
        await world.append("a")
        await world.quiet()
        assert len(reader.pages) == 1

    in_world(tmp_path, run)


def test_one_who_catches_up_leaves_little_behind_and_others_get_their_turns(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        for _ in range(30):
            await world.append("a", 10, 100_000)
        reader = Fake(topic, view=View(limit=1))
        world.hub.join(topic, reader)
        kept = 0
        while reader.cursor < 300:
            before = reader.cursor
            await asyncio.sleep(0)
            assert reader.cursor - before <= READS, "a turn reads a few pages"
            channel = world.hub._channels[topic.id]
            kept = max(kept, sum(sum(map(len, one.page.pieces)) for one in channel.shared.values()))
        assert kept <= SHARED_BYTES

    in_world(tmp_path, run)


def test_reader_served_after_a_delete_does_not_get_what_was_deleted(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        await world.append("a", 5)
        readers = [Fake(topic) for _ in range(2 * SLICE)]
        for reader in readers:
            world.hub.join(topic, reader)
        while not readers[0].pages:
            await asyncio.sleep(0)
        assert not readers[-1].pages, "the pass is under way"
        # Without a turn of the loop: a slow disk would let the pass end meanwhile.
        deleted, _ = world.broker.store.delete("a", 6, None)
        world.broker.store.drive(deleted)
        first_late = next(reader for reader in readers if not reader.pages)
        await world.quiet()
        assert readers[0].pages[0].page.count == 5
        assert first_late.pages[0].page.count == 0
        assert first_late.cursor == 5

    in_world(tmp_path, run)
