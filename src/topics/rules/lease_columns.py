"""The entries of a `Leases` cut as packed columns, little-endian, one after the other:

    u64 seq | u64 token | i64 until | i64 first_ms | i64 last_ms | u32 deliveries | u32 holder | u8 kind

`holder` is a place in a list of names. Packing goes in slices, so that a thread that does it lets others run.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from topics.rules.lease import Leases
from topics.rules.lease_values import Cut, Entry

_COLUMNS: Final = ("<u8", "<u8", "<i8", "<i8", "<i8", "<u4", "<u4", "u1")
_ROW_BYTES: Final = sum(np.dtype(column).itemsize for column in _COLUMNS)
_SLICE: Final = 2048


class Packed(NamedTuple):
    position: int
    holders: list[str]
    columns: bytes


def pack(cut: Cut, shift_ms: int) -> Packed:
    """`shift_ms` is added to every time: the way from the clock that lives as long as the process to the wall."""
    holders: dict[str, int] = {}
    slices: list[list[bytes]] = [[] for _ in _COLUMNS]
    items = iter(cut.entries.items())
    while part := list(islice(items, _SLICE)):
        rows = [
            (
                seq, entry.token_of(seq), _shifted(entry.until, shift_ms), entry.first_ms + shift_ms,
                entry.last_ms + shift_ms, entry.deliveries, holders.setdefault(entry.holder, len(holders)), entry.kind,
            )
            for seq, entry in part
        ]  # fmt: skip
        for column, dtype, values in zip(slices, _COLUMNS, zip(*rows, strict=True), strict=True):
            column.append(np.array(values, dtype=dtype).tobytes())
    return Packed(cut.position, list(holders), b"".join(b"".join(column) for column in slices))


def unpack(packed: Packed) -> Leases:
    """The state, in wall time until it is restarted; ValueError if the columns are none."""
    count, odd = divmod(len(packed.columns), _ROW_BYTES)
    if odd:
        raise ValueError(f"{len(packed.columns)} bytes are no rows of {_ROW_BYTES}")
    leases = Leases(packed.position)
    columns: list[list[int]] = []
    at = 0
    for dtype in _COLUMNS:
        column = np.frombuffer(packed.columns, dtype=dtype, count=count, offset=at)
        columns.append(column.tolist())
        at += column.nbytes
    entries: dict[int, Entry] = {}
    for seq, token, until, first_ms, last_ms, deliveries, holder, kind in zip(*columns, strict=True):
        if holder >= len(packed.holders) or kind > 3:
            raise ValueError(f"the row of seq {seq} names what is not there")
        entries[seq] = Entry(kind, packed.holders[holder], token - seq, until, deliveries, first_ms, last_ms)
    leases.keep(entries)
    return leases


def _shifted(until: int, shift_ms: int) -> int:
    return until + shift_ms if until else 0
