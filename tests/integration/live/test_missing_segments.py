"""A segment whose file somebody took away under a running server: live reading goes past it, and says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.contract.http.live import ServerProcess
from tests.integration.live.sse import Place
from topics.client import Client
from topics.model.record import Gap, Record

SIZE = 100


@pytest.fixture
def torn(tmp_path: Path) -> Iterator[Place]:
    """Topic `torn` with 350 records, of which 101..200 are in no file any more, and topic `well` with one."""
    place = Place(ServerProcess(tmp_path, TOPICS_SEGMENT_MAX_EVENTS=str(SIZE)))
    place.api.append("torn", *("x" * 1000 for _ in range(350)), config={"durability": "fsync"})
    place.api.append("well", 1)
    assert place.api.call("POST", "/v0/admin/checkpoint").status == 200
    segments = place.api.call("GET", "/v0/topics/torn/segments").json["segments"]
    (path,) = (Path(segment["path"]) for segment in segments if segment["first_seq"] == SIZE + 1)
    path.unlink()
    yield place
    place.close()
    assert place.server.stop()[0] == 0


def test_watch_gives_what_lies_around_a_missing_segment_and_the_gap(torn: Place) -> None:
    with Client(f"http://{torn.server.host}:{torn.server.port}") as client:
        watched = list(islice(client.watch({"torn": 50, "well": 0}), 50 + 1 + 150 + 1))
    seen = [item for topic, item in watched if topic == "torn"]
    gaps = [item for item in seen if isinstance(item, Gap)]
    assert [(gap.gap_from, gap.gap_to, gap.reason) for gap in gaps] == [(SIZE + 1, 2 * SIZE, "corrupt")]
    assert seen.index(gaps[0]) == 50
    seqs = [item.seq for item in seen if isinstance(item, Record)]
    assert seqs == [*range(51, SIZE + 1), *range(2 * SIZE + 1, 351)]
    assert [item.seq for topic, item in watched if topic == "well" and isinstance(item, Record)] == [1]


def test_subscription_goes_past_a_missing_segment(torn: Place) -> None:
    seen: list[object] = []
    with connect(f"ws://{torn.server.host}:{torn.server.port}/v0/ws") as socket:
        socket.send(json.dumps({"op": "subscribe", "topic": "torn", "from_seq": 99}))
        while len(seen) < 1 + 1 + 150:
            told = json.loads(socket.recv(timeout=30))
            if "records" in told:
                seen += [record["$seq"] for record in told["records"]]
            elif "gap_from" in told:
                seen.append((told["gap_from"], told["gap_to"], told["reason"]))
    assert seen == [SIZE, (SIZE + 1, 2 * SIZE, "corrupt"), *range(2 * SIZE + 1, 351)]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/v0/topics/torn/diff", {"from_seq": SIZE}),
        ("GET", f"/v0/topics/torn/records?from_seq={SIZE}", None),
        ("GET", f"/v0/topics/torn/segments/{SIZE + 1}/data", None),
    ],
)
def test_whoever_asks_for_records_of_a_missing_segment_hears_which_it_is(
    torn: Place, method: str, target: str, body: object
) -> None:
    answer = torn.api.call(method, target, body)
    assert answer.problem == (500, "storage_damaged")
    assert answer.detail["file"].endswith(f"/seg-{SIZE + 1:016d}.data")
    assert (answer.detail["topic"], answer.detail["first_seq"], answer.detail["offset"]) == ("torn", SIZE + 1, 0)
