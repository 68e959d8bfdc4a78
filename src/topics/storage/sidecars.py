"""The sidecars of a pair that is being sealed, made from its bytes."""

from __future__ import annotations

import numpy as np

from topics.format.checksum import Buffer
from topics.format.envelope import KEY_MARK
from topics.format.ops import SEGMENT_LAYOUT, collect_keys, collect_tags
from topics.format.segment import ENTRY_DTYPE, TAG
from topics.format.tags import KEYS_MAGIC, build_tags


def has_tags(entries: Buffer) -> bool:
    return bool((np.frombuffer(entries, dtype=ENTRY_DTYPE)["flags"] & TAG).any())


def build_sidecars(data: Buffer, entries: Buffer, first_seq: int, keyless: bool) -> dict[str, bytes]:
    """By part, what `.tags` and `.keys` hold; none where no record carries one. `keyless`: none has a key."""
    count = len(entries) // ENTRY_DTYPE.itemsize
    parts: dict[str, bytes] = {}
    if has_tags(entries):
        parts["tags"] = build_tags(collect_tags(data, entries, 0, count, SEGMENT_LAYOUT, 0), first_seq)
    # Where the mark of a key is nowhere, nothing has to be taken apart.
    if not keyless and KEY_MARK in bytes(data):
        keys = collect_keys(data, entries, 0, count, SEGMENT_LAYOUT, 0)
        if any(key is not None for key in keys):
            parts["keys"] = build_tags(keys, first_seq, KEYS_MAGIC)
    return parts
