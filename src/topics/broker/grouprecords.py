"""The records of a fetch as its member sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topics.broker.group import Batch
from topics.broker.jobs import render_leased, render_together
from topics.format.render import AS_DELIVERY, COMMA, WITH_DATA, WITH_KEYS, WITH_META, WITH_TAGS
from topics.storage.store import Store

_WANT: Final = WITH_TAGS | WITH_META | WITH_DATA | WITH_KEYS


def render_batch(store: Store, batch: Batch) -> bytes:
    """The JSON of the records. One that went meanwhile, or whose bytes are damaged, is left out."""
    want = _WANT if batch.is_stream else _WANT | AS_DELIVERY
    return render_leased(store, batch.topic, batch.rows, want, batch.deadline, COMMA)[0]


def render_batches(store: Store, batches: Sequence[Batch]) -> list[bytes]:
    """The same of what members of one group in queue mode were given together."""
    if not batches:
        return []
    rows, deadlines = [batch.rows for batch in batches], [batch.deadline for batch in batches]
    found = render_together(store, batches[0].topic, rows, deadlines, _WANT | AS_DELIVERY)
    return [text for text, _ in found]
