"""Staged append in embedded use."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import topics
from topics.model.errors import PartExists, PartMissing, TopicNotFound


def test_parts_are_staged_and_committed_in_several_topics(tmp_path: Path) -> None:
    with topics.open(tmp_path / "data", wal_shards=3) as log:
        for name in ("a", "b"):
            log.create(name, durability="fsync")
            assert log.staging.put(name, "app@1", "p0", [{"data": name, "tag": "t"}, {"data": 2}]).count == 2
        with pytest.raises(PartExists):
            log.staging.put("a", "app@1", "p0", [{"data": 0}])
        with pytest.raises(PartMissing):
            log.staging.commit("app@1", {"a": ["p0"], "b": ["p9"]})
        with pytest.raises(TopicNotFound):
            log.staging.put("absent", "t", "p", [{"data": 1}])
        assert list(log.read("a")) == []
        done = log.staging.commit("app@1", {"a": ["p0"], "b": ["p0"]}, query="q")
        assert [(done[name].first_seq, done[name].repeated) for name in ("a", "b")] == [(1, False), (1, False)]
        log.checkpoint()
        assert log.staging.commit("app@1", {"a": []})["a"].repeated is True
        log.staging.put("a", "left", "p0", [{"data": 3}])
        assert log.staging.state("a", "left").state == "open"
        assert log.staging.abort("a", "left") is True
        assert log.staging.abort("a", "app@1") is False
    with topics.open(tmp_path / "data", wal_shards=3) as log:
        assert [item.data for item in log.read("b") if isinstance(item, topics.Record)] == ["b", 2]
        assert log.staging.commit("app@1", {"b": []})["b"].repeated is True
    with pytest.raises(topics.StoreClosed):
        log.staging.put("a", "t", "p", [{"data": 1}])


def test_threads_that_commit_the_same_transaction_append_it_once(tmp_path: Path) -> None:
    with topics.open(tmp_path / "data", wal_shards=2) as log:
        log.create("a")
        log.staging.put("a", "t1", "p0", [{"data": 1}])
        answers: list[bool] = []
        threads = [
            threading.Thread(target=lambda: answers.append(log.staging.commit("t1", {"a": ["p0"]})["a"].repeated))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [False] + [True] * 5
        assert len(list(log.read("a"))) == 1
