"""Which seqs of a range still have a record: in one go, and from its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topics.storage.dead import BLOCK, DeadSet
from topics.storage.topic import Topic


def live_runs(topic: Topic, first: int, last: int, overlay: DeadSet | None = None) -> list[tuple[int, int]]:
    """The seqs of first..last that are not gone, as inclusive ranges; `overlay` counts as gone too."""
    if first > last:
        return []
    mask = topic.gone_mask(first, last - first + 1, overlay)
    if mask is None:
        return [(first, last)]
    live = (np.frombuffer(mask, dtype=np.uint8) == 0).astype(np.int8)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], live, [0])))).tolist()
    return [(first + low, first + high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True)]


def runs_of(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending seqs as inclusive ranges."""
    if seqs and seqs[-1] - seqs[0] == len(seqs) - 1:
        return [(seqs[0], seqs[-1])]
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and runs[-1][1] >= seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs


def last_live(topic: Topic, first: int, last: int, overlay: DeadSet | None = None) -> int:
    """The highest seq of first..last that is not gone; first - 1 if all are. `overlay` counts as gone too."""
    while last >= first:
        low = max(first, last - BLOCK + 1)
        mask = topic.gone_mask(low, last - low + 1, overlay)
        if mask is None:
            return last
        live = mask.rfind(b"\0")
        if live >= 0:
            return low + live
        last = low - 1
    return first - 1
