"""One slow reader hurts nobody: it lags, holds a bounded amount, and reads on from its cursor when it can."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.contract.http.client import eventually
from tests.contract.http.live import ServerProcess
from tests.integration.live.sse import Place

SMALL = 4096
"""A receive buffer that fills at once."""


def test_stalled_reader_lags_while_others_go_on_and_misses_nothing(place: Place) -> None:
    place.api.put("stalled")
    text = "x" * 50_000
    slow = place.read(place.session({"stalled": {}}), receive_bytes=SMALL)
    with place.watch({"stalled": {}}) as quick:
        for _ in range(80):
            place.api.append("stalled", text)
        assert list(quick.records(80)) == list(range(1, 81))
        assert eventually(lambda: place.metrics()["sse_lagging"] == 1)
        slow.hurry()
        assert list(slow.records(80)) == list(range(1, 81))
        assert slow.until("caught-up").data["head_seq"] == 80
    assert place.metrics()["sse_lagging"] == 0
    slow.close()


def test_lagging_reader_meets_a_tombstone_only_for_what_is_gone(place: Place) -> None:
    place.api.put("gone", cap_records=40)
    text = "x" * 100_000
    with place.read(place.session({"gone": {}}), receive_bytes=SMALL) as slow:
        for _ in range(120):
            place.api.append("gone", text)
        assert eventually(lambda: place.metrics()["sse_lagging"] == 1)
        seen: list[int] = []
        gaps = []
        while not seen or seen[-1] < 120:
            event = slow.named()
            if event.event == "record":
                seen += event.seqs
            elif event.event == "tombstone":
                gaps.append((event.data["gap_from"], event.data["gap_to"]))
        missing = [seq for gap_from, gap_to in gaps for seq in range(gap_from, gap_to + 1)]
        assert gaps
        assert sorted(seen + missing) == list(range(1, 121)), "each record came, or was said to be gone"


def test_small_frames_are_bounded_by_their_number(place: Place) -> None:
    place.api.put("tiny")
    with place.read(place.session({"tiny": {}}, limit=1, include_meta=False), receive_bytes=SMALL) as slow:
        for _ in range(12):
            place.api.append("tiny", *["x" * 400] * 1000)
        assert eventually(lambda: place.metrics()["sse_lagging"] == 1)
        slow.hurry()
        assert list(slow.records(12_000)) == list(range(1, 12_001))


def test_reader_that_takes_nothing_is_cut_and_resumes_where_it_was(tmp_path: Path) -> None:
    place = Place(ServerProcess(tmp_path, TOPICS_WRITE_STALL_MS="700"))
    place.api.put("cut")
    url = place.session({"cut": {}})
    text = "x" * 100_000
    with place.read(url, receive_bytes=SMALL) as slow:
        first = slow.until("caught-up")
        for _ in range(100):
            place.api.append("cut", text)
        assert eventually(lambda: place.metrics()["sse_connections"] == 0), "it was cut"
        seen: list[int] = []
        last_id = first.id
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                event = slow.named()
                last_id = event.id
                if event.event == "record":
                    seen += event.seqs
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) < 100
    with place.read(url, f"last-event-id: {last_id}") as again:
        assert list(again.records(100)) == list(range(len(seen) + 1, 101)), "nothing is lost, and nothing comes twice"
    place.close()
    assert place.server.stop()[0] == 0


@pytest.mark.slow
def test_memory_of_stalled_readers_is_their_bound_and_no_more(tmp_path: Path) -> None:
    place = Place(ServerProcess(tmp_path))
    readers = 1000
    place.api.put("heavy", durability="ephemeral", cap_records=400)
    urls = [place.session({"heavy": {}}, limit=1 + number % 3, heartbeat_ms=60_000) for number in range(readers)]
    stalled = [place.read(url, receive_bytes=SMALL) for url in urls]
    before = place.memory()
    text = "x" * 65_000
    for _ in range(100):
        place.api.append("heavy", *[text] * 4)
    assert eventually(lambda: place.metrics()["sse_lagging"] == readers)
    grown = place.memory() - before
    for reader in stalled:
        reader.close()
    records = 400 * 65_000
    bound = readers * ((1 << 20) + 16 * 1024)
    print(f"{readers} stalled readers: {grown >> 20} MiB, of which {records >> 20} MiB are the topic's own records")
    assert grown < bound + 4 * records
    assert eventually(lambda: place.metrics()["sse_connections"] == 0)
    place.close()
    assert place.server.stop()[0] == 0
