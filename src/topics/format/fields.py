"""Reading the fields of a body one after the other, each bounded by the bytes that are left."""

from __future__ import annotations

import struct
from typing import Final

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class BadBody(ValueError):
    """The body of a control frame does not have the form of its kind."""


def lp(data: bytes) -> bytes:
    """`data` with its length in front."""
    return _U32.pack(len(data)) + data


class FieldReader:
    """A position in a body. Reading past the end raises BadBody."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def left(self) -> int:
        return len(self._body) - self._at

    def _take(self, size: int) -> int:
        if size > self.left():
            raise BadBody(f"the body ends early: {size} bytes wanted at {self._at}, {self.left()} left")
        at = self._at
        self._at += size
        return at

    def u8(self) -> int:
        return self._body[self._take(1)]

    def flag(self) -> bool:
        """A byte that says whether something follows."""
        value = self.u8()
        if value > 1:
            raise BadBody(f"a flag is {value}, neither 0 nor 1")
        return value == 1

    def u32(self) -> int:
        value: int = _U32.unpack_from(self._body, self._take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self._body, self._take(8))[0]
        return value

    def u64s(self, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self._body, self._take(8 * count))

    def lp(self) -> bytes:
        size = self.u32()
        at = self._take(size)
        return self._body[at : at + size]

    def text(self) -> str:
        try:
            return self.lp().decode("utf-8")
        except UnicodeDecodeError:
            raise BadBody("a text is not UTF-8") from None

    def finish(self) -> None:
        if self.left():
            raise BadBody(f"{self.left()} bytes follow the last field")
