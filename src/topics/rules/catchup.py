"""When a writer that is faster than the checkpoints behind it is held back, and for how long.

Every checkpoint of such a burst finds more to copy than the one before. The WAL, the memory it takes and the time in
which a killed store is there again grow for as long as the burst lasts. Held back at some point, the writer goes at the
pace of the checkpoints.
"""

from __future__ import annotations

from typing import Final

FROM_BURSTS: Final = 8
"""Nobody is held back before so many times `checkpoint_burst_bytes` wait for the next checkpoint."""
NS_PER_BYTE: Final = 4
"""What a byte waits where one burst more waits: 250 MB/s is the least that a writer is slowed to."""


def hold_back_ns(size: int, waiting: int, burst: int) -> int:
    """How long the writer of `size` bytes waits behind them. `waiting`: bytes of WAL since the last checkpoint."""
    over = waiting - FROM_BURSTS * burst
    return size * NS_PER_BYTE * min(over, burst) // burst if over > 0 else 0
