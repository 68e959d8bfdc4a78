"""Consumer groups over a store that is closed, killed and opened again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.broker.engine import Bench
from topics.broker.group import Asked, Where
from topics.model.config import TopicConfig
from topics.model.errors import StaleGeneration
from topics.model.group import GroupConfig

M = Asked("t", "g", "m")


class GroupBench(Bench):
    def make(self, count: int, name: str = "g", durability: str = "fsync", **config: Any) -> None:
        self.append("t", *range(1, count + 1), durability=durability)
        self.run(self.broker.groups.put("t", name, GroupConfig(**config), Where(to="earliest")))

    def fetch(self, member: str = "m", most: int = 100) -> list[tuple[int, int, int]]:
        """(seq, token, deliveries)."""
        batch = self.run(self.broker.groups.fetch(Asked("t", "g", member), most, None, 0, None))
        return [(seq, token, count) for seq, token, _, count in batch.rows]

    def seqs(self, member: str = "m", most: int = 100) -> list[int]:
        return [seq for seq, _, _ in self.fetch(member, most)]

    def ack(self, *seqs: int, member: str = "m") -> int:
        who = Asked("t", "g", member)
        verdict, _ = self.run(self.broker.groups.ack(who, seqs, [None] * len(seqs), ()))
        return len(verdict.done)

    def state(self) -> dict[str, Any]:
        shown = self.run(self.broker.groups.state("t", "g"))
        return {
            name: getattr(shown, name)
            for name in ("cursor", "committed", "pending", "parked", "lost", "delivered", "acked", "nacked")
        }

    def close(self) -> None:
        self.store.checkpoint(clean=True)
        self.store.release()

    def kill(self) -> None:
        self.disk.kill()
        self.disk.restart()

    def cut_power(self) -> None:
        self.disk.power_cut()
        self.disk.restart()

    def reopen(self, how: str) -> None:
        if how == "checkpoint":
            self.store.checkpoint()
        if how == "clean":
            self.close()
        else:
            self.kill()
        self.open()


@pytest.mark.parametrize("how", ["clean", "checkpoint", "kill"])
def test_what_is_settled_stays_settled_over_a_restart(how: str) -> None:
    bench = GroupBench()
    bench.make(6, max_deliveries=2)
    tokens = [token for _, token, _ in bench.fetch(most=4)]
    assert bench.ack(1, 3) == 2
    bench.run(bench.broker.groups.nack(M, [2], [None], 20_000, True))
    bench.run(bench.broker.groups.reject(M, [4], [None], ""))
    before = bench.state()
    assert (before["committed"], before["pending"], before["parked"]) == (2, 1, 1)
    bench.reopen(how)
    assert bench.state() == before
    assert bench.seqs("n") == [5, 6], "the nacked one is delayed and the parked one parked, as before"
    bench.clock.advance(20_001)
    again = bench.fetch("n")
    assert [(seq, count) for seq, _, count in again] == [(2, 2)]
    assert again[0][1] > max(tokens), "tokens never repeat"
    assert bench.ack(1) == 0


@pytest.mark.parametrize("how", ["clean", "checkpoint", "kill"])
def test_members_keep_their_generation_and_get_a_fresh_session(how: str) -> None:
    bench = GroupBench()
    bench.make(3, session_ms=1_000)
    _, first = bench.run(bench.broker.groups.join("t", "g", "m"))
    assert bench.seqs() == [1, 2, 3]
    bench.clock.advance(900)
    bench.reopen(how)
    bench.clock.advance(900)
    assert bench.run(bench.broker.groups.heartbeat(Asked("t", "g", "m", first))) == first
    _, second = bench.run(bench.broker.groups.join("t", "g", "m"))
    assert second > first
    with pytest.raises(StaleGeneration):
        bench.run(bench.broker.groups.heartbeat(Asked("t", "g", "m", first)))
    assert bench.seqs("other") == [1, 2, 3], "leases end with the process"


def test_leases_that_are_to_survive_do() -> None:
    bench = GroupBench()
    bench.append("t", 1, 2, durability="fsync", leases_durable=True)
    bench.run(bench.broker.groups.put("t", "g", GroupConfig(visibility_ms=10_000), Where(to="earliest")))
    assert bench.seqs() == [1, 2]
    bench.reopen("kill")
    assert bench.seqs("other") == []
    assert bench.ack(1) == 1
    bench.clock.advance(10_001)
    assert bench.seqs("other") == [2]
    bench.clock.step_wall(-3_600_000)
    bench.reopen("kill")
    assert bench.ack(2) == 0, "a clock that is set back revives no lease"


@pytest.mark.parametrize("how", ["clean", "checkpoint", "kill"])
def test_a_stream_group_falls_back_to_what_it_committed(how: str) -> None:
    bench = GroupBench()
    bench.make(5, mode="stream")
    assert bench.seqs(most=4) == [1, 2, 3, 4]
    assert bench.run(bench.broker.groups.commit(M, 3)) == 3
    bench.reopen(how)
    assert bench.seqs() == [3, 4, 5]


@pytest.mark.parametrize("how", ["clean", "checkpoint", "kill"])
def test_seeks_drops_and_configs_survive(how: str) -> None:
    bench = GroupBench()
    bench.make(5)
    bench.run(bench.broker.groups.put("t", "gone", GroupConfig(), Where(to="earliest")))
    bench.seqs()
    bench.run(bench.broker.groups.seek("t", "g", Where(seq=4), True, False))
    bench.run(bench.broker.groups.put("t", "g", GroupConfig(visibility_ms=777), Where(to="earliest")))
    bench.run(bench.broker.groups.drop("t", "gone"))
    bench.reopen(how)
    groups, _ = bench.run(bench.broker.groups.listed("t", "", None, 10))
    assert [(group.group, group.config.visibility_ms, group.cursor) for group in groups] == [("g", 777, 4)]
    assert bench.seqs() == [4, 5]


def test_a_power_cut_takes_no_ack_and_repeats_no_token() -> None:
    bench = GroupBench()
    bench.make(4)
    tokens = {token for _, token, _ in bench.fetch()}
    assert bench.ack(2) == 1
    bench.cut_power()
    bench.open()
    again = bench.fetch()
    assert [seq for seq, _, _ in again] == [1, 3, 4], "the ack was synced, and with it all before it"
    assert not tokens & {token for _, token, _ in again}
    bench.cut_power()
    bench.open()
    assert [seq for seq, _, _ in bench.fetch()] == [1, 3, 4]


def test_fetch_passes_no_record_whose_delete_is_still_on_its_way() -> None:
    bench = GroupBench()
    bench.make(4, durability="disk")
    bench.run(bench.broker.groups.join("t", "g", "m"))
    deleted, _ = bench.store.delete("t", 3, None)
    assert deleted is not None
    steps = bench.broker.groups.fetch(M, 100, None, 0, None)
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert not deleted.settled
    assert done.value.value.rows == []
    assert bench.store.topics["t"].groups is not None
    assert bench.store.topics["t"].groups.by_name["g"].cursor == 1
    bench.store.drive(deleted)
    assert bench.seqs() == [3, 4]


@pytest.mark.parametrize("mode", ["queue", "stream"])
def test_a_fetch_that_waits_goes_on_when_the_delete_in_its_way_is_done(mode: Any) -> None:
    bench = GroupBench()
    bench.make(4, durability="disk", mode=mode)
    bench.run(bench.broker.groups.join("t", "g", "m"))
    deleted, _ = bench.store.delete("t", 3, None)
    assert deleted is not None
    steps = bench.broker.groups.fetch(M, 100, None, 60_000, None)
    assert next(steps) is deleted, "not a nap that nobody ends"
    bench.store.drive(deleted)
    assert [row[0] for row in bench.run(steps).rows] == [3, 4]


def test_seqs_that_only_ram_knew_are_nobodys_settled_records() -> None:
    bench = GroupBench()
    bench.append("t", *range(33), durability="ephemeral")
    bench.run(bench.broker.groups.put("t", "g", GroupConfig(), Where(to="latest")))
    assert bench.state()["cursor"] == 34
    bench.kill()
    bench.open()
    assert bench.store.topics["t"].head == 0
    bench.run(bench.broker.put_topic("t", TopicConfig(durability="fsync")))
    bench.append("t", *range(40))
    bench.kill()
    bench.open()
    assert bench.seqs() == list(range(1, 41))


def test_a_lease_that_ran_out_before_a_start_is_not_revived_by_a_clock_set_back() -> None:
    bench = GroupBench()
    bench.append("t", 1, durability="fsync", leases_durable=True)
    bench.append("q", 1, type="queue", durability="fsync", leases_durable=True)
    bench.run(bench.broker.groups.put("t", "g", GroupConfig(visibility_ms=1_000), Where(to="earliest")))
    assert bench.seqs() == [1]
    assert [row[0] for row in bench.run(bench.broker.queues.claim("q", "m", 1, 1_000)).rows] == [1]
    bench.kill()
    bench.clock.advance(1_001)
    bench.open()
    bench.clock.step_wall(-3_600_000)
    bench.cut_power()
    bench.open()
    assert bench.seqs("other") == [1]
    assert [row[0] for row in bench.run(bench.broker.queues.claim("q", "other", 1, 1_000)).rows] == [1]


def test_what_was_handed_out_in_ram_is_known_to_the_log_once_the_topic_leaves_it() -> None:
    bench = GroupBench()
    bench.make(5, durability="disk", max_deliveries=9)
    bench.append("q", 1, 2, type="queue", durability="disk")

    def configure(durability: Any) -> None:
        bench.run(bench.broker.put_topic("t", TopicConfig(durability=durability)))
        bench.run(bench.broker.put_topic("q", TopicConfig(type="queue", durability=durability)))

    configure("ephemeral")
    assert bench.seqs(most=3) == [1, 2, 3]
    assert bench.ack(2) == 1
    assert len(bench.run(bench.broker.queues.claim("q", "m", 1, None)).rows) == 1
    configure("fsync")
    assert bench.seqs(most=1) == [4]
    assert [row[0] for row in bench.run(bench.broker.queues.claim("q", "m", 1, None)).rows] == [2]
    before = bench.state()
    bench.kill()
    bench.open()
    assert bench.state() == before
    assert [(seq, count) for seq, _, count in bench.fetch()] == [(1, 2), (3, 2), (4, 2), (5, 1)]
    again = bench.run(bench.broker.queues.claim("q", "m", 9, None)).rows
    assert [(row[0], row[3]) for row in again] == [(1, 2), (2, 2)]
