"""Routers while everything else goes on: writers, readers, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.http.client import Api, InProcess, eventually
from tests.contract.http.inprocess import Engine
from topics.storage.options import StoreOptions

WRITERS = 4
APPENDS = 60
BATCH = 5


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[Engine]:
    options = StoreOptions(wal_shards=3, wal_file_bytes=1 << 16, segment_max_events=200, ttl_grace_ms=0)
    engine = Engine(str(tmp_path / "store"), store=options)
    yield engine
    engine.close()


def data_of(api: Api, topic: str) -> list[str]:
    found: list[str] = []
    cursor = 0
    while True:
        page = api.diff(topic, from_seq=cursor, limit=1000).json
        assert page["tombstone"] is None
        found += [record["data"] for record in page["records"]]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return found


@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
def test_copies_keep_the_order_of_the_source_among_writers_and_readers(sharded: Engine, durability: str) -> None:
    wire = InProcess(sharded)
    api = Api(wire)
    for topic in ("a", "b", "c"):
        api.put(topic, durability=durability)
    for router, source, dest in (("ab", "a", "b"), ("bc", "b", "c")):
        assert api.call("PUT", f"/v0/routers/{router}", {"source": source, "dest": dest}).status == 201

    def write(writer: int) -> None:
        for number in range(APPENDS):
            batch = [f"{writer}.{number}.{at}" for at in range(BATCH)]
            assert api.append("a", *batch).status == 200
            if number % 10 == writer:
                # What this writer just got an answer for is in the copy already.
                assert set(batch) <= set(data_of(api, "b"))
            if number % 20 == 7:
                assert sharded.pump.checkpoint()

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    everything = data_of(api, "a")
    assert len(everything) == WRITERS * APPENDS * BATCH
    assert data_of(api, "b") == everything
    assert eventually(lambda: api.call("GET", "/v0/routers/bc").json["forwarded_total"] == len(everything))
    assert data_of(api, "c") == everything


def test_a_source_that_never_rests_does_not_keep_the_others_from_theirs(sharded: Engine) -> None:
    api = Api(InProcess(sharded))
    for router, source, dest in (("busy", "a", "b"), ("calm", "x", "y")):
        api.call("PUT", f"/v0/routers/{router}", {"source": source, "dest": dest})

    def write() -> None:
        for number in range(150):
            api.append("a", *range(number, number + 50))

    def total(router: str) -> int:
        rows = api.call("GET", f"/v0/routers?prefix={router}").json["routers"]
        count = rows[0]["forwarded_total"]
        assert isinstance(count, int)
        return count

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(write)
        api.append("x", 1)
        assert eventually(lambda: total("calm") == 1)
        busy.result()
    assert eventually(lambda: total("busy") == 150 * 50)
