"""What a checkpoint may change in the list of a topic's segments, and when; and many topics side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import topics
from tests.crash.life import Life
from topics.storage.copy import TopicCopy
from topics.storage.segment import Segment


def test_a_twin_has_every_field_of_its_segment() -> None:
    values = {
        field.name: "/d" if field.name == "directory" else at + 2
        for at, field in enumerate(dataclasses.fields(Segment))
    }
    segment = Segment(**values)  # type: ignore[arg-type]
    twin = segment.twin()
    assert twin == segment
    assert twin is not segment
    assert dataclasses.asdict(twin) == values


def test_sealed_segments_that_nothing_changed_stay_the_same_objects() -> None:
    life = Life()
    store = life.open()
    life.create("t", durability="disk")
    life.append("t", 4)
    store.checkpoint()
    found = store.topics["t"]
    sealed, active = found.segments
    life.append("t", 1)
    store.checkpoint()
    assert found.segments[0] is sealed
    assert found.segments[1] is not active
    assert (sealed.count, active.count, found.segments[1].count) == (3, 1, 2)


@pytest.mark.parametrize("after", ["_write_manifest", "_advance"])
def test_a_checkpoint_that_fails_leaves_the_segments_as_they_were(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    store = life.open()
    life.create("t", durability="disk")
    life.append("t", 4)
    store.checkpoint()
    found = store.topics["t"]
    before = [(segment, segment.twin()) for segment in found.segments]
    life.delete("t", before_seq=2)
    life.append("t", 4)

    def fail(_: TopicCopy) -> None:
        raise OSError(5, "failed")

    with monkeypatch.context() as patch:
        patch.setattr(TopicCopy, after, fail)
        assert store.checkpoint() is False
    assert [segment for segment, _ in before] == found.segments
    for segment, twin in before:
        assert (segment.generation, segment.count, segment.data_len) == (twin.generation, twin.count, twin.data_len)
        assert segment.sealed == twin.sealed
    assert store.checkpoint()
    assert found.segments[0].generation == before[0][1].generation + 1, "the deleted record got its flag"
    life.power_cut()
    life.reopen()


def test_more_topics_than_one_turn_takes_are_all_copied(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(70)]
    with topics.open(tmp_path) as log:
        for name in names:
            log.create(name, durability="memory")
            log.append(name, [{"data": name}])
        assert log.checkpoint()
        assert [log.info(name).segments for name in names] == [1] * 70
        assert [log.get(name, 1).data for name in names] == names


def test_one_topic_that_fails_fails_the_checkpoint_and_the_next_one_copies_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(70)]
    real = TopicCopy.run

    def run(self: TopicCopy) -> list[Segment]:
        if self.topic.name == "t40":
            raise OSError(5, "this one fails")
        return real(self)

    with topics.open(tmp_path) as log:
        for name in names:
            log.create(name, durability="memory")
            log.append(name, [{"data": name}])
        with monkeypatch.context() as patch:
            patch.setattr(TopicCopy, "run", run)
            assert not log.checkpoint()
            assert any("this one fails" in line for line in log.trouble)
        assert log.checkpoint()
        assert not log.trouble
        assert [log.info(name).segments for name in names] == [1] * 70
    with topics.open(tmp_path) as log:
        assert [log.get(name, 1).data for name in names] == names
