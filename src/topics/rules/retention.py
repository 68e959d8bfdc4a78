"""How much a cap removes: the oldest live records, no more than needed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def excess(live: int, cap: int) -> int:
    """By how much `live` exceeds a cap; 0 = the cap is off."""
    return max(live - cap, 0) if cap else 0


def evict_count(sizes: npt.NDArray[np.uint32], records: int, accounted: int) -> int:
    """How many of the oldest records, of these sizes, go so that `records` of them and `accounted` bytes are gone.

    Returns `len(sizes)` where all of them are not enough.
    """
    if records >= len(sizes):
        return len(sizes)
    count = records
    if accounted > 0:
        total = np.cumsum(sizes, dtype=np.uint64)
        count = max(count, int(np.searchsorted(total, accounted, side="left")) + 1)
    return min(count, len(sizes))


def reserve_ahead(last_batch: int, least: int, previous: int, since_previous_ms: int) -> int:
    """Seqs to reserve beyond need. A topic that asks again within 100 ms is busy and gets twice as much, so that
    reservations stay rare however fast it writes; one that asks again within a second gets as much as last time; one
    that slowed down falls back to the least."""
    base = max(least, 4 * last_batch)
    if not previous or since_previous_ms >= 1000:
        return base
    return max(base, min(previous * 2, 1 << 20) if since_previous_ms < 100 else previous)
