"""Rows of leases as bytes, in Python: the readable twin of `kernel_leases.pxi`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from topics.model.leaserows import LeaseRow


def pack_leases(rows: Sequence[LeaseRow], start: int, shift: int) -> bytes:
    """Four u64 of each row from the one at `start` on; `shift` is added to every deadline but 0."""
    if not 0 <= start <= len(rows):
        raise ValueError(f"row {start} lies outside the {len(rows)} rows")
    flat: list[int] = []
    for seq, token, until, deliveries in rows[start:]:
        flat += (seq, token, until + shift if until else 0, deliveries)
    if flat and not 0 <= min(flat) <= max(flat) < 1 << 64:
        raise OverflowError("a number of a lease has more than 64 bits")
    return struct.pack(f"<{len(flat)}Q", *flat)
