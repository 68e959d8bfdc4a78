"""Staged append in embedded use."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import topics
from topics.host.clock import SystemClock
from topics.host.fs import File, OsFs
from topics.host.ids import SystemIds
from topics.model.errors import NotFound, PartExists, PartMissing, TopicNotFound
from topics.storage.partfile import FOLDER
from topics.testing.wrap import WrappedFs


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


class StarvedFs(WrappedFs):
    """Memory runs out in one call for the file of a part."""

    call = ""

    def starve(self, call: str, path: str) -> None:
        if call == self.call and f"/{FOLDER}" in path:
            self.call = ""
            raise MemoryError

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        self.starve("open", path)
        return self.inner.open(path, write=write, create=create, exclusive=exclusive)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)
        self.starve("rename", target)

    def remove(self, path: str) -> None:
        self.starve("remove", path)
        self.inner.remove(path)

    def mkdir(self, path: str) -> None:
        self.starve("mkdir", path)
        self.inner.mkdir(path)


@pytest.mark.parametrize("call", ["open", "rename", "mkdir"])
def test_memory_that_runs_out_while_a_part_is_written_leaves_no_trace_of_it(tmp_path: Path, call: str) -> None:
    fs = StarvedFs(OsFs())
    with topics.Log(fs, str(tmp_path / "data"), SystemClock(), SystemIds(), wal_shards=1) as log:
        log.create("a")
        fs.call = call
        with pytest.raises(MemoryError):
            log.staging.put("a", "x", "p0", [{"data": 1}])
        assert not fs.call
        store = log._store
        assert (store.staging.bytes, dict(store.staging.busy)) == (0, {})
        with pytest.raises(NotFound):
            log.staging.state("a", "x")
        log.staging.put("a", "x", "p0", [{"data": 2}])
        assert log.staging.commit("x", {"a": ["p0"]})["a"].count == 1
        log.drop("a")
        log.checkpoint()
        log.checkpoint()
        assert store.graveyard == []
