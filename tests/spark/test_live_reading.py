"""Reading from a server that is busy: writers, deletes, caps, sealing and a topic that is made again, all at once.

Each record up to the head that lives at the end is there once; nothing that was deleted before the action appears,
and nothing above the head.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import SEED
from tests.spark.conftest import Server
from tests.spark.readers import Item, items, items_of_batches, partitions, place, seqs
from topics.client.sync import Client
from topics.model.errors import GenerationChanged, TopicsError
from topics.spark.server_origin import ServerOrigin

TOPICS = ("busy", "capped", "phoenix")


class Traffic:
    """Changes the topics until it is told to stop."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._stop = threading.Event()
        self.deleted: set[int] = set()
        """Seqs of `busy` whose delete was answered."""
        self.errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._run, args=(work, Random(seed + number)))
            for number, work in enumerate((self._write, self._delete, self._checkpoint, self._make_again))
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert not self.errors

    def _run(self, work: Any, rng: Random) -> None:
        try:
            with Client(self._server.url) as client:
                while not self._stop.is_set():
                    work(client, rng)
        except Exception as error:
            self.errors.append(error)

    def _write(self, client: Client, rng: Random) -> None:
        for name in ("busy", "capped"):
            client.append(name, [{"data": n, "tag": f"t{rng.randrange(20)}"} for n in range(rng.randint(1, 30))])
        self._stop.wait(0.02)

    def _delete(self, client: Client, rng: Random) -> None:
        tag = f"t{rng.randrange(20)}"
        doomed = {item.seq for item in client.records("busy", tag=tag, include=[])}  # type: ignore[union-attr]
        client.delete("busy", tag=tag)
        self.deleted |= doomed
        self._stop.wait(0.05)

    def _checkpoint(self, _client: Client, _rng: Random) -> None:
        self._server.checkpoint()
        self._stop.wait(0.1)

    def _make_again(self, client: Client, rng: Random) -> None:
        client.drop("phoenix")
        client.append("phoenix", [{"data": n} for n in range(rng.randint(1, 200))])
        self._stop.wait(0.2)


@pytest.fixture(params=["files", "bytes"])
def busy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Once with the server's files at hand, once with what it sends of them."""
    server = Server(tmp_path, TOPICS_SHOW_PATHS="1" if request.param == "files" else "0")
    server.fill("busy", 0, 500, durability="disk")
    server.fill("capped", 0, 500, durability="disk", cap_records=150)
    server.fill("phoenix", 0, 200, durability="disk")
    server.checkpoint()
    yield server
    server.stop()


def test_scans_of_a_busy_server_are_whole(busy: Server) -> None:
    with Traffic(busy, SEED) as traffic:
        for _ in range(3):
            options = busy.options("busy", maxRecordsPerPartition=200)
            worker, parts = partitions(options)
            head = max(span.end_seq for part in parts for span in part.spans) - 1
            for _action in range(2):
                gone = set(traffic.deleted)
                found = seqs(items_of_batches(batch for part in parts for batch in worker.read(part)))
                assert len(found) == len(set(found))
                assert not gone & set(found), "a record that was deleted before the action"
                assert max(found, default=0) <= head
                living = {item.seq for item in busy.client.records("busy", to_seq=head + 1, include=[])}  # type: ignore[union-attr]
                assert living <= set(found), "a record that lives at the end"


def test_gaps_of_a_busy_capped_topic_join_its_records(busy: Server) -> None:
    with Traffic(busy, SEED + 1):
        for _ in range(4):
            found = items(busy.options("capped", startSeq=1, gapPolicy="emit", maxRecordsPerPartition=40))
            assert covered(found) == list(range(1, place_after(found[-1]))), "each seq is a record or in one gap"
            assert {item[3] for item in found if item[0] == "gap"} == {"cap"}


def covered(found: list[Item]) -> list[int]:
    """Seqs that are records or lie in a gap, each as often as it is told."""
    told = [range(item[1], item[2] + 1) if item[0] == "gap" else [item[0]] for item in sorted(found, key=place)]
    return sorted(seq for part in told for seq in part)


def place_after(item: Item) -> int:
    last = item[2] if item[0] == "gap" else item[0]
    assert isinstance(last, int)
    return last + 1


def test_a_topic_made_again_meanwhile_is_whole_or_said_to_be_another(busy: Server) -> None:
    outcomes: set[str] = set()
    with Traffic(busy, SEED + 2):
        for turn in range(200):
            if turn >= 8 and "whole" in outcomes:
                break
            try:
                found = seqs(items(busy.options("phoenix")))
            except TopicsError as error:
                outcomes.add(error.facts.get("reason", error.code))
            else:
                assert found == list(range(1, len(found) + 1))
                outcomes.add("whole")
    assert "whole" in outcomes
    assert outcomes <= {"whole", "recreated", "topic_not_found"}


def test_gap_is_told_once_where_its_segment_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = ServerOrigin._part
    left = 0

    def part(self: ServerOrigin, *place: Any) -> bytes:
        nonlocal left
        left -= 1
        if left >= 0:
            raise GenerationChanged("the segment is another now")
        return fetch(self, *place)

    monkeypatch.setattr(ServerOrigin, "_part", part)
    server = Server(tmp_path, TOPICS_SHOW_PATHS="0")
    try:
        for name, changes in (("once", 1), ("always", 99)):
            left = changes
            server.fill(name, 0, 100, durability="fsync")
            server.checkpoint()
            worker, parts = partitions(server.options(name, startSeq=1, gapPolicy="emit"))
            server.client.configure(name, cap_records=80)
            server.fill(name, 100, 1)
            found = items_of_batches(batch for part in parts for batch in worker.read(part))
            assert [item for item in found if item[0] == "gap"] == [("gap", 1, 21, "cap")]
            assert seqs(found) == list(range(22, 101))
    finally:
        server.stop()
