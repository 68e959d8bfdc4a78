"""Numbers that only grow, over any restart: lease ids, fencing tokens, member generations of one topic.

A number is given out only below a ceiling that was synced before. After a crash the next one is above the ceiling, so
none repeats whatever was lost; after a clean stop they go on where they stopped.
"""

from __future__ import annotations

from typing import Final

AHEAD: Final = 65_536
"""Numbers that one synced frame reserves: more wastes them at a crash, fewer syncs more often."""

LEAP: Final = 1 << 40
"""How far the numbers go on behind damage that may have held reservations: nobody gives out that many in between, and
thousands of such starts stay below 2^53, which is what JSON can hold."""


class Tokens:
    __slots__ = ("asked", "ceiling", "next")

    def __init__(self) -> None:
        self.next = 1
        self.ceiling = 0
        """The highest number that may be given out."""
        self.asked = 0
        """The highest ceiling that was handed to the log."""

    def has(self, count: int) -> bool:
        return self.next + count - 1 <= self.ceiling

    def take(self, count: int) -> int:
        """The first of `count` numbers in a row."""
        assert self.has(count), "a number is reserved before it is given out"
        first = self.next
        self.next += count
        return first

    def wanted(self, count: int) -> int | None:
        """The ceiling to log, if fewer than half of a reservation would be left and none is on its way."""
        needed = self.next + count - 1
        if needed + AHEAD // 2 <= self.asked:
            return None
        return needed + AHEAD

    def ask(self, ceiling: int) -> None:
        """It was handed to the log."""
        self.asked = max(self.asked, ceiling)

    def refused(self) -> None:
        """The log did not take it."""
        self.asked = self.ceiling

    def apply_ceiling(self, ceiling: int) -> None:
        """It is synced."""
        self.ceiling = max(self.ceiling, ceiling)
        self.asked = max(self.asked, self.ceiling)

    def leap(self) -> None:
        """Reservations may have been lost that numbers were given out under."""
        self.ceiling += LEAP

    def restart(self, next_token: int | None) -> None:
        """`next_token` is what a clean stop wrote down; None = nobody knows which numbers below the ceiling are out."""
        self.next = self.ceiling + 1 if next_token is None else next_token
        self.asked = self.ceiling
