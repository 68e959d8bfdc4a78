"""Damage that took the last records of a topic: salvage tells them as lost, and nobody gets their seqs again."""

from __future__ import annotations

import pytest

from tests.crash.life import ROOT, Life
from topics.model.errors import CorruptFile
from topics.storage.paths import wal_name


def spoilt(payload: bytes, life: Life) -> str:
    """Kill the store and spoil the record of this payload."""
    path = max(path for path in life.disk.files() if path.endswith(".log"))
    life.kill()
    life.disk.corrupt(path, life.disk.read(path).index(payload))
    return path


def busy(*names: str) -> Life:
    """Topics with three records each, and marks in the WAL that prove them."""
    life = Life(evidence_ms=0)
    life.open()
    for name in names:
        life.create(name, durability="fsync")
    for _ in range(3):
        for name in names:
            life.append(name)
    return life


def test_last_record_of_a_topic_is_told_as_lost_and_its_seq_is_not_handed_out_again() -> None:
    life = busy("a", "b")
    life.append("a")
    life.append("b")
    path = spoilt(b'"000007"', life)
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert caught.value.path == path
    life.open(recovery="salvage")
    assert life.seqs("a") == [1, 2, 3]
    (first, to, reason), *others = life.gaps("a")
    assert (first, reason, others) == (4, "corrupt", [])
    assert life.append("a") == to + 1 > 4
    assert (life.seqs("b"), life.gaps("b")) == ([1, 2, 3, 4], []), "its last record was found behind the damage"
    life.kill()
    life.open(recovery="strict")
    assert (life.seqs("a"), life.gaps("a")) == ([1, 2, 3, to + 1], [(4, to, "corrupt")])


def test_topic_that_nobody_wrote_to_behind_damage_keeps_what_it_has() -> None:
    life = busy("a", "quiet")
    life.append("a")
    life.append("a")
    spoilt(b'"000007"', life)
    life.open(recovery="salvage")
    assert life.seqs("quiet") == [1, 2, 3]
    assert [(first, reason) for first, _, reason in life.gaps("quiet")] == [(4, "corrupt")]
    assert (life.seqs("a"), life.gaps("a")) == ([1, 2, 3, 5], [(4, 4, "corrupt")])


def test_tail_of_a_missing_file_is_told_as_lost() -> None:
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    while life.store.shards[0].file is None or life.store.shards[0].file.number < 4:
        life.append("a")
    handed = life.append("a")
    life.kill()
    path = max(path for path in life.disk.files() if path.endswith(".log"))
    assert path != f"{ROOT}/wal/{wal_name(1)}"
    life.disk.remove(path)
    life.disk.sync_dir(f"{ROOT}/wal")
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert caught.value.path == path
    life.open(recovery="salvage")
    ((first, to, reason),) = life.gaps("a")
    assert life.seqs("a") == list(range(1, first))
    assert first <= handed <= to
    assert reason == "corrupt"
    assert life.append("a") == to + 1
