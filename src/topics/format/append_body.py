"""The quick way through the body of an append; the kernel has it, and only the kernel.

The usual form of a body: `records` is its first field, its records hold `data`, `tag`, `node`, `key` and `meta` and
nothing else, no name twice, no text with escapes, nothing beyond a limit. Such a body becomes frames in one pass, byte
for byte those of `prepare`. Every other body goes the slow way, which also says what is wrong with it.
"""

from __future__ import annotations

from topics.format.prepared import Prepared


def prepare_body(text: bytes, count_max: int) -> tuple[Prepared, bytes, bool] | None:
    """(the batch, the body with an empty list of records, whether a record lacks a node of its own), or None where the
    body has not the usual form. Python has no quick way: always None."""
    return None
