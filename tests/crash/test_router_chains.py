"""Random lives of a chain of routers: a -> b -> c, with direct writes, deletes, checkpoints, kills and power cuts."""

from __future__ import annotations

from random import Random

import pytest

from tests.conftest import SEED
from tests.unit.broker.routed import Routed
from topics.testing.disk import FakeDisk, PowerOff

LIVES = 20
STEPS = 120


class Chain:
    """Every topic is of class fsync: whatever was told is true for ever."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.routed = Routed(FakeDisk(seed, sector=64), wal_shards=self.rng.choice((1, 2, 3)))
        for name in "abc":
            self.routed.create(name)
        self.routed.put("ab", "a", "b")
        self.routed.put("bc", "b", "c")
        self.number = 0
        self.told: dict[str, list[int]] = {"a": [], "b": []}
        self.deleted: set[int] = set()
        self.told_deleted: set[int] = set()

    def step(self) -> None:
        rng, routed = self.rng, self.routed
        chance = rng.random()
        if chance < 0.45:
            name = rng.choice("aab")
            data = list(range(self.number, self.number + rng.randint(1, 4)))
            self.number += len(data)
            routed.append(name, *data)
            self.told[name] += data
        elif chance < 0.75:
            routed.step(rng.choice(("ab", "bc")))
        elif chance < 0.82:
            self.delete()
        elif chance < 0.9:
            routed.store.checkpoint()
        elif chance < 0.93:
            routed.kill(wal_shards=rng.choice((1, 2, 3)))
        elif chance < 0.96:
            routed.power_cut(wal_shards=rng.choice((1, 2, 3)))
        else:
            # In the middle of some call that comes soon.
            routed.disk.crash_at(routed.disk.calls + rng.randint(1, 12), rng.choice(("kill", "power")))

    def delete(self) -> None:
        """From the end of the chain: nobody copies on what is gone from there."""
        found = self.routed.records("c")
        if found:
            last = self.rng.choice(found)
            doomed = {record.data for record in found if record.seq <= last.seq}
            self.deleted |= doomed
            self.routed.store.drive(self.routed.store.delete("c", last.seq + 1, None)[0])
            self.told_deleted |= doomed

    def run(self) -> None:
        for _ in range(STEPS):
            try:
                self.step()
            except PowerOff:
                self.routed.disk.crash_at(None)
                self.routed.disk.restart()
                self.routed.open()
        self.routed.disk.crash_at(None)
        for _ in range(2):
            self.check()
            self.routed.power_cut()

    def check(self) -> None:
        routed = self.routed
        for dest in "bc":
            routed.pull(dest)
        a, b, c = (routed.data(name) for name in "abc")
        assert set(self.told["a"]) <= set(a), "an acked record is gone"
        assert set(self.told["b"]) <= set(b), "a direct write is gone"
        assert len(set(b)) == len(b), "a copy came twice"
        assert len(set(c)) == len(c), "a copy came twice"
        assert not self.told_deleted & set(c), "a deleted copy came back"
        assert [number for number in b if number in set(a)] == a
        assert [number for number in c if number not in self.deleted] == [n for n in b if n not in self.deleted]
        assert routed.router("ab").forwarded == len(a)
        assert routed.router("bc").forwarded == len(b)
        assert routed.gaps("b") == routed.gaps("c") == []


@pytest.mark.parametrize("life", range(LIVES))
def test_a_chain_of_routers_copies_everything_once_in_a_random_life(life: int) -> None:
    seed = SEED * 31 + life
    try:
        Chain(seed).run()
    except Exception as error:
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
