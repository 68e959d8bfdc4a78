"""What a fetch and its acks cost a whole store while much is pending: counted in bytecodes, not in time."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from tests.unit.broker.test_group import GroupBench

ROUNDS = 5


def _cost_of_a_round(pending: int) -> float:
    """Bytecodes that a fetch of 20, their acks and a look at the group take while so many are pending."""
    bench = GroupBench()
    bench.make(1, max_pending=1_000_000, visibility_ms=3_600_000)
    for start in range(0, pending + 1_000, 1_000):
        bench.append("t", *range(start, start + 1_000))
    for _ in range(pending // 1_000):
        assert len(bench.fetch(most=1_000)) == 1_000

    def work() -> None:
        seqs = bench.seqs(most=20)
        assert bench.ack(*seqs) == 20
        assert bench.state()["committed"] == 1

    for _ in range(2):  # what is built once is built
        work()
    done = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        done += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for _ in range(ROUNDS):
            work()
    finally:
        sys.settrace(before)
    return done / ROUNDS


def test_a_round_of_a_group_costs_no_more_with_100_000_pending() -> None:
    few, many = _cost_of_a_round(1_000), _cost_of_a_round(100_000)
    assert many <= 1.5 * few, (few, many)
