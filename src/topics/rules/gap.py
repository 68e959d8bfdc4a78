"""What a reader must be told: which loss lies at or after its cursor."""

from __future__ import annotations

from topics.model.record import Gap, GapReason


def floor_reason(first: int, evict_floor: int, expiry_floor: int) -> GapReason:
    """Why the records from `first` up to the floors are gone."""
    by_cap, by_ttl = evict_floor >= first, expiry_floor >= first
    if by_cap and by_ttl:
        return "mixed"
    if by_cap:
        return "cap"
    return "ttl" if by_ttl else "source_trim"


def floor_gap(cursor: int, evict_floor: int, expiry_floor: int, trim_floor: int) -> Gap | None:
    """The gap below the involuntary floors for a reader that has seen everything up to `cursor`."""
    floor = max(evict_floor, expiry_floor, trim_floor)
    if cursor >= floor:
        return None
    return Gap(cursor + 1, floor, floor_reason(cursor + 1, evict_floor, expiry_floor))
