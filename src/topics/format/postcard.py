"""Postcard, the compact encoding in which the Rust program writes its snapshot: read, never written.

    unsigned    LEB128: seven bits a byte, the lowest first, the high bit says that more follow; ten bytes at most
    signed      zigzag (0, -1, 1, -2, ...), then as unsigned
    bool, u8    one byte
    text, bytes a count, then as many bytes
    sequence    a count, then its elements
    option      0, or 1 and the value
    struct      its fields in order, nothing between them

Every count is held against the bytes that are left before anything is made of it, so hostile bytes cost no more time
or memory than an honest file of their length.
"""

from __future__ import annotations

from typing import Final

_U64_BYTES: Final = 10
_U64_MAX: Final = (1 << 64) - 1


class BadPostcard(ValueError):
    """The bytes are not what they should be; `offset` is where."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"{why} at byte {offset}")
        self.offset = offset
        self.why = why


class PostcardReader:
    """A position in a buffer. Reading past the end raises BadPostcard."""

    __slots__ = ("_view", "at", "end")

    def __init__(self, view: memoryview, at: int = 0, end: int | None = None) -> None:
        self._view = view
        self.at = at
        self.end = len(view) if end is None else end

    def u8(self) -> int:
        at = self.at
        if at >= self.end:
            raise BadPostcard(at, "the bytes end early")
        self.at = at + 1
        return self._view[at]

    def unsigned(self) -> int:
        view, at, end = self._view, self.at, self.end
        if at < end and view[at] < 0x80:  # most are small
            self.at = at + 1
            return view[at]
        value = 0
        for number in range(_U64_BYTES):
            if at + number >= end:
                raise BadPostcard(at, "a number ends early")
            byte = view[at + number]
            value |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                if value > _U64_MAX:
                    break
                self.at = at + number + 1
                return value
        raise BadPostcard(at, "a number has more than 64 bits")

    def signed(self) -> int:
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def flag(self) -> bool:
        """A bool, or whether an option has a value."""
        value = self.u8()
        if value > 1:
            raise BadPostcard(self.at - 1, f"a flag is {value}, neither 0 nor 1")
        return value == 1

    def count(self) -> int:
        """Of elements, each of which takes at least a byte."""
        at = self.at
        value = self.unsigned()
        if value > self.end - self.at:
            raise BadPostcard(at, f"{value} elements or bytes do not fit into the {self.end - self.at} that are left")
        return value

    def raw(self) -> bytes:
        size = self.count()
        start = self.at
        self.at = start + size
        return bytes(self._view[start : self.at])

    def text(self) -> str:
        at = self.at
        try:
            return str(self.raw(), "utf-8")
        except UnicodeDecodeError:
            raise BadPostcard(at, "a text is not UTF-8") from None

    def optional_raw(self) -> bytes | None:
        return self.raw() if self.flag() else None

    def finish(self) -> None:
        if self.at != self.end:
            raise BadPostcard(self.at, f"{self.end - self.at} bytes follow the last field")
