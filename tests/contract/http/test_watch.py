"""Opening a watch session, over every wire; streams that end by themselves, too. Live ones are in the live tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.http.client import JSON, Api, InProcess
from tests.contract.http.inprocess import Engine
from topics.api.live import LiveOptions


def watch(api: Api, body: Any, query: str = "") -> Any:
    return api.call("POST", f"/v0/watch{query}", body)


def test_session_names_its_stream_and_where_its_topics_stand(api: Api, topic: str) -> None:
    api.append(topic, 1, 2, 3)
    answer = watch(api, {"topics": {topic: {"from_seq": 1}}})
    assert answer.status == 200
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", answer.json["wid"])
    assert answer.json["stream_url"] == f"/v0/watch/{answer.json['wid']}"
    assert answer.json["session_ttl_ms"] == 300_000
    assert answer.json["topics"] == {topic: {"from_seq": 1, "head_seq": 3, "earliest_seq": 1}}
    assert "server_total_ms" in answer.json["performance"]
    assert watch(api, {"topics": {topic: {"tail": True}}}).json["topics"][topic]["from_seq"] == 3
    assert watch(api, {"topics": {topic: {"from_seq": 99}}}).json["topics"][topic]["from_seq"] == 99


@pytest.mark.parametrize(
    "body",
    [
        {}, {"topics": {}}, {"topics": []}, {"topics": {"a": 1}}, {"topics": {"a": {"from_seq": -1}}},
        {"topics": {"a": {"from_seq": "1"}}}, {"topics": {"a": {}}, "limit": -1},
        {"topics": {"a": {}}, "limit": 1 << 32},
        {"topics": {"a": {}}, "consistency": "weak"}, {"topics": {"a": {}}, "heartbeat_ms": None},
        {"topics": {"a": {}}, "node": 1}, {"topics": {"a": {}}, "include_data": 1},
        {"topics": {f"t{number}": {} for number in range(257)}},
    ],
)  # fmt: skip
def test_bodies_of_the_wrong_shape_are_refused(api: Api, body: Any) -> None:
    assert watch(api, body).problem == (400, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        b'{"topics":{"a":{"tail":true,"tail":true}}}', b'{"topics":{"a":{"from_seq":1,"fr\\u006fm_seq":1}}}',
        b'{"topics":{"a":{}},"limit":1,"limit":1}',
    ],
)  # fmt: skip
def test_fields_that_come_twice_are_refused_at_every_depth(api: Api, topic: str, body: bytes) -> None:
    api.put(topic)
    name = f'"{topic}"'.encode()
    assert api.call("POST", "/v0/watch", body.replace(b'"a"', name), JSON).problem == (400, "invalid_request")
    # Neither does anybody read these, nor is a topic that is named twice a field.
    fine = b'{"topics":{"a":{"more":1,"more":2},"a":{"tail":true}},"more":{"tail":1,"tail":2}}'
    assert api.call("POST", "/v0/watch", fine.replace(b'"a"', name), JSON).status == 200


def test_body_must_be_json_and_may_hold_unknown_fields(api: Api, topic: str) -> None:
    api.append(topic, 1)
    assert watch(api, b'{"topics":{}}').problem == (415, "unsupported_media_type")
    assert watch(api, {"topics": {topic: {"more": 1}}, "cursor": "x", "limit": 0, "max_batch_bytes": 0}).status == 200


def test_unknown_topic_is_not_found_unless_leniency_is_asked_for(api: Api, topic: str) -> None:
    answer = watch(api, {"topics": {topic: {}}})
    assert (answer.problem, answer.detail) == ((404, "topic_not_found"), {"topic": topic})
    lenient = watch(api, {"topics": {topic: {}}}, "?lenient=true")
    assert (lenient.status, lenient.json["topics"]) == (200, {})
    stream = api.call("GET", lenient.json["stream_url"])
    assert (stream.status, stream.body) == (200, b"retry: 2000\n\n")
    assert stream.headers["content-type"] == "text/event-stream"


def test_stream_of_dropped_topics_says_so_and_ends(api: Api, topic: str) -> None:
    api.append(topic, 1)
    url = watch(api, {"topics": {topic: {"tail": True}}}).json["stream_url"]
    api.call("DELETE", f"/v0/topics/{topic}")
    text = api.call("GET", url, headers={"accept": "text/event-stream"}).body.decode()
    lines = text.split("\n")
    assert lines[:2] == ["retry: 2000", ""]
    assert lines[3:] == ["event: topic-deleted", f'data: {{"head_seq":0,"reason":"deleted","topic":"{topic}"}}', "", ""]


def test_stream_is_refused_for_other_types_and_unknown_sessions(api: Api, topic: str) -> None:
    api.append(topic, 1)
    url = watch(api, {"topics": {topic: {}}}).json["stream_url"]
    assert api.call("GET", url, headers={"accept": "application/json"}).problem == (406, "not_acceptable")
    assert api.call("GET", "/v0/watch/wid_nobody").problem == (404, "not_found")
    assert api.call("POST", url, {}).problem == (405, "method_not_allowed")
    assert api.call("GET", "/v0/watch").problem == (405, "method_not_allowed")
    head = api.call("HEAD", url)
    assert (head.status, head.headers["content-type"], head.body) == (200, "text/event-stream", b"")


def test_session_without_a_stream_is_forgotten_in_time(own: Api, engine: Engine) -> None:
    own.append("a", 1)
    first = watch(own, {"topics": {"a": {}}}).json["stream_url"]
    own.call("DELETE", "/v0/topics/a")
    engine.clock.advance(299_000)
    assert own.call("GET", first).status == 200
    engine.clock.advance(299_000)
    assert own.call("GET", first).status == 200, "counted from the end of its last stream"
    engine.clock.advance(301_000)
    assert own.call("GET", first).problem == (404, "not_found")


def test_sessions_are_capped(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "store"), live=LiveOptions(sessions_max=1))
    try:
        api = Api(InProcess(engine))
        api.append("a", 1)
        assert watch(api, {"topics": {"a": {}}}).status == 200
        full = watch(api, {"topics": {"a": {}}})
        assert (full.problem, full.detail) == ((429, "throttled"), {"limit": "max_watch_sessions", "max": 1})
    finally:
        engine.close()
