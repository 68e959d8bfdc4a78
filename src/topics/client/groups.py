"""Consumer groups through a client: `client.group("orders", "billing").fetch("worker-1")`.

`fields` of the calls below are those of the contract that have a default: `generation` in all of them, `tokens` where
seqs are named.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from topics.client import groupcalls
from topics.client.calls import Call
from topics.client.groupcalls import (
    Acked,
    Committed,
    Extended,
    Fetched,
    Generation,
    GroupCalls,
    GroupConfigured,
    GroupDropped,
    GroupInfo,
    Joined,
    Nacked,
    Pending,
    Place,
    Rejected,
    Sought,
)

T = TypeVar("T")


class Caller(Protocol):
    def __call__(self, call: Call[T]) -> T: ...


class AsyncCaller(Protocol):
    def __call__(self, call: Call[T]) -> Awaitable[T]: ...


class Group:
    """One group of one topic."""

    def __init__(self, call: Caller, topic: str, group: str) -> None:
        self._call = call
        self._of = GroupCalls(topic, group)

    def create(self, **config: Any) -> GroupConfigured:
        """Make it, or replace its config; `start` says where a new one begins."""
        return self._call(self._of.create(config))

    def info(self) -> GroupInfo:
        return self._call(self._of.info())

    def drop(self) -> GroupDropped:
        return self._call(self._of.drop())

    def join(self, member: str | None = None) -> Joined:
        """Become a member, or one of a new generation; a name is made where none is given."""
        return self._call(self._of.join(member))

    def leave(self, member: str, generation: int | None = None) -> Generation:
        """What the member holds is free at once."""
        return self._call(self._of.leave(member, generation))

    def heartbeat(self, member: str, generation: int | None = None) -> Generation:
        return self._call(self._of.heartbeat(member, generation))

    def fetch(self, member: str, *, wait_ms: int = 0, **fields: Any) -> Fetched:
        """The next records for a member. `fields`: `max`, `max_bytes`, `claim_idle_ms`."""
        return self._call(self._of.fetch(member, wait_ms, fields))

    def claim(self, member: str, min_idle_ms: int, **fields: Any) -> Fetched:
        """Take over what other members left idle. `fields`: `max`, `seqs`."""
        return self._call(self._of.claim(member, min_idle_ms, fields))

    def commit(self, seq: int, member: str | None = None, generation: int | None = None) -> Committed:
        """Stream mode: `seq` is the next one to read."""
        return self._call(self._of.commit(seq, member, generation))

    def ack(
        self, member: str, seqs: Sequence[int] = (), *, ranges: Sequence[tuple[int, int]] = (), **fields: Any
    ) -> Acked:
        return self._call(self._of.ack(member, seqs, ranges, fields))

    def nack(self, member: str, seqs: Sequence[int], **fields: Any) -> Nacked:
        """Give records back. `fields`: `delay_ms`, `count`."""
        return self._call(self._of.nack(member, seqs, fields))

    def reject(self, member: str, seqs: Sequence[int], **fields: Any) -> Rejected:
        """To the dead letters, or parked. `fields`: `reason`."""
        return self._call(self._of.reject(member, seqs, fields))

    def extend(self, member: str, seqs: Sequence[int], visibility_ms: int, **fields: Any) -> Extended:
        return self._call(self._of.extend(member, seqs, visibility_ms, fields))

    def seek(self, to: Place, *, force: bool = False, dry_run: bool = False) -> Sought:
        return self._call(self._of.seek(to, force, dry_run))

    def pending(self, **wanted: Any) -> Iterator[Pending]:
        """By seq, page by page. `wanted`: `member`, `min_idle_ms`, `parked`, `limit` (of a page)."""
        cursor: str | None = None
        while True:
            page = self._call(self._of.pending({**wanted, "cursor": cursor}))
            yield from page.pending
            if (cursor := page.next_cursor) is None:
                return


def groups(call: Caller, topic: str, prefix: str | None) -> Iterator[GroupInfo]:
    """All groups of a topic by name, page by page."""
    cursor: str | None = None
    while True:
        page = call(groupcalls.page(topic, prefix, 1000, cursor))
        yield from page.groups
        if (cursor := page.next_cursor) is None:
            return


class AsyncGroup:
    """One group of one topic, for an event loop."""

    def __init__(self, call: AsyncCaller, topic: str, group: str) -> None:
        self._call = call
        self._of = GroupCalls(topic, group)

    async def create(self, **config: Any) -> GroupConfigured:
        """Make it, or replace its config; `start` says where a new one begins."""
        return await self._call(self._of.create(config))

    async def info(self) -> GroupInfo:
        return await self._call(self._of.info())

    async def drop(self) -> GroupDropped:
        return await self._call(self._of.drop())

    async def join(self, member: str | None = None) -> Joined:
        """Become a member, or one of a new generation; a name is made where none is given."""
        return await self._call(self._of.join(member))

    async def leave(self, member: str, generation: int | None = None) -> Generation:
        """What the member holds is free at once."""
        return await self._call(self._of.leave(member, generation))

    async def heartbeat(self, member: str, generation: int | None = None) -> Generation:
        return await self._call(self._of.heartbeat(member, generation))

    async def fetch(self, member: str, *, wait_ms: int = 0, **fields: Any) -> Fetched:
        """The next records for a member. `fields`: `max`, `max_bytes`, `claim_idle_ms`."""
        return await self._call(self._of.fetch(member, wait_ms, fields))

    async def claim(self, member: str, min_idle_ms: int, **fields: Any) -> Fetched:
        """Take over what other members left idle. `fields`: `max`, `seqs`."""
        return await self._call(self._of.claim(member, min_idle_ms, fields))

    async def commit(self, seq: int, member: str | None = None, generation: int | None = None) -> Committed:
        """Stream mode: `seq` is the next one to read."""
        return await self._call(self._of.commit(seq, member, generation))

    async def ack(
        self, member: str, seqs: Sequence[int] = (), *, ranges: Sequence[tuple[int, int]] = (), **fields: Any
    ) -> Acked:
        return await self._call(self._of.ack(member, seqs, ranges, fields))

    async def nack(self, member: str, seqs: Sequence[int], **fields: Any) -> Nacked:
        """Give records back. `fields`: `delay_ms`, `count`."""
        return await self._call(self._of.nack(member, seqs, fields))

    async def reject(self, member: str, seqs: Sequence[int], **fields: Any) -> Rejected:
        """To the dead letters, or parked. `fields`: `reason`."""
        return await self._call(self._of.reject(member, seqs, fields))

    async def extend(self, member: str, seqs: Sequence[int], visibility_ms: int, **fields: Any) -> Extended:
        return await self._call(self._of.extend(member, seqs, visibility_ms, fields))

    async def seek(self, to: Place, *, force: bool = False, dry_run: bool = False) -> Sought:
        return await self._call(self._of.seek(to, force, dry_run))

    async def pending(self, **wanted: Any) -> AsyncIterator[Pending]:
        """By seq, page by page. `wanted`: `member`, `min_idle_ms`, `parked`, `limit` (of a page)."""
        cursor: str | None = None
        while True:
            page = await self._call(self._of.pending({**wanted, "cursor": cursor}))
            for row in page.pending:
                yield row
            if (cursor := page.next_cursor) is None:
                return


async def async_groups(call: AsyncCaller, topic: str, prefix: str | None) -> AsyncIterator[GroupInfo]:
    """All groups of a topic by name, page by page."""
    cursor: str | None = None
    while True:
        page = await call(groupcalls.page(topic, prefix, 1000, cursor))
        for group in page.groups:
            yield group
        if (cursor := page.next_cursor) is None:
            return
