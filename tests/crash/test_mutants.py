"""Each mistake that we could make in the engine is found by the simulation, within far fewer seeds than one run has."""

from __future__ import annotations

import pytest

from tests.conftest import SEED
from tests.crash.mutants import MUTANTS, Mutant, hunt

SEEDS_MAX = 1000
"""The rarest is seen by 5 seeds of 100, so that chance alone hides none; nearly every hunt ends within a few."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.apply.__name__)
def test_mutant_is_caught_by_the_simulation(mutant: Mutant) -> None:
    found = hunt(mutant, SEED, SEEDS_MAX)
    assert found is not None, f"{SEEDS_MAX} seeds from {SEED} on do not see: {mutant.name}"
