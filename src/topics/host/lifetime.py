"""What is open in this process, for the two moments that concern all of it: a fork, and the end of the process."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

from topics.model.errors import TopicsError

log = logging.getLogger("topics.embedded")


class Lasting(Protocol):
    def close(self) -> None:
        """May be called again."""
        ...

    def leave_to_parent(self) -> None:
        """In a forked child."""
        ...


_open: weakref.WeakSet[Lasting] = weakref.WeakSet()


def note_open(each: Lasting) -> None:
    """From now on it is told of a fork, and closed at the end if nobody did that before."""
    _open.add(each)


def _after_fork() -> None:
    for each in _open:
        each.leave_to_parent()


def _at_exit() -> None:
    """The last moment at which background threads run: whoever closes something later, as a generator does that holds
    it when the process ends, could not wait for them."""
    for each in list(_open):
        try:
            each.close()
        except TopicsError as error:
            log.error("a log that was left open: %s", error.message)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
