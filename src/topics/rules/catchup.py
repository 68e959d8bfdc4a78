"""How much WAL makes a checkpoint due, and when a writer that is faster than the checkpoints behind it is held back.

Every checkpoint of such a burst finds more to copy than the one before. The WAL, the memory it takes and the time in
which a killed store is there again grow for as long as the burst lasts. Held back at some point, the writer goes at the
pace of the checkpoints.
"""

from __future__ import annotations

from typing import Final

SNAPSHOTS: Final = 8
"""No WAL shorter than so many times the last snapshot is worth the next one."""
FROM_BURSTS: Final = 8
"""Nobody is held back before so many times `checkpoint_burst_bytes` wait for the next checkpoint."""
NS_PER_BYTE: Final = 4
"""What a byte waits where one burst more waits: 250 MB/s is the least that a writer is slowed to."""


def due_bytes(rested: bool, least: int, burst: int, snapshot: int) -> int:
    """How much WAL since the last checkpoint makes the next one due; never more once the store has `rested`
    than before. `snapshot`: bytes of the last one."""
    return max(least, SNAPSHOTS * snapshot, 0 if rested else burst)


def hold_back_ns(size: int, waiting: int, burst: int, due: int) -> int:
    """How long the writer of `size` bytes waits behind them. `waiting`: bytes of WAL since the last checkpoint. Only a
    checkpoint ends it, so nobody waits before one is `due`."""
    over = waiting - max(FROM_BURSTS * burst, due)
    return size * NS_PER_BYTE * min(over, burst) // burst if over > 0 else 0
