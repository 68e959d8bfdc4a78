"""Trust in the disk: earned by quick writes, lost by a slow one, lapsed by silence."""

from __future__ import annotations

from topics.api.pace import PROOFS, TRUST_NS, Pace

QUICK, SLOW = 1000, 1001


def test_unknown_disk_is_not_trusted_until_one_quick_write() -> None:
    pace = Pace(QUICK)
    assert not pace.is_quick(0)
    pace.took(10, QUICK)
    assert pace.is_quick(11)


def test_slow_write_costs_several_proofs() -> None:
    pace = Pace(QUICK)
    pace.took(10, QUICK)
    pace.took(20, SLOW)
    for at in range(30, 30 + PROOFS):
        assert not pace.is_quick(at)
        pace.took(at, QUICK)
    assert pace.is_quick(40)


def test_trust_lapses_without_writes_and_one_proof_brings_it_back() -> None:
    pace = Pace(QUICK)
    for at in range(10):
        pace.took(at, QUICK)
    assert pace.is_quick(9 + TRUST_NS - 1)
    assert not pace.is_quick(9 + TRUST_NS)
    pace.took(9 + TRUST_NS, QUICK)
    assert pace.is_quick(9 + TRUST_NS + 1)
