"""Segment files that somebody cut, or took away, under a store that is open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import topics
from tests.integration.conftest import Opener

SIZE = 200


@pytest.fixture
def log(reopen: Opener) -> topics.Log:
    log = reopen(segment_max_events=SIZE, wal_shards=1)
    log.create("t", durability="fsync")
    log.append("t", [{"data": "x" * 100} for _ in range(5 * SIZE)])
    assert log.checkpoint()
    return log


def parts(data: Path) -> list[Path]:
    return sorted(data.glob("topics/*/seg-*.data"))


def gaps(log: topics.Log) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = [
        (item.gap_from, item.gap_to, item.reason) for item in log.read("t") if isinstance(item, topics.Gap)
    ]
    lost = sum(last - first + 1 for first, last, _ in found)
    records = [item.seq for item in log.read("t") if isinstance(item, topics.Record)]
    assert len(records) == log.info("t").count - lost
    return found


@pytest.mark.parametrize("left", [0, 100, 1000])
def test_data_cut_under_a_live_store_is_a_gap_and_no_crash(log: topics.Log, data: Path, left: int) -> None:
    """short read at end of file: mmap after truncation. A file's size is looked at before it is mapped."""
    os.truncate(parts(data)[1], left)
    ((first, last, reason),) = gaps(log)
    assert (last, reason) == (2 * SIZE, "corrupt")
    assert SIZE < first <= SIZE + 8, "the frames in front of the cut are whole"
    with pytest.raises(topics.CorruptFile, match=f"record {last} of topic 't' fails its check"):
        log.get("t", last)
    assert log.append("t", [{"data": 1}]).first_seq == 5 * SIZE + 1
    assert log.checkpoint()
    assert gaps(log) == [(first, last, reason)]
    log.delete("t", before_seq=last + 1)
    assert gaps(log) == []
    assert log.checkpoint()
    assert log.trouble == []
