"""What waits in front of a WAL shard: frames that reach the disk together or not at all."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from topics.model.errors import WriteFailed

if TYPE_CHECKING:
    from topics.model.errors import TopicsError
    from topics.storage.wal import Shard
    from topics.storage.walfile import WalFile

Buffers = list[bytes | bytearray]

NO_BUFFERS: Final[Buffers] = []
"""Of whatever was written: nobody adds to it."""


class Waiter(Protocol):
    """Whoever waits: a held lock that a thread sleeps on, or what an event loop put there."""

    def release(self) -> None:
        """Called once, under the store's lock. A submission that is not settled then asks the waiter to write."""
        ...


class Together(Waiter, Protocol):
    """Several callers, what they asked for being one submission."""

    submission: Submission | None


class State(enum.IntEnum):
    QUEUED = 0
    WRITTEN = 1
    DONE = 2
    FAILED = 3


_QUEUED = State.QUEUED  # a name of the module is found twenty times as fast as a member of an enum
_DONE = State.DONE
_DONE_NUMBER = int(_DONE)


def fresh_error(error: TopicsError) -> TopicsError:
    """A fresh error of the same kind: one exception object must not be raised in many threads."""
    fresh = type(error).__new__(type(error))
    fresh.args = error.args
    fresh.__dict__.update(error.__dict__)
    fresh.__cause__ = error.__cause__
    return fresh


class WaitFirst(Exception):
    """The call must be made again once `submission` is settled. Never reaches a user."""

    def __init__(self, submission: Submission | None) -> None:
        super().__init__()
        assert submission is not None
        if submission.error is not None:  # its outcome is unknown until the store is reopened: waiting changes nothing
            raise fresh_error(submission.error)
        self.submission = submission


class Submission:
    """A token: `state` tells how far it got. `apply` runs once, in WAL order, when its class is satisfied.

    `lane` orders: of submissions with the same lane, none completes before an earlier one. A barrier lets nothing
    behind it complete first, in any lane, and waits for all that came before it. A `detached` one is awaited by nobody
    and blocks nobody.
    """

    __slots__ = (
        "apply", "barrier", "buffers", "ceiling", "detached", "end", "error", "file", "frames", "lane", "needs_sync",
        "offset", "on_fail", "passes", "shard", "size", "state", "waiters",
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
        passes: bool = False,
        on_fail: Callable[[Submission], None] | None = None,
    ) -> None:
        self.lane = lane
        self.buffers = buffers
        self.size = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        self.frames = len(buffers)
        """How many frames they hold, for the statistics."""
        self.apply = apply
        self.needs_sync = needs_sync
        self.ceiling = ceiling
        """True once what it needs besides its own sync is there: a reservation, a verdict; None where it needs none."""
        self.barrier = barrier
        self.detached = detached
        self.passes = passes
        """A barrier does not hold it up: what the barrier waits for may wait for this one."""
        self.on_fail = on_fail
        self.state = _QUEUED
        self.error: TopicsError | None = None
        self.file: WalFile | None = None
        self.offset = 0
        self.end = 0
        self.shard: Shard | None = None
        """Where it was submitted."""
        self.waiters: list[Waiter] = []
        """Each is released once."""

    @property
    def settled(self) -> bool:
        return self.state >= _DONE_NUMBER

    def carry(self, waiter: Together) -> None:
        """Under the lock, from its submission on: whoever completes a sync may ask the waiter to write right after."""
        waiter.submission = self
        self.waiters.append(waiter)

    def is_ready(self) -> bool:
        """Of one that is written: its own sync and what it needs besides are there."""
        assert self.file is not None
        if self.needs_sync and self.end > self.file.synced:
            return False
        return self.ceiling is None or self.ceiling()

    def complete(self) -> None:
        self.buffers = NO_BUFFERS
        apply, self.apply = self.apply, _nothing
        self.on_fail = self.ceiling = None  # as `_let_go` does
        try:
            apply(self)
            self.state = _DONE  # and not before: others look at it without the lock
        except BaseException as error:
            # Committed, and not applied: nobody may take it for done. Replay will apply it.
            self.state = State.FAILED
            self.error = WriteFailed(f"it is in the log but could not be applied ({error}); reopen the store")
            raise
        finally:
            if self.waiters:
                self._wake()

    def fail(self, error: TopicsError) -> None:
        self.state = State.FAILED
        self.error = error
        self.buffers = NO_BUFFERS
        on_fail = self.on_fail
        self._let_go()
        try:
            if on_fail is not None:
                on_fail(self)
        finally:
            self._wake()

    def _let_go(self) -> None:
        """What it calls refers back to it: such a ring, and the WAL file in it, would wait for the collector."""
        self.apply = _nothing
        self.on_fail = self.ceiling = None

    def _wake(self) -> None:
        waiters = self.waiters
        if waiters:
            self.waiters = []
            for waiter in waiters:
                waiter.release()


def joined(lane: int, parts: list[Submission]) -> Submission:
    """One submission in place of several of a lane, none of which was submitted: they are written and completed
    together, and in the log each is still whole or absent by itself."""

    def apply(whole: Submission) -> None:
        for part in parts:
            part.file, part.offset, part.end = whole.file, whole.offset, whole.end
        try:
            for part in parts:
                part.complete()
        except BaseException as error:
            for part in parts:
                if not part.settled:
                    part.fail(WriteFailed(f"it is in the log but could not be applied ({error}); reopen the store"))
            raise

    def fail(failed: Submission) -> None:
        assert failed.error is not None
        for part in parts:
            part.file = failed.file
            part.fail(failed.error)

    return Submission(
        lane,
        [buffer for part in parts for buffer in part.buffers],
        apply,
        needs_sync=any(part.needs_sync for part in parts),
        detached=all(part.detached for part in parts),
        on_fail=fail,
    )


def _nothing(_: Submission) -> None:
    return
