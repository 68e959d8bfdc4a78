"""Readers that are served together: what each is sent, and where it stands when it steps out."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.test_live import Fake, World, in_world
from topics.api.cohort import Cohort
from topics.api.events import Rendered
from topics.api.hub import SLICE
from topics.broker.reading import Page
from topics.broker.watch import View
from topics.format.ops import prepare_body
from topics.storage.topic import Topic


def page(cursor: int, head: int, size: int = 1) -> Rendered:
    pieces = [b'{"$seq":%d,"data":"%b"}' % (seq, b"x" * size) for seq in range(cursor + 1, head + 1)]
    return Rendered(Page("a", head, 1, head, None, pieces, len(pieces)), cursor)


class Pair:
    """A file that a cohort writes to, and what comes out at its other end."""

    def __init__(self) -> None:
        mine, self._theirs = socket.socketpair()
        mine.setblocking(False)
        self._theirs.setblocking(False)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self._mine = mine
        self._seen = b""

    @property
    def file(self) -> int:
        return self._mine.fileno()

    def fill(self) -> None:
        while True:
            try:
                self._mine.send(b" " * 1024)
            except BlockingIOError:
                return

    def send(self, data: bytes | memoryview) -> None:
        """Like a connection: what does not fit is sent when there is room."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._mine.send(rest) :]
            except BlockingIOError:
                self.drain()

    def drain(self) -> bytes:
        try:
            while data := self._theirs.recv(1 << 16):
                self._seen += data
        except BlockingIOError:
            pass
        return self._seen

    @property
    def seqs(self) -> list[int]:
        return [int(found) for found in re.findall(rb'"\$seq":(\d+)', self.drain())]

    def close(self) -> None:
        self._mine.close()
        self._theirs.close()


class Someone:
    """A reader that knows where it stands only when it has stepped out."""

    def __init__(self, cursor: int) -> None:
        self.pair = Pair()
        self.cohort: Cohort[Any] | None = None
        self.slot = 0
        self.cursor = cursor

    def stepped_out(self, cursor: int, sent_at: float) -> None:
        self.cursor = cursor


def check(cohort: Cohort[Someone]) -> None:
    for slot, reader in enumerate(cohort.readers):
        assert (reader.cohort, reader.slot, reader.pair.file) == (cohort, slot, cohort.files[slot])
    assert len(cohort.files) == len(cohort.readers)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_steps_out_knows_exactly_what_it_was_sent(seed: int) -> None:
    rng = random.Random(seed)
    head = 3
    cohort: Cohort[Someone] = Cohort(View(), head, Rendered.plain)
    everybody: list[Someone] = []
    for _ in range(120):
        step = rng.choice(("add", "add", "remove", "begin", "hand", "hand", "fill", "split"))
        if step == "add" and cohort.rendered is None and len(everybody) < 40:
            everybody.append(Someone(cohort.cursor))
            cohort.add(everybody[-1], everybody[-1].pair.file)
        elif step == "remove" and cohort.readers:
            cohort.remove(rng.choice(cohort.readers))
        elif step == "begin" and cohort.rendered is None:
            head += rng.randrange(1, 3)
            cohort.begin(page(cohort.cursor, head, rng.choice((1, 100_000))))
        elif step == "hand" and cohort.rendered is not None:
            for reader, rest in cohort.hand_out(rng.randrange(1, 8), 1.0):
                assert reader.cohort is None
                if rest is not None:
                    reader.pair.send(rest)
            if cohort.is_done:
                cohort.end()
        elif step == "fill" and cohort.readers:
            rng.choice(cohort.readers).pair.fill()
        elif step == "split" and cohort.rendered is not None:
            rest_of_them = cohort.split()
            check(rest_of_them)
            for reader in tuple(rest_of_them.readers):
                rest_of_them.remove(reader)
        check(cohort)
        for reader in everybody:
            reader.pair.drain()
    for reader in tuple(cohort.readers):
        cohort.remove(reader)
    for reader in everybody:
        seqs = reader.pair.seqs
        assert reader.cohort is None
        if seqs:
            assert seqs == list(range(seqs[0], reader.cursor + 1))
        reader.pair.close()


