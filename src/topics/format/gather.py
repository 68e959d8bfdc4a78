"""Appends to one topic that came at about the same time, gathered into one batch; only the kernel does that.

A body of the usual form (append_body.py) with nothing in it but its records is added in one pass, byte for byte what
`prepare` makes of it. Every other body stays outside.
"""

from __future__ import annotations

from topics.format.prepared import Prepared


class Gather:
    """Python has no quick way: it takes nothing."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Bytes of frames gathered."""
        return 0

    def add(self, text: bytes, start: int, count_max: int) -> int:
        """Add the body that `text` holds from `start` on: the number of its records, 0 if it stays outside."""
        if not 0 <= start <= len(text):
            raise ValueError(f"byte {start} lies outside the text")
        return 0

    def take(self) -> Prepared:
        """What was gathered; then there is nothing."""
        return Prepared(bytearray(), bytearray(), 0, 0, False, b"")
