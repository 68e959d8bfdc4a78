"""Queues in the same process."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import topics
from topics.model.errors import BatchTooLarge, InvalidRecord, InvalidRequest, NotAQueue, TopicNotFound
from topics.model.record import Record
from topics.storage.submission import Submission


def test_jobs_are_claimed_and_settled(tmp_path: Path) -> None:
    with topics.open(tmp_path) as log:
        log.create("jobs", type="queue", durability="fsync", max_deliveries=2, dead_letter="dead")
        log.append("jobs", [{"data": {"n": n}, "tag": "t", "meta": {"m": n}} for n in range(3)])
        queue = log.queue("jobs")
        first, second = queue.claim("w", max=2, lease_ms=60_000)
        assert (first.seq, first.data, first.tag, first.meta, first.deliveries) == (1, {"n": 0}, "t", {"m": 0}, 1)
        assert first.lease_id == "lease_1"
        assert queue.ack("w", [first]).done == 1
        late = queue.ack("w", [first, 99])
        assert (late.done, late.skipped, late.why) == (0, [1, 99], {1: "settled", 99: "unknown"})
        assert queue.extend("w", [second], 120_000).deadlines[2] > second.deadline
        assert queue.nack("w", [2]).done == 1
        (again,) = queue.claim("w")
        assert (again.seq, again.deliveries) == (2, 2)
        queue.nack("w", [again])
        (third,) = queue.claim("w")
        assert third.seq == 3, "the second went to the dead letters"
        assert log.queue("dead").redrive().moved == 1
        assert [job.data for job in queue.claim("w", max=9)] == [{"n": 1}]


def test_deliveries_and_delays_outlive_the_process(tmp_path: Path) -> None:
    with topics.open(tmp_path) as log:
        log.create("jobs", type="queue", leases_durable=True)
        log.append("jobs", [{"data": 1}, {"data": 2, "delay_ms": 600_000}])
        (held,) = log.queue("jobs").claim("w", max=9, lease_ms=600_000)
    with topics.open(tmp_path) as log:
        queue = log.queue("jobs")
        assert queue.claim("other", max=9) == []
        assert queue.ack("w", [held]).done == 1
        assert log.info("jobs").count == 1


def test_threads_share_the_jobs_of_a_cohort(tmp_path: Path) -> None:
    with topics.open(tmp_path) as log:
        log.create("jobs", type="queue", claim_jitter_ms=200)
        log.append("jobs", [{"data": n} for n in range(12)])
        hands: list[int] = []
        begin = threading.Barrier(3)

        def work(node: str) -> None:
            begin.wait()
            hands.append(len(log.queue("jobs").claim(node, max=10)))

        threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert hands == [4, 4, 4]


def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with topics.open(tmp_path) as log:
        log.create("log")
        log.create("jobs", type="queue")
        log.append("jobs", [{"data": 1}])
        with pytest.raises(TopicNotFound):
            log.queue("absent").claim("w")
        with pytest.raises(NotAQueue):
            log.queue("log").claim("w")
        with pytest.raises(NotAQueue):
            log.queue("log").ack("w", [1])
        queue = log.queue("jobs")
        for node in ("", "x" * 129):
            with pytest.raises(InvalidRequest):
                queue.claim(node)
        with pytest.raises(BatchTooLarge):
            queue.ack("w", range(1, 1002))
        with pytest.raises(InvalidRequest):
            queue.ack("w", [-1])
        for delay in (-1, True, "x", 86_400_001):
            with pytest.raises(InvalidRequest):
                log.append("jobs", [{"data": 1, "delay_ms": delay}])
        with pytest.raises(InvalidRequest):
            log.append("log", [{"data": 1, "delay_ms": 5}])
        with pytest.raises(InvalidRecord, match="'tag' is of type int"):
            log.append("jobs", [{"data": 1, "delay_ms": 5}, {"data": 1, "tag": 5}])
        with pytest.raises(InvalidRecord, match="'delay_ms' is -1"):
            log.append("jobs", [{"data": 1, "tag": 5}, {"data": 1, "delay_ms": -1}])
        assert len(queue.claim("w", max=9)) == 1


def test_a_claim_that_outlives_its_topic_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    with topics.open(tmp_path / "data", wal_shards=1) as log:
        log.create("dead")
        log.create("jobs", type="queue", dead_letter="dead", max_deliveries=1)
        log.append("jobs", [{"data": 1}])
        queue = log.queue("jobs")
        queue.nack("w", queue.claim("w"))
        claim = log._queues.claim("jobs", "w", 1, None)
        copy = next(claim)  # of the dead letter
        assert isinstance(copy, Submission)
        log._committer.wait_settled(copy)
        log.drop("jobs")
        assert log.checkpoint()
        assert log.checkpoint(), "both snapshots lie behind the frame that tells of the drop"
        assert log._drive(claim).rows == []
        log.append("dead", [{"data": 2}])
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    with topics.open(tmp_path / "killed", wal_shards=1) as log:
        assert log.recovery_report == []


def test_a_dead_letter_whose_claim_went_away_is_no_job_again(tmp_path: Path) -> None:
    with topics.open(tmp_path) as log:
        log.create("dead")
        log.create("jobs", type="queue", dead_letter="dead", max_deliveries=1)
        log.append("jobs", [{"data": 1}])
        queue = log.queue("jobs")
        queue.nack("w", queue.claim("w"))
        claim = log._queues.claim("jobs", "w", 1, None)
        copy = next(claim)  # of the dead letter
        assert isinstance(copy, Submission)
        log._committer.wait_settled(copy)
        claim.close()
        assert queue.claim("w") == []
        assert (log.info("jobs").count, log.info("dead").count) == (0, 1)


def test_a_job_of_a_seq_that_is_given_again_after_a_kill_is_a_dead_letter_of_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number, text in enumerate(("first", "second")):
        with topics.open(data) as log:
            log.create("jobs", type="queue", durability="ephemeral", dead_letter="dead", max_deliveries=1)
            log.append("jobs", [{"data": text}])
            queue = log.queue("jobs")
            (job,) = queue.claim("w")
            assert job.seq == 1, "nothing of what is ephemeral outlives a kill"
            queue.nack("w", [job])
            assert queue.claim("w") == []
            assert log.info("jobs").count == 0
            assert [letter.data for letter in log.read("dead") if isinstance(letter, Record)] == ["first", "second"][
                : number + 1
            ]
            data = shutil.copytree(data, tmp_path / f"killed-{number}")


def test_a_letter_of_a_seq_that_is_given_again_after_a_kill_is_redriven(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with topics.open(data) as log:
        log.create("dead", durability="ephemeral")
        log.create("jobs", type="queue", dead_letter="dead", max_deliveries=1)
    for number, text in enumerate(("first", "second")):
        with topics.open(data) as log:
            log.append("jobs", [{"data": text}])
            queue = log.queue("jobs")
            queue.nack("w", queue.claim("w"))
            queue.claim("w")
            assert [letter.seq for letter in log.read("dead") if isinstance(letter, Record)] == [1]
            assert log.queue("dead").redrive().moved == 1
            (job,) = queue.claim("w")
            assert job.data == text
            queue.ack("w", [job])
            data = shutil.copytree(data, tmp_path / f"killed-{number}")
