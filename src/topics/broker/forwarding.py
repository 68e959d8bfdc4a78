"""The background half of routers: copies what sources take in, behind everybody's back.

It hears of an append by waiting at the source like any long poll, gathers for a moment, and gives every router that has
something to copy one pass; then it waits for all of them together, so that they share a sync. A router that could not
go on (its dest is full, read-only, busy) is tried again with the next tick. Nothing here is needed for readers to see
what was written: they pull for themselves.
"""

from __future__ import annotations

import logging
from typing import Final

from topics.broker.router import forward, swept
from topics.broker.state import Clocks, priority_of
from topics.broker.steps import Nap, Steps
from topics.model.errors import StoreClosed, TopicsError
from topics.rules.schedule import NEGATIVE, band_of
from topics.storage.routers import Router
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst

log = logging.getLogger("topics.routers")

TICK_MS: Final = 50
GATHER_MS: Final = 2
"""How long copying waits for company after an append: many small passes cost more than one."""
_SLICE_NS: Final = 2_000_000
"""Passes go on for so long before everybody else gets a turn."""
_UNDER_WAY: Final = 64
_UNDER_WAY_BYTES: Final = 16 * 1024 * 1024
"""Passes that wait for the disk together. More would fill the queue that direct writers need."""


class _Ear:
    """Waits at one source."""

    __slots__ = ("_forwarder", "_source_id")

    def __init__(self, forwarder: Forwarder, source_id: int) -> None:
        self._forwarder = forwarder
        self._source_id = source_id

    def release(self) -> None:
        """By the source, under the store's lock."""
        self._forwarder.heard(self._source_id)


class Forwarder:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._listening: set[int] = set()
        """Sources with an ear at them."""
        self._heard: set[int] = set()
        """Sources that took something in since."""
        self._left: dict[int, Router] = {}
        """Routers that have more to copy than their last pass did, by id."""
        self._stuck: dict[int, int] = {}
        """When those that could not go on are tried again, in monotonic time."""
        self._version = -1
        self._nap = Nap(TICK_MS)
        self._waiting: list[Submission] = []
        self._waiting_bytes = 0
        self.clocks: Clocks | None = None
        """Who was read when; None = nobody's priority is asked for."""
        self.lower = False
        """Copying stands one band below its source, and below nothing it waits."""

    def heard(self, source_id: int) -> None:
        self._listening.discard(source_id)
        self._heard.add(source_id)
        self._nap.release()

    def run(self) -> Steps[None]:
        """Until nobody may sleep any more, or the store is closed."""
        while True:
            self._nap = nap = Nap(TICK_MS)
            try:
                more = yield from self._turn()
            except StoreClosed:
                return
            except Exception:  # one router's trouble must not end the others; all of it is tried again
                log.exception("forwarding failed")
                self._version = -1
                more = False
            if more:
                nap.wait_ms = 0
            yield nap
            if nap.refused:
                return
            if nap.woken:
                gather = Nap(GATHER_MS)
                yield gather
                if gather.refused:
                    return

    def _turn(self) -> Steps[bool]:
        """One pass for everyone who is behind. True if somebody could go on at once."""
        clock = self._store.clock
        due = self._due()
        for router in due:
            # Once per turn and not per pass: where records expire all the time, nothing else would ever be done.
            self._wait_for(swept(self._store, router))
        yield from self._wait()
        began = clock.monotonic_ns()
        more = False
        for router in due:
            moved = self._pass(router)
            more = more or moved
            if len(self._waiting) >= _UNDER_WAY or self._waiting_bytes >= _UNDER_WAY_BYTES:
                yield from self._wait()
            elif clock.monotonic_ns() - began >= _SLICE_NS:
                yield Nap(0)
                began = clock.monotonic_ns()
        yield from self._wait()
        return more

    def _due(self) -> list[Router]:
        store = self._store
        now = store.clock.monotonic_ns()
        with store.lock:
            store.check_open()
            if self._version != store.routers.version:
                self._version = store.routers.version
                self._heard.update(router.source_id for router in store.routers.by_name.values())
            due, self._left = self._left, {}
            heard, self._heard = self._heard, set()
            for source_id in heard:
                self._listen(source_id)
                due.update((router.id, router) for router in store.routers.out_of(source_id))
        early = [router_id for router_id in due if self._stuck.get(router_id, now) > now]
        self._left = {router_id: due.pop(router_id) for router_id in early}
        self._stuck = {router_id: self._stuck[router_id] for router_id in early}
        if self.clocks is None or (len(due) < 2 and not self.lower):
            return list(due.values())
        return self._by_priority(self.clocks, list(due.values()))

    def _by_priority(self, clocks: Clocks, due: list[Router]) -> list[Router]:
        """Sources of a higher band first. Under pressure those that have none below theirs wait for the next tick."""
        now_ms = self._store.clock.now_ms()
        bands: list[tuple[int, int, Router]] = []
        for place, router in enumerate(due):
            source = self._store.by_id.get(router.source_id)
            band = 0 if source is None else band_of(priority_of(source, clocks, now_ms))
            if self.lower and band >= NEGATIVE - 1:
                self._later(router)
            else:
                bands.append((band, place, router))
        return [router for _, _, router in sorted(bands, key=lambda row: row[:2])]

    def _listen(self, source_id: int) -> None:
        """Before the source is read, so that nothing that comes later is missed."""
        source = self._store.by_id.get(source_id)
        if source is not None and source_id not in self._listening and self._store.routers.out_of(source_id):
            self._listening.add(source_id)
            source.waiters.append(_Ear(self, source_id))

    def _pass(self, router: Router) -> bool:
        """True if the router went on and has still more to do."""
        store = self._store
        try:
            with store.lock:
                done = forward(store, router)
                source = store.by_id.get(router.source_id)
                behind = source is not None and router.cursor < source.head
        except StoreClosed:
            raise
        except WaitFirst as first:
            self._wait_for(first.submission)
            self._left[router.id] = router
            return True
        except TopicsError:
            self._later(router)
            return False
        self._wait_for(done.submission)
        if not behind or not store.routers.has(router):
            return False
        if not done.moved:
            self._later(router)
            return False
        self._left[router.id] = router
        return True

    def _later(self, router: Router) -> None:
        self._left[router.id] = router
        self._stuck[router.id] = self._store.clock.monotonic_ns() + TICK_MS * 1_000_000

    def _wait_for(self, submission: Submission | None) -> None:
        if submission is not None and not submission.settled:
            self._waiting.append(submission)
            self._waiting_bytes += submission.size

    def _wait(self) -> Steps[None]:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for submission in waiting:
            if not submission.settled:
                yield submission
