"""The body of a group frame: one thing that was done in a consumer group.

    u8 event, lp group, lp member, u64 number, u64 lost, lp text, rows
    rows = u32 n, n x (u64 seq, token, until, deliveries)
         | u32 RUN + n, u64 seq, token, until, deliveries: n rows whose seqs and tokens count up from those of the first

    event      number                text           rows
    PUT        first position        config (JSON)
    DROP
    JOINED     generation
    LEFT       generation
    CLAIMED    position behind it                   token, deadline, deliveries
    RELEASED   1 = it was a nack                    token, when it is ready (0 = at once), deliveries
    EXTENDED                                        token, deadline
    SETTLED                                         token
    PARKED                                          token
    DEAD                                            token: it is among the dead letters
    COMMITTED  next seq to read
    SOUGHT     position
    KEPT                             its row in a snapshot (JSON)

`lost` is how many seqs the position passed that were lost. Times are wall times.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from topics.format.fields import BadBody, FieldReader, lp
from topics.format.ops import pack_leases
from topics.model import limits
from topics.model.leaserows import LeaseRow, LeaseRun

RUN: Final = 1 << 31

_U8: Final = struct.Struct("<B")
_U32: Final = struct.Struct("<I")
_U64x2: Final = struct.Struct("<QQ")


class GroupEvent(enum.IntEnum):
    PUT = 0
    DROP = 1
    JOINED = 2
    LEFT = 3
    CLAIMED = 4
    RELEASED = 5
    EXTENDED = 6
    SETTLED = 7
    PARKED = 8
    DEAD = 9
    COMMITTED = 10
    SOUGHT = 11
    KEPT = 12


class GroupOp(msgspec.Struct, frozen=True):
    event: int
    group: str
    member: str = ""
    number: int = 0
    lost: int = 0
    text: bytes = b""
    rows: Sequence[LeaseRow] = ()

    def encode(self, shift: int = 0) -> bytes:
        """`shift` is added to every time of its rows but 0."""
        rows, run = self.rows, 0
        count = len(rows)
        if count > 1 and isinstance(rows, LeaseRun):
            rows, run = rows[:1], RUN
        return b"".join(
            (
                _U8.pack(self.event),
                lp(self.group.encode()),
                lp(self.member.encode()),
                _U64x2.pack(self.number, self.lost),
                lp(self.text),
                _U32.pack(run + count),
                pack_leases(rows, 0, shift),
            )
        )

    @classmethod
    def decode(cls, body: bytes) -> GroupOp:
        reader = FieldReader(body)
        event = reader.u8()
        if event > GroupEvent.KEPT:
            raise BadBody(f"group event {event} is unknown")
        group, member, number, lost, text = reader.text(), reader.text(), reader.u64(), reader.u64(), reader.lp()
        rows = _read_run(reader, count - RUN) if (count := reader.u32()) >= RUN else _read_rows(reader, count)
        reader.finish()
        return cls(event, group, member, number, lost, text, rows)


def _read_rows(reader: FieldReader, count: int) -> Sequence[LeaseRow]:
    flat = iter(reader.u64s(4 * count))
    return tuple(zip(flat, flat, flat, flat, strict=True))


def _read_run(reader: FieldReader, count: int) -> LeaseRun:
    seq, token, until, deliveries = reader.u64s(4)
    if not 1 < count <= limits.GROUP_PENDING or max(seq, token) + count > 1 << 64:
        raise BadBody(f"{count} rows from seq {seq} on are no run")
    return LeaseRun(range(seq, seq + count), token, until, deliveries)
