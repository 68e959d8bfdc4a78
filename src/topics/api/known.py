"""Heads of HTTP/1 requests that were parsed before, by their very bytes.

A client repeats itself: on a kept-alive connection most heads are equal to an earlier one, byte for byte, and equal
bytes have one meaning. So a request whose head is known and which came in one piece needs no parser, which saves about
a third of what the transport spends on it. Only plain heads are kept: HTTP/1.1, kept alive, a body by length or none.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.api.http import Express

HEAD_BYTES_MAX = 1024
HEADS_MAX = 8192


class Known(NamedTuple):
    method: str
    target: bytes
    path: str
    query: str
    headers: dict[bytes, bytes]
    """Shared by all requests with this head."""
    length: int
    """Bytes of body that follow."""
    express: Express | None


class KnownHeads:
    def __init__(self) -> None:
        self._heads: dict[bytes, Known] = {}
        self.get = self._heads.get

    def add(self, head: bytes, known: Known) -> None:
        if len(self._heads) >= HEADS_MAX:
            # What is still in use comes back at once.
            self._heads.clear()
        self._heads[head] = known
