"""What a topic's priority comes to: a manual part, a part for being read lately, a part for waiting."""

from __future__ import annotations

import math
from typing import Final

MANUAL_MAX: Final = 1000
_FRESH: Final = 500
_HALF_LIFE_MS: Final = 30_000
_IDLE_MS_MAX: Final = 300_000
"""Beyond this a topic counts as never read; the term would be half a point anyway."""
_WAITED_MS_MAX: Final = 10_000


def effective_priority(manual: int | None, auto: bool, idle_ms: int | None, waited_ms: int = 0) -> int:
    """`idle_ms` since the topic was last consumed, None = never."""
    value = float(min(max(manual or 0, -MANUAL_MAX), MANUAL_MAX))
    if manual is None and auto and idle_ms is not None and idle_ms < _IDLE_MS_MAX:
        value += _FRESH * 2.0 ** (-max(idle_ms, 0) / _HALF_LIFE_MS)
    value += 0.1 * min(max(waited_ms, 0), _WAITED_MS_MAX)
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
