"""Append: answers, order of checks, idempotency, caps, bulk bodies."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.http.client import JSON, Api, InProcess, Reply
from tests.contract.http.inprocess import Engine

NDJSON = {"content-type": "application/x-ndjson"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def arrow_bytes(columns: dict[str, Any]) -> bytes:
    table = pa.table(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_large_body_may_name_its_unknown_fields_as_it_likes(api: Api, topic: str) -> None:
    def sent(record: str, beside: str = "") -> Reply:
        records = ",".join(record % (number, "x" * 900_000) for number in range(3))
        body = f'{{{beside}"records":[{records}]}}'.encode()
        return api.call("POST", f"/v0/topics/{topic}", body, {"content-type": "application/json"})

    assert sent('{"data":%d,"\\u0061":1,"a":2,"a":"%s"}').status == 201
    assert sent('{"d\\u0061ta":%d,"meta":{"a":1,"a":2},"x":[{"data":1,"data":2}],"y":"%s"}').status == 200
    assert sent('{"data":%d,"y":"%s"}', '"t\\u0061g":1,"tag":2,"n\\u006fde":"n",').status == 200
    assert [record["data"] for record in api.diff(topic).json["records"]] == [0, 1, 2] * 3
    assert sent('{"data":%d,"d\\u0061ta":1,"y":"%s"}').problem == (400, "invalid_request")
    assert sent('{"data":%d,"y":"%s"}', '"node":"a","n\\u006fde":"n",').problem == (400, "invalid_request")
    assert sent('{"data":%d,"y":"%s"}', '"records":[],').problem == (400, "invalid_request")


def test_config_of_an_append_has_to_be_one_even_where_it_is_ignored(api: Api, topic: str) -> None:
    api.append(topic, 1)
    for config in ({"ttl_ms": -1}, {"cap_records": 1 << 64}, {"priority": 1 << 31}, {"type": "x"}, {"durable": None}):
        assert api.append(topic, 2, config=config).problem == (400, "invalid_request"), config
    assert api.append(topic, 2, config={"cap_records": 1, "dead_letter": "not a name"}).status == 200
    assert api.state(topic)["config"]["cap_records"] == 0


def test_append_creates_the_topic_and_says_so(api: Api, topic: str) -> None:
    first = api.append(topic, "a", "b")
    assert first.status == 201
    answer = first.json
    performance = answer.pop("performance")
    assert answer == {
        "topic": topic, "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2, "count": 2,
        "created": True, "deduped": False,
    }  # fmt: skip
    assert set(performance) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert performance["fsync_ms"] == 0.0
    again = api.append(topic, "c", query="?return_seqs=false")
    assert again.status == 200
    assert "seqs" not in again.json
    assert (again.json["first_seq"], again.json["created"]) == (3, False)


def test_fsync_class_reports_its_sync(api: Api, topic: str) -> None:
    api.put(topic, durable=True)
    assert api.append(topic, 1).json["performance"]["fsync_ms"] > 0


def test_unknown_fields_are_ignored_everywhere(api: Api, topic: str) -> None:
    body = {"records": [{"data": 1, "extra": {"a": 1}}], "return_seqs": False, "x": None}
    assert api.call("POST", f"/v0/topics/{topic}", body).json["seqs"] == [1]


def test_payload_text_comes_back_as_sent_without_whitespace(api: Api, topic: str) -> None:
    text = b'{ "z": 1E2, "a": [1.10, -0, 12345678901234567890123], "s": "\\u00e9 / \\/", "z": 1 }'
    api.call("POST", f"/v0/topics/{topic}", b'{"records": [ {"data": ' + text + b"} ] }", JSON)
    body = api.call("POST", f"/v0/topics/{topic}/diff").body
    assert b'"data":{"z":1E2,"a":[1.10,-0,12345678901234567890123],"s":"\\u00e9 / \\/","z":1}' in body


def test_record_fields_come_back_where_asked_for(api: Api, topic: str) -> None:
    api.append(topic, {"data": None, "tag": "t", "node": "n", "key": "k", "meta": {"m": 1}}, {"data": 1}, node="batch")
    plain, second = api.diff(topic).json["records"]
    assert set(plain) == {"$seq", "$ts", "$node", "data", "meta"}
    assert (plain["data"], plain["$node"], second["$node"]) == (None, "n", "batch")
    full = api.diff(topic, include_tags=True, include_meta=False, include_keys=True).json["records"][0]
    assert (full["$tag"], full["$key"], "meta" in full) == ("t", "k", False)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"records": None}, "invalid_request"),
        ({"records": []}, "invalid_request"),
        ({"records": {}}, "invalid_request"),
        ({"records": [{}]}, "invalid_request"),
        ({"records": [{"tag": "a"}]}, "invalid_request"),
        ({"records": [{"data": 1, "tag": 5}]}, "invalid_request"),
        ({"records": [{"data": 1, "tag": "t" * 257}]}, "invalid_request"),
        ({"records": [{"data": 1, "node": "n" * 129}]}, "invalid_request"),
        ({"records": [{"data": 1, "key": "k" * 513}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": "m" * 16_384}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": {str(i): i for i in range(65)}}]}, "invalid_request"),
        ({"records": [{"data": "x" * 1_048_576}]}, "record_too_large"),
        ({"records": [{"data": 1}], "idempotency_key": "k" * 257}, "invalid_request"),
        ({"records": [{"data": 1}], "create": "yes"}, "invalid_request"),
        ({"records": [{"data": 1}], "config": {"type": 5}}, "invalid_request"),
        ({"records": [{"data": 1, "delay_ms": 5}]}, "invalid_request"),
        ({"records": [{"data": 1}] * 10_001}, "batch_too_large"),
        ([], "invalid_request"),
        ("x", "invalid_request"),
    ],
)
def test_bad_appends_are_refused_and_make_no_topic(api: Api, topic: str, body: Any, code: str) -> None:
    assert api.call("POST", f"/v0/topics/{topic}", body).problem == (400, code)
    assert api.call("GET", f"/v0/topics/{topic}").status == 404


def test_limits_themselves_are_allowed(api: Api, topic: str) -> None:
    record = {
        "data": "x" * (1_048_576 - 2 - 16_384),
        "tag": "t" * 256,
        "node": "n" * 128,
        "key": "k" * 512,
        "meta": "m" * 16_382,
    }
    assert api.append(topic, record, idempotency_key="k" * 256).status == 201
    assert api.append(topic, {"data": 1, "meta": {str(i): i for i in range(64)}}).status == 200
    assert api.append(topic, *range(10_000), query="?return_seqs=0").json["count"] == 10_000


def test_null_counts_as_absent_for_optional_fields(api: Api, topic: str) -> None:
    record = {"data": 1, "tag": None, "node": None, "meta": None, "key": None}
    answer = api.append(topic, record, node=None, idempotency_key=None, create=None, config=None)
    assert answer.status == 201
    assert set(api.diff(topic, include_tags=True).json["records"][0]) == {"$seq", "$ts", "data"}


def test_create_false_and_auto_create_false_refuse_an_absent_topic(api: Api, topic: str) -> None:
    assert api.append(topic, 1, create=False).problem == (404, "topic_not_found")
    assert api.append("no%20good%20name", 1, create=False).problem == (404, "topic_not_found")
    assert api.append(topic, 1, config={"auto_create": False}).problem == (404, "topic_not_found")
    assert api.append(topic, 1, config={"auto_create": False, "cap_records": 3}, create=True).status == 201
    assert api.state(topic)["config"]["cap_records"] == 3


def test_inline_config_of_an_existing_topic_is_ignored(api: Api, topic: str) -> None:
    api.put(topic)
    assert api.append(topic, 1, config={"cap_records": 3}).status == 200
    assert api.state(topic)["config"]["cap_records"] == 0


def test_repeated_known_fields_are_refused(api: Api, topic: str) -> None:
    for body in (
        b'{"records":[{"data":1}],"records":[{"data":2}]}',
        b'{"records":[{"data":1,"data":2}]}',
        b'{"records":[{"data":1,"d\\u0061ta":2}]}',
        b'{"records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":2}}',
        b'{"records":[{"data":1}],"node":"a","node":"a"}',
    ):
        assert api.call("POST", f"/v0/topics/{topic}", body, JSON).problem == (400, "invalid_request"), body
    fine = b'{"records":[{"data":{"a":1,"a":2},"x":1,"x":2,"d\\u0061t":3}],"y":1,"y":2}'
    assert api.call("POST", f"/v0/topics/{topic}", fine, JSON).status == 201


def test_payload_may_be_124_levels_deep_and_no_more(api: Api, topic: str) -> None:
    def nested(depth: int) -> bytes:
        return b'{"records":[{"data":' + b"[" * depth + b"]" * depth + b"}]}"

    assert api.call("POST", f"/v0/topics/{topic}", nested(124), JSON).status == 201
    assert api.call("POST", f"/v0/topics/{topic}", nested(125), JSON).problem == (400, "invalid_request")
    assert api.call("POST", f"/v0/topics/{topic}", nested(20_000), JSON).problem == (400, "invalid_request")
    ignored = b'{"records":[{"data":1}],"x":' + b"[" * 300 + b"]" * 300 + b"}"
    assert api.call("POST", f"/v0/topics/{topic}", ignored, JSON).status == 200
    ignored = b'{"records":[{"data":1}],"x":' + b"[" * 200 + b"]" * 200 + b"}"
    hidden = ignored.replace(b'"data":1', b'"data":' + b"[" * 125 + b"]" * 125)
    assert api.call("POST", f"/v0/topics/{topic}", hidden, JSON).problem == (400, "invalid_request")


def test_idempotency_key_answers_the_first_result_again(api: Api, topic: str) -> None:
    first = api.append(topic, 1, 2, idempotency_key="k").json
    api.append(topic, 3)
    hit = api.append(topic, "other", idempotency_key="k")
    assert hit.status == 200
    for name in ("first_seq", "last_seq", "seqs", "head_seq", "count"):
        assert hit.json[name] == first[name]
    assert (hit.json["deduped"], hit.json["created"]) == (True, False)
    assert set(hit.json["performance"]) == {"server_total_ms"}
    by_header = api.call("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, {"idempotency-key": "k"})
    assert by_header.json["deduped"] is True
    body_wins = api.call(
        "POST", f"/v0/topics/{topic}", {"records": [{"data": 1}], "idempotency_key": "k2"}, {"idempotency-key": "k"}
    )
    assert body_wins.json["deduped"] is False
    assert api.state(topic)["head_seq"] == 4


def test_idempotency_window_ends(own: Api, engine: Engine) -> None:
    own.put("a", idempotency_window_ms=1000)
    own.append("a", 1, idempotency_key="k")
    engine.clock.advance(900)
    assert own.append("a", 1, idempotency_key="k").json["deduped"] is True
    engine.clock.advance(200)
    assert own.append("a", 1, idempotency_key="k").json["deduped"] is False


def test_concurrent_appends_with_one_key_append_once(api: Api, topic: str) -> None:
    api.put(topic, durability="fsync")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.append(topic, 1, idempotency_key="k").json, range(16)))
    assert sorted(answer["deduped"] for answer in answers) == [False] + [True] * 15
    assert {answer["first_seq"] for answer in answers} == {1}


def test_concurrent_appends_of_every_class_get_dense_seqs(api: Api, topic: str) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        name = f"{topic}.{durability}"
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda i: api.append(name, i, i, config={"durability": durability}).json, range(40))  # noqa: B023
            )
        seqs = sorted(seq for answer in answers for seq in answer["seqs"])
        assert seqs == list(range(1, 81))
        assert sum(answer["created"] for answer in answers) == 1
        assert api.seqs(name) == seqs


def test_full_topic_that_rejects_says_so(api: Api, topic: str) -> None:
    api.put(topic, discard="reject", cap_records=2)
    api.append(topic, 1, idempotency_key="k")
    api.append(topic, 2)
    full = api.append(topic, 3)
    assert full.problem == (422, "topic_full")
    assert full.detail == {"topic": topic, "cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    assert api.append(topic, 1, 2, 3).problem == (400, "record_too_large")
    assert api.append(topic, 9, idempotency_key="k").json["deduped"] is True
    api.delete(topic, before_seq=2)
    assert api.append(topic, 3).status == 200


def test_cap_evicts_the_oldest(api: Api, topic: str) -> None:
    api.put(topic, cap_records=3)
    api.append(topic, *range(10))
    assert api.seqs(topic, from_seq=7) == [8, 9, 10]
    assert api.state(topic)["count"] == 3


def test_byte_quota_refuses_with_its_name(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "s"), bytes_max=10)
    try:
        api = Api(InProcess(engine))
        assert api.append("a", "12345678").status == 201
        refused = api.append("b", 1)
        assert (refused.problem, refused.detail) == ((429, "throttled"), {"limit": "max_total_bytes", "max": 10})
        api.delete("a", before_seq=2)
        assert api.append("b", 1).status == 200  # the refused append had made the topic
        api.append("b", "1234567")
        assert api.append("a", 1).status == 429
        api.call("DELETE", "/v0/topics/b")
        assert api.append("a", 1).status == 200
    finally:
        engine.close()


def test_lines_of_json_are_one_batch(api: Api, topic: str) -> None:
    lines = b'{"data": 1, "tag": "a"}\n\n{"data": {"b": [2]}, "key": "k"}\r\n  {"data": null}'
    answer = api.call("POST", f"/v0/topics/{topic}?node=n&idempotency_key=i", lines, NDJSON)
    assert (answer.status, answer.json["seqs"]) == (201, [1, 2, 3])
    records = api.diff(topic, include_tags=True, include_keys=True).json["records"]
    assert [record["data"] for record in records] == [1, {"b": [2]}, None]
    assert (records[0]["$tag"], records[1]["$key"], records[2]["$node"]) == ("a", "k", "n")
    assert api.call("POST", f"/v0/topics/{topic}?idempotency_key=i", lines, NDJSON).json["deduped"] is True
    for bad in (b"", b"\n", b"{}", b'{"data":1}\n[2]', b'{"data":1,"data":2}', b'{"data":' + b"[" * 125 + b"]" * 125):
        assert api.call("POST", f"/v0/topics/{topic}", bad, NDJSON).problem == (400, "invalid_request"), bad[:40]
    assert api.call("POST", "/v0/topics/nobody?create=false", lines, NDJSON).status == 404


def test_arrow_stream_is_one_batch(api: Api, topic: str) -> None:
    body = arrow_bytes({
        "data": ['{"a": 1}', "2", None],
        "tag": ["x", None, "y"],
        "meta": ['{"m":1}', None, None],
        "other": [1, 2, 3],
    })  # fmt: skip
    assert api.call("POST", f"/v0/topics/{topic}", body, ARROW).json["seqs"] == [1, 2, 3]
    records = api.diff(topic, include_tags=True).json["records"]
    assert [record["data"] for record in records] == [{"a": 1}, 2, None]
    assert [record.get("$tag") for record in records] == ["x", None, "y"]
    assert [record.get("meta") for record in records] == [{"m": 1}, None, None]
    structs = arrow_bytes({"data": [{"a": 1, "b": "x"}]})
    api.call("POST", f"/v0/topics/{topic}", structs, ARROW)
    assert api.diff(topic, from_seq=3).json["records"][0]["data"] == {"a": 1, "b": "x"}
    for bad in (b"", b"junk", body[:-40], arrow_bytes({"tag": ["a"]}), arrow_bytes({"data": ["{"]})):
        assert api.call("POST", f"/v0/topics/{topic}", bad, ARROW).problem == (400, "invalid_request")
    assert api.call("POST", f"/v0/topics/{topic}", arrow_bytes({"data": ["1"], "tag": [5]}), ARROW).status == 400


def test_append_survives_a_restart_with_its_key(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "s"))
    Api(InProcess(engine)).append("a", {"x": 1}, idempotency_key="k", config={"durability": "fsync"})
    engine.close()
    engine = Engine(str(tmp_path / "s"))
    try:
        api = Api(InProcess(engine))
        assert api.append("a", 2, idempotency_key="k").json["deduped"] is True
        assert api.diff("a").json["records"][0]["data"] == {"x": 1}
        assert json.loads(api.call("GET", "/v0/ready").body)["topics"] == 1
    finally:
        engine.close()
