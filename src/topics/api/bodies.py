"""What request bodies may take of memory, all connections together."""

from __future__ import annotations

from topics.api.http import Response
from topics.api.problems import problem
from topics.model.errors import Throttled


class Bodies:
    """A budget of bytes. Belongs to the event loop."""

    __slots__ = ("_limit", "held")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """0 = no limit."""
        self.held = 0

    def take(self, size: int, mine: int) -> bool:
        """More for somebody who holds `mine` already; whoever is alone gets all it asks for."""
        if self._limit and self.held + size > self._limit and self.held > mine:
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        self.held -= size

    def refusal(self) -> Response:
        return problem(
            Throttled(
                "large requests hold all the memory they may; try again",
                limit="max_inflight_body_bytes",
                max=self._limit,
            )
        )
