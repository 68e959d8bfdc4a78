"""The background worker, one turn at a time."""

from __future__ import annotations

import pytest

from tests.unit.broker.routed import PLAIN, Routed
from topics.broker.forwarding import GATHER_MS, TICK_MS, Forwarder
from topics.broker.router import PASS_RECORDS
from topics.broker.steps import Nap, Steps
from topics.format.control import RouterBits
from topics.storage.submission import Submission


class Worker:
    """Drives a forwarder: writes where it waits for the disk, stops where it sleeps."""

    def __init__(self, routed: Routed) -> None:
        self.routed = routed
        self.steps: Steps[None] = Forwarder(routed.store).run()
        self.nap = self.sleep()

    def sleep(self) -> Nap:
        while True:
            wait = next(self.steps)
            if isinstance(wait, Submission):
                while not wait.settled:
                    self.routed.store.drive_once()
            elif wait.wait_ms:
                return wait

    def heard(self) -> None:
        """What an append set off."""
        assert self.nap.woken, "the append was heard"
        gather = self.sleep()
        assert gather.wait_ms == GATHER_MS
        self.nap = self.sleep()

    def tick(self) -> None:
        self.routed.clock.advance(TICK_MS)
        self.nap = self.sleep()


@pytest.fixture
def routed() -> Routed:
    routed = Routed()
    routed.put("r", "a", "b")
    return routed


def test_an_append_to_a_source_sets_the_worker_off(routed: Routed) -> None:
    worker = Worker(routed)
    routed.append("a", 1, 2)
    worker.heard()
    assert routed.data("b") == [1, 2]
    assert not worker.nap.woken
    routed.append("a", 3)
    worker.heard()
    assert routed.data("b") == [1, 2, 3]


def test_an_append_elsewhere_does_not_wake_it(routed: Routed) -> None:
    worker = Worker(routed)
    routed.create("c")
    routed.append("c", 1)
    routed.append("b", 1)
    assert not worker.nap.woken


def test_what_waited_before_the_start_is_copied_at_once(routed: Routed) -> None:
    routed.append("a", *range(PASS_RECORDS + 1))
    Worker(routed)
    assert routed.data("b") == list(range(PASS_RECORDS + 1))


def test_a_new_router_is_noticed_with_the_next_tick(routed: Routed) -> None:
    worker = Worker(routed)
    routed.put("s", "c", "d")
    worker.tick()
    routed.append("c", 1)
    worker.heard()
    assert routed.data("d") == [1]


def test_copies_set_off_the_routers_behind_them(routed: Routed) -> None:
    routed.put("s", "b", "c")
    routed.put("back", "c", "a", PLAIN | RouterBits.ALLOW_CYCLE)
    worker = Worker(routed)
    routed.append("a", 1)
    for _ in range(30):
        worker.nap = worker.sleep()
    # Nine places for one record: itself and eight hops.
    assert [len(routed.records(name)) for name in "abc"] == [3, 3, 3]


def test_a_full_dest_is_tried_again_with_each_tick_and_not_sooner(routed: Routed) -> None:
    routed.create("full", discard="reject", cap_records=1)
    routed.put("s", "a", "full")
    worker = Worker(routed)
    routed.append("a", 1, 2)
    worker.heard()
    routed.append("a", 3)
    worker.heard()
    assert routed.data("full") == [1]
    assert routed.data("b") == [1, 2, 3]
    routed.store.drive(routed.store.delete("full", 2, None)[0])
    routed.append("a", 4)
    worker.heard()
    assert routed.data("full") == []
    worker.tick()
    assert routed.data("full") == [2]


def test_a_source_that_went_and_came_again_is_heard(routed: Routed) -> None:
    worker = Worker(routed)
    routed.store.drive(routed.store.drop("a"))
    worker.heard()
    routed.put("r", "a", "b")
    worker.tick()
    routed.append("a", 7)
    worker.heard()
    assert routed.data("b") == [7]


def test_one_ear_waits_at_a_source_however_long_it_sleeps(routed: Routed) -> None:
    worker = Worker(routed)
    for _ in range(5):
        worker.tick()
    routed.put("s", "a", "c")
    worker.tick()
    assert len(routed.store.topic("a").waiters) == 1


def test_expired_records_are_not_copied(routed: Routed) -> None:
    routed.create("old", ttl_ms=10)
    routed.put("s", "old", "new")
    worker = Worker(routed)
    routed.append("old", 1)
    routed.clock.advance(11)
    worker.heard()
    assert routed.data("new") == []
    assert routed.gaps("new") == [(1, 1, "source_trim")]


def test_the_worker_ends_when_nobody_may_sleep(routed: Routed) -> None:
    worker = Worker(routed)
    worker.nap.refused = True
    with pytest.raises(StopIteration):
        next(worker.steps)


def test_the_worker_ends_with_the_store(routed: Routed) -> None:
    worker = Worker(routed)
    routed.append("a", 1)
    routed.store.closed = True
    assert isinstance(next(worker.steps), Nap)
    with pytest.raises(StopIteration):
        next(worker.steps)


def test_a_mistake_of_ours_does_not_end_the_worker(routed: Routed, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(routed)
    routed.store.routers.by_name["broken"] = None  # type: ignore[assignment]
    routed.store.routers.version += 1
    routed.append("a", 1)
    worker.heard()
    assert "forwarding failed" in caplog.text
    assert routed.data("b") == []
    del routed.store.routers.by_name["broken"]
    worker.tick()
    assert routed.data("b") == [1]
