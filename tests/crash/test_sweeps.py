"""Every file call of every scenario fails once, and fails for ever, and is interrupted by a kill and by a power cut.

After each point: more appends and deletes, a power cut, recovery, the ledger; writing, a cut, recovery, the ledger.
"""

from __future__ import annotations

import pytest

from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.sweeps import (
    ERRORS,
    count_calls,
    count_mutations,
    faults_of,
    try_crash,
    try_double_crash,
    try_fault,
)
from topics.testing.faults import CALLS, Fault

BY_NAME = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
OPENINGS = [scenario for scenario in SCENARIOS if not scenario.warm and not scenario.act]


def explain(scenario: Scenario, point: object, error: BaseException) -> str:
    return f"{scenario.name}, {point}: {type(error).__name__}: {error}"


@pytest.mark.parametrize("group", [("write",), ("sync", "sync_dir"), ("open", "read", "map", "list"), None], ids=str)
@BY_NAME
def test_nothing_acked_is_lost_whichever_call_fails(scenario: Scenario, group: tuple[str, ...] | None) -> None:
    named = ("write", "sync", "sync_dir", "open", "read", "map", "list")
    for fault in faults_of(scenario):
        if fault.call in group if group is not None else fault.call not in named:
            try:
                try_fault(scenario, fault)
            except Exception as error:
                pytest.fail(explain(scenario, fault, error))


@pytest.mark.parametrize("kind", ["kill", "power"])
@BY_NAME
def test_nothing_acked_is_lost_wherever_a_crash_comes(scenario: Scenario, kind: str) -> None:
    """F-REC-CRASH-DURING-REPLAY, fsync_topic_sweep_acked_always_durable (append_fsync) and the other sweeps of the
    catalogue, at every call and not at samples."""
    for nth in range(1, count_mutations(scenario) + 1):
        for seed in range(1 if kind == "kill" else 2):
            try:
                try_crash(scenario, nth, "kill" if kind == "kill" else "power", seed)
            except Exception as error:
                pytest.fail(explain(scenario, f"{kind} in call {nth}, seed {seed}", error))


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("scenario", OPENINGS, ids=lambda scenario: scenario.name)
def test_a_recovery_interrupted_twice_still_converges(scenario: Scenario, kind: str) -> None:
    calls = count_mutations(scenario)
    reached = 0
    for first in range(1, calls + 1):
        for second in range(1, calls + 1, 3):
            try:
                reached += try_double_crash(scenario, first, second, "kill" if kind == "kill" else "power")
            except Exception as error:
                pytest.fail(explain(scenario, f"{kind} in calls {first} and {second}", error))
    assert reached >= calls, "the second opening was interrupted, too"


def test_the_sweeps_reach_every_class_of_calls() -> None:
    reached = {call for scenario in SCENARIOS for call in count_calls(scenario)}
    assert reached == set(CALLS)


def test_a_class_of_calls_fails_with_something() -> None:
    assert set(ERRORS) == set(CALLS)
    for call, errors in ERRORS.items():
        for error in errors:
            assert Fault(call, 1, error).error == error
