"""Ids that come again with their seed."""

from __future__ import annotations

from random import Random


class FakeIds:
    def __init__(self, seed: int = 0) -> None:
        self._rng = Random(seed)

    def token(self, nbytes: int) -> str:
        return self._rng.randbytes(nbytes).hex()
