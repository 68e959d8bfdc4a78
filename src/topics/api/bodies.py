"""What request bodies may take of memory, all connections together."""

from __future__ import annotations

from typing import Final

from topics.api.http import Response
from topics.api.problems import problem
from topics.model.errors import Throttled

PIECE_BYTES: Final = 1024
"""A piece that is smaller costs more beside its bytes than it is worth: it goes into one buffer with its neighbours."""

Pieces = list[bytes | bytearray]


def add_piece(pieces: Pieces, piece: bytes) -> None:
    """Keep a piece of a body, so that all of them together take hardly more memory than their bytes."""
    if len(piece) >= PIECE_BYTES or not pieces:
        pieces.append(piece)
    elif type(last := pieces[-1]) is bytearray:
        last += piece
    else:
        pieces.append(bytearray(piece))


def joined(pieces: Pieces) -> bytes:
    """The whole body. One that came in one piece is not copied."""
    return pieces[0] if len(pieces) == 1 and type(pieces[0]) is bytes else b"".join(pieces)


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
