"""A segment that still grows and whose synced bytes rotted: what is written afterwards is as safe as ever."""

from __future__ import annotations

import pytest

from tests.crash.life import Life


def rotten() -> tuple[Life, str]:
    """A topic of four records in one pair, the second of them damaged, found by a new start."""
    life = Life(segment_max_events=100)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 4, "x")
    life.store.checkpoint()
    path = life.store.topic("a").segments[-1].path("data")
    life.kill()
    life.disk.corrupt(path, life.disk.read(path).index(b'"000002"') + 3)
    life.open()
    return life, path


@pytest.mark.parametrize("mode", ["all_lost", "all_kept"])
def test_records_behind_rot_survive_the_loss_of_an_index_that_was_not_synced(mode: str) -> None:
    life, _ = rotten()
    assert life.seqs("a") == [1, 3, 4]
    first = life.append("a", 2)
    assert life.store.checkpoint()
    second = life.append("a", 1)
    assert life.store.checkpoint()
    life.disk.power_cut(mode=mode)  # type: ignore[arg-type]
    life.disk.restart()
    life.open()
    assert set(life.seqs("a")) >= {first, first + 1, second}
    assert (2, 2, "corrupt") in life.gaps("a")


@pytest.mark.parametrize("at", [0, 4, 5, 12, 21, 25, 40])
def test_one_rotten_frame_takes_no_other_record_with_it(at: int) -> None:
    """Whichever byte of it rotted, also where the index that knew the places was never synced."""
    life = Life(segment_max_events=100)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 5, "x")
    life.store.checkpoint()
    path = life.store.topic("a").segments[-1].path("data")
    life.disk.power_cut(mode="all_lost")
    life.disk.restart()
    size = len(life.disk.read(path)) // 5
    life.disk.corrupt(path, size + at)
    life.disk.corrupt(path, 3 * size + at, 0x80)
    life.open()
    assert life.seqs("a") == [1, 3, 5]
    assert [gap[:2] for gap in life.gaps("a")] == [(2, 2), (4, 4)]


def test_nothing_is_appended_to_a_pair_that_rotted() -> None:
    life, path = rotten()
    before = life.disk.read(path)
    life.append("a", 2)
    assert life.store.checkpoint()
    segments = life.store.topic("a").segments
    assert [segment.first_seq for segment in segments] == [1, 5]
    assert [segment.sealed for segment in segments] == [True, False]
    assert life.disk.read(path) == before
    assert life.seqs("a") == [1, 3, 4, 5, 6]
    for _ in range(2):
        life.power_cut()
        life.open()
        assert life.seqs("a") == [1, 3, 4, 5, 6]


def test_a_whole_pair_is_still_appended_to_after_a_start() -> None:
    life = Life(segment_max_events=100)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 4)
    life.store.checkpoint()
    life.power_cut()
    life.reopen()
    life.append("a", 2)
    assert life.store.checkpoint()
    assert [segment.first_seq for segment in life.store.topic("a").segments] == [1]
    life.power_cut()
    life.reopen()
