"""Routers: configure, look at, list, drop, and what they copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.http.client import Api, InProcess, Reply, eventually
from tests.contract.http.inprocess import Engine
from tests.contract.http.live import Http1, ServerProcess
from topics.api.app import AppOptions
from topics.api.auth import parse_keys
from topics.storage.options import StoreOptions

_numbers = itertools.count(1)


class Routes:
    """Names nobody else uses, and the calls about routers."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.name = f"w{next(_numbers)}"
        self.a, self.b, self.c = (f"{self.name}.{letter}" for letter in "abc")

    def put(self, router: str = "r", source: str = "", dest: str = "", **fields: Any) -> Reply:
        body = {"source": source or self.a, "dest": dest or self.b, **fields}
        return self.api.call("PUT", f"/v0/routers/{self.name}.{router}", body)

    def get(self, router: str = "r") -> Reply:
        return self.api.call("GET", f"/v0/routers/{self.name}.{router}")

    def drop(self, router: str = "r") -> Reply:
        return self.api.call("DELETE", f"/v0/routers/{self.name}.{router}")

    def listed(self, query: str = "") -> Any:
        return self.api.call("GET", f"/v0/routers?prefix={self.name}.&{query}").json

    def data(self, topic: str) -> list[Any]:
        return [record["data"] for record in self.api.diff(topic, limit=1000).json["records"]]


@pytest.fixture
def routes(api: Api) -> Routes:
    return Routes(api)


@pytest.fixture
def mine(own: Api) -> Routes:
    """In process, with a clock to move."""
    return Routes(own)


def shown(reply: Reply) -> dict[str, Any]:
    body = dict(reply.json)
    assert body.pop("performance")["server_total_ms"] >= 0
    return body


# -- configuring -------------------------------------------------------------------------------------------------------


