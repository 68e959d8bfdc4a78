"""Reading a streamed answer: pieces of any size in, items out, and the proof that nothing was cut off.

A connection may end in a way that looks regular: a proxy that gives up, a server that was killed. So a stream says its
own end in its last item, and one without it was cut, whatever the transport reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from topics.client.answers import End, WireItem
from topics.model.errors import BadAnswer, StreamCut
from topics.model.record import Gap, Record

T_co = TypeVar("T_co", covariant=True)

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A line is one record: at most 1 MiB of payload, of which JSON escapes may make several. Longer is not ours."""

ARROW_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""How an Arrow IPC stream says that it is complete: a message of length zero."""

_ITEM: Final = msgspec.json.Decoder(WireItem)


class Decoder(Protocol[T_co]):
    def feed(self, piece: bytes) -> Sequence[T_co]: ...

    def finish(self) -> None:
        """The body ended; StreamCut if its end was not said."""
        ...

    def cut(self, why: str) -> StreamCut:
        """The error for a stream that broke here."""
        ...


class RecordLines:
    """NDJSON: a record or a tombstone a line, the last line `{"end":…}`."""

    def __init__(self, from_seq: int | None) -> None:
        self._rest = b""
        self._next_from_seq = from_seq
        self.end: End | None = None
        """Set once the stream said its end."""

    def feed(self, piece: bytes) -> list[Record | Gap]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise BadAnswer(f"the server sent a line of more than {LINE_BYTES_MAX} bytes")
        items: list[Record | Gap] = []
        for line in whole:
            if line and (item := self._item(line)) is not None:
                items.append(item)
        return items

    def _item(self, line: bytes) -> Record | Gap | None:
        if self.end is not None:
            raise BadAnswer("the server sent more after the end of the stream")
        try:
            wire = _ITEM.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswer(f"a line of the stream is not a record: {error}") from None
        if wire.end is not None:
            self.end = wire.end
            return None
        item = wire.item()
        self._next_from_seq = (item.gap_to if isinstance(item, Gap) else item.seq) + 1
        return item

    def finish(self) -> None:
        if self._rest and self.end is None:
            # The last line may lack its line feed; half a line is no JSON and means a cut.
            rest, self._rest = self._rest, b""
            try:
                self._item(rest)
            except BadAnswer:
                pass
        if self.end is None:
            raise self.cut("it ended without its last line")

    def cut(self, why: str) -> StreamCut:
        return StreamCut(
            f"the stream of records was cut: {why}; read on from seq {self._next_from_seq or 'the start'}",
            next_from_seq=self._next_from_seq,
        )


class ArrowPieces:
    """An Arrow IPC stream, passed on as it is. Only its end is looked at, so that no Arrow library is needed here."""

    def __init__(self) -> None:
        self._last = b""

    def feed(self, piece: bytes) -> list[bytes]:
        if not piece:
            return []
        self._last = (self._last + piece[-8:])[-8:]
        return [piece]

    def finish(self) -> None:
        if self._last != ARROW_END:
            raise self.cut("it ended without the end-of-stream mark")

    def cut(self, why: str) -> StreamCut:
        return StreamCut(f"the Arrow stream was cut: {why}; ask again from the last seq that came", next_from_seq=None)
