"""What waits in front of a WAL shard: frames that reach the disk together or not at all."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from topics.model.errors import TopicsError
    from topics.storage.wal import Shard
    from topics.storage.walfile import WalFile

Buffers = list[bytes | bytearray]


class State(enum.IntEnum):
    QUEUED = 0
    WRITTEN = 1
    DONE = 2
    FAILED = 3


class WaitFirst(Exception):
    """The call must be made again once `submission` is settled. Never reaches a user."""

    def __init__(self, submission: Submission | None) -> None:
        super().__init__()
        assert submission is not None
        self.submission = submission


class Submission:
    """A token: `state` tells how far it got. `apply` runs once, in WAL order, when its class is satisfied.

    `lane` orders: of submissions with the same lane, none completes before an earlier one. A barrier lets nothing
    behind it complete first, in any lane. A `detached` one is awaited by nobody and blocks nobody.
    """

    __slots__ = (
        "apply", "barrier", "buffers", "ceiling", "detached", "end", "error", "file", "lane", "needs_sync", "offset",
        "on_fail", "shard", "size", "state", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        lane: int,
        buffers: Buffers,
        apply: Callable[[Submission], None],
        *,
        needs_sync: bool,
        ceiling: Callable[[], bool] | None = None,
        barrier: bool = False,
        detached: bool = False,
        on_fail: Callable[[Submission], None] | None = None,
    ) -> None:
        self.lane = lane
        self.buffers = buffers
        self.size = sum(map(len, buffers))
        self.apply = apply
        self.needs_sync = needs_sync
        self.ceiling = ceiling
        """True once the reservation it needs is synced; None where it needs none."""
        self.barrier = barrier
        self.detached = detached
        self.on_fail = on_fail
        self.state = State.QUEUED
        self.error: TopicsError | None = None
        self.file: WalFile | None = None
        self.offset = 0
        self.end = 0
        self.shard: Shard | None = None
        """Where it was submitted."""
        self.waiters: list[threading.Lock] = []
        """Held locks; each is released once, to a thread that waits for this submission."""

    @property
    def settled(self) -> bool:
        return self.state >= State.DONE

    def complete(self) -> None:
        self.state = State.DONE
        self.buffers = []
        self.apply(self)
        self._wake()

    def fail(self, error: TopicsError) -> None:
        self.state = State.FAILED
        self.error = error
        self.buffers = []
        if self.on_fail is not None:
            self.on_fail(self)
        self._wake()

    def _wake(self) -> None:
        for waiter in self.waiters:
            waiter.release()
        self.waiters = []
