"""What a task hears of its server while it reads: streams that break off, files that are replaced, a head that is
another than the plan's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.conftest import Server
from tests.spark.readers import items_of_batches, partitions, schema_of
from topics.api.arrow_out import SCHEMA
from topics.model.errors import GenerationChanged, RecordsLost, StreamCut, Unauthorized
from topics.spark.frames import Wanted
from topics.spark.options import Filter, parse_options
from topics.spark.places import Damage, Loss, SegmentPlace, ServerPlace, Span
from topics.spark.reaching import client_for
from topics.spark.rows import Rows
from topics.spark.server_origin import ServerOrigin
from topics.spark.stream import stream_reader


class Cutting:
    """A server that breaks off every stream of records: after so many, as it does where the reader is slow."""

    def __init__(self, each: int) -> None:
        self._each = each
        self.asked: list[int] = []

    @contextmanager
    def records_arrow(self, topic: str, *, from_seq: int, to_seq: int, **_: Any) -> Iterator[Iterator[bytes]]:
        self.asked.append(from_seq)
        yield self._pieces(from_seq, min(from_seq + self._each, to_seq))

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            rows = [{"seq": seq, "ts": 0, "data": "1", "kind": "record"} for seq in range(start, end)]
            if rows:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
        yield sink.getvalue().to_pybytes()[:-8]  # all but the word that it ends here
        raise StreamCut("the Arrow stream was cut", next_from_seq=None)

    def close(self) -> None:
        pass


def read_through(server: Cutting, count: int) -> list[int]:
    origin = ServerOrigin("http://127.0.0.1:1", None)
    origin._client = server  # type: ignore[assignment]
    span = Span("orders", 1, 1, count + 1, 0, ServerPlace())
    found: list[int] = []
    for item in origin.read([span], Wanted(0, True, Filter())):
        assert isinstance(item, Rows)
        found += item.seq.to_pylist()
    return found


def test_slow_reader_whose_streams_are_cut_again_and_again_reads_all_there_is() -> None:
    assert read_through(Cutting(10), 200) == list(range(1, 201))


def test_stream_that_is_cut_without_a_record_is_given_up_in_the_end() -> None:
    server = Cutting(0)
    with pytest.raises(StreamCut):
        read_through(server, 200)
    assert server.asked == [1] * 6


class Salvaged(ServerOrigin):
    """Of a server that was started anew with salvage since the plan: it tells records as lost, and the segment changes
    while its bytes are fetched."""

    changes = 2

    def _segment(self, span: Span, place: SegmentPlace, wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        client = self.client
        listed = client.segments
        client.segments = lambda *a, **more: replace(listed(*a, **more), gaps=[(20, 25, "corrupt")])  # type: ignore[method-assign]
        return super()._segment(span, place, wanted)

    def _part(self, *place: Any) -> bytes:
        self.changes -= 1
        if self.changes >= 0:
            raise GenerationChanged("the segment is another now")
        return super()._part(*place)


def test_loss_within_a_segment_is_told_once_where_the_segment_is_replaced_meanwhile(tmp_path: Path) -> None:
    server = Server(tmp_path, TOPICS_SHOW_PATHS="0")
    try:
        server.fill("orders", 0, 50, durability="fsync")
        server.checkpoint()
        origin = Salvaged(server.url, None)
        plan = origin.plan("orders", origin.heads({"orders": 1})["orders"].topic_id, 1, 51)
        found = list(origin.read(plan.spans, Wanted(0, True, Filter())))
    finally:
        server.stop()
    assert [item for item in found if isinstance(item, Loss)] == [Loss("orders", 20, 25, "corrupt")]
    assert [seq for item in found if isinstance(item, Rows) for seq in item.seq.to_pylist()] == [
        *range(1, 20), *range(26, 51),
    ]  # fmt: skip


def told(worker: Any, parts: list[Any]) -> list[int]:
    """Seqs: those that are told as lost with another instance are negative."""
    found: list[int] = []
    for item in items_of_batches(batch for part in parts for batch in worker.read(part)):
        assert item[0] != "gap" or item[3] == "recreated"
        found += [-seq for seq in range(item[1], item[2] + 1)] if item[0] == "gap" else [item[0]]
    return sorted(found, key=abs)


@pytest.mark.parametrize("sealed", [False, True])
def test_records_that_a_backup_put_back_since_the_plan_does_not_have_are_told_as_lost(
    tmp_path: Path, sealed: bool
) -> None:
    now, backup = tmp_path / "now", tmp_path / "backup"
    server = Server(now)
    server.fill("orders", 0, 30, durability="fsync")
    server.stop()
    shutil.copytree(now, backup)
    server = Server(now)
    port = server.process.port
    server.fill("orders", 30, 40)
    if sealed:
        server.checkpoint()
    asked = server.options("orders", gapPolicy="emit")
    stream = stream_reader(asked, schema_of(asked))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    through = [partitions(server.options("orders", startSeq=1, gapPolicy=policy)) for policy in ("emit", "fail")]
    server.stop()
    options = {"path": str(server.data), "topic": "orders", "startSeq": "1"}
    at_rest = [partitions({**options, "gapPolicy": policy}) for policy in ("emit", "fail")]
    shutil.rmtree(now)
    shutil.copytree(backup, now)
    expected = [*range(1, 31), *range(-31, -71, -1)]
    assert told(*at_rest[0]) == expected
    with pytest.raises(RecordsLost, match="of topic 'orders' are lost"):
        told(*at_rest[1])
    server = Server(now, TOPICS_PORT=str(port))
    try:
        assert told(*through[0]) == expected
        with pytest.raises(RecordsLost, match="of topic 'orders' are lost"):
            told(*through[1])
        assert told(stream, stream.partitions(start, end)) == expected
    finally:
        server.stop()


def test_key_that_the_server_does_not_know_is_told_with_where_keys_are_taken_from(tmp_path: Path) -> None:
    server = Server(tmp_path, TOPICS_API_KEYS="all")
    try:
        asked = parse_options({**server.options("orders"), "token": "guess"})
        with client_for(server.url, asked.token, asked.timeout_ms, asked.words) as client:
            for ask in (lambda: client.heads({"orders": 1}), lambda: client.records_arrow("orders")):
                with pytest.raises(Unauthorized, match="option token, else from the variable TOPICS_TOKEN") as told:
                    ask()
                assert "guess" not in str(told.value)
    finally:
        server.stop()