def test_put_makes_a_router_and_its_topics(routes: Routes) -> None:
    first = routes.put()
    assert first.status == 201
    expected = {
        "router": f"{routes.name}.r",
        "source": routes.a,
        "dest": routes.b,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    assert shown(first) == {**expected, "created": True}
    again = routes.put()
    assert (again.status, shown(again)) == (200, {**expected, "created": False})
    assert shown(routes.get()) == {**expected, "forwarded_total": 0}
    for topic in (routes.a, routes.b):
        assert routes.api.state(topic)["config"]["durability"] == "disk"


def test_a_filter_is_answered_in_its_long_form(routes: Routes) -> None:
    for given, told in (
        ("x", ["tag", "Eq", "x"]),
        ("x*", ["tag", "Glob", "x*"]),
        ("*", ["tag", "Glob", "*"]),
        (["tag", "Eq", "x*"], ["tag", "Eq", "x*"]),
        (["tag", "Glob", "a*b*"], ["tag", "Glob", "a*b*"]),
        (None, None),
    ):
        assert routes.put(filter=given).json["filter"] == told
        assert routes.get().json["filter"] == told


def test_put_replaces_all_options_and_keeps_the_progress(routes: Routes) -> None:
    routes.put(filter="x", preserve_tag=False, guarantee="exactly_once")
    routes.api.append(routes.a, {"data": 1, "tag": "x"})
    assert routes.get().json["forwarded_total"] == 1
    routes.put()
    found = routes.get().json
    assert (found["filter"], found["preserve_tag"], found["guarantee"]) == (None, True, "at_least_once")
    assert found["forwarded_total"] == 1
    routes.api.append(routes.a, 2)
    assert routes.data(routes.b) == [1, 2]


def test_bad_routers_are_refused_in_the_order_of_the_contract(routes: Routes) -> None:
    api = routes.api
    assert api.call("PUT", "/v0/routers/%3Er", {"source": "x", "dest": "x"}).problem == (400, "invalid_request")
    assert routes.put(source=routes.a, dest=routes.a).problem == (400, "invalid_request")
    assert routes.put(source="no good").problem == (400, "invalid_request")
    assert routes.put(dest="-x").problem == (400, "invalid_request")
    absent = routes.put(create_dest=False)
    assert (absent.problem, absent.detail) == ((404, "topic_not_found"), {"topic": routes.b})
    assert api.call("GET", f"/v0/topics/{routes.a}").status == 404, "nothing was made"
    routes.put()
    fan_in = routes.put("other", source=routes.c)
    assert fan_in.problem == (409, "topic_exists_incompatible")
    assert fan_in.detail == {"topic": routes.b, "reason": "router_dest_fan_in"}
    moved = routes.put(dest=routes.c)
    assert moved.problem == (409, "topic_exists_incompatible")
    assert moved.detail == {
        "router": f"{routes.name}.r",
        "reason": "router_repoint_forbidden",
        "existing_source": routes.a,
        "existing_dest": routes.b,
    }
    routes.put("next", routes.b, routes.c)
    cycle = routes.put("back", routes.c, routes.a)
    assert cycle.problem == (409, "router_cycle")
    assert cycle.detail == {"cycle": [routes.c, routes.a, routes.b, routes.c]}
    assert routes.put("back", routes.c, routes.a, allow_cycle=True).status == 201


@pytest.mark.parametrize(
    "fields",
    [
        {"source": None},
        {"dest": 1},
        {"preserve_node": None},
        {"preserve_tag": 1},
        {"create_dest": "true"},
        {"allow_cycle": None},
        {"guarantee": "never"},
        {"guarantee": None},
        {"filter": 1},
        {"filter": ["tag", "Eq"]},
        {"filter": ["node", "Eq", "x"]},
        {"filter": ["tag", "Glob", "x"]},
    ],
    ids=str,
)
def test_fields_of_a_wrong_shape_are_refused(mine: Routes, fields: dict[str, Any]) -> None:
    body = {"source": mine.a, "dest": mine.b, **fields}
    assert mine.api.call("PUT", f"/v0/routers/{mine.name}.r", body).problem == (400, "invalid_request")


def test_a_body_is_needed_and_unknown_fields_are_ignored(mine: Routes) -> None:
    api = mine.api
    assert api.call("PUT", "/v0/routers/r").problem == (415, "unsupported_media_type")
    assert api.call("PUT", "/v0/routers/r", b"{", {"content-type": "application/json"}).status == 400
    assert api.call("PUT", "/v0/routers/r", {"dest": "x"}).status == 400
    twice = b'{"source":"x","source":"y","dest":"z"}'
    assert api.call("PUT", "/v0/routers/r", twice, {"content-type": "application/json"}).status == 400
    assert mine.put(unknown=[1]).status == 201


def test_names_with_an_arrow_are_escaped_in_the_path(routes: Routes) -> None:
    path = f"/v0/routers/{routes.a}-%3E{routes.b}"
    made = routes.api.call("PUT", path, {"source": routes.a, "dest": routes.b})
    assert (made.status, made.json["router"]) == (201, f"{routes.a}->{routes.b}")
    assert routes.api.call("GET", path).status == 200
    assert routes.api.call("DELETE", path).json["deleted"] is True


def test_an_absent_router_is_not_found(routes: Routes) -> None:
    absent = routes.get("nobody")
    assert (absent.problem, absent.detail) == ((404, "router_not_found"), {"router": f"{routes.name}.nobody"})
    assert shown(routes.drop("nobody")) == {"router": f"{routes.name}.nobody", "deleted": False}
    assert routes.api.call("DELETE", "/v0/routers/no%20name").json["deleted"] is False


def test_a_dropped_router_leaves_its_copies(routes: Routes) -> None:
    routes.put()
    routes.api.append(routes.a, 1)
    assert routes.data(routes.b) == [1]
    assert shown(routes.drop()) == {"router": f"{routes.name}.r", "deleted": True}
    routes.api.append(routes.a, 2)
    assert routes.data(routes.b) == [1]
    assert routes.get().problem == (404, "router_not_found")


def test_other_methods_are_not_allowed(mine: Routes) -> None:
    reply = mine.api.call("POST", "/v0/routers/r", {})
    assert (reply.problem, reply.headers["allow"]) == ((405, "method_not_allowed"), "GET,HEAD,PUT,DELETE")
    assert mine.api.call("DELETE", "/v0/routers").headers["allow"] == "GET,HEAD"


def test_the_limit_on_routers_counts_new_ones_only(engine: Engine) -> None:
    engine.service.broker.routing.max_routers = 1
    mine = Routes(Api(InProcess(engine)))
    assert mine.put().status == 201
    full = mine.put("s", mine.b, mine.c)
    assert (full.problem, full.detail) == ((429, "throttled"), {"limit": "max_routers", "max": 1})
    assert full.headers["retry-after"] == "1"
    assert mine.put(preserve_tag=False).status == 200


# -- lists and drops ---------------------------------------------------------------------------------------------------


def test_lists_are_filtered_and_come_in_pages(routes: Routes) -> None:
    routes.put("1")
    routes.put("2", dest=routes.c, guarantee="exactly_once")
    routes.put("3", routes.c, f"{routes.name}.d")
    names = [row["router"] for row in routes.listed()["routers"]]
    assert names == [f"{routes.name}.{number}" for number in "123"]
    assert routes.listed(f"source={routes.a}&dest={routes.c}")["routers"] == [
        {
            "router": f"{routes.name}.2",
            "source": routes.a,
            "dest": routes.c,
            "guarantee": "exactly_once",
            "forwarded_total": 0,
        }
    ]
    assert routes.listed("source=nobody")["routers"] == []
    page = routes.listed("page_size=2")
    assert [row["router"] for row in page["routers"]] == names[:2]
    rest = routes.listed(f"page_size=2&cursor={page['next_cursor']}")
    assert [row["router"] for row in rest["routers"]] == names[2:]
    assert "next_cursor" not in rest
    assert routes.api.call("GET", "/v0/routers?cursor=%21").problem == (400, "invalid_request")


def test_dropping_a_topic_tells_which_routers_ended(routes: Routes) -> None:
    routes.put("z")
    routes.put("y", routes.b, routes.c)
    routes.put("x", routes.c, f"{routes.name}.d")
    gone = routes.api.call("DELETE", f"/v0/topics/{routes.b}").json
    assert gone["routers_removed"] == [f"{routes.name}.y", f"{routes.name}.z"]
    assert [row["router"] for row in routes.listed()["routers"]] == [f"{routes.name}.x"]
    again = routes.api.call("DELETE", f"/v0/topics/{routes.b}").json
    assert (again["deleted"], again["routers_removed"]) == (False, [])


# -- copying -----------------------------------------------------------------------------------------------------------


def test_a_read_of_the_dest_shows_what_was_just_written(routes: Routes) -> None:
    routes.put()
    for number in range(1, 6):
        routes.api.append(routes.a, number)
        assert routes.data(routes.b)[-1] == number
    routes.api.append(routes.a, 6)
    assert routes.api.state(routes.b)["head_seq"] == 6
    routes.api.append(routes.a, 7)
    assert routes.get().json["forwarded_total"] == 7
    routes.api.append(routes.a, 8)
    history = routes.api.call("GET", f"/v0/topics/{routes.b}/records").json["records"]
    assert [record["data"] for record in history] == list(range(1, 9))


def test_copies_come_without_anybody_reading(routes: Routes) -> None:
    routes.put()
    routes.put("next", routes.b, routes.c)
    routes.api.append(routes.a, 1, 2)

    def totals() -> list[int]:
        return [row["forwarded_total"] for row in routes.listed()["routers"]]

    assert eventually(lambda: totals() == [2, 2])


def test_a_long_poll_at_the_dest_wakes_on_an_append_to_the_source(routes: Routes) -> None:
    routes.put()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(routes.api.diff, routes.b, wait_ms=20_000)
        eventually(waiting.running)
        routes.api.append(routes.a, 1)
        assert [record["data"] for record in waiting.result(10).json["records"]] == [1]


def test_copies_are_fresh_records_with_the_same_content(routes: Routes) -> None:
    routes.put()
    routes.put("bare", dest=routes.c, preserve_node=False, preserve_tag=False)
    routes.api.append(routes.b, "direct")
    routes.api.append(routes.a, {"data": {"b": 1.10, "a": 2}, "tag": "t", "node": "n", "meta": {"m": [1]}})
    copy = routes.api.diff(routes.b, include_tags=True).json["records"][1]
    assert copy.pop("$ts") > 0
    assert copy == {"$seq": 2, "$tag": "t", "$node": "n", "data": {"b": 1.1, "a": 2}, "meta": {"m": [1]}}
    (bare,) = routes.api.diff(routes.c, include_tags=True).json["records"]
    assert bare.keys() == {"$seq", "$ts", "data", "meta"}


def test_filters_and_two_routers_of_the_same_topics(routes: Routes) -> None:
    routes.put("1", filter="eu:*")
    routes.put("2", filter=["tag", "Eq", "eu:1"])
    tags = ("eu:1", "eu:2", "us:1")
    routes.api.append(routes.a, *({"data": tag, "tag": tag} for tag in tags), {"data": "none"})
    assert sorted(routes.data(routes.b)) == ["eu:1", "eu:1", "eu:2"]
    assert [row["forwarded_total"] for row in routes.listed()["routers"]] == [2, 1]


def test_a_loop_of_two_topics_ends_with_five_and_four(routes: Routes) -> None:
    routes.put()
    routes.put("back", routes.b, routes.a, allow_cycle=True)
    routes.api.append(routes.a, 1)

    def counts() -> tuple[int, int]:
        return len(routes.data(routes.a)), len(routes.data(routes.b))

    assert eventually(lambda: counts() == (5, 4))
    for _ in range(3):
        assert counts() == (5, 4)


def test_exactly_once_says_in_the_meta_where_a_copy_came_from(routes: Routes) -> None:
    routes.put(guarantee="exactly_once")
    routes.api.append(routes.a, {"data": 1, "meta": {"x": 1, "_topics_router": 0}}, {"data": 2, "meta": "text"})
    epoch = routes.api.state(routes.a)["epoch"]
    first, second = routes.api.diff(routes.b).json["records"]
    assert first["meta"] == {
        "x": 1,
        "_topics_router": {
            "idempotency_key": f"router:{routes.name}.r:{epoch}:{epoch}:1",
            "router": f"{routes.name}.r",
            "source_topic": routes.a,
            "source_topic_id": epoch,
            "source_epoch": epoch,
            "source_seq": 1,
        },
    }
    assert second["meta"]["_topics_original_meta"] == "text"


def forged(routes: Routes, seq: int, **more: Any) -> dict[str, Any]:
    """A record that looks like the copy of a source record."""
    epoch = routes.api.state(routes.a)["epoch"]
    key = f"router:{routes.name}.r:{epoch}:{epoch}:{seq}"
    return {"data": f"copy {seq}", "meta": {"_topics_router": {"idempotency_key": key}}, **more}


def test_exactly_once_does_not_copy_what_is_there_under_its_key(routes: Routes) -> None:
    routes.put(guarantee="exactly_once")
    routes.api.append(routes.a, 1)
    assert routes.data(routes.b) == [1]
    routes.api.append(routes.b, forged(routes, 2), "theirs", forged(routes, 4), {"data": "x", "meta": "_topics_router"})
    routes.api.append(routes.a, 2, 3, 4, 5)
    assert routes.data(routes.b) == [1, "copy 2", "theirs", "copy 4", "x", 3, 5]
    assert routes.get().json["forwarded_total"] == 5
    routes.api.append(routes.b, forged(routes, 6))
    routes.api.append(routes.a, 6)
    assert routes.data(routes.b)[-1] == "copy 6"
    assert routes.get().json["forwarded_total"] == 6


def test_copy_is_made_again_where_the_one_that_was_there_is_gone(routes: Routes) -> None:
    routes.put(guarantee="exactly_once")
    routes.api.append(routes.a, 1)
    routes.api.append(routes.b, forged(routes, 2, tag="gone"), forged(routes, 3))
    routes.api.delete(routes.b, match="gone")
    routes.api.append(routes.a, 2, 3)
    assert sorted(map(str, routes.data(routes.b))) == ["1", "2", "copy 3"]


def test_keys_of_another_router_or_instance_mean_nothing(routes: Routes) -> None:
    routes.put(guarantee="exactly_once")
    other = forged(routes, 1)
    key = other["meta"]["_topics_router"]["idempotency_key"]
    for changed in (key.replace(".r:", ".s:"), key.replace(":1", ":0"), key + "x", key[:-1], 7, None):
        routes.api.append(routes.b, {"data": "no", "meta": {"_topics_router": {"idempotency_key": changed}}})
    routes.api.append(routes.a, 1)
    assert routes.data(routes.b)[-1] == 1


def test_what_is_there_already_needs_no_room(routes: Routes) -> None:
    routes.put(guarantee="exactly_once")
    routes.api.put(routes.b, cap_records=1, discard="reject")
    routes.api.append(routes.b, forged(routes, 1))
    routes.api.append(routes.a, 1, 2)
    assert routes.data(routes.b) == ["copy 1"]
    assert routes.get().json["forwarded_total"] == 1
    routes.api.delete(routes.b, before_seq=2)
    assert routes.data(routes.b) == [2]
    assert routes.get().json["forwarded_total"] == 2


def test_keys_in_files_are_found_after_a_restart(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "s"), store=StoreOptions(segment_max_events=2))
    mine = Routes(Api(InProcess(engine)))
    mine.put(guarantee="exactly_once")
    mine.api.append(mine.a, 1)
    assert mine.data(mine.b) == [1]
    mine.api.append(mine.b, forged(mine, 2), "theirs", "theirs")
    engine.close()
    engine = Engine(str(tmp_path / "s"))
    try:
        mine.api = Api(InProcess(engine))
        mine.api.append(mine.a, 2, 3)
        assert mine.data(mine.b) == [1, "copy 2", "theirs", "theirs", 3]
    finally:
        engine.close()


