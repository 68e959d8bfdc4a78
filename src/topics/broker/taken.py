"""Copies that a router need not make, because the dest holds them already under the key it would give them.

Its own it never repeats: they are logged with its cursor. What is looked for are records that somebody appended to the
dest, with the meta of a copy: a restored backup, a second writer. Direct appends have no hops, so copies are told from
them without being read. Of what was there before this process first looked, only the newest records are searched.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from topics.format.segment import ENTRY_DTYPE, HOPS
from topics.model.record import Gap
from topics.storage.reader import fetch, plan
from topics.storage.routers import Router
from topics.storage.store import Store
from topics.storage.topic import Topic

MARK: Final = "_topics_router"
_LOOK_BACK: Final = 16_384
_STEP: Final = 4096
_STEP_BYTES: Final = 8 * 1024 * 1024


def key_prefix(router: Router, source: Topic) -> str:
    """Of the idempotency keys of a router's copies; the source seq follows."""
    return f"router:{router.name}:{source.id}:{source.epoch}:"


def taken(store: Store, router: Router, source: Topic, dest: Topic) -> set[int]:
    """Source seqs whose copies live in the dest already. Under the store's lock."""
    _look(store, router, source, dest)
    for seq in [seq for seq, copy in router.taken.items() if seq <= router.cursor or copy in dest.dead]:
        del router.taken[seq]
    return set(router.taken)


def _look(store: Store, router: Router, source: Topic, dest: Topic) -> None:
    prefix = key_prefix(router, source)
    cursor = max(router.looked, dest.dead.floor, dest.head - _LOOK_BACK)
    while (part := plan(dest, cursor, dest.head + 1, _STEP)) is not None:
        if isinstance(part, Gap):
            cursor = part.gap_to
            continue
        entries = part.entries
        if entries is None:
            assert part.segment is not None
            entries = store.handles.entries(part.segment, part.first_seq - part.segment.first_seq, part.count)
        direct = np.frombuffer(entries, dtype=ENTRY_DTYPE)["flags"] & HOPS == 0
        if not direct.any():
            cursor = part.last_seq
            continue
        for item in fetch(store.handles, part, _STEP_BYTES):
            if isinstance(item, Gap):
                cursor = item.gap_to
                continue
            for record in item.records():
                if direct[record.seq - part.first_seq] and record.meta_raw and MARK.encode() in record.meta_raw:
                    seq = _seq_in(record.meta, prefix)
                    if seq > router.cursor:
                        router.taken[seq] = record.seq
            cursor = item.first_seq + item.count - 1
    router.looked = dest.head


def _seq_in(meta: Any, prefix: str) -> int:
    """The source seq that a meta names, if it is that of a copy by this router; 0 = it is not."""
    origin = meta.get(MARK) if isinstance(meta, dict) else None
    key = origin.get("idempotency_key") if isinstance(origin, dict) else None
    digits = key.removeprefix(prefix) if isinstance(key, str) and key.startswith(prefix) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else 0
