"""Paths, methods, types and bodies, whoever asks."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from tests.contract.http.client import JSON, Api
from topics.api.routes import ROUTES


def test_health_and_readiness_answer_on_both_paths(api: Api) -> None:
    for path in ("/v0/health", "/healthz"):
        answer = api.call("GET", path)
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json) == {"status", "version", "uptime_ms"}
        assert answer.json["status"] == "ok"
    for path in ("/v0/ready", "/readyz"):
        answer = api.call("GET", path)
        assert (answer.json["status"], answer.json["wal_replay_complete"]) == ("ready", True)


def test_unknown_paths_are_not_found(api: Api) -> None:
    for path in (
        "/v0",
        "/v0/",
        "/console/",
        "/v1/topics",
        "/v0/topics/",
        "/v0/topics/a/",
        "/v0/topics/a/b",
        "/v0/health/x",
    ):
        assert api.call("GET", path).problem == (404, "not_found"), path
    assert api.call("POST", "/v0/topics/a/diff/").problem == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v0/topics", "GET,HEAD"),
        ("OPTIONS", "/v0/topics", "GET,HEAD"),
        ("GET", "/v0/topics/a/diff", "POST"),
        ("PUT", "/v0/topics/a/delete", "POST"),
        ("OPTIONS", "/v0/topics/a", "GET,HEAD,PUT,POST,PATCH,DELETE"),
        ("DELETE", "/v0/health", "GET,HEAD"),
        ("PATCH", "/v0/metrics", "GET,HEAD"),
        ("BREW", "/v0/topics", "GET,HEAD"),
        ("post", "/v0/topics/a/diff", "POST"),
    ],
)
def test_wrong_method_names_the_right_ones(api: Api, method: str, path: str, allow: str) -> None:
    answer = api.call(method, path)
    assert answer.problem == (405, "method_not_allowed")
    assert answer.headers["allow"] == allow


def test_get_routes_answer_head(api: Api, topic: str) -> None:
    api.put(topic)
    assert api.call("HEAD", f"/v0/topics/{topic}").status == 200
    assert api.call("HEAD", "/v0/health").status == 200
    assert api.call("HEAD", "/v0/topics/nobody").status == 404


def test_body_needs_its_type(api: Api, topic: str) -> None:
    api.append(topic, 1)
    body = b'{"records":[{"data":1}]}'
    for path in ("", "/diff", "/delete"):
        for kind in ({}, {"content-type": "text/plain"}, {"content-type": "Application/JSON"}):
            answer = api.call("POST", f"/v0/topics/{topic}{path}", body, dict(kind))
            assert answer.problem == (415, "unsupported_media_type"), (path, kind)
    assert api.call("PUT", f"/v0/topics/{topic}", b"{}", {"content-type": "text/plain"}).status == 415
    fine = api.call("POST", f"/v0/topics/{topic}", body, {"content-type": "application/json; charset=utf-8"})
    assert fine.status == 200
    assert api.call("POST", f"/v0/topics/{topic}", b"not json", {"content-type": "text/plain"}).status == 415


def test_empty_body_is_allowed_where_everything_has_a_default(api: Api, topic: str) -> None:
    assert api.call("PUT", f"/v0/topics/{topic}").status == 201
    assert api.call("PUT", f"/v0/topics/{topic}", b"", JSON).status == 200
    assert api.call("POST", f"/v0/topics/{topic}/diff").status == 200
    assert api.call("POST", f"/v0/topics/{topic}").status == 415
    assert api.call("POST", f"/v0/topics/{topic}", b"", JSON).problem == (400, "invalid_request")
    assert api.call("POST", f"/v0/topics/{topic}/delete", b"", JSON).problem == (400, "invalid_request")


HOSTILE: dict[str, bytes] = {
    "half a body": b'{"records":[{"data":1}',
    "two bodies": b'{"records":[{"data":1}]}{"records":[{"data":1}]}',
    "not utf-8": b'{"records":[{"data":"\xff"}]}',
    "half a surrogate": b'{"records":[{"data":"\\ud800"}]}',
    "half a surrogate in a tag": b'{"records":[{"data":1,"tag":"\\udc00"}]}',
    "raw control character": b'{"records":[{"data":"a\nb"}]}',
    "byte order mark": b'\xef\xbb\xbf{"records":[{"data":1}]}',
    "utf-16": '{"records":[{"data":1}]}'.encode("utf-16"),
    "comments": b'{"records":[{"data":1}]} // x',
    "trailing comma": b'{"records":[{"data":1},]}',
    "single quotes": b"{'records':[{'data':1}]}",
    "NaN": b'{"records":[{"data":NaN}]}',
    "infinity": b'{"records":[{"data":-Infinity}]}',
    "leading zero": b'{"records":[{"data":01}]}',
    "plus sign": b'{"records":[{"data":+1}]}',
    "nul": b"\0",
    "list of records": b'[{"data":1}]',
    "deep brackets": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "number as a key": b"{1:2}",
    "records as text": b'{"records":"[{}]"}',
    "record as a list": b'{"records":[["data",1]]}',
    "tag as a list": b'{"records":[{"data":1,"tag":["a"]}]}',
    "node as a number": b'{"records":[{"data":1}],"node":1}',
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_bodies_are_refused_as_bad_requests(api: Api, topic: str, name: str) -> None:
    assert api.call("POST", f"/v0/topics/{topic}", HOSTILE[name], JSON).problem == (400, "invalid_request")
    assert api.call("GET", f"/v0/topics/{topic}").status == 404


def test_huge_numbers_pass_through_payloads_untouched(api: Api, topic: str) -> None:
    number = b"-" + b"9" * 5000 + b"." + b"9" * 5000 + b"e+9999"
    api.call("POST", f"/v0/topics/{topic}", b'{"records":[{"data":' + number + b"}]}", JSON)
    assert b'"data":' + number in api.call("POST", f"/v0/topics/{topic}/diff").body


def test_names_are_percent_decoded(api: Api, topic: str) -> None:
    api.append(topic, 1)
    escaped = "".join(f"%{byte:02X}" for byte in topic.encode())
    assert api.diff(escaped).json["topic"] == topic
    answer = api.call("GET", "/v0/topics/%FF")
    assert answer.status == 400
    assert answer.headers["content-type"].startswith("text/plain")


def test_query_values_that_cannot_be_read_are_the_default(api: Api, topic: str) -> None:
    api.append(topic, 1)
    assert api.append(topic, 2, query="?return_seqs=maybe").json["seqs"] == [2]
    assert "seqs" not in api.append(topic, 3, query="?return_seqs=1&return_seqs=0").json
    assert api.call("GET", "/v0/topics?page_size=-1&touch=x").status == 200
    assert len(api.call("GET", f"/v0/topics/{topic}/records?limit=1e3").json["records"]) == 3


def test_numbers_of_thousands_of_digits_are_not_numbers(api: Api, topic: str) -> None:
    api.append(topic, 1)
    api.call("POST", "/v0/admin/checkpoint")
    digits = "9" * 5000
    assert len(api.call("GET", f"/v0/topics/{topic}/records?from_seq={digits}&limit={digits}").json["records"]) == 1
    assert api.call("GET", f"/v0/topics?page_size={digits}").status == 200
    assert api.call("GET", f"/v0/topics/{topic}/at?ts={digits}").problem == (400, "invalid_request")
    assert api.call("GET", f"/v0/topics/{topic}/segments/{digits}/data").problem == (404, "segment_gone")
    ranged = api.call("GET", f"/v0/topics/{topic}/segments/1/data", headers={"range": f"bytes=0-{digits}"})
    assert ranged.status == 206
    assert api.call("POST", f"/v0/topics/{topic}/diff", b'{"limit":' + digits.encode() + b"}", JSON).status == 400


def test_performance_stands_on_success_and_never_on_errors(api: Api, topic: str) -> None:
    assert api.put(topic).json["performance"]["server_total_ms"] >= 0
    assert "performance" not in api.diff("nobody").json
    assert "performance" not in api.call("GET", "/v0/health").json


def test_answers_are_as_described(api: Api, topic: str) -> None:
    document = api.call("GET", "/openapi.json").json
    resolved = {"components": document["components"]}
    record = {"data": {"x": 1}, "tag": "t", "node": "n", "key": "k", "meta": {"m": 1}}
    place = f"/v0/topics/{topic}"
    for method, target, path, body in (
        ("PUT", place, "/v0/topics/{topic}", {"cap_records": 2}),
        ("POST", place, "/v0/topics/{topic}", {"records": [record] * 3}),
        ("POST", f"{place}?return_seqs=false", "/v0/topics/{topic}", {"records": [record]}),
        ("GET", place, "/v0/topics/{topic}", None),
        ("POST", f"{place}/diff", "/v0/topics/{topic}/diff", {"include_tags": True}),
        ("GET", f"{place}/records?from_seq=1", "/v0/topics/{topic}/records", None),
        ("GET", f"{place}/keys/k", "/v0/topics/{topic}/keys/{key}", None),
        ("GET", f"{place}/keys/k?history=true", "/v0/topics/{topic}/keys/{key}", None),
        ("GET", f"{place}/keys/nobody", "/v0/topics/{topic}/keys/{key}", None),
        ("GET", f"{place}/tags?match=t", "/v0/topics/{topic}/tags", None),
        ("POST", "/v0/heads", "/v0/heads", {"topics": {topic: 1}}),
        ("GET", "/v0/stats", "/v0/stats", None),
        ("POST", f"{place}/delete", "/v0/topics/{topic}/delete", {"before_seq": 9}),
        ("PUT", f"{place}.q", "/v0/topics/{topic}", {"type": "queue"}),
        ("POST", f"{place}.q", "/v0/topics/{topic}", {"records": [record] * 3}),
        ("POST", f"{place}.q/claim", "/v0/topics/{topic}/claim", {"node": "w", "max": 3}),
        ("POST", f"{place}.q/extend", "/v0/topics/{topic}/extend", {"node": "w", "seqs": [1, 9], "lease_ms": 500}),
        ("POST", f"{place}.q/nack", "/v0/topics/{topic}/nack", {"node": "w", "seqs": [1, 9]}),
        ("POST", f"{place}.q/ack", "/v0/topics/{topic}/ack", {"node": "w", "seqs": [2, 9]}),
        ("POST", f"{place}.q/redrive", "/v0/topics/{topic}/redrive", {}),
    ):
        answer = api.call(method, target, body)
        assert answer.status in (200, 201), target
        described = document["paths"][path][method.lower()]["responses"]["2XX"]["content"]["application/json"]
        validator = jsonschema_rs.validator_for({**described["schema"], **resolved})
        assert [str(error) for error in validator.iter_errors(answer.json)] == [], target
        assert not validator.is_valid({"topic": topic}), f"{path} is described in words only"


def test_openapi_describes_every_route(api: Api) -> None:
    described = api.call("GET", "/openapi.json")
    assert described.status == 200
    document: dict[str, Any] = json.loads(described.body)
    assert document["openapi"].startswith("3.1")
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(route.method, route.path) for route in ROUTES}
    names = set(document["components"]["schemas"])
    used = {part.split("/")[-1] for part in json.dumps(document).split('"') if part.startswith("#/components/schemas/")}
    assert used <= names
    identities = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(identities) == len(set(identities))
