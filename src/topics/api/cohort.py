"""Readers who stand at the same place and are sent the same bytes, past the loop and past their own objects.

                     served                    their cursor is `next_cursor`
    readers  ├──────────┼─────────────────┤
    files    ├──────────┼─────────────────┤    theirs still is `cursor`

A delivery to one of them is a write to a file, and nothing else of it is touched: what a hundred readers keep lies in
a hundred places that memory has to be asked for. So where a reader stands is known by its cohort alone, and told to it
when it steps out. Whoever has something of his own to write to such a file lets its reader step out first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from topics.api.events import Rendered
from topics.broker.watch import View
from topics.host.sockets import send_each

Standing = tuple[View, int, int | None]
"""What a reader wants and where it is: its view, its cursor, and the instance of the topic that the cursor belongs to
if that is another one. Readers who agree in it get the same bytes."""

Form = Callable[[Rendered], bytes]
"""How a page is written for a reader: one and the same function for all who get the same bytes."""


class Member(Protocol):
    """A reader, as its cohort sees it."""

    cohort: Cohort[Any] | None
    """The one that it is in."""
    slot: int
    """Where in it."""

    def stepped_out(self, cursor: int, sent_at: float) -> None:
        """It stands here, and something was last sent to it then (0 = never since it stepped in); its file is its own
        again."""
        ...


M = TypeVar("M", bound=Member)


class Cohort(Generic[M]):
    """Of one view, cursor and form."""

    __slots__ = ("_data", "cursor", "files", "form", "next_cursor", "readers", "rendered", "sent_at", "served", "view")

    def __init__(self, view: View, cursor: int, form: Form) -> None:
        self.view = view
        self.form = form
        self.cursor = cursor
        self.next_cursor = cursor
        self.served = 0
        self.readers: list[M] = []
        self.files = array("i")
        self.sent_at = 0.0
        self.rendered: Rendered | None = None
        """What is being handed out; None = nothing."""
        self._data = b""

    @property
    def standing(self) -> Standing:
        return self.view, self.cursor, None

    def add(self, reader: M, file: int) -> None:
        assert self.rendered is None, "the others would be served before it came"
        reader.cohort, reader.slot = self, len(self.readers)
        self.readers.append(reader)
        self.files.append(file)

    def absorb(self, other: Cohort[M]) -> None:
        """Take over all of another that stands here too."""
        first = len(self.readers)
        self.readers += other.readers
        self.files += other.files
        for slot in range(first, len(self.readers)):
            reader = self.readers[slot]
            reader.cohort, reader.slot = self, slot
        self.sent_at = max(self.sent_at, other.sent_at)
        other.readers, other.files = [], array("i")

    def remove(self, reader: M) -> None:
        """It steps out. The last one of its half takes its slot."""
        slot = reader.slot
        cursor = self.cursor
        if slot < self.served:
            cursor = self.next_cursor
            self.served -= 1
            self._move(self.served, slot)
            slot = self.served
        self._move(len(self.readers) - 1, slot)
        self.readers.pop()
        self.files.pop()
        reader.cohort = None
        reader.stepped_out(cursor, self.sent_at)

    def _move(self, slot: int, to: int) -> None:
        if slot != to:
            reader = self.readers[to] = self.readers[slot]
            self.files[to] = self.files[slot]
            reader.slot = to

    # -- a pass --------------------------------------------------------------------------------------------------------

    def begin(self, rendered: Rendered) -> None:
        self.rendered = rendered
        self.next_cursor = rendered.cursor
        self._data = self.form(rendered)

    def hand_out(self, most: int, now: float) -> list[tuple[M, memoryview | None]]:
        """Send it to the next ones. Those whose kernel did not take all of it step out; the list has them, each with
        the rest of it. Where nothing at all was taken that is None, and they stand where they stood."""
        data, first = self._data, self.served
        slot = min(first + most, len(self.readers))
        refused = [(self.readers[at], sent) for at, sent in send_each(self.files, first, slot - first, data)]
        self.sent_at = now
        for reader, sent in refused:
            if not sent:
                slot -= 1
                self._swap(slot, reader.slot)
        self.served = slot
        for reader, _ in refused:
            self.remove(reader)
        return [(reader, memoryview(data)[sent:] if sent else None) for reader, sent in refused]

    def _swap(self, slot: int, other: int) -> None:
        readers, files = self.readers, self.files
        readers[slot], readers[other] = readers[other], readers[slot]
        files[slot], files[other] = files[other], files[slot]
        readers[slot].slot, readers[other].slot = slot, other

    @property
    def is_done(self) -> bool:
        return self.served == len(self.readers)

    def pass_over(self, cursor: int) -> None:
        """There is nothing for them up to here."""
        self.cursor = self.next_cursor = cursor

    def end(self) -> None:
        """All have it."""
        assert self.is_done
        self.cursor = self.next_cursor
        self.served = 0
        self.rendered = None
        self._data = b""

    def split(self) -> Cohort[M]:
        """What is handed out no longer holds: those who have it stay, the others are another cohort."""
        rest: Cohort[M] = Cohort(self.view, self.cursor, self.form)
        rest.sent_at = self.sent_at
        rest.readers, self.readers = self.readers[self.served :], self.readers[: self.served]
        rest.files, self.files = self.files[self.served :], self.files[: self.served]
        for slot, reader in enumerate(rest.readers):
            reader.cohort, reader.slot = rest, slot
        self.end()
        return rest
