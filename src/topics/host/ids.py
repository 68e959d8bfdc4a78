"""Random ids: unguessable and, for all purposes, unique."""

from __future__ import annotations

import secrets
from typing import Protocol


class Ids(Protocol):
    def token(self, nbytes: int) -> str:
        """`nbytes` random bytes as lower-case hex."""
        ...


class SystemIds:
    def token(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)
