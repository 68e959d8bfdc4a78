"""The body of a group frame: one thing that was done in a consumer group.

    u8 event, lp group, lp member, u64 number, u64 lost, lp text, u32 n, n x (u64 seq, token, until, deliveries)

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

import msgspec

from topics.format.fields import BadBody, FieldReader, lp
from topics.format.leases import LeaseRow
from topics.format.ops import pack_leases

GroupOpRow = LeaseRow
"""(seq, token, until, deliveries)."""


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
    rows: tuple[GroupOpRow, ...] | list[GroupOpRow] = ()

    def encode(self, shift: int = 0) -> bytes:
        """`shift` is added to every time of its rows but 0."""
        return b"".join(
            (
                struct.pack("<B", self.event),
                lp(self.group.encode()),
                lp(self.member.encode()),
                struct.pack("<QQ", self.number, self.lost),
                lp(self.text),
                struct.pack("<I", len(self.rows)),
                pack_leases(self.rows, 0, shift),
            )
        )

    @classmethod
    def decode(cls, body: bytes) -> GroupOp:
        reader = FieldReader(body)
        event = reader.u8()
        if event > GroupEvent.KEPT:
            raise BadBody(f"group event {event} is unknown")
        group, member, number, lost, text = reader.text(), reader.text(), reader.u64(), reader.u64(), reader.lp()
        flat = iter(reader.u64s(4 * reader.u32()))
        rows = tuple(zip(flat, flat, flat, flat, strict=True))
        reader.finish()
        return cls(event, group, member, number, lost, text, rows)
