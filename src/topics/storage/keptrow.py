"""A topic's row of the last snapshot, kept for the next one.

A row is small, but for the deleted seqs in it: as text they take some fifteen bytes a range, for as long as the topic
is idle. Where there are many they are kept as bits, and become text again for the moment of writing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.format.snapshot import TopicRow, encode_row
from topics.storage.dead import DeadSet

_MANY: Final = 256
"""Ranges from which on bits are worth an object of their own and the work at every snapshot."""


class _Bare:
    """A row, and the deleted seqs that belong into it."""

    __slots__ = ("dead", "row")

    def __init__(self, row: bytes, dead: DeadSet) -> None:
        self.row = row
        self.dead = dead


KeptRow = bytes | _Bare
"""Bytes are the text itself: with very many topics an object for each would count."""


def keep_row(row: TopicRow) -> KeptRow:
    if len(row.dead) < _MANY:
        return encode_row(row)
    dead = DeadSet(row.dead[0][0] - 1)
    dead.mark_all(row.dead)
    return _Bare(encode_row(msgspec.structs.replace(row, dead=[])), dead)


def text_of(kept: KeptRow) -> bytes:
    """What stands in the snapshot."""
    if isinstance(kept, bytes):
        return kept
    row = msgspec.json.decode(kept.row, type=TopicRow)
    return encode_row(msgspec.structs.replace(row, dead=list(kept.dead.ranges())))
