"""Checkpoints of many topics, whose parts run side by side."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import topics
from topics.host.fs import OsFile, OsFs
from topics.model.record import Record

TOPICS = 30


def fill(log: topics.Log) -> None:
    for number in range(TOPICS):
        log.create(f"t{number}")
        # One in ten has more than a segment takes, and so is copied beside those in the pool.
        count = 25 if number % 10 == 0 else 3
        log.append(f"t{number}", [{"data": [number, n]} for n in range(count)])


def found(log: topics.Log) -> list[list[object]]:
    return [
        [item.data for item in log.read(f"t{number}") if isinstance(item, Record)] for number in range(TOPICS)
    ]  # fmt: skip


def expected() -> list[list[object]]:
    return [[[number, n] for n in range(25 if number % 10 == 0 else 3)] for number in range(TOPICS)]


def leave_as_a_kill_would(log: topics.Log) -> None:
    log._background.stop()
    log._background.close_pool()
    log._store.release()


def test_a_checkpoint_of_many_topics_copies_every_one_of_them(tmp_path: Path) -> None:
    log = topics.open(tmp_path, segment_max_events=10)
    fill(log)
    assert log.checkpoint()
    assert all(topic.copied == topic.head for topic in log._store.all_topics())
    assert found(log) == expected()
    leave_as_a_kill_would(log)
    with topics.open(tmp_path) as again:
        assert found(again) == expected()


@pytest.mark.parametrize("unlucky", [0, 7])
def test_one_topic_whose_sync_fails_keeps_the_others_and_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlucky: int
) -> None:
    log = topics.open(tmp_path, segment_max_events=10)
    fill(log)
    directory = log._store.topics[f"t{unlucky}"].directory
    real = OsFile.sync

    def sync(self: OsFile) -> None:
        if self.path.startswith(directory) and self.path.endswith(".data"):
            raise OSError(5, "Input/output error", self.path)
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "sync", sync)
        assert not log.checkpoint()
    assert any("Input/output error" in text for text in log.trouble)
    assert not log._store.topics[f"t{unlucky}"].segments
    assert log.checkpoint()
    assert log.trouble == []
    assert all(topic.copied == topic.head for topic in log._store.all_topics())
    leave_as_a_kill_would(log)
    with topics.open(tmp_path) as again:
        assert found(again) == expected()


def test_a_checkpoint_that_finds_the_disk_full_gives_back_the_files_kept_for_recycling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with topics.open(tmp_path, wal_shards=1, wal_file_bytes=4096) as log:
        log.create("t")
        for _ in range(4):
            log.append("t", [{"data": "x" * 300}] * 10)
            log.append("t", [{"data": "x" * 300}] * 10)
            assert log.checkpoint()
        shard = log._store.shards[0]
        kept = [path for _, path in shard.old_files.kept]
        assert kept
        log.append("t", [{"data": 1}])

        def full(self: OsFile) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)

        with monkeypatch.context() as patch:
            real = OsFile.sync
            patch.setattr(OsFile, "sync", lambda self: full(self) if self.path.endswith(".data") else real(self))
            assert not log.checkpoint()
        assert not any(Path(path).exists() for path in kept)
        assert log.checkpoint()


def test_new_topics_share_one_sync_of_their_parent_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = OsFs.sync_dir

    def sync_dir(self: OsFs, path: str) -> None:
        synced.append(path)
        real(self, path)

    with topics.open(tmp_path) as log:
        fill(log)
        monkeypatch.setattr(OsFs, "sync_dir", sync_dir)
        assert log.checkpoint()
        assert synced.count(log._store.paths.topics) == 1
