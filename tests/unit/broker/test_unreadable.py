"""A segment that cannot be read any more: one range in every kind of reading, not one per record."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.broker.engine import Bench
from topics.broker.history import Range
from topics.broker.reading import Page, read_page
from topics.broker.watch import View
from topics.model.errors import CorruptFile
from topics.model.record import Gap
from topics.storage import scan as scanning
from topics.storage.scan import scan


class Unreadable(Bench):
    """Records 1..20 in segments of five, of which 6..15 are unreadable."""

    def __init__(self) -> None:
        super().__init__(segment_max_events=5)
        self.append("t", *range(1, 21), durability="fsync")
        self.append("t", 21)
        assert self.store.checkpoint()
        for first in (6, 11):
            path = f"/data/topics/{self.store.topic('t').id:08X}/seg-{first:016d}.data"
            for offset in range(0, len(self.disk.read(path)), 8):
                self.disk.corrupt(path, offset, 0x55)

    def gaps(self, limit: int = 1000) -> list[Gap]:
        topic = self.store.topic("t")
        return [item for item in scan(self.store, topic, 0, topic.head + 1, limit, 1 << 20) if isinstance(item, Gap)]


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_unreadable_neighbours_are_one_gap_whatever_is_read_at_a_time(limit: int) -> None:
    assert Unreadable().gaps(limit) == [Gap(6, 15, "corrupt")]


def test_unreadable_records_at_the_end_are_told_too() -> None:
    bench = Unreadable()
    topic = bench.store.topic("t")
    assert list(scan(bench.store, topic, 5, 11, 1000, 1 << 20)) == [Gap(6, 10, "corrupt")]


def test_gap_of_unreadable_records_ends_where_looking_on_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_CORRUPT_MAX", 4)
    assert [(gap.gap_from, gap.gap_to) for gap in Unreadable().gaps()] == [(6, 9), (10, 13), (14, 15)]


class Missing(Bench):
    """Records 1..20 in segments of five, of which the files of 6..15 were taken away while the store was open."""

    def __init__(self) -> None:
        super().__init__(segment_max_events=5)
        self.append("t", *range(1, 21), durability="fsync")
        self.append("t", 21)
        assert self.store.checkpoint()
        for first in (6, 11):
            self.disk.remove(self.path(first))

    def path(self, first: int) -> str:
        return f"/data/topics/{self.store.topic('t').id:08X}/seg-{first:016d}.data"

    def watched(self, from_seq: int, limit: int = 256) -> Page:
        view = View(limit=limit)
        return read_page(self.store, self.store.topic("t"), view.query(from_seq, None, None))


def test_segment_whose_file_is_missing_is_named_to_whoever_asks_for_its_records() -> None:
    bench = Missing()
    for ask in (
        lambda: bench.diff("t", from_seq=5),
        lambda: list(bench.run(bench.broker.history("t", Range())).items()),
    ):
        with pytest.raises(CorruptFile, match="it is missing") as caught:
            ask()
        facts = caught.value.facts
        assert (facts["path"], facts["topic"], facts["first_seq"]) == (bench.path(6), "t", 6)


@pytest.mark.parametrize("limit", [2, 256])
def test_live_reading_goes_past_segments_whose_files_are_missing_with_one_gap(limit: int) -> None:
    bench = Missing()
    seen: list[int | tuple[int, int, str]] = []
    cursor = 0
    while cursor < 21:
        page = bench.watched(cursor, limit)
        if page.tombstone is not None:
            seen.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
        seen += [record["$seq"] for record in msgspec.json.decode(b"[" + b",".join(page.pieces) + b"]")]
        cursor = page.next_from_seq
    assert seen == [1, 2, 3, 4, 5, (6, 15, "corrupt"), 16, 17, 18, 19, 20, 21]


def test_records_deleted_in_a_missing_segment_are_not_told_as_lost() -> None:
    bench = Missing()
    topic = bench.store.topic("t")
    topic.apply_delete(0, ((6, 6), (9, 9)))
    found = scan(bench.store, topic, 0, 22, 1000, 1 << 20, past_missing=True)
    assert [item for item in found if isinstance(item, Gap)] == [Gap(7, 8, "corrupt"), Gap(10, 15, "corrupt")]


def test_records_deleted_among_unreadable_ones_part_the_gap() -> None:
    bench = Unreadable()
    topic = bench.store.topic("t")
    topic.apply_delete(0, ((8, 8),))
    assert bench.gaps() == [Gap(6, 7, "corrupt"), Gap(9, 15, "corrupt")]


def test_diff_gives_one_tombstone_and_what_lies_behind_it() -> None:
    page = Unreadable().diff("t", from_seq=5)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (6, 15, "corrupt")
    assert (page.count, page.next_from_seq) == (6, 21)


def test_history_gives_one_gap_on_a_page_and_in_a_stream() -> None:
    bench = Unreadable()
    history = bench.run(bench.broker.history("t", Range()))
    assert [item for item in history.items() if isinstance(item, Gap)] == [Gap(6, 15, "corrupt")]
    lines = b"".join(bench.run(bench.broker.history("t", Range())).lines(0))
    assert lines.count(b"tombstone") == 1
    page = b",".join(bench.run(bench.broker.history("t", Range())).page(1000, 1 << 20, 0))
    assert (page.count(b"$seq"), page.count(b"tombstone")) == (11, 1)
