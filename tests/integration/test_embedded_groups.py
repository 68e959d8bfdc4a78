"""Consumer groups in your own process."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import topics
from topics.broker.group import Asked
from topics.broker.grouphandle import GroupHandle, Outcome
from topics.model.errors import BatchTooLarge, InvalidRequest, StaleGeneration
from topics.model.record import Record
from topics.storage.submission import Submission


def test_a_group_hands_out_and_settles_and_lives_on(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as log:
        log.create("orders", durability="fsync")
        log.append("orders", [{"data": n, "tag": "t"} for n in range(1, 7)])
        group = log.group("orders", "billing")
        assert group.create(dead_letter="dead", visibility_ms=60_000) is True
        assert group.create(dead_letter="dead", visibility_ms=60_000) is False
        member, generation = group.join("worker-1")
        fetched = group.fetch(member, max=5, generation=generation)
        assert [(item.seq, item.record.data, item.count) for item in fetched.records] == [
            (n, n, 1) for n in range(1, 6)
        ]
        tokens = [item.token for item in fetched.records]
        assert group.ack(member, [1, 2], tokens=tokens[:2]).committed == 3
        assert group.ack(member, ranges=[(3, 3)]).done == 1
        assert group.nack(member, [4]).done == 1
        assert group.reject(member, [5], reason="no").done == 1
        assert group.extend(member, [4], 1000).why == {4: "expired"}
        assert [item.seq for item in group.claim("worker-2", 0).records] == [4]
        assert [(row.seq, row.member) for row in group.pending()] == [(4, "worker-2")]
        with pytest.raises(StaleGeneration):
            group.heartbeat(member, generation + 1)
        assert group.leave(member) == generation
        with pytest.raises(InvalidRequest):
            group.create(colour="red")
        with pytest.raises(InvalidRequest):
            group.seek({"seq": -1})
    with topics.open(str(tmp_path)) as log:
        group = log.group("orders", "billing")
        assert (group.info().committed, group.info().dead_lettered) == (4, 1)
        assert [item.seq for item in group.fetch("worker-3").records] == [4, 6]
        assert group.seek({"seq": 2}, force=True).replayed == 5
        group.drop()


def test_a_waiting_fetch_gets_what_another_thread_appends(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as log:
        log.create("t")
        group = log.group("t", "g")
        group.create(mode="stream")
        found: list[int] = []
        waiting = threading.Thread(
            target=lambda: found.extend(item.seq for item in group.fetch("m", wait_ms=20_000).records)
        )
        waiting.start()
        log.append("t", [{"data": 1}])
        waiting.join()
        assert found == [1]
        assert group.commit(2) == 2


def test_many_threads_share_the_records_of_a_group(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as log:
        log.create("t")
        log.append("t", [{"data": n} for n in range(2000)])
        group = log.group("t", "g")
        group.create()
        taken: list[list[int]] = [[] for _ in range(4)]

        def work(at: int) -> None:
            while records := group.fetch(f"m{at}", max=50).records:
                seqs = [item.seq for item in records]
                taken[at] += seqs
                assert group.ack(f"m{at}", seqs).done == len(seqs)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seq for seqs in taken for seq in seqs) == list(range(1, 2001))
        assert group.info().committed == 2001


def _extend(group: GroupHandle, member: str, seqs: list[int], **named: Any) -> Outcome:
    return group.extend(member, seqs, 1000, **named)


def test_what_is_refused_is_named_and_changes_nothing(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as log:
        log.create("t", durability="fsync", leases_durable=True)
        log.append("t", [{"data": n} for n in range(6)])
        group = log.group("t", "g")
        group.create(visibility_ms=60_000)
        _, old = group.join("m")
        _, generation = group.join("m")
        tokens = {item.seq: item.token for item in group.fetch("m", max=3).records}
        assert group.ack("m", [1], tokens=[tokens[1]]).done == 1
        assert group.nack("m", [3], delay_ms=60_000).done == 1
        group.fetch("n", max=1)
        before = (group.info().committed, group.info().acked, group.pending())
        acts: list[Callable[..., Outcome]] = [group.ack, group.nack, group.reject, partial(_extend, group)]
        for act in acts:
            refused = act("m", [1, 2, 3, 4, 5], tokens=[tokens[1], tokens[2] + 1, None, None, None])
            assert refused.done == 0
            assert refused.why == {1: "settled", 2: "token", 3: "expired", 4: "member", 5: "unknown"}
            with pytest.raises(StaleGeneration):
                act("m", [2], generation=old)
            with pytest.raises(InvalidRequest):
                act("m", [7])
            with pytest.raises(BatchTooLarge):
                act("m", [2] * 1001)
        with pytest.raises(BatchTooLarge):
            group.ack("m", ranges=[(1, 1)] * 1001)
        with pytest.raises(InvalidRequest):
            group.ack("m", [2], tokens=[])
        assert (group.info().committed, group.info().acked, group.pending()) == before
        assert group.heartbeat("m", generation) == generation


def test_a_record_of_a_seq_that_is_given_again_after_a_kill_is_a_dead_letter_of_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number, text in enumerate(("first", "second")):
        with topics.open(data) as log:
            log.create("orders", durability="ephemeral")
            group = log.group("orders", "billing")
            group.create(dead_letter="dead")
            log.append("orders", [{"data": text}])
            assert [item.seq for item in group.fetch("w").records] == [1]
            assert group.reject("w", [1]).done == 1
            assert [letter.data for letter in log.read("dead") if isinstance(letter, Record)] == ["first", "second"][
                : number + 1
            ]
            data = shutil.copytree(data, tmp_path / f"killed-{number}")


def test_a_reject_settles_nothing_that_a_seek_had_handed_out_anew_meanwhile(tmp_path: Path) -> None:
    with topics.open(tmp_path) as log:
        log.create("dead")
        log.create("orders")
        log.append("orders", [{"data": 1}, {"data": 2}])
        group = log.group("orders", "billing")
        group.create(dead_letter="dead")
        group.fetch("w", max=2)
        reject = log._groups.reject(Asked("orders", "billing", "w"), [1, 2], [None, None], "no")
        copy = next(reject)
        assert isinstance(copy, Submission)
        log._committer.wait_settled(copy)
        group.seek(to="earliest", force=True)
        assert [item.seq for item in group.fetch("v", max=2).records] == [1, 2]
        log._drive(reject)
        assert [(row.seq, row.member) for row in group.pending()] == [(1, "v"), (2, "v")]
        assert group.ack("v", [1, 2]).done == 2
