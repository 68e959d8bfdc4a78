"""Topics: configure, state, list, drop."""

from __future__ import annotations

from tests.contract.http.client import Api
from tests.contract.http.inprocess import Engine

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}


def test_put_answers_201_when_created_and_200_after(api: Api, topic: str) -> None:
    first = api.call("PUT", f"/v0/topics/{topic}")
    assert first.status == 201
    assert first.json["created"] is True
    assert first.json["topic"] == topic
    assert first.json["config"] == DEFAULTS
    assert first.json["performance"]["server_total_ms"] >= 0
    again = api.put(topic)
    assert (again.status, again.json["created"]) == (200, False)


def test_put_replaces_the_whole_config(api: Api, topic: str) -> None:
    assert api.put(topic, ttl_ms=5, cap_records=7, durable=True).json["config"] == {
        **DEFAULTS,
        "ttl_ms": 5,
        "cap_records": 7,
        "durable": True,
        "durability": "fsync",
    }
    assert api.put(topic, cap_bytes=9).json["config"] == {**DEFAULTS, "cap_bytes": 9}


def test_patch_merges_config_fields(api: Api, topic: str) -> None:
    api.put(topic, ttl_ms=5, cap_records=7)
    merged = api.call("PATCH", f"/v0/topics/{topic}", {"cap_records": 8, "unknown": 1})
    assert merged.status == 200
    assert merged.json["config"] == {**DEFAULTS, "ttl_ms": 5, "cap_records": 8}
    assert api.call("PATCH", f"/v0/topics/{topic}", {"durable": True}).json["config"]["durability"] == "fsync"
    assert api.call("PATCH", "/v0/topics/nobody", {}).problem == (404, "topic_not_found")
    assert api.call("PATCH", f"/v0/topics/{topic}", {"ttl_ms": -1}).problem == (400, "invalid_request")


def test_clamped_fields_are_stored_and_echoed_clamped(api: Api, topic: str) -> None:
    config = api.put(topic, lease_ms=1, claim_jitter_ms=99_999, priority=5000).json["config"]
    assert (config["lease_ms"], config["claim_jitter_ms"], config["priority"]) == (100, 5000, 5000)


def test_durability_wins_over_durable(api: Api, topic: str) -> None:
    config = api.put(topic, durable=True, durability="memory").json["config"]
    assert (config["durable"], config["durability"]) == (False, "memory")


def test_bad_configs_are_refused(api: Api, topic: str) -> None:
    for bad in (
        {"type": "stack"},
        {"ttl_ms": -1},
        {"ttl_ms": 1.0},
        {"ttl_ms": "1"},
        {"ttl_ms": None},
        {"ttl_ms": 1 << 64},
        {"priority": 1 << 31},
        {"discard": "new"},
        {"durability": "paper"},
        {"auto_create": 1},
    ):
        assert api.put(topic, **bad).problem == (400, "invalid_request"), bad
    bad_letter = api.put(topic, dead_letter="not a name")
    assert (bad_letter.code, bad_letter.detail) == ("invalid_request", {"dead_letter": "not a name"})
    to_itself = api.put(topic, type="queue", dead_letter=topic)
    assert (to_itself.status, to_itself.detail) == (400, {"dead_letter": topic})
    assert api.put(topic, priority=None, dead_letter=None, durability=None, whatever=[1]).status == 201


def test_bad_names_are_refused_where_a_topic_would_be_made(api: Api) -> None:
    for name in ("-a", "a%20b", "%C3%A9", "a%2Fb", "a" * 256, "a%3Eb"):
        assert api.call("PUT", f"/v0/topics/{name}").problem == (400, "invalid_request"), name
        assert api.append(name, 1).problem == (400, "invalid_request"), name
        assert api.diff(name).problem == (404, "topic_not_found"), name
        assert api.call("GET", f"/v0/topics/{name}").problem == (404, "topic_not_found"), name
        assert api.call("DELETE", f"/v0/topics/{name}").json["deleted"] is False
    assert api.call("PUT", "/v0/topics/" + "a" * 255).status == 201
    assert api.call("DELETE", "/v0/topics/" + "a" * 255).json["deleted"] is True


def test_type_change_is_a_conflict(api: Api, topic: str) -> None:
    api.put(topic, type="queue")
    answer = api.put(topic)
    assert answer.problem == (409, "topic_exists_incompatible")
    assert answer.detail == {"topic": topic, "existing_type": "queue", "requested_type": "log"}


def test_state_shows_watermarks_and_counts(api: Api, topic: str) -> None:
    api.put(topic, durability="fsync")
    empty = api.call("GET", f"/v0/topics/{topic}").json
    assert (empty["head_seq"], empty["earliest_seq"], empty["next_seq"], empty["count"]) == (0, 1, 1, 0)
    assert empty["last_write_ts"] is None
    api.append(topic, {"data": {"a": 1}, "meta": {"m": 1}}, 2)
    state = api.call("GET", f"/v0/topics/{topic}").json
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (2, 1, 3, 2)
    assert state["bytes"] == len('{"a":1}{"m":1}2')
    assert (state["topic"], state["type"], state["durable_seq"]) == (topic, "log", 2)
    assert state["effective_priority"] == 500
    assert state["last_write_ts"] >= state["created_ts"]
    assert state["last_read_ts"] >= state["created_ts"]
    assert isinstance(state["epoch"], int)
    assert isinstance(state["store"], str)
    assert set(state["segments"]) == {"hot", "cold", "hot_bytes", "cold_bytes"}
    assert api.call("GET", "/v0/topics/nobody").detail == {"topic": "nobody"}


