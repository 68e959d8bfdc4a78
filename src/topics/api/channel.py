"""The readers of one topic: who has everything, who may not, and who is served together.

    behind ──served by itself──▶ resting   waits for the topic, is served by itself again
      ▲                       ╰▶ cohorts   wait for it beside all who stand at the same place and are sent the same
      ╰─────── steps out ─────── late ◀──the topic grew── cohorts

Whoever cannot be sent something together with the others, because its kernel did not take all of it, or something of
its own is to be written, steps out and is served by itself: that tells slow from gone and keeps what has to be kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from topics.api.cohort import Cohort, Form, Member, Standing
from topics.api.events import Rendered
from topics.broker.watch import View
from topics.storage.topic import Topic

SHARED_BYTES: Final = 4 << 20
"""Pages of one topic that are kept for readers to come in the same pass. A few hold those who read along; one who
catches up alone would otherwise leave its whole way behind."""


class Reader(Member, Protocol):
    """One reader of one topic, as the hub sees it."""

    view: View
    open: bool
    form: Form

    def standing(self) -> Standing: ...

    def ready(self) -> bool:
        """Is there room for more? If not, it asks to `go_on` itself when there is. Asked before a page is read."""
        ...

    def take(self, rendered: Rendered) -> bool:
        """False if it was too much for now; the reader then asks to `go_on`."""
        ...

    def share(self) -> int:
        """The file to which its cohort may write from now on; -1 if it cannot be in one. Asked when it has been told
        everything, also that this is all. It asks to `step_out` itself when something else is to be written there."""
        ...

    def queue(self, rest: memoryview, rendered: Rendered) -> None:
        """What its kernel did not take of a page that it was sent together with others."""
        ...

    def lost(self) -> None:
        """The topic is gone."""
        ...

    def failed(self, error: Exception) -> None:
        """The topic cannot be read."""
        ...


class Version(NamedTuple):
    """What of a topic decides whether a page of it still holds."""

    head: int = -1
    live: int = -1
    floor: int = -1

    def only_grew(self, before: Version) -> bool:
        """Nothing that was there has gone since."""
        return self.floor == before.floor and self.live - before.live == self.head - before.head


class Channel:
    """The readers of one topic."""

    __slots__ = (
        "_heard", "_shared_bytes", "behind", "cohorts", "late", "listening", "resting", "shared", "topic",
        "unsafe_soon", "version",
    )  # fmt: skip

    def __init__(self, topic: Topic, heard: Callable[[Channel], None]) -> None:
        self._heard = heard
        self.topic = topic
        self.resting: dict[Reader, None] = {}
        """Those who have everything and are served by themselves."""
        self.cohorts: dict[tuple[Standing, Form], Cohort[Reader]] = {}
        """Those who have everything and are served together. None is empty."""
        self.behind: deque[Reader] = deque()
        """Those who may not have everything; some have closed meanwhile."""
        self.late: deque[Cohort[Reader]] = deque()
        """Cohorts who may not, the first of them perhaps half served; some are empty."""
        self.listening = False
        self.version = Version()
        self.shared: dict[Standing, Rendered] = {}
        """Pages of the present version."""
        self._shared_bytes = 0
        self.unsafe_soon = False

    def release(self) -> None:
        """By the topic, under the store's lock: something was appended, or it is gone."""
        self.listening = False
        self._heard(self)

    # -- pages ---------------------------------------------------------------------------------------------------------

    def renew(self, version: Version) -> None:
        """The topic is found so: pages of another version do not hold."""
        if version == self.version:
            return
        before, self.version = self.version, version
        self.forget()
        if self.late and self.late[0].rendered is not None and not version.only_grew(before):
            self.late.insert(1, self.late[0].split())
            self.settle()

    def keep(self, standing: Standing, rendered: Rendered) -> None:
        size = sum(map(len, rendered.page.pieces))
        if self._shared_bytes + size > SHARED_BYTES:
            self.forget()
        self.shared[standing] = rendered
        self._shared_bytes += size

    def forget(self) -> None:
        self.shared.clear()
        self._shared_bytes = 0

    # -- readers -------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self.behind or self.late)

    @property
    def is_handing_out(self) -> bool:
        """Some of a cohort have it and others do not."""
        return bool(self.late and self.late[0].rendered is not None)

    @property
    def is_empty(self) -> bool:
        if self.resting or self.cohorts or any(reader.open for reader in self.behind):
            return False
        return not any(cohort.readers for cohort in self.late)

    def dissolve(self) -> list[Reader]:
        """Nobody waits here any more; those who did."""
        together = [reader for cohort in (*self.cohorts.values(), *self.late) for reader in cohort.readers]
        for reader in together:
            self.remove(reader)
        readers = [*self.resting, *self.behind, *together]
        for waiting in (self.resting, self.cohorts, self.behind, self.late):
            waiting.clear()
        return readers

    def rest(self, reader: Reader, cursor: int) -> None:
        """It has everything up to here."""
        self.remove(reader)
        file = reader.share()
        if file < 0:
            self.resting[reader] = None
            return
        key = ((reader.view, cursor, None), reader.form)
        cohort = self.cohorts.get(key)
        if cohort is None:
            cohort = self.cohorts[key] = Cohort(reader.view, cursor, reader.form)
        cohort.add(reader, file)

    def settle(self, again: bool = True) -> None:
        """All of the first late cohort have what was handed out: it rests, unless there is more by now (`again`)."""
        cohort = self.late.popleft()
        if not cohort.readers:
            return
        if again and cohort.cursor < self.version.head:
            self.late.append(cohort)
            return
        key = (cohort.standing, cohort.form)
        other = self.cohorts.get(key)
        if other is not None:
            if len(other.readers) > len(cohort.readers):
                cohort, other = other, cohort
            cohort.absorb(other)
        self.cohorts[key] = cohort

    def remove(self, reader: Reader) -> None:
        """It rests no longer; where it waits to be served by itself it stays."""
        self.resting.pop(reader, None)
        cohort = reader.cohort
        if cohort is not None:
            cohort.remove(reader)
            key = (cohort.standing, cohort.form)
            if not cohort.readers and self.cohorts.get(key) is cohort:
                del self.cohorts[key]

    def disband(self) -> None:
        """The readers of the first late cohort go on by themselves."""
        readers = tuple(self.late.popleft().readers)
        for reader in readers:
            self.remove(reader)
        self.behind.extend(readers)

    def step_out(self, reader: Reader) -> None:
        """Of its cohort, to be served by itself."""
        cohort = reader.cohort
        if cohort is None:
            return
        rests = self.cohorts.get((cohort.standing, cohort.form)) is cohort
        self.remove(reader)
        if rests:
            self.resting[reader] = None
        else:
            self.behind.append(reader)

    def wake(self) -> None:
        """There may be something for all who rest."""
        self.wake_single()
        self.late.extend(self.cohorts.values())
        self.cohorts.clear()

    def wake_single(self) -> None:
        """For those of them who are served by themselves."""
        self.behind.extend(self.resting)
        self.resting.clear()
