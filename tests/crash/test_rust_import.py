"""Taking over a directory of the Rust program is safe at every point."""

from __future__ import annotations

import random

import pytest

from tests.crash.rust_import import count_mutations, faults, go_on, start, try_crash, try_fault
from tests.unit.storage.rust.engine import opened
from topics.testing.disk import CrashKind


def test_an_import_that_nothing_disturbs_is_the_measure() -> None:
    disk = start()
    opened(disk)
    disk.kill()
    go_on(disk)


def test_any_call_of_an_import_may_fail() -> None:
    for fault in faults():
        try:
            try_fault(fault)
        except BaseException as error:
            error.add_note(f"with {fault}")
            raise


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_an_import_may_be_cut_off_at_any_change(kind: CrashKind) -> None:
    for nth in range(1, count_mutations() + 1):
        for seed in range(1 if kind == "kill" else 2):
            try:
                try_crash(nth, kind=kind, seed=seed)
            except BaseException as error:
                error.add_note(f"in change {nth}, seed {seed}")
                raise


def test_an_import_may_be_cut_off_again_and_again() -> None:
    rng = random.Random(7)
    total = count_mutations()
    for seed in range(60):
        points = [rng.randint(1, total) for _ in range(3)]
        try:
            try_crash(*points, kind=rng.choice(("kill", "power")), seed=seed, reshard=seed % 2 == 0)
        except BaseException as error:
            error.add_note(f"in changes {points}, seed {seed}")
            raise
