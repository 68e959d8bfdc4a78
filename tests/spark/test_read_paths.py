"""Every way to read gives the same records and the same gaps: embedded, HTTP, Spark over the directory, Spark over the
server with and without the server's files, and history tables, by themselves and with the live rest."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import topics
import topics.spark
from tests.conftest import SEED
from tests.spark.conftest import Server
from tests.spark.history import CONFIGS, OPTIONS, write_history
from tests.spark.readers import Item, item_of, item_of_row, items, place, seqs
from topics.model.errors import CorruptFile, InvalidRequest, RecordsLost, StoreLocked, TopicNotFound, UnknownVersion
from topics.spark.history import History
from topics.spark.pipeline import PipelineOptions, run_round

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Told = dict[str, list[Item]]
WHOLE = {"startSeq": "1", "gapPolicy": "emit"}


def by_directory(data: Path) -> Told:
    return {name: items({"path": str(data), "topic": name, **WHOLE}) for name in CONFIGS}


def by_engine(data: Path) -> Told:
    with topics.open(data, **OPTIONS) as log:
        return {name: [item_of(found) for found in log.read(name)] for name in CONFIGS}


def by_http(server: Server) -> Told:
    return {name: [item_of(found) for found in server.client.records(name, from_seq=1)] for name in CONFIGS}


def by_server(server: Server) -> Told:
    return {name: items(server.options(name, **WHOLE)) for name in CONFIGS}


def export(spark: SparkSession, server: Server, tables: Path, tail: bool) -> None:
    for done in run_round(lambda: spark, PipelineOptions(str(tables), server.url, tail=tail)):
        assert done.error is None
        assert done.lag == 0 or not tail


def by_tables(tables: Path) -> Told:
    """As any reader of Delta reads them, with the gaps that they note."""
    import polars

    told: Told = {}
    for name in CONFIGS:
        history = History.load(str(tables), name)
        found: list[Item] = [("gap", *gap) for gap in history.gaps()]
        if history.table is not None:
            found += [item_of_row(row) for row in polars.read_delta(str(tables / name)).to_dicts()]
        told[name] = sorted(found, key=place)
    return told


def rows_of(frame: DataFrame) -> list[Item]:
    return sorted((item_of_row(row) for row in frame.toArrow().to_pylist()), key=place)


def by_table_frames(spark: SparkSession, tables: Path, url: str | None) -> Told:
    """The records of those topics that have a table."""
    found = {name: str(tables / name) for name in CONFIGS if History.load(str(tables), name).table is not None}
    return {name: rows_of(topics.spark.table(spark, folder, url)) for name, folder in found.items()}


def records_of(told: Told) -> Told:
    return {name: [item for item in found if item[0] != "gap"] for name, found in told.items()}


def test_all_ways_to_read_agree(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with topics.open(data, **OPTIONS) as log:
        write_history(log, SEED)
        told = {name: [item_of(found) for found in log.read(name)] for name in CONFIGS}
    assert any(item[0] == "gap" for item in told["capped"])
    assert by_directory(data) == told
    server = Server(tmp_path, TOPICS_WAL_SHARDS="2")
    try:
        assert by_http(server) == told
        assert by_server(server) == told
        for name in CONFIGS:  # some of it behind the segments
            server.client.append(name, [{"data": n, "tag": "us"} for n in range(10)])
        server.client.delete("orders", tag="eu.*")
        assert by_server(server) == by_http(server)
    finally:
        server.stop()
    again = Server(tmp_path, TOPICS_WAL_SHARDS="2", TOPICS_SHOW_PATHS="0")
    try:
        again.checkpoint()
        again.client.delete("plain", tag="us")
        listed = again.client.segments("plain").segments
        assert listed
        assert all(segment.path is None for segment in listed)
        assert by_server(again) == by_http(again)
    finally:
        again.stop()


@pytest.mark.parametrize("paths", ["1", "0"])
def test_history_tables_agree_with_every_other_way_to_read(spark: SparkSession, tmp_path: Path, paths: str) -> None:
    with topics.open(tmp_path / "data", **OPTIONS) as log:
        write_history(log, SEED + 11)
        told = {name: [item_of(found) for found in log.read(name)] for name in CONFIGS}
    assert any(item[0] == "gap" for item in told["capped"])
    server = Server(tmp_path, TOPICS_WAL_SHARDS="2", TOPICS_SHOW_PATHS=paths)
    try:
        whole, sealed = tmp_path / "whole", tmp_path / "sealed"
        export(spark, server, whole, tail=True)
        assert by_http(server) == by_tables(whole) == told
        for url in (None, server.url):
            found = by_table_frames(spark, whole, url)
            assert {"orders", "capped", "plain"} <= found.keys()
            assert found == {name: records_of(told)[name] for name in found}
        for name in CONFIGS:  # some of it behind the segments
            server.client.append(name, [{"data": n, "tag": "us"} for n in range(10)])
        server.client.delete("orders", tag="eu.*")
        server.client.delete("plain", before_seq=told["plain"][-1][0] // 3)
        export(spark, server, sealed, tail=False)  # a table goes on showing what is deleted after its export
        told = by_http(server)
        assert by_server(server) == told
        found = by_table_frames(spark, sealed, server.url)
        assert {"orders", "capped", "plain"} <= found.keys()
        assert found == {name: records_of(told)[name] for name in found}
        export(spark, server, sealed, tail=True)
        assert by_tables(sealed) == told
    finally:
        server.stop()


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_killed_directory_is_read_as_the_store_will_recover_it(tmp_path: Path, same_boot: bool) -> None:
    command = [sys.executable, "-m", "tests.spark.history", str(tmp_path), str(SEED + same_boot)]
    done = subprocess.run(command, capture_output=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -9, done.stderr.decode()
    if not same_boot:
        (tmp_path / "meta" / "BOOT").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = by_directory(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert found == by_engine(tmp_path)
    if not same_boot:  # the disk topics may have lost what they had reserved
        assert found["plain"][-1][::3] == ("gap", "crash")


def test_filters_and_ranges_select_the_same_everywhere(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with topics.open(data, **OPTIONS) as log:
        write_history(log, SEED + 7)
        log.checkpoint()
        write_history(log, SEED + 8, 20)
    server = Server(tmp_path, TOPICS_WAL_SHARDS="2")
    try:
        everything = [item_of(found) for found in server.client.records("orders")]
        head = server.client.info("orders").head_seq
        moments = sorted({item[1] for item in everything})
        middle = moments[len(moments) // 2]
        expected = {
            ("tag", "us"): [item for item in everything if item[2] == "us"],
            ("tag", "eu.*"): [item for item in everything if (item[2] or "").startswith("eu.")],
            ("node", "node-1"): [item for item in everything if item[3] == "node-1"],
            ("key", 'quo"te'): [item for item in everything if item[4] == 'quo"te'],
            ("startTs", str(middle)): [item for item in everything if item[1] >= middle],
            ("endTs", str(middle)): [item for item in everything if item[1] < middle],
            ("startSeq", str(head // 2)): [item for item in everything if item[0] >= head // 2],
            ("endSeq", str(head // 2)): [item for item in everything if item[0] < head // 2],
            ("maxRecordsPerPartition", "7"): everything,
            ("verify", "false"): everything,
        }
        for (name, value), wanted in expected.items():
            assert items(server.options("orders", **{name: value})) == wanted, (name, value)
    finally:
        server.stop()
    for (name, value), wanted in expected.items():
        assert items({"path": str(data), "topic": "orders", name: value}) == wanted, (name, value)


def test_a_directory_in_use_is_refused_or_read_as_far_as_it_is_sealed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"path": str(tmp_path), "topic": "orders"}
    with topics.open(tmp_path, **OPTIONS) as log:
        log.create("orders")
        log.create("others")
        with pytest.raises(InvalidRequest, match=r"the last checkpoint of .* knows no topic 'orders'.*option url"):
            items({**options, "allowLive": "true"})
        for _ in range(3):
            log.append("orders", [{"data": n, "tag": "us" if n % 2 else "eu"} for n in range(30)])
        log.delete("orders", tag="eu")
        log.checkpoint()
        log.append("orders", [{"data": "later"}])
        with pytest.raises(StoreLocked, match="option url"):
            items(options)
        sealed = items({**options, "allowLive": "true"})
        assert seqs(sealed) == [seq for seq in range(1, 81) if not seq % 2]
        (told,) = (one.getMessage() for one in caplog.records if one.name == "topics.spark")
        assert "allowLive: of topic 'orders' the records up to seq" in told
    assert seqs(items(options)) == [*range(2, 91, 2), 91]


def test_no_store_starts_while_a_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.spark.readers import partitions

    monkeypatch.setattr("topics.spark.rows.MERGE_BYTES", 1)  # the first batch comes before the last was read
    options = {"path": str(tmp_path), "topic": "orders"}
    with topics.open(tmp_path) as log:
        log.create("orders")
        log.append("orders", [{"data": n} for n in range(10)])
    worker, (part,) = partitions(options)
    reading = worker.read(part)
    next(reading)
    with pytest.raises(topics.StoreLocked):
        topics.open(tmp_path)
    reading.close()
    # A store that ran between planning and reading: what it deleted is gone, what it added is beyond the head.
    with topics.open(tmp_path) as log:
        log.append("orders", [{"data": "new", "tag": "x"}])
        log.delete("orders", before_seq=4)
    found = [row["seq"] for batch in worker.read(part) for row in batch.to_pylist()]
    assert found == list(range(4, 11))
    with topics.open(tmp_path) as log:
        log.drop("orders")
        log.create("orders")
    with pytest.raises(RecordsLost, match="recreated"):
        list(worker.read(part))


def test_a_lost_or_rotten_index_loses_no_record(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with topics.open(data, **OPTIONS) as log:
        write_history(log, SEED + 3)
        log.checkpoint()
    told = by_directory(data)
    for number, index in enumerate(sorted(data.rglob("seg-*.idx"))):
        if number % 2:
            index.unlink()
        else:
            rotten = bytearray(index.read_bytes())
            rotten[: len(rotten) // 2] = bytes(len(rotten) // 2)
            index.write_bytes(rotten)
    assert by_directory(data) == told
    server = Server(tmp_path, TOPICS_WAL_SHARDS="2")
    try:
        assert by_server(server) == told
    finally:
        server.stop()


def test_what_is_no_directory_of_ours_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownVersion, match="is not a directory"):
        items({"path": str(tmp_path / "none"), "topic": "orders"})
    with pytest.raises(UnknownVersion, match="no meta/FORMAT"):
        items({"path": str(tmp_path), "topic": "orders"})
    topics.open(tmp_path / "data").close()
    with pytest.raises(TopicNotFound):
        items({"path": str(tmp_path / "data"), "topic": "orders"})


def test_damage_in_the_wal_of_a_directory_is_refused(tmp_path: Path) -> None:
    script = (
        "import os, sys, topics\n"
        "log = topics.open(sys.argv[1], evidence_ms=0, wal_shards=1)\n"
        "log.create('orders', durability='fsync')\n"
        "for n in range(40): log.append('orders', [{'data': n}])\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    options = {"path": str(tmp_path), "topic": "orders"}
    assert len(items(options)) == 40
    (wal,) = tmp_path.glob("wal/wal-*.log")  # one shard
    data = bytearray(wal.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 0xFF
    wal.write_bytes(data)
    with pytest.raises(CorruptFile, match="repairs or explains"):
        items(options)
    with pytest.raises(CorruptFile):
        topics.open(tmp_path)


def test_times_are_found_where_a_killed_store_had_removed_files_of_deleted_records(tmp_path: Path) -> None:
    live, data = tmp_path / "live", tmp_path / "data"
    with topics.open(live, **OPTIONS) as log:
        log.create("orders", ttl_ms=3_600_000)
        for tag in ("first", "second", "third"):
            log.append("orders", [{"data": n, "tag": tag} for n in range(40)])
            log.checkpoint()
            time.sleep(0.01)
        for tag in ("first", "second"):
            log.delete("orders", tag=tag)
        shutil.copytree(live, data)  # as a kill leaves it between the removal of files and the next snapshot
        for first in (1, 41):
            for path in data.glob(f"topics/*/seg-*{first:04d}.*"):
                path.unlink()
        told = [item_of(found) for found in log.read("orders")]
    options = {"path": str(data), "topic": "orders"}
    assert items(options) == items({**options, **WHOLE}) == told
    assert items({**options, "startTs": str(told[0][1])}) == told
    assert items({**options, "endTs": str(told[0][1])}) == []


def test_segments_that_a_running_store_removes_are_waited_out_and_not_called_damaged(tmp_path: Path) -> None:
    from tests.spark.readers import partitions

    options = {"path": str(tmp_path), "topic": "orders", "allowLive": "true"}
    with topics.open(tmp_path, **OPTIONS) as log:
        log.create("orders")
        for _ in range(3):
            log.append("orders", [{"data": n} for n in range(40)])
            log.checkpoint()
        worker, parts = partitions(options)
        log.delete("orders", before_seq=41)
        for path in tmp_path.glob("topics/*/seg-*0001.*"):  # as a checkpoint does before it writes its snapshot
            path.unlink()
        timer = threading.Timer(0.3, log.checkpoint)
        timer.start()
        found = [row["seq"] for part in parts for batch in worker.read(part) for row in batch.to_pylist()]
        timer.join()
        assert found == list(range(41, found[-1] + 1))
        assert seqs(items(options)) == found