def test_queues_show_their_counts(api: Api, topic: str) -> None:
    api.put(topic, type="queue")
    api.append(topic, 1, 2)
    assert api.state(topic)["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0}
    api.put(f"{topic}.log")
    assert "queue" not in api.state(f"{topic}.log")


def test_state_without_touch_moves_no_clock(api: Api, topic: str) -> None:
    api.put(topic)
    state = api.state(topic)
    assert (state["last_read_ts"], state["effective_priority"]) == (None, 0)


def test_list_pages_in_bytewise_order(own: Api) -> None:
    for name in ("b", "a", "B", "a.1", "c"):
        own.put(name)
    assert [row["topic"] for row in own.call("GET", "/v0/topics").json["topics"]] == ["B", "a", "a.1", "b", "c"]
    page = own.call("GET", "/v0/topics?page_size=2").json
    seen = [row["topic"] for row in page["topics"]]
    while "next_cursor" in page:
        assert not set(page["next_cursor"]) & set("+/=")
        page = own.call("GET", f"/v0/topics?page_size=2&cursor={page['next_cursor']}").json
        seen += [row["topic"] for row in page["topics"]]
    assert seen == ["B", "a", "a.1", "b", "c"]
    assert [row["topic"] for row in own.call("GET", "/v0/topics?prefix=a&page_size=x").json["topics"]] == ["a", "a.1"]
    assert set(own.call("GET", "/v0/topics").json["topics"][0]) == {
        "topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority",
    }  # fmt: skip
    assert own.call("GET", "/v0/topics?cursor=%21%21").problem == (400, "invalid_request")
    assert len(own.call("GET", "/v0/topics?cursor=e30").json["topics"]) == 5
    assert len(own.call("GET", "/v0/topics?page_size=0").json["topics"]) == 1
    padded = own.call("GET", "/v0/topics?cursor=eyJhZnRlciI6ImIifQ%3D%3D").json
    assert [row["topic"] for row in padded["topics"]] == ["c"]


def test_list_counts_only_what_is_still_there(own: Api, engine: Engine) -> None:
    own.append("a", 1, 2, config={"ttl_ms": 1000})
    engine.clock.advance(2000)
    (row,) = own.call("GET", "/v0/topics").json["topics"]
    assert (row["count"], row["earliest_seq"]) == (0, 3)


def test_drop_says_whether_there_was_a_topic(api: Api, topic: str) -> None:
    api.append(topic, 1)
    full = api.call("DELETE", f"/v0/topics/{topic}?if_empty=true")
    assert (full.problem, full.detail) == ((409, "topic_not_empty"), {"topic": topic, "count": 1})
    done = api.call("DELETE", f"/v0/topics/{topic}")
    assert (done.status, done.json["deleted"], done.json["routers_removed"]) == (200, True, [])
    assert api.call("DELETE", f"/v0/topics/{topic}").json["deleted"] is False
    assert api.call("GET", f"/v0/topics/{topic}").status == 404


def test_recreated_topic_starts_at_seq_1_with_another_epoch(api: Api, topic: str) -> None:
    api.append(topic, 1, 2, 3)
    before = api.state(topic)["epoch"]
    api.call("DELETE", f"/v0/topics/{topic}")
    assert api.append(topic, 9).json["first_seq"] == 1
    after = api.state(topic)["epoch"]
    assert after != before
    stale = api.diff(topic, from_seq=3).json
    assert stale["tombstone"]["reason"] == "recreated"
    assert [record["data"] for record in stale["records"]] == [9]
    known = api.diff(topic, from_seq=1, epoch=before).json
    assert known["tombstone"] == {
        "gap_from": 1, "gap_to": 1, "reason": "recreated", "missed_estimate": 1, "earliest_seq": 1, "head_seq": 1,
    }  # fmt: skip
    assert api.diff(topic, from_seq=1, epoch=after).json["tombstone"] is None


def test_topic_limit_refuses_new_topics_only(own: Api, engine: Engine) -> None:
    own.put("a")
    object.__setattr__(engine.store.options, "max_topics", 1)
    refused = own.put("b")
    assert (refused.problem, refused.detail) == ((429, "throttled"), {"limit": "max_topics", "max": 1})
    assert refused.headers["retry-after"] == "1"
    assert own.append("b", 1).problem == (429, "throttled")
    assert own.put("a", ttl_ms=5).status == 200


def test_priority_fades_with_idleness(own: Api, engine: Engine) -> None:
    own.put("a")
    assert own.call("GET", "/v0/topics/a").json["effective_priority"] == 500
    engine.clock.advance(30_000)
    assert own.state("a")["effective_priority"] == 250
    engine.clock.advance(300_000)
    assert own.state("a")["effective_priority"] == 0
    own.put("a", priority=-5000)
    assert own.call("GET", "/v0/topics/a").json["effective_priority"] == -1000
