"""Consumer groups: every call, what it answers, and what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.http.client import JSON, Api, Reply
from tests.contract.http.inprocess import Engine


def path(topic: str, group: str = "g", verb: str = "") -> str:
    return f"/v0/topics/{topic}/groups/{group}{'/' if verb else ''}{verb}"


def post(api: Api, topic: str, verb: str, group: str = "g", **body: Any) -> Reply:
    return api.call("POST", path(topic, group, verb), body)


def make(api: Api, topic: str, count: int = 0, group: str = "g", **config: Any) -> dict[str, Any]:
    if count:
        assert api.append(topic, *range(1, count + 1)).status in (200, 201)
    elif api.call("GET", f"/v0/topics/{topic}").status == 404:
        assert api.put(topic).status == 201
    reply = api.call("PUT", path(topic, group), config)
    assert reply.status == 201, reply.body
    body: dict[str, Any] = reply.json
    return body


def ok(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    body: dict[str, Any] = reply.json
    assert "performance" in body
    body.pop("performance")
    return body


def fetch(api: Api, topic: str, member: str = "m", group: str = "g", **body: Any) -> list[int]:
    reply = ok(post(api, topic, "fetch", group, member=member, **body))
    return [record["$seq"] for record in reply["records"]]


def ack(api: Api, topic: str, *seqs: int, member: str = "m", **body: Any) -> dict[str, Any]:
    return ok(post(api, topic, "ack", member=member, seqs=list(seqs), **body))


def info(api: Api, topic: str, group: str = "g") -> dict[str, Any]:
    return ok(api.call("GET", path(topic, group)))


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_group_is_made_with_the_defaults_of_the_contract(api: Api, topic: str) -> None:
    body = make(api, topic, 3)
    assert (body["group"], body["created"]) == ("g", True)
    assert body["config"] == {
        "mode": "queue", "filter": None, "visibility_ms": 30_000, "max_deliveries": 0, "dead_letter": None,
        "max_pending": 100_000, "session_ms": 120_000, "retention_guard": True, "max_hold_bytes": 1 << 30,
        "group_ttl_ms": 7 * 86_400_000,
    }  # fmt: skip
    again = api.call("PUT", path(topic), {"visibility_ms": 5_000})
    assert (again.status, again.json["created"], again.json["config"]["visibility_ms"]) == (200, False, 5_000)
    assert info(api, topic)["config"]["visibility_ms"] == 5_000
    assert make(api, topic, group="s", mode="stream")["config"]["retention_guard"] is False


def test_another_mode_is_refused(api: Api, topic: str) -> None:
    make(api, topic)
    reply = api.call("PUT", path(topic), {"mode": "stream"})
    assert reply.problem == (409, "group_exists_incompatible")
    assert reply.json["error"]["detail"] == {"group": "g", "existing_mode": "queue", "requested_mode": "stream"}


@pytest.mark.parametrize(
    "config",
    [
        {"mode": "other"}, {"visibility_ms": 99}, {"visibility_ms": 86_400_001}, {"max_pending": 0}, {"session_ms": 1},
        {"max_deliveries": -1}, {"start": "middle"}, {"start": {}}, {"start": {"seq": 1, "ts": 1}},
        {"start": {"seq": 99}}, {"filter": {}}, {"filter": {"tag": "x" * 257}}, {"dead_letter": "bad name"},
        {"group_ttl_ms": -1},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_config_makes_no_group(api: Api, topic: str, config: dict[str, Any]) -> None:
    api.append(topic, 1)
    assert api.call("PUT", path(topic), config).problem == (400, "invalid_request")
    assert api.call("GET", path(topic)).problem == (404, "group_not_found")


def test_fields_that_come_twice_are_refused_at_every_depth(api: Api, topic: str) -> None:
    api.append(topic, 1)
    for body in (b'{"start":{"seq":1,"seq":1}}', b'{"filter":{"tag":"a","t\\u0061g":"a"}}'):
        assert api.call("PUT", path(topic), body, JSON).problem == (400, "invalid_request"), body
    make(api, topic)
    assert api.call("POST", path(topic, verb="seek"), b'{"to":{"seq":1,"seq":1}}', JSON).status == 400


def test_dead_letters_of_a_group_cannot_go_to_its_own_topic(api: Api, topic: str) -> None:
    api.append(topic, 1)
    assert api.call("PUT", path(topic), {"dead_letter": topic}).problem == (400, "invalid_request")


def test_names_are_those_of_topics_and_the_topic_must_exist(api: Api, topic: str) -> None:
    assert api.call("PUT", path(topic)).problem == (404, "topic_not_found")
    api.append(topic, 1)
    assert api.call("PUT", path(topic, "-g")).problem == (400, "invalid_request")
    for verb in ("join", "fetch", "seek"):
        body = {"member": "m", "to": "earliest"}
        assert api.call("POST", path(topic, "none", verb), body).problem == (404, "group_not_found"), verb


def test_where_a_group_begins(api: Api, topic: str) -> None:
    api.append(topic, 1, 2, 3)
    ts = api.call("GET", f"/v0/topics/{topic}/at?ts=0").json["ts"]
    for group, start, first in (
        ("e", "earliest", 1), ("l", "latest", 4), ("s", {"seq": 2}, 2), ("h", {"seq": 4}, 4), ("t", {"ts": ts}, 1),
        ("f", {"ts": ts + 10_000_000}, 4),
    ):  # fmt: skip
        make(api, topic, group=group, start=start)
        assert (info(api, topic, group)["cursor"], info(api, topic, group)["committed"]) == (first, first), group
    api.append(topic, 4)
    assert fetch(api, topic, group="l") == [4]


def test_groups_are_listed_in_pages_and_counted_in_the_topic(api: Api, topic: str) -> None:
    assert api.call("GET", f"/v0/topics/{topic}/groups").problem == (404, "topic_not_found")
    api.append(topic, 1)
    assert ok(api.call("GET", f"/v0/topics/{topic}/groups")) == {"groups": []}
    for name in ("c", "a", "b"):
        make(api, topic, group=name)
    assert api.state(topic)["groups"] == 3
    page = ok(api.call("GET", f"/v0/topics/{topic}/groups?page_size=2"))
    assert [group["group"] for group in page["groups"]] == ["a", "b"]
    rest = ok(api.call("GET", f"/v0/topics/{topic}/groups?page_size=2&cursor={page['next_cursor']}"))
    assert ([group["group"] for group in rest["groups"]], "next_cursor" in rest) == (["c"], False)


def test_a_group_is_deleted_and_begins_anew_when_made_again(api: Api, topic: str) -> None:
    make(api, topic, 2)
    fetch(api, topic)
    assert ok(api.call("DELETE", path(topic))) == {"group": "g", "deleted": True}
    assert api.call("DELETE", path(topic)).problem == (404, "group_not_found")
    assert post(api, topic, "fetch", member="m").problem == (404, "group_not_found")
    make(api, topic)
    assert fetch(api, topic) == [1, 2]


def test_a_topic_takes_a_thousand_groups(own: Api) -> None:
    own.append("t", 1)
    for at in range(1000):
        assert own.call("PUT", path("t", f"g{at}")).status == 201
    reply = own.call("PUT", path("t", "more"))
    assert reply.problem == (429, "throttled")
    assert reply.json["error"]["detail"] == {"limit": "groups", "max": 1000}
    assert own.call("PUT", path("t", "g1"), {"session_ms": 500}).status == 200


def test_info_tells_all_that_the_contract_names(api: Api, topic: str) -> None:
    make(api, topic, 5)
    assert fetch(api, topic, max=3) == [1, 2, 3]
    ack(api, topic, 2)
    shown = info(api, topic)
    lag = shown.pop("lag")
    members = shown.pop("members")
    oldest = shown.pop("oldest_pending_ms")
    shown.pop("config")
    assert shown == {
        "group": "g", "mode": "queue", "cursor": 4, "committed": 1, "head_seq": 5, "pending": 2, "parked": 0, "lost": 0,
        "delivered": 3, "redelivered": 0, "acked": 1, "nacked": 0, "dead_lettered": 0,
    }  # fmt: skip
    assert 0 <= oldest < 60_000
    assert (lag["records"], lag["loss_eta_s"]) == (5, None)
    assert lag["bytes"] == api.state(topic)["bytes"]
    assert 0 <= lag["seconds"] < 60
    assert [(m["member"], m["in_flight"]) for m in members] == [("m", 2)]
    assert members[0]["generation"] >= 1
    assert members[0]["idle_ms"] >= 0


def test_lag_has_a_trend_and_a_time_until_loss(own: Api, engine: Engine) -> None:
    own.put("t", cap_records=100)
    make(own, "t", 100, retention_guard=False)
    info(own, "t")
    engine.clock.advance(10_000)
    own.append("t", *range(20))
    shown = info(own, "t")["lag"]
    assert shown["trend_per_s"] == pytest.approx(2.0, rel=0.2)
    assert shown["seconds"] >= 10
    assert shown["loss_eta_s"] == 0, "what comes next is gone already"
    own.call("POST", path("t", "g", "seek"), {"to": "latest"})
    assert info(own, "t")["lag"]["loss_eta_s"] is None
    assert info(own, "t")["lag"]["records"] == 0


# -- members -----------------------------------------------------------------------------------------------------------


def test_a_generation_rises_only_when_the_same_name_joins_again(api: Api, topic: str) -> None:
    make(api, topic, 1)
    first = ok(post(api, topic, "join", member="a"))
    assert first["member"] == "a"
    other = ok(post(api, topic, "join", member="b"))
    assert ok(post(api, topic, "heartbeat", member="a"))["generation"] == first["generation"]
    again = ok(post(api, topic, "join", member="a"))
    assert again["generation"] > first["generation"]
    assert ok(post(api, topic, "heartbeat", member="b", generation=other["generation"])) == {
        "generation": other["generation"]
    }
    made = ok(post(api, topic, "join"))
    assert made["member"] not in ("", "a", "b")


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("heartbeat", {}), ("leave", {}), ("fetch", {}), ("ack", {"seqs": [1]}), ("nack", {"seqs": [1]}),
        ("reject", {"seqs": [1]}), ("extend", {"seqs": [1], "visibility_ms": 1000}), ("claim", {"min_idle_ms": 0}),
    ],
)  # fmt: skip
def test_an_older_generation_is_refused_and_changes_nothing(
    api: Api, topic: str, verb: str, body: dict[str, Any]
) -> None:
    make(api, topic, 2)
    old = ok(post(api, topic, "join", member="m"))["generation"]
    assert fetch(api, topic, max=1) == [1]
    new = ok(post(api, topic, "join", member="m"))["generation"]
    before = ok(api.call("GET", path(topic, verb="pending")))
    reply = post(api, topic, verb, member="m", generation=old, **body)
    assert reply.problem == (409, "stale_generation")
    assert reply.json["error"]["detail"] == {"generation": new}
    assert post(api, topic, verb, member="m", generation=-1, **body).problem == (400, "invalid_request")
    assert ok(api.call("GET", path(topic, verb="pending"))) == before
    assert post(api, topic, verb, member="m", generation=new, **body).status == 200


def test_leaving_frees_what_a_member_held_at_once(api: Api, topic: str) -> None:
    make(api, topic, 2)
    assert fetch(api, topic, "a") == [1, 2]
    assert fetch(api, topic, "b") == []
    generation = ok(post(api, topic, "leave", member="a"))["generation"]
    assert generation >= 1
    assert fetch(api, topic, "b") == [1, 2]
    assert ok(post(api, topic, "leave", member="nobody")) == {"generation": 0}
    assert info(api, topic)["redelivered"] == 2


def test_a_member_that_says_nothing_for_a_session_is_none_any_more(own: Api, engine: Engine) -> None:
    make(own, "t", 2, session_ms=1000, visibility_ms=60_000)
    generation = ok(post(own, "t", "join", member="a"))["generation"]
    assert fetch(own, "t", "a") == [1, 2]
    engine.clock.advance(900)
    ok(post(own, "t", "heartbeat", member="a"))
    engine.clock.advance(900)
    assert [m["member"] for m in info(own, "t")["members"]] == ["a"]
    assert fetch(own, "t", "b") == []
    engine.clock.advance(1_100)
    assert fetch(own, "t", "b") == [1, 2], "what it held is free though its leases had time left"
    gone = post(own, "t", "heartbeat", member="a")
    assert gone.problem == (409, "stale_generation")
    assert "join" in gone.json["error"]["message"]
    assert post(own, "t", "ack", member="a", seqs=[1], generation=generation).problem == (409, "stale_generation")


def test_a_shorter_session_holds_for_the_members_of_now(own: Api, engine: Engine) -> None:
    make(own, "t", 2, session_ms=3_600_000, visibility_ms=600_000)
    assert fetch(own, "t", "a") == [1, 2]
    assert fetch(own, "t", "b") == []
    assert own.call("PUT", path("t"), {"session_ms": 1000, "visibility_ms": 600_000}).status == 200
    engine.clock.advance(1_100)
    assert fetch(own, "t", "b") == [1, 2]


def test_a_group_takes_a_thousand_members(own: Api) -> None:
    make(own, "t")
    for at in range(1000):
        assert post(own, "t", "join", member=f"m{at}").status == 200
    reply = post(own, "t", "join", member="more")
    assert reply.problem == (429, "throttled")
    assert reply.json["error"]["detail"] == {"limit": "members", "max": 1000}
    assert post(own, "t", "join", member="m1").status == 200


@pytest.mark.parametrize("member", ["", "x" * 129])
def test_a_member_has_a_name_of_some_length(api: Api, topic: str, member: str) -> None:
    make(api, topic)
    for verb in ("join", "leave", "heartbeat", "fetch"):
        assert post(api, topic, verb, member=member).problem == (400, "invalid_request"), verb


# -- fetch -------------------------------------------------------------------------------------------------------------


def test_a_fetch_answers_records_with_their_delivery(api: Api, topic: str) -> None:
    make(api, topic, visibility_ms=5_000)
    api.append(topic, {"data": {"x": 1}, "tag": "t", "node": "n", "key": "k", "meta": {"m": 1}}, {"data": "\\n"})
    body = ok(post(api, topic, "fetch", member="m"))
    assert {key: body[key] for key in ("tombstone", "cursor", "committed", "pending_full")} == {
        "tombstone": None, "cursor": 3, "committed": 1, "pending_full": False,
    }  # fmt: skip
    assert "next_seq" not in body
    record, other = body["records"]
    delivery = record.pop("delivery")
    assert (delivery["count"], delivery["token"] >= 1) == (1, True)
    assert delivery["deadline"] - record.pop("$ts") >= 5_000
    assert record == {"$seq": 1, "$tag": "t", "$node": "n", "$key": "k", "data": {"x": 1}, "meta": {"m": 1}}
    assert other["data"] == "\\n"
    assert other["delivery"]["token"] > delivery["token"]


def test_a_record_is_held_by_one_member_of_a_group_at_a_time(api: Api, topic: str) -> None:
    make(api, topic, 4)
    make(api, topic, group="other")
    assert fetch(api, topic, "a", max=2) == [1, 2]
    assert fetch(api, topic, "b") == [3, 4]
    assert fetch(api, topic, "a") == []
    assert fetch(api, topic, "a", "other") == [1, 2, 3, 4], "each group has its own progress"


def test_what_is_reclaimable_comes_before_what_is_new(own: Api, engine: Engine) -> None:
    make(own, "t", 4, visibility_ms=1_000)
    assert fetch(own, "t", "a", max=2) == [1, 2]
    engine.clock.advance(1_100)
    body = ok(post(own, "t", "fetch", member="b", max=3))
    assert [(record["$seq"], record["delivery"]["count"]) for record in body["records"]] == [(1, 2), (2, 2), (3, 1)]


def test_a_fetch_may_take_over_what_is_idle_before_its_lease_ends(own: Api, engine: Engine) -> None:
    make(own, "t", 3, visibility_ms=60_000)
    assert fetch(own, "t", "a", max=2) == [1, 2]
    engine.clock.advance(500)
    assert fetch(own, "t", "b", claim_idle_ms=1_000, max=1) == [3]
    engine.clock.advance(600)
    assert fetch(own, "t", "b", claim_idle_ms=1_000) == [1, 2]
    assert fetch(own, "t", "a", claim_idle_ms=1_000) == [], "its idle clock began anew"


def test_a_fetch_is_bounded_by_bytes_and_gives_one_at_least(api: Api, topic: str) -> None:
    make(api, topic)
    api.append(topic, *["x" * 1000] * 5)
    assert fetch(api, topic, max_bytes=1) == [1]
    assert fetch(api, topic, max_bytes=2_500) == [2, 3]
    ok(post(api, topic, "nack", member="m", seqs=[1, 2, 3]))
    assert fetch(api, topic, max_bytes=2_500) == [1, 2]
    assert fetch(api, topic) == [3, 4, 5]


def test_a_fetch_holds_no_more_than_a_diff_whatever_is_asked_for(api: Api, topic: str) -> None:
    make(api, topic)
    for _ in range(5):
        api.append(topic, *["x" * 1_000_000] * 2)
    assert fetch(api, topic, max_bytes=1 << 40) == list(range(1, 9))
    assert fetch(api, topic, max_bytes=1 << 40) == [9, 10]


def test_a_take_over_holds_no_more_than_a_diff_and_leaves_the_rest_where_it_was(api: Api, topic: str) -> None:
    make(api, topic)
    for _ in range(5):
        api.append(topic, *["x" * 1_000_000] * 2)
    assert fetch(api, topic) + fetch(api, topic) == list(range(1, 11))
    taken = ok(post(api, topic, "claim", member="other", min_idle_ms=0, max=100))
    assert [record["$seq"] for record in taken["records"]] == list(range(1, 9))
    assert ack(api, topic, 9, 10)["acked"] == 2
    assert ack(api, topic, *range(1, 9), member="other")["acked"] == 8


def test_a_group_at_its_pending_limit_hands_out_only_what_is_reclaimable(api: Api, topic: str) -> None:
    make(api, topic, 4, max_pending=2)
    body = ok(post(api, topic, "fetch", member="m"))
    assert ([r["$seq"] for r in body["records"]], body["pending_full"]) == ([1, 2], False)
    assert ok(post(api, topic, "fetch", member="m"))["pending_full"] is True
    ok(post(api, topic, "nack", member="m", seqs=[2]))
    body = ok(post(api, topic, "fetch", member="m"))
    assert ([r["$seq"] for r in body["records"]], body["pending_full"]) == ([2], True)
    ack(api, topic, 1)
    assert fetch(api, topic) == [3]


def test_a_fetch_waits_for_the_next_record(own: Api) -> None:
    make(own, "t", 1)
    assert fetch(own, "t", wait_ms=10_000) == [1], "what is there needs no waiting"
    assert fetch(own, "t", wait_ms=20) == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fetch, own, "t", wait_ms=20_000)
        own.append("t", 2)
        assert waiting.result() == [2]


def test_a_filter_lets_only_its_tags_through(api: Api, topic: str) -> None:
    api.append(topic, *[{"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 7)])
    make(api, topic, filter={"tag": "even"})
    make(api, topic, group="glob", filter={"tag": "o*"})
    assert fetch(api, topic, max=2) == [2, 4]
    assert fetch(api, topic, group="glob") == [1, 3, 5]
    assert ack(api, topic, 2, 4)["committed"] == 5
    assert fetch(api, topic) == [6]
    assert ack(api, topic, 6)["committed"] == 7, "what the filter does not let through counts as settled"
    api.append(topic, {"data": 7, "tag": "none"}, 8)
    assert fetch(api, topic) == []
    assert info(api, topic)["committed"] == 9
    api.append(topic, {"data": 9, "tag": "even"})
    assert fetch(api, topic) == [9]


def test_a_lost_range_is_told_once_and_counted(own: Api) -> None:
    own.put("t", cap_records=4)
    make(own, "t", 4, retention_guard=False)
    assert fetch(own, "t", max=1) == [1]
    own.append("t", 5, 6, 7, 8, 9)
    body = ok(post(own, "t", "fetch", member="m", max=2))
    assert body["tombstone"] == {
        "gap_from": 2, "gap_to": 5, "reason": "cap", "missed_estimate": 4, "earliest_seq": 6, "head_seq": 9,
    }  # fmt: skip
    assert [record["$seq"] for record in body["records"]] == [6, 7]
    assert ok(post(own, "t", "fetch", member="m"))["tombstone"] is None
    assert (info(own, "t")["lost"], info(own, "t")["pending"]) == (4, 4), "what was evicted is not pending either"


def test_deletes_settle_what_was_pending(api: Api, topic: str) -> None:
    api.append(topic, *[{"data": n, "tag": "a" if n < 3 else "b"} for n in range(1, 5)])
    make(api, topic)
    assert fetch(api, topic) == [1, 2, 3, 4]
    api.call("POST", f"/v0/topics/{topic}/delete", {"match": "a"})
    assert (info(api, topic)["pending"], info(api, topic)["committed"]) == (2, 3)
    assert ack(api, topic, 1)["why"] == {"1": "settled"}


# -- ack, nack, extend, reject -----------------------------------------------------------------------------------------


def test_acks_settle_for_the_group_and_delete_nothing(api: Api, topic: str) -> None:
    make(api, topic, 5)
    fetch(api, topic)
    assert ack(api, topic, 2, 3) == {"acked": 2, "stale": [], "why": {}, "committed": 1}
    assert ack(api, topic, 1)["committed"] == 4
    assert ack(api, topic, 1) == {"acked": 0, "stale": [], "why": {"1": "settled"}, "committed": 4}
    assert ok(post(api, topic, "ack", member="m", ranges=[[1, 4], [5, 5]])) == {
        "acked": 2, "stale": [], "why": {}, "committed": 6,
    }  # fmt: skip
    assert api.state(topic)["count"] == 5


def test_every_stale_ack_says_why_and_changes_nothing(own: Api, engine: Engine) -> None:
    make(own, "t", 6, visibility_ms=1_000)
    tokens = [r["delivery"]["token"] for r in ok(post(own, "t", "fetch", member="m", max=3))["records"]]
    assert fetch(own, "t", "other", max=1) == [4]
    reply = ack(own, "t", 1, 4, 5, tokens=[tokens[0] + 1000, None, None])
    assert reply == {
        "acked": 0, "stale": [1, 4, 5], "why": {"1": "token", "4": "member", "5": "unknown"}, "committed": 1,
    }  # fmt: skip
    assert ack(own, "t", 1, tokens=[tokens[0]])["acked"] == 1
    engine.clock.advance(1_100)
    assert ack(own, "t", 2) == {"acked": 0, "stale": [2], "why": {"2": "expired"}, "committed": 2}
    assert ok(post(own, "t", "ack", member="m", ranges=[[2, 4]]))["why"] == {
        "2": "expired",
        "3": "expired",
        "4": "member",
    }
    assert own.call("POST", path("t", "g", "ack"), {"member": "m", "seqs": [7]}).problem == (400, "invalid_request")
    assert post(own, "t", "ack", member="m", ranges=[[1, 7]]).problem == (400, "invalid_request")


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "extend"])
def test_a_call_names_a_thousand_seqs_at_most(api: Api, topic: str, verb: str) -> None:
    make(api, topic, 1)
    body: dict[str, Any] = {"member": "m", "seqs": [1] * 1001, "visibility_ms": 1000}
    assert post(api, topic, verb, **body).problem == (400, "batch_too_large")
    assert post(api, topic, verb, **{**body, "seqs": [1] * 1000}).status == 200
    assert post(api, topic, verb, **{**body, "seqs": [1], "tokens": [1, 2]}).problem == (400, "invalid_request")


def test_ranges_are_bounded_too_and_take_no_tokens(api: Api, topic: str) -> None:
    make(api, topic, 1)
    assert post(api, topic, "ack", member="m", ranges=[[1, 1]] * 1001).problem == (400, "batch_too_large")
    assert post(api, topic, "ack", member="m", ranges=[[1, 1]] * 1000).status == 200
    assert post(api, topic, "ack", member="m", ranges=[[1, 0]]).problem == (400, "invalid_request")
    bad: dict[str, Any] = {"seqs": [1], "tokens": [1], "ranges": [[1, 1]]}
    assert post(api, topic, "ack", member="m", **bad).problem == (400, "invalid_request")


def test_a_nacked_record_comes_back_now_or_later(own: Api, engine: Engine) -> None:
    make(own, "t", 3)
    fetch(own, "t")
    assert ok(post(own, "t", "nack", member="m", seqs=[1, 9 - 6], delay_ms=0)) == {
        "nacked": 2, "stale": [], "why": {},
    }  # fmt: skip
    assert ok(post(own, "t", "nack", member="m", seqs=[2], delay_ms=5_000, count=False))["nacked"] == 1
    body = ok(post(own, "t", "fetch", member="m"))
    assert [(r["$seq"], r["delivery"]["count"]) for r in body["records"]] == [(1, 2), (3, 2)]
    engine.clock.advance(5_100)
    body = ok(post(own, "t", "fetch", member="m"))
    assert [(r["$seq"], r["delivery"]["count"]) for r in body["records"]] == [(2, 1)], "that attempt did not count"
    assert info(own, "t")["nacked"] == 3
    assert ok(post(own, "t", "nack", member="x", seqs=[2]))["why"] == {"2": "member"}


def test_an_extended_record_stays_with_its_member(own: Api, engine: Engine) -> None:
    make(own, "t", 2, visibility_ms=1_000)
    fetch(own, "t", "a")
    body = ok(post(own, "t", "extend", member="a", seqs=[1], visibility_ms=10_000))
    assert (body["extended"], body["stale"], body["why"], list(body["deadlines"])) == (1, [], {}, ["1"])
    engine.clock.advance(1_100)
    assert fetch(own, "t", "b") == [2]
    late = ok(post(own, "t", "extend", member="a", seqs=[2], visibility_ms=10_000))
    assert (late["extended"], late["stale"], late["why"], late["deadlines"]) == (0, [2], {"2": "member"}, {})
    assert ack(own, "t", 1, member="a")["acked"] == 1


def test_a_rejected_record_goes_to_the_dead_letters(api: Api, topic: str) -> None:
    api.append(topic, {"data": 1, "tag": "t", "key": "k", "meta": {"m": 1}}, 2)
    make(api, topic, dead_letter=f"{topic}-dead")
    fetch(api, topic)
    assert ok(post(api, topic, "reject", member="m", seqs=[1], reason="cannot be read")) == {
        "rejected": 1, "stale": [], "why": {},
    }  # fmt: skip
    assert (info(api, topic)["committed"], info(api, topic)["dead_lettered"]) == (2, 1)
    letter = api.diff(f"{topic}-dead", include_tags=True, include_keys=True).json["records"][0]
    assert (letter["data"], letter["$tag"], letter["$key"]) == (1, "t", "k")
    assert letter["meta"] == {
        "m": 1, "$dead_letter_from": topic, "$dead_letter_deliveries": "1", "$dead_letter_src_seq": "1",
        "$dead_letter_group": "g", "$dead_letter_member": "m", "$dead_letter_reason": "cannot be read",
    }  # fmt: skip
    assert ok(post(api, topic, "reject", member="m", seqs=[1]))["why"] == {"1": "settled"}


@pytest.mark.parametrize("length", [246, 255])
def test_each_rejected_record_is_a_dead_letter_of_its_own_also_where_the_group_has_a_long_name(
    api: Api, topic: str, length: int
) -> None:
    group = "g" * length
    make(api, topic, 120, group, dead_letter=f"{topic}-dead")
    seqs = fetch(api, topic, group=group, max=120)
    assert ok(post(api, topic, "reject", group, member="m", seqs=seqs))["rejected"] == 120
    letters = api.diff(f"{topic}-dead").json["records"]
    assert [letter["data"] for letter in letters] == seqs
    other = "g" * (length - 1) + "h"
    make(api, topic, group=other, dead_letter=f"{topic}-dead")
    fetch(api, topic, group=other, max=1)
    ok(post(api, topic, "reject", other, member="m", seqs=[1]))
    assert api.state(f"{topic}-dead")["count"] == 121


def test_a_record_that_is_rejected_again_is_a_dead_letter_again_if_its_letter_was_taken_away(
    api: Api, topic: str
) -> None:
    letters = f"{topic}-dead"
    make(api, topic, 2, dead_letter=letters)
    for count in (2, 2):  # the letter of the first is there still, and is not written twice
        fetch(api, topic)
        assert ok(post(api, topic, "reject", member="m", seqs=[1, 2]))["rejected"] == 2
        assert api.state(letters)["count"] == count
        ok(post(api, topic, "seek", to="earliest", force=True))
    assert api.call("POST", f"/v0/topics/{letters}/delete", {"before_seq": 2}).status == 200
    fetch(api, topic)
    assert ok(post(api, topic, "reject", member="m", seqs=[1, 2]))["rejected"] == 2
    assert [letter["data"] for letter in api.diff(letters).json["records"]] == [2, 1]


def test_a_rejected_record_that_finds_no_room_holds_up_no_other(engine: Engine, own: Api) -> None:
    own.append("t", "x" * 100, "y" * 300, "z" * 100)
    make(own, "t", dead_letter="dead")
    assert fetch(own, "t") == [1, 2, 3]
    engine.store.ledger.bytes_max = 1100
    assert ok(post(own, "t", "reject", member="m", seqs=[1, 2, 3]))["rejected"] == 2
    assert [letter["data"][0] for letter in own.diff("dead").json["records"]] == ["x", "z"]
    state = info(own, "t")
    assert (state["dead_lettered"], state["pending"], state["committed"]) == (2, 1, 2)


def test_what_was_handed_out_too_often_goes_to_the_dead_letters(api: Api, topic: str) -> None:
    make(api, topic, 2, max_deliveries=2, dead_letter=f"{topic}-dead")
    for _ in range(2):
        assert fetch(api, topic) == [1, 2]
        ok(post(api, topic, "nack", member="m", seqs=[1, 2]))
    assert fetch(api, topic) == []
    assert api.state(f"{topic}-dead")["count"] == 2
    assert (info(api, topic)["dead_lettered"], info(api, topic)["committed"]) == (2, 3)


def test_without_dead_letters_a_spent_record_is_parked_until_it_is_freed(api: Api, topic: str) -> None:
    make(api, topic, 3, max_deliveries=1)
    assert fetch(api, topic) == [1, 2, 3]
    ok(post(api, topic, "nack", member="m", seqs=[1, 2]))
    assert ok(post(api, topic, "reject", member="m", seqs=[3]))["rejected"] == 1
    assert fetch(api, topic) == []
    assert (info(api, topic)["parked"], info(api, topic)["pending"], info(api, topic)["committed"]) == (3, 0, 1)
    rows = ok(api.call("GET", path(topic, verb="pending") + "?parked=true"))["pending"]
    assert [(row["$seq"], row["deadline"]) for row in rows] == [(1, None), (2, None), (3, None)]
    assert ok(api.call("GET", path(topic, verb="pending") + "?parked=false"))["pending"] == []
    assert ok(post(api, topic, "nack", member="other", seqs=[1]))["nacked"] == 1
    assert fetch(api, topic) == [1]
    body = ok(post(api, topic, "claim", member="c", min_idle_ms=0, seqs=[2]))
    assert [(r["$seq"], r["delivery"]["count"]) for r in body["records"]] == [(2, 2)]
    assert ack(api, topic, 2, member="c")["acked"] == 1


# -- claim, pending, seek ----------------------------------------------------------------------------------------------


def test_a_claim_takes_over_only_what_is_idle_long_enough(own: Api, engine: Engine) -> None:
    make(own, "t", 3, visibility_ms=60_000)
    fetch(own, "t", "a", max=2)
    engine.clock.advance(2_000)
    fetch(own, "t", "a")
    body = ok(post(own, "t", "claim", member="b", min_idle_ms=1_000, max=10))
    assert [(r["$seq"], r["delivery"]["count"]) for r in body["records"]] == [(1, 2), (2, 2)]
    assert ok(post(own, "t", "claim", member="c", min_idle_ms=1_000, max=10))["records"] == []
    assert ack(own, "t", 1, member="a")["why"] == {"1": "member"}
    assert ack(own, "t", 1, member="b")["acked"] == 1
    assert post(own, "t", "claim", member="c", min_idle_ms=0, seqs=[9]).problem == (400, "invalid_request")


def test_pending_is_listed_by_member_and_idle_time_in_pages(own: Api, engine: Engine) -> None:
    make(own, "t", 4, visibility_ms=60_000)
    fetch(own, "t", "a", max=2)
    engine.clock.advance(1_000)
    fetch(own, "t", "b")
    pending = path("t", verb="pending")
    rows = ok(own.call("GET", pending))["pending"]
    assert [(row["$seq"], row["member"], row["count"]) for row in rows] == [
        (1, "a", 1), (2, "a", 1), (3, "b", 1), (4, "b", 1),
    ]  # fmt: skip
    assert rows[0]["deadline"] - rows[0]["last_ts"] == 60_000
    assert rows[0]["first_ts"] == rows[0]["last_ts"]
    assert [row["$seq"] for row in ok(own.call("GET", pending + "?member=b"))["pending"]] == [3, 4]
    assert [row["$seq"] for row in ok(own.call("GET", pending + "?min_idle_ms=900"))["pending"]] == [1, 2]
    page = ok(own.call("GET", pending + "?limit=3"))
    rest = ok(own.call("GET", pending + f"?limit=3&cursor={page['next_cursor']}"))
    assert ([row["$seq"] for row in rest["pending"]], "next_cursor" in rest) == ([4], False)


def test_a_seek_begins_anew_and_clears_what_was_pending(api: Api, topic: str) -> None:
    make(api, topic, 6)
    assert fetch(api, topic, max=4) == [1, 2, 3, 4]
    ack(api, topic, 1)
    assert post(api, topic, "seek", to="earliest").problem == (409, "group_has_members")
    dry = ok(post(api, topic, "seek", to={"seq": 2}, dry_run=True))
    assert dry == {"from": 5, "to": 2, "skipped": 0, "replayed": 3, "pending_cleared": 3}
    assert info(api, topic)["pending"] == 3, "a dry run changes nothing"
    assert ok(post(api, topic, "seek", to={"seq": 2}, force=True)) == dry
    assert fetch(api, topic, max=2) == [2, 3]
    ok(post(api, topic, "leave", member="m"))
    assert ok(post(api, topic, "seek", to="latest")) == {
        "from": 4, "to": 7, "skipped": 3, "replayed": 0, "pending_cleared": 2,
    }  # fmt: skip
    assert (info(api, topic)["committed"], fetch(api, topic)) == (7, [])
    assert post(api, topic, "seek", to={"seq": 8}, force=True).problem == (400, "invalid_request")
    assert ok(post(api, topic, "seek", to={"ts": 1}, force=True))["to"] == 1


# -- stream mode -------------------------------------------------------------------------------------------------------


def test_a_stream_group_has_one_cursor_and_commits(api: Api, topic: str) -> None:
    make(api, topic, 5, mode="stream")
    body = ok(post(api, topic, "fetch", member="a", max=2))
    assert [set(record) for record in body["records"]] == [{"$seq", "$ts", "data"}] * 2
    assert (body["next_seq"], body["cursor"], body["committed"]) == (3, 3, 1)
    assert fetch(api, topic, "b") == [3, 4, 5], "each record is handed out once"
    assert ok(post(api, topic, "commit", member="a", seq=3)) == {"committed": 3}
    assert ok(post(api, topic, "commit", seq=2)) == {"committed": 3}, "below the present one nothing changes"
    assert post(api, topic, "commit", seq=7).problem == (400, "invalid_request")
    ok(post(api, topic, "leave", member="a"))
    assert fetch(api, topic, "b") == []
    ok(post(api, topic, "leave", member="b"))
    assert fetch(api, topic, "c") == [3, 4, 5], "the last member went, and the cursor fell back"
    assert ok(post(api, topic, "commit", seq=6)) == {"committed": 6}
    assert info(api, topic)["lag"]["records"] == 0


def test_calls_of_the_other_mode_are_refused(api: Api, topic: str) -> None:
    make(api, topic, 1, mode="stream")
    make(api, topic, group="q")
    body: dict[str, Any] = {"member": "m", "seqs": [1], "visibility_ms": 1000, "min_idle_ms": 0}
    for verb in ("ack", "nack", "reject", "extend", "claim"):
        assert post(api, topic, verb, **body).problem == (400, "invalid_request"), verb
    assert post(api, topic, "commit", "q", seq=1).problem == (400, "invalid_request")


# -- the retention guard -----------------------------------------------------------------------------------------------


def test_a_cap_waits_for_a_group_with_a_guard(own: Api) -> None:
    own.put("t", cap_records=3)
    make(own, "t", 2)
    assert own.append("t", *range(10)).status == 200, "a topic that drops the old never refuses a write for it"
    assert (own.state("t")["count"], own.state("t")["earliest_seq"]) == (12, 1)
    assert fetch(own, "t", max=5) == [1, 2, 3, 4, 5]
    ack(own, "t", 1, 2, 4)
    assert own.state("t")["earliest_seq"] == 3, "what is settled goes, up to the first that is not"
    ok(own.call("DELETE", path("t")))
    own.append("t", 1)
    assert own.state("t")["count"] == 3


def test_a_guard_holds_no_more_than_its_bytes(own: Api, caplog: pytest.LogCaptureFixture) -> None:
    own.put("t", cap_records=2)
    make(own, "t", max_hold_bytes=3_500)
    for _ in range(10):
        own.append("t", "x" * 1000)
    assert own.state("t")["count"] == 5, "two by the cap, and three that are held"
    assert "goes on past group g" in caplog.text
    text = own.call("GET", "/v0/metrics").body.decode()
    bites = next(line for line in text.splitlines() if line.startswith("topics_group_guard_bites_total "))
    assert int(bites.split()[1]) >= 5
    body = ok(post(own, "t", "fetch", member="m"))
    assert (body["tombstone"]["gap_from"], body["tombstone"]["gap_to"]) == (1, 5)
    assert info(own, "t")["lost"] == 5


def test_a_guard_ends_when_nobody_used_the_group_for_long(own: Api, engine: Engine) -> None:
    own.put("t", ttl_ms=1_000)
    make(own, "t", 3, group_ttl_ms=10_000)
    engine.clock.advance(9_000)
    own.append("t", 4)
    assert own.state("t")["earliest_seq"] == 1, "old, and held"
    fetch(own, "t", max=1)
    engine.clock.advance(9_000)
    assert own.state("t")["earliest_seq"] == 1
    engine.clock.advance(2_000)
    assert (own.state("t")["count"], info(own, "t")["pending"]) == (0, 0)


def test_what_was_deleted_in_front_of_a_guard_is_told_to_nobody_as_a_loss(own: Api) -> None:
    own.append("t", *[{"data": n, "tag": "a" if n < 4 else "b"} for n in range(1, 7)])
    own.call("POST", "/v0/topics/t/delete", {"match": "a"})
    make(own, "t")
    own.call("PATCH", "/v0/topics/t", {"cap_records": 1})
    own.append("t", 7)
    page = own.diff("t").json
    assert ([record["$seq"] for record in page["records"]], page["tombstone"]) == ([4, 5, 6, 7], None)


def test_a_group_without_a_guard_holds_nothing(own: Api) -> None:
    own.put("t", cap_records=2)
    make(own, "t", 2, mode="stream")
    own.append("t", 3, 4)
    assert own.state("t")["earliest_seq"] == 3
    own.call("PUT", path("t", "held"), {"mode": "stream", "retention_guard": True})
    own.append("t", 5, 6)
    assert own.state("t")["earliest_seq"] == 3
    ok(post(own, "t", "commit", "held", seq=5))
    assert own.state("t")["earliest_seq"] == 5


def test_a_full_topic_that_rejects_says_which_groups_pin_it(own: Api) -> None:
    own.put("t", cap_records=2, discard="reject")
    make(own, "t", 2)
    reply = own.append("t", 3)
    assert reply.problem == (422, "topic_full")
    assert reply.json["error"]["detail"]["pinned_by"] == [{"group": "g", "committed": 1}]


def test_a_retention_plan_says_what_is_pinned_and_who_loses(own: Api) -> None:
    make(own, "t", 10)
    make(own, "t", group="free", retention_guard=False)
    fetch(own, "t", max=4)
    ack(own, "t", 1, 2, 3)
    plan = ok(own.call("POST", "/v0/topics/t/retention/plan", {"cap_records": 2}))
    assert plan["would_remove"] | {"bytes": 0} == {"records": 3, "bytes": 0, "segments": 0, "from_seq": 1, "to_seq": 3}
    assert plan["because"] == ["cap_records"]
    assert plan["pinned_by"] == [{"group": "g", "committed": 4}]
    assert plan["loses_for"] == [{"group": "free", "records": 3}]
    assert own.state("t")["count"] == 10


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_groups_work_in_every_class(api: Api, topic: str, durability: str) -> None:
    api.put(topic, durability=durability)
    make(api, topic, 3)
    assert fetch(api, topic, max=2) == [1, 2]
    ack(api, topic, 1)
    ok(post(api, topic, "nack", member="m", seqs=[2]))
    assert fetch(api, topic) == [2, 3]
    ok(post(api, topic, "leave", member="m"))
    assert ok(post(api, topic, "seek", to="earliest"))["replayed"] == 3
    assert fetch(api, topic) == [1, 2, 3]
