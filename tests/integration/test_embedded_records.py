"""What goes into a record comes out of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import topics
from tests.integration.conftest import Opener

VALUES: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, 2**64 - 1, 1.5, -0.0, 1e300, "", "text", "ünï\u2028\U0001f600", "\x00\x1f\"\\",
    [], {}, [1, [2, [3]]], {"a": {"b": [None, True]}}, {"": 1, "z": 2, "a": 3},
]  # fmt: skip


def stored(log: topics.Log, topic: str = "orders") -> list[topics.Record]:
    return [item for item in log.read(topic) if isinstance(item, topics.Record)]


@pytest.mark.parametrize("how", ["in the WAL", "in a segment", "reopened"])
def test_every_field_comes_back_as_it_went_in(reopen: Opener, how: str) -> None:
    log = reopen()
    log.create("orders")
    record = {"data": {"id": 1}, "tag": "eu/ü", "node": "näde", "key": "kéy", "meta": {"a": [1, None]}}
    log.append("orders", [record, {"data": 2}])
    if how == "in a segment":
        log.checkpoint()
    if how == "reopened":
        log = reopen()
    first, second = stored(log)
    assert (first.data, first.tag, first.node, first.key, first.meta) == (
        {"id": 1}, "eu/ü", "näde", "kéy", {"a": [1, None]},
    )  # fmt: skip
    assert (second.data, second.tag, second.node, second.key, second.meta) == (2, None, None, None, None)
    assert log.get("orders", 1) == first


def test_every_json_value_survives(reopen: Opener) -> None:
    log = reopen()
    log.create("orders")
    log.append("orders", [{"data": value} for value in VALUES])
    for found in (stored(log), stored(reopen())):
        assert [record.data for record in found] == VALUES


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b' { "b" : 1.0 , "a" : [ 1 , 2 ] } ', b'{"b":1.0,"a":[1,2]}'),
        (b"1.50", b"1.50"),
        (b"1e5", b"1e5"),
        (b"-0", b"-0"),
        (b"123456789012345678901234567890", b"123456789012345678901234567890"),
        (b"0.1000000000000000055511151231257827", b"0.1000000000000000055511151231257827"),
        (b'"a b \\u00e9 \\/ \\n"', b'"a b \\u00e9 \\/ \\n"'),
        ('"é 日本"'.encode(), '"é 日本"'.encode()),
        (b"\n[\r\n1,\t2 ]\n", b"[1,2]"),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2}'),
    ],
)
def test_json_text_is_kept_but_for_whitespace(log: topics.Log, text: bytes, kept: bytes) -> None:
    log.create("orders")
    log.append("orders", [{"data": text}, {"data": bytearray(text)}, {"data": memoryview(text)}])
    assert [record.raw for record in stored(log)] == [kept] * 3


def test_raw_values_of_a_decoder_are_taken_as_text(log: topics.Log) -> None:
    log.create("orders")
    log.append("orders", [{"data": msgspec.Raw(b'{"n": 1.0}')}])
    assert stored(log)[0].raw == b'{"n":1.0}'


def test_meta_may_be_text_and_null_means_none(log: topics.Log) -> None:
    log.create("orders")
    log.append(
        "orders", [{"data": 1, "meta": b' {"n" : 1.0} '}, {"data": 2, "meta": None}, {"data": 3, "meta": b"null"}]
    )
    assert [record.meta_raw for record in stored(log)] == [b'{"n":1.0}', None, None]


def test_the_node_of_an_append_is_the_default_of_its_records(log: topics.Log) -> None:
    log.create("orders")
    log.append("orders", [{"data": 1}, {"data": 2, "node": "own"}], node="all")
    assert [record.node for record in stored(log)] == ["all", "own"]


def test_records_may_be_objects_with_attributes(log: topics.Log) -> None:
    class Order(msgspec.Struct):
        data: Any
        tag: str | None = None

    log.create("orders")
    log.append("orders", [Order({"id": 1}, "eu"), Order(b"2")])
    assert [(record.data, record.tag) for record in stored(log)] == [({"id": 1}, "eu"), (2, None)]


def test_a_batch_and_a_record_of_the_largest_size_are_taken(reopen: Opener) -> None:
    log = reopen(wal_file_bytes=65_536)
    log.create("orders")
    large = b'"' + b"x" * (1_048_576 - 2) + b'"'
    log.append("orders", [{"data": large}])
    log.append("orders", [{"data": n} for n in range(10_000)])
    log.append("orders", [{"data": large}] * 12)
    for again in (False, True):
        current = reopen() if again else log
        assert current.info("orders").count == 10_013
        found = stored(current)
        assert found[0].raw == found[-1].raw == large
        assert [record.data for record in found[1:10_001]] == list(range(10_000))


def test_times_never_go_back_within_a_topic(reopen: Opener) -> None:
    log = reopen()
    log.create("orders")
    for _ in range(50):
        log.append("orders", [{"data": 1}, {"data": 2}])
    times = [record.ts for record in stored(log)]
    assert times == sorted(times)


# -- idempotency -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_repeated_key_answers_the_first_append_again(log: topics.Log, durability: str) -> None:
    log.create("orders", durability=durability)
    log.append("orders", [{"data": 0}])
    first = log.append("orders", [{"data": 1}, {"data": 2}], idempotency_key="k")
    again = log.append("orders", [{"data": 1}, {"data": 2}], idempotency_key="k")
    assert again.deduped is True
    assert (again.first_seq, again.last_seq, again.count, again.ts) == (2, 3, 2, first.ts)
    assert log.info("orders").head_seq == 3
    assert log.append("orders", [{"data": 3}], idempotency_key="other").deduped is False


@pytest.mark.parametrize("copied", [False, True])
def test_keys_survive_a_reopen(reopen: Opener, copied: bool) -> None:
    log = reopen(wal_shards=1)
    log.create("orders", idempotency_window_ms=3_600_000)
    first = log.append("orders", [{"data": 1}], idempotency_key="k")
    if copied:
        log.checkpoint()
    for shards in (1, 3):
        log = reopen(wal_shards=shards)
        again = log.append("orders", [{"data": 1}], idempotency_key="k")
        assert (again.deduped, again.first_seq, again.ts) == (True, 1, first.ts)
    assert log.info("orders").count == 1


def test_keys_of_topics_are_apart(log: topics.Log) -> None:
    for name in ("a", "b"):
        log.create(name)
        assert log.append(name, [{"data": 1}], idempotency_key="k").deduped is False


def test_a_key_dies_with_its_topic(log: topics.Log) -> None:
    log.create("orders")
    log.append("orders", [{"data": 1}], idempotency_key="k")
    log.drop("orders")
    log.create("orders")
    assert log.append("orders", [{"data": 1}], idempotency_key="k").deduped is False
