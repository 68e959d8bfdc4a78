"""What retention may take while consumer groups still have to get it: told from what was said to the groups alone.

A guarded group keeps the records from the first one that is not settled on, as long as those of them that are to go
have no more bytes than it may hold back.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from tests.crash.groups import GroupLedger, Told
from topics.model.record import Record
from topics.storage.submission import State
from topics.testing.plain import size_of


def wrongly_taken(
    ledger: GroupLedger,
    topic_id: int,
    records: Iterable[Record],
    over: set[int],
    took: set[int],
    later: Set[int] = frozenset(),
) -> str | None:
    """Why `took` is not what may go of `over`, which is too old or too much; None = it is. `records`: all there are.
    `later`: what becomes of these is not decided yet."""
    if not over and not took:
        return None
    known = ledger.topics.get(topic_id)
    guards = [told for told in known.groups.values() if told.hold is not None] if known is not None else []
    if not guards:
        return None if took == over - later else f"{sorted(took)} go, expected {sorted(over - later)}"
    if not took <= over or (took and any(seq < max(took) for seq in over - took)):
        return f"{sorted(took)} go, and of {sorted(over)} the oldest were to go"
    sizes = {record.seq: size_of(record) for record in records}
    for told in guards:
        for seq in took if _is_sure(told) else ():
            if _is_pending(told, seq) and _bytes_from(seq, over, sizes) <= _hold(told):
                return f"record {seq} goes, and a group that may hold {told.hold} bytes still has to get it"
    left = over - took - later
    if left and not any(_may_hold(told, left, over, sizes) for told in guards):
        return f"{sorted(left)} stay, and no group may hold them"
    return None


def _is_sure(told: Told) -> bool:
    """All that decides where the group is has happened."""
    return told.dropped is None and all(token.state == State.DONE for token in told.made)


def _is_pending(told: Told, seq: int) -> bool:
    if seq < told.start or seq in told.settled:
        return False
    return not any(seq in seqs for seqs, token in told.acks if token is None or token.state == State.DONE)


def _hold(told: Told) -> int:
    assert told.hold is not None
    return told.hold


def _bytes_from(seq: int, over: set[int], sizes: dict[int, int]) -> int:
    return sum(size for other, size in sizes.items() if seq <= other <= max(over))


def _may_hold(told: Told, left: set[int], over: set[int], sizes: dict[int, int]) -> bool:
    if _bytes_from(min(left), over, sizes) > _hold(told):
        return False
    return not _is_sure(told) or any(_is_pending(told, seq) for seq in sizes if seq <= max(over))
