"""Bad input: a clear error that names the thing, and nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topics
from topics.host.clock import SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.model.errors import InvalidRecord, InvalidRequest


@pytest.fixture
def orders(log: topics.Log) -> topics.Log:
    log.create("orders")
    log.append("orders", [{"data": 1, "tag": "t"}])
    return log


def unchanged(log: topics.Log) -> bool:
    info = log.info("orders")
    return (info.head_seq, info.count, log.topics()) == (1, 1, ["orders"])


BAD_RECORDS: list[tuple[Any, str]] = [
    ({}, r"record 1: it has no 'data'"),
    ({"dat": 1}, r"record 1: unknown field 'dat'; known: data, tag, node, key, meta"),
    ({"data": 1, "tag": 5}, r"record 1: 'tag' is of type int, not str"),
    ({"data": 1, "tag": "x" * 257}, r"record 1: 'tag' has 257 bytes; the limit is 256"),
    ({"data": 1, "node": "x" * 129}, r"record 1: 'node' has 129 bytes; the limit is 128"),
    ({"data": 1, "key": "x" * 513}, r"record 1: 'key' has 513 bytes; the limit is 512"),
    ({"data": 1, "key": "\ud800"}, r"record 1: 'key' holds half of a surrogate pair"),
    ({"data": 1, "meta": {"m": "x" * 20_000}}, r"record 1: 'meta' has 20008 bytes; the limit is 16384"),
    ({"data": 1, "meta": {str(n): 1 for n in range(65)}}, r"record 1: 'meta' has 65 keys; the limit is 64"),
    ({"data": b"{"}, r"record 1: 'data' is not JSON"),
    ({"data": b""}, r"record 1: 'data' is not JSON"),
    ({"data": b"1 2"}, r"record 1: 'data' is not JSON"),
    ({"data": b'"\xff"'}, r"record 1: 'data' is not JSON"),
    ({"data": b"[" * 200 + b"]" * 200}, r"record 1: 'data' is not JSON"),
    ({"data": b"NaN"}, r"record 1: 'data' is not JSON"),
    ({"data": float("nan")}, r"record 1: 'data' has no JSON form: it holds a NaN"),
    ({"data": object()}, r"record 1: 'data' has no JSON form"),
    (
        {"data": {"a": [1, b"x"]}},
        r"record 1: 'data' holds bytes at data\['a'\]\[1\], which JSON cannot say: make them text",
    ),
    ({"data": [bytearray(b"x")]}, r"record 1: 'data' holds bytes at data\[0\]"),
    ({"data": ({"k": memoryview(b"x")},)}, r"record 1: 'data' holds bytes at data\[0\]\['k'\]"),
    ({"data": {"k": {b"x": 1}}}, r"record 1: 'data' holds bytes at data\['k'\], as a key"),
    ({"data": {b"x"}}, r"record 1: 'data' holds bytes at data\[0\]"),
    ({"data": 1, "meta": {"m": b"x"}}, r"record 1: 'meta' holds bytes at meta\['m'\]"),
    (7, r"record 1: it is of type int; a record is a mapping with 'data'"),
    (b'{"data":1}', r"record 1: it is of type bytes; a record is a mapping with 'data'"),
    ("text", r"record 1: it is of type str; "),
    (None, r"record 1: it is of type NoneType; "),
]


@pytest.mark.parametrize(("record", "message"), BAD_RECORDS, ids=[m[10:45] for _, m in BAD_RECORDS])
def test_one_bad_record_refuses_the_whole_batch(orders: topics.Log, record: Any, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message) as caught:
        orders.append("orders", [{"data": 0}, record, {"data": 2}])
    assert caught.value.index == 1
    assert unchanged(orders)


def test_a_record_too_large_is_told_its_size(orders: topics.Log) -> None:
    with pytest.raises(topics.RecordTooLarge, match="record 1: data and meta take 1048579 bytes; the limit is 1048576"):
        orders.append("orders", [{"data": 0}, {"data": "x" * 1_048_577}])
    assert unchanged(orders)


BAD_CALLS: list[tuple[Callable[[topics.Log], object], str]] = [
    (lambda log: log.append("orders", []), "records is empty; an append needs at least one"),
    (lambda log: log.append("orders", {"data": 1}), "records is a dict; give a list of mappings"),  # type: ignore[arg-type]
    (lambda log: log.append("orders", "abc"), "records is a str; give a list of mappings"),
    (lambda log: log.append("orders", iter([{"data": 1}])), "records is a list_iterator; give a list"),  # type: ignore[arg-type]
    (lambda log: log.append("orders", [{"data": 1}] * 10_001), "10001 records are more than the 10000 of one append"),
    (lambda log: log.append("orders", [{"data": 1}], idempotency_key="k" * 257), "idempotency_key has 257 bytes"),
    (lambda log: log.append("orders", [{"data": 1}], idempotency_key=5), "idempotency_key is of type int"),  # type: ignore[arg-type]
    (lambda log: log.append("orders", [{"data": 1}], idempotency_key="\ud800"), "idempotency_key holds half of a"),
    (lambda log: log.append("orders", [{"data": 1}], node="n" * 129), "'node' has 129 bytes; the limit is 128"),
    (lambda log: log.append(["orders"], [{"data": 1}]), r"topic name \['orders'\] is not valid"),  # type: ignore[arg-type]
    (lambda log: log.create("no spaces"), "topic name 'no spaces' is not valid: 1 to 255 of A-Z a-z 0-9"),
    (lambda log: log.create(""), "topic name '' is not valid"),
    (lambda log: log.create("../up"), r"topic name '\.\./up' is not valid"),
    (lambda log: log.create("x" * 256), "is not valid: 1 to 255 of"),
    (lambda log: log.create(None), "topic name None is not valid"),  # type: ignore[arg-type]
    (lambda log: log.drop(5), "topic name 5 is not valid"),  # type: ignore[arg-type]
    (lambda log: log.create("x", capped=1), "unknown config field 'capped'; known: .*cap_records"),
    (lambda log: log.create("x", cap_records="5"), "config field 'cap_records' is '5'; it must be a whole number"),
    (lambda log: log.create("x", ttl_ms=-1), "config field 'ttl_ms' is -1; it must be a whole number from 0"),
    (lambda log: log.create("x", durability="fast"), "config field 'durability' is 'fast'; it must be 'ephemeral', "),
    (lambda log: log.create("x", discard="new"), "config field 'discard' is 'new'; it must be 'old' or 'reject'"),
    (lambda log: log.create("x", durable="yes"), "config field 'durable' is 'yes'; it must be True or False"),
    (lambda log: log.configure("orders", ttl=5), "unknown config field 'ttl'"),
    (lambda log: log.configure("orders", cap_bytes=1.5), "config field 'cap_bytes' is 1.5; it must be a whole number"),
    (lambda log: log.read("orders", from_seq=-1), "from_seq is -1; it must be a whole number from 0"),
    (lambda log: log.read("orders", from_seq="1"), "from_seq is '1'; it must be a whole number"),  # type: ignore[arg-type]
    (lambda log: log.read("orders", limit=0), "limit is 0; it must be a whole number of at least 1"),
    (lambda log: log.read("orders", limit=-3), "limit is -3; it must be a whole number of at least 1"),
    (lambda log: log.get("orders", "1"), "seq is '1'; it must be a whole number"),  # type: ignore[arg-type]
    (lambda log: log.delete("orders"), "say what to delete: before_seq=, tag= or both"),
    (lambda log: log.delete("orders", before_seq=-1), "before_seq is -1; it must be a whole number"),
    (lambda log: log.delete("orders", before_seq=True), "before_seq is True; it must be a whole number"),
    (lambda log: log.delete("orders", tag=5), "tag is of type int; it must be text"),  # type: ignore[arg-type]
    (lambda log: log.delete("orders", tag="t" * 258), "tag has 258 bytes; the limit is 257"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=[m[:40] for _, m in BAD_CALLS])
def test_a_bad_argument_is_named_and_changes_nothing(
    orders: topics.Log, call: Callable[[topics.Log], object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        call(orders)
    assert unchanged(orders)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"wal_shard": 2}, "unknown option 'wal_shard'; known: .*wal_shards"),
    ({"wal_shards": 0}, "option 'wal_shards' is 0; it must be a whole number from 1 to 64"),
    ({"wal_shards": 65}, "option 'wal_shards' is 65"),
    ({"wal_shards": "2"}, "option 'wal_shards' is '2'"),
    ({"segment_max_events": True}, "option 'segment_max_events' is True"),
    ({"recovery": "hope"}, "option 'recovery' is 'hope'; it must be 'strict' or 'salvage'"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[str(o) for o, _ in BAD_OPTIONS])
def test_a_bad_option_is_named_and_makes_no_directory(data: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        topics.open(data, **options)
    assert not data.exists()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(topics.StorageError, match="is a file; a store needs a directory"):
        topics.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "message"), [(None, "path is None"), (5, "path is 5; it must name a directory"), ("a\0b", "zero byte")]
)
def test_a_path_that_is_none_is_refused(path: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        topics.open(path)


def test_a_link_that_leads_nowhere_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(topics.StorageError, match=r"link is a symbolic link to .*gone, which is not there"):
        topics.open(tmp_path / "link")
    with pytest.raises(topics.StorageError, match="cannot be opened: it is a symbolic link that leads nowhere"):
        topics.Log(OsFs(), str(tmp_path / "link"), SystemClock(), SystemIds())


@pytest.mark.parametrize("path", ["file/x", "file/x/y"])
def test_a_path_below_a_file_is_refused_as_one_below_a_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(topics.StorageError, match=f"{path} cannot be opened: .*/file: it is a file, not a directory"):
        topics.open(tmp_path / path)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_link_to_a_directory_is_that_directory(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with topics.open(tmp_path / "link") as log:
        log.create("orders")
    assert (tmp_path / "there" / "meta").is_dir()


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="path is empty"):
        topics.open("")


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / f"wal-{1:016d}.log").write_bytes(b"not ours")
    with pytest.raises(topics.UnknownVersion, match=r"holds data but no .*FORMAT"):
        topics.open(tmp_path)
    assert (tmp_path / "wal" / f"wal-{1:016d}.log").read_bytes() == b"not ours"


def test_a_store_holds_no_more_topics_than_it_may(data: Path) -> None:
    with topics.open(data, max_topics=2) as log:
        log.create("a")
        log.create("b")
        with pytest.raises(topics.Throttled, match="the store holds 2 topics, its limit"):
            log.create("c")
        log.drop("a")
        log.create("c")


def test_errors_carry_a_stable_code_and_their_facts(orders: topics.Log) -> None:
    with pytest.raises(topics.TopicsError) as caught:
        orders.append("nope", [{"data": 1}])
    assert (caught.value.code, caught.value.facts) == ("topic_not_found", {"topic": "nope"})
    assert json.dumps(caught.value.facts)


NOT_WHOLE: list[tuple[Callable[[topics.Log], object], str]] = [
    (lambda log: log.queue("jobs").claim("w", lease_ms=30e3), "lease_ms is 30000.0; it must be a whole number"),  # type: ignore[arg-type]
    (lambda log: log.queue("jobs").claim("w", max="8"), "max is '8'"),  # type: ignore[arg-type]
    (lambda log: log.queue("jobs").nack("w", [1], delay_ms=0.5), "delay_ms is 0.5"),  # type: ignore[arg-type]
    (lambda log: log.queue("jobs").extend("w", [1], 1e3), "lease_ms is 1000.0"),  # type: ignore[arg-type]
    (lambda log: log.queue("jobs").redrive(max=1.5), "max is 1.5"),  # type: ignore[arg-type]
    (lambda log: log.group("orders", "g").fetch("m", 1.5), "max is 1.5"),  # type: ignore[arg-type]
    (lambda log: log.group("orders", "g").claim("m", 0.5), "min_idle_ms is 0.5"),  # type: ignore[arg-type]
    (lambda log: log.group("orders", "g").commit(2.0), "seq is 2.0"),  # type: ignore[arg-type]
    (lambda log: log.group("orders", "g").nack("m", [1], delay_ms=1e3), "delay_ms is 1000.0"),  # type: ignore[arg-type]
    (lambda log: log.group("orders", "g").extend("m", [1], 1e3), "visibility_ms is 1000.0"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), NOT_WHOLE, ids=[message for _, message in NOT_WHOLE])
def test_a_number_that_is_not_whole_takes_no_job_away(
    orders: topics.Log, call: Callable[[topics.Log], object], message: str
) -> None:
    orders.create("jobs", type="queue")
    orders.append("jobs", [{"data": 1}])
    orders.group("orders", "g").create()
    with pytest.raises(InvalidRequest, match=message):
        call(orders)
    assert [job.seq for job in orders.queue("jobs").claim("w")] == [1]
    assert [item.seq for item in orders.group("orders", "g").fetch("m").records] == [1]
