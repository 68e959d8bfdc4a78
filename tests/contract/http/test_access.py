"""Who may do what. The matrix is made from the route table, so that a route nobody thought about fails here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.contract.http.client import Api, InProcess
from tests.contract.http.inprocess import Engine
from topics.api.app import AppOptions
from topics.api.auth import NO_SCOPE, Scope, parse_keys
from topics.api.routes import ROUTES, Route
from topics.server import pages

SCOPES = {"r": Scope.READ, "w": Scope.WRITE, "d": Scope.DELETE, "a": Scope.ADMIN}
COMBINATIONS = ["r", "w", "d", "a", "r+w", "w+d+a", "r+d+a", "r+w+d", "r+w+a"]

EXPECTED = {
    ("GET", "/v0/health"): "", ("GET", "/healthz"): "", ("GET", "/v0/ready"): "", ("GET", "/readyz"): "",
    ("GET", "/"): "r", ("GET", "/console/page.css"): "r", ("GET", "/console/page.js"): "r",
    ("GET", "/openapi.json"): "", ("GET", "/v0/metrics"): "r", ("POST", "/v0/heads"): "r",
    ("POST", "/v0/admin/checkpoint"): "a", ("POST", "/v0/admin/snapshot"): "a", ("POST", "/v0/admin/scrub"): "a",
    ("GET", "/v0/stats"): "r",
    ("GET", "/v0/topics"): "r", ("PUT", "/v0/topics/{topic}"): "a", ("PATCH", "/v0/topics/{topic}"): "a",
    ("GET", "/v0/topics/{topic}"): "r", ("DELETE", "/v0/topics/{topic}"): "d", ("POST", "/v0/topics/{topic}"): "w",
    ("POST", "/v0/topics/{topic}/diff"): "r", ("POST", "/v0/topics/{topic}/delete"): "d",
    ("GET", "/v0/topics/{topic}/records"): "r", ("GET", "/v0/topics/{topic}/at"): "r",
    ("GET", "/v0/topics/{topic}/keys/{key}"): "r",
    ("GET", "/v0/topics/{topic}/tags"): "r", ("GET", "/v0/topics/{topic}/tags/names"): "r",
    ("GET", "/v0/topics/{topic}/segments"): "r", ("GET", "/v0/topics/{topic}/segments/{first_seq}/{part}"): "r",
    ("POST", "/v0/topics/{topic}/retention/plan"): "r",
    ("POST", "/v0/topics/{topic}/claim"): "rw", ("POST", "/v0/topics/{topic}/ack"): "w",
    ("POST", "/v0/topics/{topic}/nack"): "w", ("POST", "/v0/topics/{topic}/extend"): "w",
    ("POST", "/v0/topics/{topic}/redrive"): "wd", ("GET", "/v0/topics/{topic}/work"): "rw",
    ("PUT", "/v0/topics/{topic}/staged/{txn}/{part}"): "w", ("POST", "/v0/topics/{topic}/staged/{txn}/commit"): "w",
    ("POST", "/v0/staged/{txn}/commit"): "w", ("GET", "/v0/topics/{topic}/staged"): "w",
    ("GET", "/v0/topics/{topic}/staged/{txn}"): "w", ("DELETE", "/v0/topics/{topic}/staged/{txn}"): "w",
    ("GET", "/v0/topics/{topic}/groups"): "r", ("PUT", "/v0/topics/{topic}/groups/{group}"): "a",
    ("GET", "/v0/topics/{topic}/groups/{group}"): "r", ("DELETE", "/v0/topics/{topic}/groups/{group}"): "d",
    ("GET", "/v0/topics/{topic}/groups/{group}/pending"): "r",
    **{
        ("POST", f"/v0/topics/{{topic}}/groups/{{group}}/{verb}"): "rw"
        for verb in (
            "join", "leave", "heartbeat", "fetch", "commit", "ack", "nack", "reject", "extend", "claim", "seek",
        )
    },
    ("GET", "/v0/routers"): "r", ("PUT", "/v0/routers/{router}"): "a", ("GET", "/v0/routers/{router}"): "r",
    ("DELETE", "/v0/routers/{router}"): "d",
    ("POST", "/v0/watch"): "r", ("GET", "/v0/watch/{wid}"): "", ("GET", "/v0/ws"): "",
}  # fmt: skip


def scope_of(letters: Iterable[str]) -> Scope:
    found = NO_SCOPE
    for letter in letters:
        found |= SCOPES[letter]
    return found


def key_list() -> str:
    """A key for each combination, one for everything, one for names under `mine.` alone."""
    keys = [f"key-{scopes}:{scopes}" for scopes in COMBINATIONS]
    return ",".join([*keys, "key-all", "key-mine::mine.|also.", "key-none-left:r:zzz"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    options = AppOptions(version="test", keyring=parse_keys(key_list()), hosts=())
    engine = Engine(str(tmp_path_factory.mktemp("guarded")), options)
    yield engine
    engine.close()


def as_key(engine: Engine, token: str | None) -> Api:
    return Api(InProcess(engine), token)


def target(route: Route, topic: str = "mine.a") -> str:
    return (
        route.path.replace("{topic}", topic)
        .replace("{router}", "mine.r")
        .replace("{first_seq}", "1")
        .replace("{part}", "data")
        .replace("{key}", "k")
        .replace("{txn}", "app@1")
        .replace("{group}", "g")
        .replace("{wid}", "wid_0123456789012345678901")
    )


def test_every_route_is_in_the_matrix() -> None:
    assert {(route.method, route.path): route.scope for route in ROUTES} == {
        place: scope_of(letters) for place, letters in EXPECTED.items()
    }


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_route_needs_a_key_and_its_scope(guarded: Engine, route: Route) -> None:
    if route.probe:
        assert as_key(guarded, None).call(route.method, target(route)).status == 200
        return
    if route.by_session:
        # Whose it is can be said only of one that exists.
        assert as_key(guarded, None).call(route.method, target(route)).problem == (404, "not_found")
        assert as_key(guarded, None).call("HEAD", target(route)).status == 401
        return
    for token in (None, "unknown", "", "key-al", "key-all2"):
        assert as_key(guarded, token).call(route.method, target(route)).problem == (401, "unauthorized"), token
    for scopes in COMBINATIONS:
        granted = scope_of(scopes.split("+"))
        answer = as_key(guarded, f"key-{scopes}").call(route.method, target(route))
        if route.scope & granted == route.scope:
            assert answer.status not in (401, 403), scopes
        else:
            assert answer.problem == (403, "forbidden"), scopes
    assert as_key(guarded, "key-all").call(route.method, target(route)).status not in (401, 403)


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if "{topic}" in route.path], ids=lambda r: r.method + r.path
)
def test_prefixes_bound_the_names_in_paths(guarded: Engine, route: Route) -> None:
    mine = as_key(guarded, "key-mine")
    assert mine.call(route.method, target(route, "mine.a")).status not in (401, 403)
    assert mine.call(route.method, target(route, "also.")).status not in (401, 403)
    for name in ("other", "Mine.a", "mine", "%6Dine.a"):
        assert mine.call(route.method, target(route, name)).problem == (403, "forbidden"), name


def test_unlisted_places_under_a_topic_need_write(guarded: Engine) -> None:
    for method, path in (
        ("GET", "/v0/topics/mine.a/nope"),
        ("HEAD", "/v0/topics/mine.a"),
        ("BREW", "/v0/topics/mine.a"),
    ):
        assert as_key(guarded, "key-r").call(method, path).status == 403, method
        assert as_key(guarded, "key-w").call(method, path).status in (200, 404, 405), method
    assert as_key(guarded, "key-r").call("HEAD", "/v0/topics").status == 200
    assert as_key(guarded, "key-w").call("DELETE", "/v0/topics").status == 403
    assert as_key(guarded, "key-r").call("DELETE", "/v0/topics").status == 405
    assert as_key(guarded, "key-w").call("PUT", "/v0/routers/x").status == 403
    assert as_key(guarded, "key-w").call("GET", "/v0/nope").problem == (404, "not_found")
    assert as_key(guarded, None).call("GET", "/v0/nope").problem == (401, "unauthorized")


def test_lists_show_only_names_the_key_may_use(guarded: Engine) -> None:
    everything = as_key(guarded, "key-all")
    for name in ("mine.x", "also.x", "theirs.x"):
        everything.put(name)
    names = [row["topic"] for row in as_key(guarded, "key-mine").call("GET", "/v0/topics").json["topics"]]
    assert {"mine.x", "also.x"} <= set(names)
    assert all(name.startswith(("mine.", "also.")) for name in names)
    assert as_key(guarded, "key-none-left").call("GET", "/v0/topics").json["topics"] == []
    heads = as_key(guarded, "key-mine").call("POST", "/v0/heads", {"pattern": "*"}).json["topics"]
    assert "theirs.x" not in heads
    named = as_key(guarded, "key-mine").call("POST", "/v0/heads", {"topics": {"theirs.x": 1}})
    assert (named.problem, named.detail) == ((403, "forbidden"), {"topic": "theirs.x"})
    shown = as_key(guarded, "key-mine").call("GET", "/v0/metrics").body
    assert b'{topic="mine.x"}' in shown
    assert b"theirs.x" not in shown
    assert b'{topic="theirs.x"}' in everything.call("GET", "/v0/metrics").body


def test_page_is_open_only_where_this_machine_alone_can_ask(tmp_path: Path) -> None:
    for open_pages, status in ((True, 200), (False, 401)):
        options = AppOptions(keyring=parse_keys("k:r,w:w"), pages=pages(), open_pages=open_pages)
        engine = Engine(str(tmp_path / str(status)), options)
        try:
            for route in ROUTES:
                if not route.page:
                    continue
                assert as_key(engine, None).call("GET", route.path).status == status, route.path
                answer = as_key(engine, "k").call("GET", route.path)
                assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, route.kinds[0])
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                if not open_pages:
                    assert as_key(engine, "w").call("GET", route.path).problem == (403, "forbidden")
            assert as_key(engine, None).call("GET", "/v0/topics").status == 401
        finally:
            engine.close()


def test_inline_config_of_a_new_topic_needs_admin(guarded: Engine) -> None:
    writer = as_key(guarded, "key-w")
    refused = writer.append("mine.new", 1, config={"cap_records": 1})
    assert (refused.problem, refused.detail) == ((403, "forbidden"), {"topic": "mine.new"})
    assert writer.append("mine.new", 1).status == 201
    assert writer.append("mine.new", 1, config={"cap_records": 1}).status == 200
    assert writer.append("mine.bad", config={"cap_records": 1}).status == 403


def test_dead_letters_stay_within_the_prefixes(guarded: Engine) -> None:
    mine = as_key(guarded, "key-mine")
    refused = mine.put("mine.q", type="queue", dead_letter="theirs.dead")
    assert (refused.problem, refused.detail) == ((403, "forbidden"), {"topic": "theirs.dead"})
    assert mine.put("mine.q", type="queue", dead_letter="mine.dead").status == 201
    assert mine.call("PATCH", "/v0/topics/mine.q", {"dead_letter": "theirs.dead"}).status == 403


def test_bearer_is_one_exact_word(guarded: Engine) -> None:
    api = as_key(guarded, None)
    for value, status in (
        ("Bearer key-all", 200),
        ("Bearer   key-all  ", 200),
        ("bearer key-all", 401),
        ("key-all", 401),
    ):
        assert api.call("GET", "/v0/topics", headers={"authorization": value}).status == status, value
    assert api.call("GET", "/v0/topics?token=key-all").status == 401


def test_keys_may_hold_only_so_many_requests(tmp_path: Path) -> None:
    options = AppOptions(version="test", keyring=parse_keys("k"), max_inflight_per_key=1)
    engine = Engine(str(tmp_path / "s"), options)
    try:
        api = as_key(engine, "k")
        key = options.keyring.keys[0]
        assert api.call("GET", "/v0/topics").status == 200
        engine.app._slots.take(key)
        full = api.call("GET", "/v0/topics")
        assert (full.problem, full.detail) == ((429, "throttled"), None)
        assert full.headers["retry-after"] == "1"
        assert api.call("GET", "/v0/health").status == 200
        engine.app._slots.give(key)
        assert api.call("GET", "/v0/nope").status == 404
        assert api.call("GET", "/v0/topics").status == 200
    finally:
        engine.close()


def test_probes_ask_for_a_key_where_told_to(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "s"), AppOptions(version="test", keyring=parse_keys("k"), probe_auth=True))
    try:
        assert as_key(engine, None).call("GET", "/v0/health").status == 401
        assert as_key(engine, "k").call("GET", "/v0/health").status == 200
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "localhost:4000"}, True),
        ({"host": "127.0.0.1"}, True),
        ({"host": "[::1]:4000"}, True),
        ({"host": "127.8.9.10:1"}, True),
        ({"host": "evil.example"}, False),
        ({"host": "evil.example:4000"}, False),
        ({"host": "localhost.evil.example"}, False),
        ({"host": "10.0.0.1:4000"}, False),
        ({"host": "localhost:4000", "origin": "http://localhost:3000"}, True),
        ({"host": "localhost:4000", "origin": "http://evil.example"}, False),
        ({"host": "localhost:4000", "origin": "null"}, False),
        ({"host": "localhost:4000", "origin": "file://localhost"}, False),
    ],
)
def test_foreign_hosts_and_origins_are_refused(guarded: Engine, headers: dict[str, str], allowed: bool) -> None:
    answer = as_key(guarded, "key-all").call("GET", "/v0/topics", headers=headers)
    assert answer.status == 200 if allowed else answer.problem == (403, "host_not_allowed")


def test_allowed_hosts_may_be_written_with_a_port(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "s"), AppOptions(version="test", hosts=("Log.example:8080", "[fe80::1]:4000")))
    try:
        for host, status in (
            ("log.example", 200), ("LOG.example:9", 200), ("[fe80::1]", 200), ("log.example.org", 403),
        ):  # fmt: skip
            assert as_key(engine, None).call("GET", "/v0/topics", headers={"host": host}).status == status, host
    finally:
        engine.close()


def test_everything_but_health_and_metrics_waits_for_recovery(tmp_path: Path) -> None:
    options = AppOptions(version="test", keyring=parse_keys("k"), pages=pages())
    engine = Engine(str(tmp_path / "s"), options, ready=False)
    try:
        api = as_key(engine, "k")
        for route in ROUTES:
            answer = api.call(route.method, target(route))
            if route.handler is None:
                assert answer.status == 200, route.path
            else:
                assert answer.problem == (503, "not_ready"), route.path
                assert answer.detail == {"replay_progress": 0.0}
                assert answer.headers["retry-after"] == "1"
        engine.app.progress = 0.25
        assert api.call("GET", "/v0/ready").detail == {"replay_progress": 0.25}
        assert api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json["replay_progress"] == 0.25
        assert api.call("GET", "/v0/nope").status == 503
        assert as_key(engine, None).call("GET", "/v0/topics").status == 401
        assert api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json["ready"] is False
        engine.app.service = engine.service
        assert api.call("GET", "/v0/ready").status == 200
    finally:
        engine.close()
