"""An `.idx` whose entries turn to zeros while the store is in use: its records are found by their `.data`, at once.

The store has looked at the index before, so it was proven; a real file is needed, because what rots is a mapping."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import topics
from tests.integration.conftest import Opener
from topics.broker.lookups import latest_of_key, record_at
from topics.broker.scrubbing import scrub_store
from topics.broker.segments import find_part
from topics.format.render import WITH_DATA
from topics.format.segment import DELETED, ENTRY_SIZE, decode_segment_frame
from topics.host.fs import Fs
from topics.storage.handles import Handles
from topics.storage.segment import Segment
from topics.storage.walfile import discard

SEALED = 6


def filled(reopen: Opener, **config: object) -> topics.Log:
    """Records 1..6 in a sealed segment, 7 and 8 in the pair that still grows, 9 in the WAL."""
    log = reopen(segment_max_events=SEALED)
    log.create("orders", **config)
    for number in range(1, 9):
        log.append("orders", [{"data": number, "tag": "even" if number % 2 == 0 else "odd", "key": f"k{number}"}])
    log.checkpoint()
    log.append("orders", [{"data": 9}])
    return log


def path_of(log: topics.Log, part: str, first: int = 1) -> Path:
    segment = log._store.topic("orders").segment_of(first)
    assert segment is not None
    return Path(segment.path(part))


def rot(log: topics.Log, *seqs: int, first: int = 1) -> None:
    """Zero the entries of some records, behind the store's back."""
    store = log._store
    segment = store.topic("orders").segment_of(first)
    assert segment is not None
    store.handles.entries(segment, 0, segment.count)
    fd = os.open(path_of(log, "idx", first), os.O_WRONLY)
    for seq in seqs:
        os.pwrite(fd, bytes(ENTRY_SIZE), (seq - first) * ENTRY_SIZE)
    os.close(fd)


@pytest.fixture
def log(reopen: Opener) -> topics.Log:
    log = filled(reopen)
    rot(log, 2, 3)
    return log


def seqs(log: topics.Log) -> list[object]:
    return [item if isinstance(item, topics.Gap) else item.seq for item in log.read("orders")]


def test_a_reader_gets_the_records(log: topics.Log) -> None:
    assert seqs(log) == list(range(1, 10))
    assert log.get("orders", 2).raw == b"2"


def test_a_reader_of_a_pair_that_still_grows_gets_them_too(reopen: Opener) -> None:
    log = filled(reopen)
    rot(log, 7, first=7)
    assert seqs(log) == list(range(1, 10))


def test_a_pair_is_sealed_with_an_index_that_has_them(reopen: Opener) -> None:
    log = filled(reopen)
    rot(log, 7, first=7)
    log.append("orders", [{"data": number} for number in range(10, 20)])
    log.checkpoint()
    assert bytes(ENTRY_SIZE) not in path_of(log, "idx", 7).read_bytes()
    assert seqs(log) == list(range(1, 20))
    assert seqs(reopen()) == list(range(1, 20))


def test_a_delete_by_tag_takes_them(log: topics.Log) -> None:
    path_of(log, "tags").unlink()  # so that the records themselves have to tell
    assert log.delete("orders", tag="even").deleted == 4
    assert seqs(log) == [1, 3, 5, 7, 9]


def test_a_key_finds_its_record(log: topics.Log) -> None:
    path_of(log, "keys").unlink()
    store = log._store
    assert latest_of_key(store, store.topic("orders"), "k3", WITH_DATA) is not None


def test_a_delete_is_flagged_in_their_frames(log: topics.Log) -> None:
    log.delete("orders", before_seq=4)
    log.checkpoint()
    data = path_of(log, "data").read_bytes()
    at, flags = 0, []
    while at < len(data):
        frame = decode_segment_frame(data, at, len(data))
        at = frame.end
        flags.append(data[at - 1] == DELETED)
    assert flags == [True, True, True, False, False, False]


def test_a_cap_of_bytes_counts_them(log: topics.Log) -> None:
    log.configure("orders", cap_bytes=6)
    log.append("orders", [{"data": 0}])
    assert log.info("orders").bytes == 6
    assert log.info("orders").count == 6


def test_their_times_are_found(log: topics.Log) -> None:
    topic = log._store.topic("orders")
    assert record_at(topic, log.get("orders", 1).ts).ts == log.get("orders", 1).ts
    rot(log, SEALED)
    assert record_at(topic, 1).seq == 1
    assert record_at(topic, log.get("orders", 9).ts + 1).seq == 10


def test_whoever_fetches_the_file_of_the_index_gets_a_whole_one(log: topics.Log) -> None:
    topic = log._store.topic("orders")
    part = find_part(topic, 1, "idx")
    assert bytes(ENTRY_SIZE) not in part.read(log._store.handles, 0, part.size)


def test_jobs_are_claimed(reopen: Opener) -> None:
    log = filled(reopen, type="queue")
    rot(log, 1, 2)
    assert [job.seq for job in log.queue("orders").claim("w", max=4)] == [1, 2, 3, 4]


def test_a_scrub_names_the_file_until_it_is_whole(log: topics.Log) -> None:
    assert seqs(log) == list(range(1, 10))
    assert [error.path for _, error in scrub_store(log._store, "orders", lambda _: True).damage] == [
        str(path_of(log, "idx"))
    ]


def test_a_scrub_takes_no_pair_for_damaged_that_is_dropped_under_it(
    reopen: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(reopen)
    is_index_whole = Handles.is_index_whole

    def all_but_the_last(fs: Fs, path: str) -> None:
        if not path.endswith(".data"):
            discard(fs, path)

    monkeypatch.setattr("topics.storage.leftovers.discard", all_but_the_last)

    def dropped_first(handles: Handles, segment: Segment) -> bool:
        log.delete("orders", before_seq=SEALED + 1)
        log.checkpoint()
        assert not Path(segment.path("idx")).exists()
        assert Path(segment.path("data")).exists()  # it goes last
        return is_index_whole(handles, segment)

    monkeypatch.setattr(Handles, "is_index_whole", dropped_first)
    assert scrub_store(log._store, None, lambda _: True).damage == []
