"""A worker of Spark's lives for many calls and tasks, and collects garbage behind each of them."""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """What the worker has imported by now is never garbage: looking at all of it again takes some 25 ms a call."""
    global _settled
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