def test_a_full_dest_that_rejects_holds_the_router_until_there_is_room(routes: Routes) -> None:
    routes.api.put(routes.b, cap_records=2, discard="reject")
    routes.put()
    routes.api.append(routes.a, 1, 2, 3, 4)
    assert routes.data(routes.b) == [1, 2]
    assert routes.get().json["forwarded_total"] == 2
    routes.api.delete(routes.b, before_seq=3)
    assert routes.data(routes.b) == [3, 4]


def test_what_the_source_lost_is_told_at_the_dest(routes: Routes) -> None:
    routes.api.put(routes.a, cap_records=2)
    routes.put()
    routes.api.append(routes.a, 1, 2, 3, 4, 5)
    answer = routes.api.diff(routes.b).json
    assert [record["data"] for record in answer["records"]] == [4, 5]
    tombstone = answer["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (1, 3, "source_trim")
    assert routes.get().json["forwarded_total"] == 5
    assert routes.api.state(routes.b)["count"] == 2


def test_records_that_expired_before_they_were_copied_are_told_too(engine: Engine) -> None:
    mine = Routes(Api(InProcess(engine)))
    mine.api.put(mine.a, ttl_ms=60_000)
    mine.api.put(mine.b, cap_records=1, discard="reject")
    mine.api.append(mine.b, "full")
    mine.put()
    mine.api.append(mine.a, 1, 2)
    engine.clock.advance(60_001)
    answer = mine.api.diff(mine.b).json
    assert [record["data"] for record in answer["records"]] == ["full"]
    later = mine.api.diff(mine.b, from_seq=1).json
    assert later["tombstone"]["reason"] == "source_trim"


def test_deletes_do_not_travel(routes: Routes) -> None:
    routes.put()
    routes.api.append(routes.a, 1, 2)
    assert routes.data(routes.b) == [1, 2]
    routes.api.delete(routes.a, before_seq=3)
    assert routes.data(routes.b) == [1, 2]


def test_metrics_count_the_routers(mine: Routes) -> None:
    mine.put()
    found = mine.api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json
    assert (found["routers"], found["router_lag"]) == (1, 0)
    assert b"\ntopics_routers 1\n" in mine.api.call("GET", "/v0/metrics").body


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_list_and_its_progress_survive_a_restart(tmp_path: Path, end: str) -> None:
    server = ServerProcess(tmp_path, TOPICS_WAL_SHARDS="2")
    wire = Http1(server.host, server.port)
    routes = Routes(Api(wire))
    try:
        routes.put(filter="x*", guarantee="exactly_once")
        routes.api.append(routes.a, {"data": 1, "tag": "x"}, {"data": 2}, {"data": 3, "tag": "xy"})
        before = shown(routes.get())
        assert before["forwarded_total"] == 2
        routes.api.append(routes.b, "direct")
    finally:
        wire.close()
        if end == "stop":
            assert server.stop()[0] == 0
        else:
            server.kill()
    server = ServerProcess(tmp_path, TOPICS_WAL_SHARDS="1")
    wire = Http1(server.host, server.port)
    routes.api = Api(wire)
    try:
        assert shown(routes.get()) == before
        routes.api.append(routes.a, {"data": 4, "tag": "x"})
        assert routes.data(routes.b) == [1, 3, "direct", 4]
        assert routes.get().json["forwarded_total"] == 3
    finally:
        wire.close()
        assert server.stop()[0] == 0


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Engine]:
    keys = "all, mine::m., reader:r:m., drop:del:m."
    engine = Engine(str(tmp_path / "store"), AppOptions(version="test", keyring=parse_keys(keys)))
    yield engine
    engine.close()


