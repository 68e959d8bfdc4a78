"""A router, what its callers were told, and what must be true of it after any crash."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tests.unit.broker.routed import Routed
from topics.broker.router import forward
from topics.format.ops import prepare
from topics.testing.disk import FakeDisk

DIRECT = 1000
"""Payloads from here on were written to the dest itself."""


class Story:
    """A router `r` from `a` to `b`, and what its callers were told so far."""

    def __init__(self, routed: Routed) -> None:
        self.routed = routed
        self.sent: list[int] = []
        self.direct: list[int] = []
        self.acked_direct: list[int] = []
        self.deleted: set[int] = set()
        self.acked_deleted: set[int] = set()
        self._next = 0

    def source(self, count: int) -> None:
        data = list(range(self._next, self._next + count))
        self._next += count
        self.sent += data
        self.routed.append("a", *data)

    def copy(self) -> None:
        while self.routed.step("r"):
            pass

    def write_directly(self, count: int = 1) -> None:
        data = [DIRECT + self._next + at for at in range(count)]
        self._next += count
        self.direct += data
        self.routed.append("b", *data)
        self.acked_direct += data

    def mix(self) -> None:
        """Copies and a direct write in one sync."""
        store = self.routed.store
        data = DIRECT + self._next
        self._next += 1
        done = forward(store, self.routed.router("r"))
        self.direct.append(data)
        store.drive(store.append("b", prepare([{"data": data}])).submission)
        store.drive(done.submission)
        self.acked_direct.append(data)

    def delete_first(self) -> None:
        found = self.routed.records("b")
        if not found:
            return  # an injected fault left nothing there
        first = found[0]
        self.deleted.add(first.data)
        self.routed.store.drive(self.routed.store.delete("b", first.seq + 1, None)[0])
        self.acked_deleted.add(first.data)

    def checkpoint(self) -> None:
        self.routed.store.checkpoint()

    # -- what must be true ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Of classes that survive every crash."""
        routed = self.routed
        routed.pull("b")
        found = routed.data("b")
        assert len(found) == len(set(found)), f"a copy came twice: {found}"
        source = routed.data("a")
        copies = [number for number in found if number < DIRECT]
        wanted = [number for number in source if number not in self.deleted]
        gone = [number for number in copies if number in self.deleted - self.acked_deleted]
        assert [number for number in copies if number not in gone] == wanted, f"{copies} of {source}"
        assert not self.acked_deleted & set(found), "a deleted record came back"
        direct = set(found) - set(copies)
        assert set(self.acked_direct) - self.deleted <= direct <= set(self.direct)
        router = routed.router("r")
        assert router.cursor == routed.store.topic("a").head
        assert router.forwarded == len(source), "every record was copied once"


Step = Callable[[Story], None]


def source(count: int) -> Step:
    return lambda story: story.source(count)


STORY: list[Step] = [
    source(3),
    Story.copy,
    Story.write_directly,
    source(2),
    Story.mix,
    Story.delete_first,
    source(2),
    Story.checkpoint,
    Story.copy,
    Story.write_directly,
    Story.checkpoint,
    source(1),
    Story.delete_first,
    Story.copy,
]


@cache
def _base(shards: int) -> FakeDisk:
    routed = Routed(wal_shards=shards)
    # With several shards the list, the source and the dest lie on three of them.
    routed.on_shard(1 % shards, "a")
    routed.on_shard(2 % shards, "b")
    routed.put("r", "a", "b")
    routed.disk.kill()
    return routed.disk


def begin(shards: int) -> Story:
    disk = _base(shards).clone()
    disk.restart()
    return Story(Routed(disk, wal_shards=shards))


def tell(story: Story, steps: list[Step] = STORY) -> None:
    for step in steps:
        step(story)
