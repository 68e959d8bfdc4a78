"""How much of what is there the next batch takes: pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """Seqs of one topic that may be read: start..end, half-open, and about how many bytes they are."""

    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one batch over all topics; None = none."""

    records: int | None = None
    bytes: int | None = None


def admit(offers: Mapping[str, Offer], limits: Limits) -> dict[str, int]:
    """The end of each topic's part. What is limited is shared in proportion to what is there, so that no topic starves;
    a batch has at least one record, however small the limit."""
    there = sum(offer.end - offer.start for offer in offers.values())
    size = sum(offer.bytes for offer in offers.values())
    share = 1.0
    if limits.records is not None and there > limits.records:
        share = limits.records / there
    if limits.bytes is not None and size > limits.bytes:
        share = min(share, limits.bytes / size)
    if share >= 1.0:
        return {name: offer.end for name, offer in offers.items()}
    ends = {name: offer.start + int((offer.end - offer.start) * share) for name, offer in offers.items()}
    # Rounding down may leave room, or nothing at all: the first topics that have something get one more each.
    taken = sum(ends[name] - offer.start for name, offer in offers.items())
    goal = max(int(there * share), 1)
    for name, offer in sorted(offers.items()):
        if taken >= goal:
            break
        if ends[name] < offer.end:
            ends[name] += 1
            taken += 1
    return ends