def test_two_cohorts_at_one_place_become_one() -> None:
    one, other = (Cohort[Someone](View(), 5, Rendered.plain) for _ in range(2))
    readers = [Someone(5) for _ in range(5)]
    for reader, cohort in zip(readers, (one, one, other, other, other), strict=True):
        cohort.add(reader, reader.pair.file)
    one.sent_at, other.sent_at = 1.0, 2.0
    one.absorb(other)
    check(one)
    assert (len(one.readers), other.readers, one.sent_at) == (5, [], 2.0)
    for reader in readers:
        reader.pair.close()


class Together(Fake):
    """A reader that can be served with others."""

    def __init__(self, world: World, topic: Topic, cursor: int = 0, view: View | None = None) -> None:
        super().__init__(topic, cursor, view=view)
        self._world = world
        self.pair = Pair()
        self.can_share = True
        self.shared = False

    def take(self, rendered: Rendered) -> bool:
        if rendered.says_something:
            self.pair.send(rendered.plain())
        return super().take(rendered)

    def share(self) -> int:
        self.shared = self.can_share
        return self.pair.file if self.can_share else -1

    def stepped_out(self, cursor: int, sent_at: float) -> None:
        self.shared = False
        self.cursor = cursor

    def queue(self, rest: memoryview, rendered: Rendered) -> None:
        assert not self.shared
        self.pair.send(rest)

    def leave(self) -> None:
        self.open = False
        self._world.hub.leave(self.topic, self)


async def joined(world: World, topic: Topic, count: int) -> list[Together]:
    readers = [Together(world, topic, topic.head) for _ in range(count)]
    for reader in readers:
        world.hub.join(topic, reader)
    await world.quiet()
    assert all(reader.shared for reader in readers)
    return readers


def step_out_all(world: World, readers: list[Together]) -> None:
    for reader in readers:
        world.hub.step_out(reader.topic, reader)


