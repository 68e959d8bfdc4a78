"""The n-th call of a scenario fails or is interrupted, for every n; then life goes on, twice over a power cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from tests.crash.life import Life
from tests.crash.scenarios import SCENARIOS, Scenario
from topics.model.errors import TopicsError
from topics.testing.disk import CrashKind, PowerOff
from topics.testing.faults import Fault, FaultFs

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
ERRORS = {
    "write": ("EIO", "ENOSPC", "SHORT"),
    "read": ("EIO", "SHORT"),
    "open": ("EIO", "ENOSPC", "EMFILE"),
    "rename": ("EIO", "ENOSPC"),
    "mkdir": ("EIO", "ENOSPC"),
    "sync": ("EIO", "ENOSPC"),
    "sync_dir": ("EIO", "EMFILE"),
    "truncate": ("EIO",),
    "remove": ("EIO",),
    "list": ("EIO", "EMFILE"),
    "lock": ("EIO",),
    "map": ("EIO",),
    "uncache": ("EIO",),
    "free": ("ENOSPC", "EMFILE"),
    "dsync": (),
    "allocate": ("EIO", "ENOSPC"),
}
"""What each class of calls can fail with. A dsync is a sync too and fails there."""


@cache
def _base(name: str) -> Life:
    """The disk before the swept part: prepared once, cloned for every point."""
    scenario = BY_NAME[name]
    life = Life(**scenario.options)
    if scenario.prepare:
        life.open()
        for step in scenario.prepare:
            step(life)
        life.kill()
    return life


def _act(life: Life, scenario: Scenario) -> None:
    for step in scenario.act:
        try:
            step(life)
        except TopicsError:
            continue


def _start(scenario: Scenario) -> tuple[Life, FaultFs]:
    life = _base(scenario.name).clone()
    life.options |= scenario.reopened
    fs = FaultFs(life.ordered())
    if scenario.warm:
        life.open(fs)
        life.ledger.check(life.store, "kill")
    return life, fs


def _run(life: Life, fs: FaultFs, scenario: Scenario) -> None:
    """The swept part; an opening that fails has failed as a whole."""
    if not scenario.warm:
        try:
            life.open(fs)
        except TopicsError:
            return
    _act(life, scenario)


def count_calls(scenario: Scenario) -> Counter[str]:
    life, fs = _start(scenario)
    before = Counter(fs.counts)
    _run(life, fs, scenario)
    made = Counter(fs.counts) - before
    if life.is_open:
        life.ledger.check_live(life.store)
    return made


def faults_of(scenario: Scenario) -> Iterator[Fault]:
    for call, count in sorted(count_calls(scenario).items()):
        for error in ERRORS[call]:
            for nth in range(1, count + 1):
                yield Fault(call, nth, error)
                yield Fault(call, nth, error, forever=True)


def try_fault(scenario: Scenario, fault: Fault) -> None:
    life, fs = _start(scenario)
    fs.add(fault)
    _run(life, fs, scenario)
    assert fs.fired, "the fault never came"
    if life.is_open:
        life.more(strict=False)
    go_on(life)


def go_on(life: Life) -> None:
    """Two power cuts with writing between them; the ledger is asked after each."""
    assert life.order is None or not life.order.violations, life.order.violations
    for _ in range(2):
        life.power_cut()
        life.reopen()
        life.more(strict=True)
        life.ledger.check_live(life.store)


def count_mutations(scenario: Scenario) -> int:
    life, fs = _start(scenario)
    before = life.disk.calls
    _run(life, fs, scenario)
    return life.disk.calls - before


def try_crash(scenario: Scenario, nth: int, kind: CrashKind, seed: int) -> None:
    life, fs = _start(scenario)
    life.disk.rng.seed(seed * 100_003 + nth)
    life.disk.crash_at(life.disk.calls + nth, kind)
    try:
        _run(life, fs, scenario)
    except PowerOff:
        pass
    if kind == "power":
        life.power_cut()
    else:
        life.kill()
    life.reopen()
    life.more(strict=True)
    go_on(life)


def try_double_crash(scenario: Scenario, first: int, second: int, kind: CrashKind) -> bool:
    """A crash inside the opening, then one inside the opening after it. False if the second opening was over before."""
    life, _ = _start(scenario)
    life.disk.rng.seed(first * 100_003 + second)
    reached = False
    for nth in (first, second):
        life.disk.crash_at(life.disk.calls + nth, kind)
        try:
            life.open()
            life.disk.crash_at(None)
        except PowerOff:
            reached = nth == second
        if kind == "power":
            life.power_cut()
        else:
            life.kill()
    life.reopen()
    life.more(strict=True)
    go_on(life)
    return reached
