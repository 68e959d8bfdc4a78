"""Spans into partitions: even ones, each worth a task, in seq order inside each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topics.spark.places import Span

PARTITION_BYTES: Final = 128 << 20
"""What a task should read: its own cost, some 30 ms, must not show."""
TASK_BYTES_MIN: Final = 4 << 20
"""Less than this is not worth a second task."""


def pack(
    spans: Iterable[Span],
    cores: int,
    min_partitions: int = 0,
    records_max: int | None = None,
    *,
    bytes_max: int = PARTITION_BYTES,
    bytes_min: int = TASK_BYTES_MIN,
) -> list[list[Span]]:
    """Partitions of about equal bytes: enough for `cores` where there is work for them, and never fewer than asked."""
    spans = [span for span in spans if span.count > 0]
    total = sum(span.bytes for span in spans)
    rounds = -(-total // (bytes_max * cores))  # of all cores: a last one with few tasks would leave the others idle
    wanted = max(min(rounds * cores, total // bytes_min), min_partitions, 1)
    target = max(total / wanted, 1.0)
    partitions: list[list[Span]] = []
    done = records = share = 0
    for span in spans:
        for part in _split(span, target, records_max):
            middle = int((done + part.bytes / 2) / target)
            crowded = records_max is not None and records + part.count > records_max
            if not partitions or middle != share or crowded:
                partitions.append([])
                records = 0
            partitions[-1].append(part)
            share = middle
            done += part.bytes
            records += part.count
    return partitions


def _split(span: Span, target: float, records_max: int | None) -> Iterable[Span]:
    """Parts that fit a partition."""
    pieces = max(-(-span.bytes // max(int(target), 1)), 1)
    if records_max is not None:
        pieces = max(pieces, -(-span.count // records_max))
    pieces = min(pieces, span.count)
    step = -(-span.count // pieces)
    for start in range(span.start_seq, span.end_seq, step):
        yield span.cut(start, min(start + step, span.end_seq))