def test_all_who_rest_at_one_place_are_sent_the_same_without_being_asked(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        readers = await joined(world, topic, 3 * SLICE)
        for reader in readers:
            reader.pages.clear()
        for _ in range(3):
            await world.append("a")
            await world.quiet()
        assert all(reader.pair.seqs == [1, 2, 3] for reader in readers)
        assert not any(reader.pages for reader in readers), "none was served by itself"
        assert len(world.hub._channels[topic.id].cohorts) == 1
        step_out_all(world, readers)
        assert {reader.cursor for reader in readers} == {3}
        await world.append("a")
        await world.quiet()
        assert all(reader.pair.seqs == [1, 2, 3, 4] for reader in readers), "by itself it goes on from there"
        for reader in readers:
            reader.pair.close()

    in_world(tmp_path, run)


def test_what_comes_while_some_are_served_reaches_everybody_once(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        readers = await joined(world, topic, 5 * SLICE // 2)
        await world.append("a")
        for number in range(2, 8):
            while not any(reader.pair.seqs for reader in readers):
                await asyncio.sleep(0)
            await world.append("a")
            readers[number].leave()
            late = Together(world, topic, 0)
            world.hub.join(topic, late)
            readers.append(late)
            await asyncio.sleep(0)
        await world.quiet()
        for reader in readers:
            if reader.open:
                assert reader.pair.seqs == list(range(1, 8))
        assert len(world.hub._channels[topic.id].cohorts) == 1
        for reader in readers:
            reader.pair.close()

    in_world(tmp_path, run)


def test_those_not_yet_served_do_not_get_what_was_deleted(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        readers = await joined(world, topic, 2 * SLICE)
        # Both without a turn of the loop: a slow disk would let the pass end meanwhile.
        store = world.broker.store
        records = prepare_body(b'{"records":[' + b",".join([b'{"data":1}'] * 5) + b"]}", 10)
        assert records is not None
        store.drive(store.append("a", records[0]).submission)
        while not any(reader.pair.seqs for reader in readers):
            await asyncio.sleep(0)
        assert not all(reader.pair.seqs for reader in readers), "the pass is under way"
        had = [reader for reader in readers if reader.pair.seqs]
        store.drive(store.delete("a", 6, None)[0])
        await world.append("a")
        await world.quiet()
        for reader in readers:
            assert reader.pair.seqs == ([1, 2, 3, 4, 5, 6] if reader in had else [6])
        step_out_all(world, readers)
        assert {reader.cursor for reader in readers} == {6}
        for reader in readers:
            reader.pair.close()

    in_world(tmp_path, run)


def test_full_reader_steps_out_and_gets_the_rest_by_itself(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        full, half, quick = readers = await joined(world, topic, 3)
        full.pair.fill()
        for reader in readers:
            reader.pages.clear()
        await world.append("a", 1, 200_000)
        while full.cursor < 1:
            await asyncio.sleep(0)
        await world.quiet()
        assert [one.page.next_from_seq for one in full.pages if one.says_something] == [1]
        assert not any(one.says_something for one in half.pages), "its kernel took a part, and the rest was queued"
        for reader in readers:
            assert reader.pair.seqs == [1]
            assert reader.pair.drain().count(b"caught-up") == 1
        await world.append("a")
        await world.quiet()
        assert [reader.pair.seqs for reader in readers] == [[1, 2]] * 3
        assert quick.shared
        for reader in readers:
            reader.pair.close()

    in_world(tmp_path, run)


def test_reader_that_may_not_share_is_served_beside_those_who_do(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        readers = await joined(world, topic, 4)
        alone = Together(world, topic, 0)
        alone.can_share = False
        world.hub.join(topic, alone)
        await world.append("a", 2)
        await world.quiet()
        assert all(reader.pair.seqs == [1, 2] for reader in (*readers, alone))
        assert alone.cohort is None
        for reader in (*readers, alone):
            reader.pair.close()

    in_world(tmp_path, run)


def test_records_that_nobody_wants_move_a_cohort_without_a_word(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        readers = [Together(world, topic, 0, View(exclude_nodes=(b"n",))) for _ in range(2)]
        for reader in readers:
            world.hub.join(topic, reader)
        await world.quiet()
        own = prepare_body(b'{"records":[{"data":1,"node":"n"}]}', 10)
        assert own is not None
        await world.do(world.broker.append("a", own[0], None, None, True))
        await world.quiet()
        assert all(reader.shared for reader in readers)
        await world.append("a")
        await world.quiet()
        assert [reader.pair.seqs for reader in readers] == [[2], [2]]
        step_out_all(world, readers)
        assert [reader.cursor for reader in readers] == [2, 2]
        for reader in readers:
            reader.pair.close()

    in_world(tmp_path, run)


def test_dropped_topic_tells_a_cohort_where_it_stood(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        readers = await joined(world, topic, 3)
        await world.append("a", 2)
        await world.quiet()
        await world.do(world.broker.drop_topic("a", False))
        await world.quiet()
        assert all(reader.is_lost and reader.cursor == 2 and not reader.shared for reader in readers)
        for reader in readers:
            reader.pair.close()

    in_world(tmp_path, run)


def test_topic_whose_cohort_has_left_is_not_listened_to(tmp_path: Path) -> None:
    async def run(world: World) -> None:
        topic = await world.topic("a")
        before = len(topic.waiters)
        readers = await joined(world, topic, 3)
        assert len(topic.waiters) == before + 1
        for reader in readers:
            reader.leave()
            reader.pair.close()
        assert len(topic.waiters) == before
        assert not world.hub._channels

    in_world(tmp_path, run)
