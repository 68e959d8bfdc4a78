"""Streams over HTTP/1: a chunk per piece for 1.1, the bare bytes until the end of the connection for 1.0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.api.http import Frames

if TYPE_CHECKING:
    from topics.api.protocol import Connection


class Http1Sink:
    __slots__ = ("_connection", "_ended", "_gone", "_open", "chunked", "on_gone", "task")

    def __init__(self, connection: Connection, chunked: bool, ended: Callable[[bool], None]) -> None:
        self._connection = connection
        self.chunked = chunked
        self._ended = ended
        self._open = True
        self._gone: asyncio.Event | None = None
        self.on_gone: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None
        """What writes here."""

    def write(self, data: bytes) -> None:
        # An empty chunk would be the end of the stream.
        if data and self._open:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def write_frames(self, frames: Frames) -> int:
        if not self._open:
            return self._connection.written
        return self._connection.write_through(frames.chunked if self.chunked else frames.plain)

    def share(self, told: Callable[[], None]) -> int:
        return self._connection.share(told) if self._open else -1

    def unshare(self) -> None:
        self._connection.unshare()

    def queue(self, data: memoryview) -> int:
        return self._connection.queue(data)

    @property
    def written(self) -> int:
        return self._connection.written

    @property
    def taken(self) -> int:
        return self._connection.taken

    @property
    def buffered(self) -> int:
        return self._connection.buffered if self._open else 0

    def when_drained(self, tell: Callable[[], None]) -> None:
        self._connection.when_drained(tell)

    async def drain(self) -> None:
        if self._open:
            await self._connection.drain()

    @property
    def gone(self) -> asyncio.Event:
        if self._gone is None:
            # Made on demand: most streams that wait for long are told by `on_gone`, and there are many of them.
            self._gone = asyncio.Event()
            if not self._open:
                self._gone.set()
        return self._gone

    def finish(self) -> None:
        if self._open:
            self._open = False
            if self.chunked:
                self._connection.write(b"0\r\n\r\n")
            self._ended(True)

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._ended(False)

    def leave(self, patience_s: float) -> None:
        """The peer is gone: say so, and end the task if it does not leave by itself."""
        self._open = False
        if self._gone is not None:
            self._gone.set()
        tell, self.on_gone = self.on_gone, None
        if tell is not None:
            tell()
        cancel_later(self.task, patience_s)


def cancel_later(task: asyncio.Task[None] | None, patience_s: float) -> None:
    if task is not None and not task.done():
        timer = asyncio.get_running_loop().call_later(patience_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())