def test_prefixes_cover_the_router_and_both_its_topics(guarded: Engine) -> None:
    wire = InProcess(guarded)
    everyone, mine = Api(wire, "all"), Api(wire, "mine")

    def put(api: Api, name: str, source: str, dest: str) -> Reply:
        return api.call("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest})

    assert put(mine, "m.r", "m.a", "m.b").status == 201
    foreign = put(mine, "m.s", "x.a", "m.b")
    assert (foreign.problem, foreign.detail) == ((403, "forbidden"), {"topic": "x.a"})
    assert put(mine, "m.s", "m.a", "x.b").detail == {"topic": "x.b"}
    assert put(mine, "x.r", "m.a", "m.c").problem == (403, "forbidden")
    assert put(everyone, "m.t", "x.a", "m.c").status == 201
    assert put(everyone, "x.r", "m.a", "m.d").status == 201
    assert mine.call("GET", "/v0/routers/m.t").problem == (403, "forbidden")
    assert mine.call("DELETE", "/v0/routers/m.t").problem == (403, "forbidden")
    assert mine.call("GET", "/v0/routers/m.nobody").problem == (404, "router_not_found")
    assert mine.call("DELETE", "/v0/routers/m.nobody").json["deleted"] is False
    listed = mine.call("GET", "/v0/routers").json["routers"]
    assert [row["router"] for row in listed] == ["m.r"]
    assert len(everyone.call("GET", "/v0/routers").json["routers"]) == 3


def test_each_call_about_routers_needs_its_scope(guarded: Engine) -> None:
    wire = InProcess(guarded)
    reader, dropper, mine = Api(wire, "reader"), Api(wire, "drop"), Api(wire, "mine")
    body = {"source": "m.a", "dest": "m.b"}
    assert reader.call("PUT", "/v0/routers/m.r", body).problem == (403, "forbidden")
    assert mine.call("PUT", "/v0/routers/m.r", body).status == 201
    assert dropper.call("GET", "/v0/routers/m.r").problem == (403, "forbidden")
    assert dropper.call("GET", "/v0/routers").problem == (403, "forbidden")
    assert reader.call("GET", "/v0/routers/m.r").status == 200
    assert reader.call("HEAD", "/v0/routers/m.r").status == 403
    assert reader.call("DELETE", "/v0/routers/m.r").problem == (403, "forbidden")
    assert dropper.call("DELETE", "/v0/routers/m.r").json["deleted"] is True
    assert Api(wire).call("GET", "/v0/routers").problem == (401, "unauthorized")
