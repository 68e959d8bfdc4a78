"""The seeded loop runs every task, in an order that comes again with the seed."""

from __future__ import annotations

import pytest

from topics.testing.loop import SeededLoop, Steps, Stuck


def writer(name: str, count: int, log: list[str]) -> Steps:
    for n in range(count):
        log.append(f"{name}{n}")
        yield None
    return name


def interleaving(seed: int) -> list[str]:
    log: list[str] = []
    loop = SeededLoop(seed)
    for name in "abc":
        loop.spawn(writer(name, 4, log))
    loop.run()
    return log


def test_every_task_runs_to_its_end_in_its_own_order() -> None:
    log = interleaving(1)
    assert len(log) == 12
    for name in "abc":
        assert [item for item in log if item[0] == name] == [f"{name}{n}" for n in range(4)]


def test_the_seed_alone_decides_the_order() -> None:
    assert interleaving(3) == interleaving(3)
    assert len({tuple(interleaving(seed)) for seed in range(50)}) > 40


def test_a_task_returns_its_result() -> None:
    loop = SeededLoop(0)
    task = loop.spawn(writer("a", 2, []))
    assert not task.done
    loop.run()
    assert task.done
    assert task.result == "a"


def test_a_waiting_task_goes_on_when_its_test_is_true() -> None:
    for seed in range(20):
        log: list[str] = []

        def reader(log: list[str] = log) -> Steps:
            yield lambda: "a2" in log
            log.append("seen")

        loop = SeededLoop(seed)
        loop.spawn(reader())
        loop.spawn(writer("a", 4, log))
        loop.run()
        assert log.index("seen") > log.index("a2")


def test_tasks_that_all_wait_are_reported_by_name() -> None:
    def waiter() -> Steps:
        yield lambda: False

    loop = SeededLoop(0)
    loop.spawn(waiter(), "consumer")
    with pytest.raises(Stuck, match="consumer"):
        loop.run()


def test_a_task_may_spawn_another() -> None:
    log: list[str] = []
    loop = SeededLoop(0)

    def parent() -> Steps:
        yield None
        loop.spawn(writer("child", 2, log))

    loop.spawn(parent())
    loop.run()
    assert log == ["child0", "child1"]


def test_an_error_comes_out_and_the_other_tasks_can_go_on() -> None:
    def broken() -> Steps:
        yield None
        raise RuntimeError("broken")

    log: list[str] = []
    loop = SeededLoop(0)
    loop.spawn(broken())
    loop.spawn(writer("a", 3, log))
    with pytest.raises(RuntimeError):
        loop.run()
    loop.run()
    assert log == ["a0", "a1", "a2"]


def test_dropped_tasks_end_where_they_stand_whatever_their_clean_up_does() -> None:
    log: list[str] = []

    def task() -> Steps:
        try:
            yield None
            log.append("went on")
        finally:
            log.append("cleaned up")
            raise RuntimeError("the disk is gone")

    loop = SeededLoop(0)
    dropped = loop.spawn(task())
    loop.step()
    loop.drop()
    assert dropped.done
    assert not loop.step()
    assert log == ["cleaned up"]


def test_steps_are_counted() -> None:
    loop = SeededLoop(0)
    loop.spawn(writer("a", 3, []))
    loop.run()
    assert loop.steps == 4
