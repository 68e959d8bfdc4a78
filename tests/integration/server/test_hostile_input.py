"""Bodies, names and queries that are wrong on purpose: each gets the contract's refusal from a live server, which lives
on with its data unchanged."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest

from tests.contract.http.client import JSON
from tests.integration.server.target import KEPT, Target
from topics.api.routes import ROUTES, Route
from topics.api.wire import RecordIn

TOPIC = f"/v0/topics/{KEPT}"
LINES = {"content-type": "application/x-ndjson"}
MANY_DIGITS = b"9" * 5000

# -- wrong types, made from the shapes of requests ---------------------------------------------------------------------

VALUES: dict[str, list[Any]] = {
    "null": [None],
    "bool": [True],
    "int": [7],
    "float": [1.5],
    "string": ["word"],
    "array": [[], [1]],
    "object": [{}, {"a": 1}],
}
NEVER_INT = ["-1", "1.0", "1e2", "18446744073709551616", MANY_DIGITS.decode(), '"1"', "-0.5"]
BASES: dict[str, dict[str, Any]] = {
    "AppendIn": {"records": [{"data": 1}]},
    "RouterIn": {"source": KEPT, "dest": "elsewhere"},
    "HeadsIn": {},
    "DeleteIn": {},
}
FREE_INTS = {"priority"}
"""Signed numbers."""


def kinds_of(annotation: Any) -> set[str]:
    """Which kinds of JSON a field takes."""
    if get_origin(annotation) in (Union, types.UnionType):
        return set().union(*(kinds_of(part) for part in get_args(annotation)))
    if annotation is msgspec.UnsetType:
        return set()
    if annotation is msgspec.Raw:
        return set(VALUES)
    origin = get_origin(annotation) or annotation
    known: dict[Any, set[str]] = {
        type(None): {"null"}, bool: {"bool"}, int: {"int"}, str: {"string"}, list: {"array"}, dict: {"object"},
    }  # fmt: skip
    if origin in known:
        return known[origin]
    if origin is Literal or (isinstance(origin, type) and issubclass(origin, str)):
        return {"string"}
    assert issubclass(origin, msgspec.Struct), annotation
    return {"object"}


def wrong_values(field: msgspec.structs.FieldInfo) -> Iterator[str]:
    """JSON texts that the field must not take."""
    kinds = kinds_of(field.type)
    for kind, values in VALUES.items():
        if kind not in kinds:
            yield from map(json.dumps, values)
    if kinds <= {"int", "null"}:
        yield from (text for text in NEVER_INT if text != "-1" or field.encode_name not in FREE_INTS)
    if get_origin(field.type) is Literal:
        yield '"no such word"'


def with_field(base: dict[str, Any], name: str, text: str) -> bytes:
    members = [f"{json.dumps(key)}:{json.dumps(value)}" for key, value in base.items() if key != name]
    return ("{" + ",".join([*members, f"{json.dumps(name)}:{text}"]) + "}").encode()


WITH_BODY = [route for route in ROUTES if route.body is not None]


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: f"{route.method} {route.path}")
def test_wrong_type_in_any_field_is_a_bad_request(target: Target, route: Route) -> None:
    assert route.body is not None
    path = route.path.replace("{topic}", KEPT).replace("{router}", "kept-router")
    tried = 0
    for field in msgspec.structs.fields(route.body):
        for text in wrong_values(field):
            body = with_field(BASES.get(route.body.__name__, {}), field.encode_name, text)
            reply = target.api.call(route.method, path, body, JSON)
            assert reply.problem == (400, "invalid_request"), body[:200]
            tried += 1
    assert tried >= 7 * len(msgspec.structs.fields(route.body))


@pytest.mark.parametrize("bulk", [False, True], ids=["JSON", "lines"])
def test_wrong_type_in_any_field_of_a_record_is_a_bad_request(target: Target, bulk: bool) -> None:
    for field in msgspec.structs.fields(RecordIn):
        for text in wrong_values(field):
            record = with_field({"data": 1}, field.encode_name, text)
            body = record if bulk else b'{"records":[' + record + b"]}"
            reply = target.api.call("POST", TOPIC, body, LINES if bulk else JSON)
            assert reply.problem == (400, "invalid_request"), body[:200]


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: f"{route.method} {route.path}")
def test_known_field_that_comes_twice_is_a_bad_request(target: Target, route: Route) -> None:
    assert route.body is not None
    path = route.path.replace("{topic}", KEPT).replace("{router}", "kept-router")
    base = BASES.get(route.body.__name__, {})
    good: dict[str, str] = {
        "bool": "true",
        "int": "1",
        "string": '"log"',
        "array": "[]",
        "object": "{}",
        "null": "null",
    }
    for field in msgspec.structs.fields(route.body):
        text = json.dumps(base[field.encode_name]) if field.encode_name in base else good[min(kinds_of(field.type))]
        whole = with_field(base, field.encode_name, text)
        name = field.encode_name
        escaped = f"\\u{ord(name[0]):04x}{name[1:]}"
        for again in (name, escaped):
            body = whole[:-1] + f',"{again}":{text}}}'.encode()
            assert target.api.call(route.method, path, body, JSON).problem == (400, "invalid_request"), body


# -- JSON that is not --------------------------------------------------------------------------------------------------

NOT_JSON: dict[str, bytes] = {
    "nothing": b"",
    "brackets without end": b"[" * 200_000,
    "objects without end": b'{"a":' * 200_000,
    "brackets in a payload": b'{"records":[{"data":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
    "payload one level too deep": b'{"records":[{"data":' + b"[" * 125 + b"]" * 125 + b"}]}",
    "payload deep by objects": b'{"records":[{"data":' + b'{"a":' * 125 + b"1" + b"}" * 125 + b"}]}",
    "deep meta": b'{"records":[{"data":1,"meta":' + b"[" * 125 + b"]" * 125 + b"}]}",
    "lone high surrogate": b'{"records":[{"data":"\\ud83d"}]}',
    "lone low surrogate": b'{"records":[{"data":"\\ude00"}]}',
    "surrogates the wrong way": b'{"records":[{"data":"\\ude00\\ud83d"}]}',
    "lone surrogate in a key of a payload": b'{"records":[{"data":{"\\ud800":1}}]}',
    "lone surrogate in an ignored field": b'{"records":[{"data":1}],"x":"\\ud800"}',
    "lone surrogate in a field name": b'{"records":[{"data":1}],"\\ud800":1}',
    "surrogate as UTF-8": b'{"records":[{"data":"\xed\xa0\x80"}]}',
    "overlong UTF-8": b'{"records":[{"data":"\xc0\xaf"}]}',
    "UTF-8 beyond the last character": b'{"records":[{"data":"\xf4\x90\x80\x80"}]}',
    "half a character": b'{"records":[{"data":"\xe2\x82"}]}',
    "NUL inside": b'{"records":[{"data":"\x00"}]}',
    "NUL behind": b'{"records":[{"data":1}]}\x00',
    "NUL between": b'{"records":\x00[{"data":1}]}',
    "escape of nothing": b'{"records":[{"data":"\\x41"}]}',
    "short escape": b'{"records":[{"data":"\\u12"}]}',
    "number that ends early": b'{"records":[{"data":1.}]}',
    "exponent that ends early": b'{"records":[{"data":1e}]}',
    "minus alone": b'{"records":[{"data":-}]}',
    "hexadecimal": b'{"records":[{"data":0x10}]}',
    "vertical tab": b'{"records":\x0b[{"data":1}]}',
    "no-break space": b'{"records":\xc2\xa0[{"data":1}]}',
    "literal cut off": b'{"records":[{"data":tru}]}',
    "literal in capitals": b'{"records":[{"data":TRUE}]}',
    "missing colon": b'{"records"[{"data":1}]}',
    "missing comma": b'{"records":[{"data":1}{"data":2}]}',
    "record without data": b'{"records":[{"tag":"x"}]}',
    "no records": b'{"records":[]}',
    "data in both records twice": b'{"records":[{"data":1},{"data":2,"data":3}]}',
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_body_that_is_not_good_json_appends_nothing(target: Target, body: bytes) -> None:
    assert target.api.call("POST", TOPIC, body, JSON).problem == (400, "invalid_request")


@pytest.mark.parametrize("path", ["/diff", "/delete", "/retention/plan", ""])
def test_bodies_of_other_calls_are_judged_the_same(target: Target, path: str) -> None:
    for name, body in NOT_JSON.items():
        if body and not name.startswith(("payload", "deep", "data", "record", "no records", "brackets in")):
            method = "PATCH" if not path else "POST"
            assert target.api.call(method, TOPIC + path, body, JSON).problem == (400, "invalid_request"), name


def test_depth_inside_ignored_fields_does_not_count(target: Target) -> None:
    deep = b"[" * 500 + b"]" * 500
    assert target.api.call("POST", f"{TOPIC}/diff", b'{"ignored":' + deep + b"}", JSON).status == 200


def test_numbers_of_thousands_of_digits_come_back_as_sent(target: Target) -> None:
    """In every form of body, whichever way it is read."""
    forms = {
        "usual": (b'{"records":[{"data":%b}]}', JSON),
        "default node": (b'{"records":[{"data":%b}],"node":"n"}', JSON),
        "with a config": (b'{"records":[{"data":%b}],"node":"n","config":{}}', JSON),
        "escaped name": (b'{"records":[{"data":%b,"t\\u0061g":"x"}]}', JSON),
        "line": (b'{"data":%b}', LINES),
        "line with an escaped name": (b'{"data":%b,"t\\u0061g":"x"}', LINES),
    }
    for form, (body, kind) in forms.items():
        for number in (MANY_DIGITS, b"-0." + MANY_DIGITS, b"1e" + MANY_DIGITS):
            assert target.api.call("POST", "/v0/topics/digits", body % number, kind).status in (200, 201), form
            shown = target.api.call("GET", "/v0/topics/digits/records").body
            assert b'"data":' + number in shown, form
            target.api.call("DELETE", "/v0/topics/digits")


# -- names, queries, headers -------------------------------------------------------------------------------------------

BAD_NAMES = [
    "%00", "a%00", "%20", "a%20b", "%2F", "..%2F..%2Fetc", "%2e%2e%2fmeta", ".", "-a", "_a", "%7Bx%7D", "a%0d%0ab",
    "a%2Fdiff", "%F0%9F%98%80", "%EF%BB%BFa", "x" * 256, "x" * 20_000, "%78" * 256, "a%", "a%4", "a%zz", "a;b", "a,b",
    "a@b", "a~b",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: name[:20])
def test_ill_formed_name_is_made_by_nothing_and_found_by_nobody(target: Target, name: str) -> None:
    api, path = target.api, f"/v0/topics/{name}"
    assert api.call("PUT", path, {}).problem == (400, "invalid_request")
    assert api.call("POST", path, {"records": [{"data": 1}]}).problem == (400, "invalid_request")
    assert api.call("POST", path, {"records": [{"data": 1}], "create": False}).problem == (404, "topic_not_found")
    for method, call in (("GET", ""), ("POST", "/diff"), ("GET", "/records"), ("GET", "/segments"), ("PATCH", "")):
        body: dict[str, Any] | None = {} if method != "GET" else None
        assert api.call(method, path + call, body).problem == (404, "topic_not_found"), call
    assert api.call("DELETE", path).json["deleted"] is False
    router = f"/v0/routers/{name}"
    assert api.call("PUT", router, {"source": KEPT, "dest": "b"}).problem == (400, "invalid_request")
    assert api.call("GET", router).problem == (404, "router_not_found")


@pytest.mark.parametrize("name", ["%FF", "a%C3", "%ED%A0%80", "%C0%AF", "%80"])
def test_name_that_is_not_utf8_is_400_in_plain_text(target: Target, name: str) -> None:
    for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/diff"), ("GET", "/records")):
        reply = target.api.call(method, f"/v0/topics/{name}{path}")
        assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (400, "text/plain")


@pytest.mark.parametrize(
    "path",
    [
        "/v0//topics", "//v0/topics", "/v0/topics/kept/../kept", "/v0/./topics", "/V0/topics", "/v0/topics%2Fkept",
        "/%76%30/topics", "/v0/topics/kept/", "/v0/topics/kept/records/", "/v0/topics/kept;a=b/records/x",
        "/v0/topics/kept/%64iff/x", "/v0/..", "/%00",
    ],
)  # fmt: skip
def test_path_that_only_looks_like_ours_is_not_found(target: Target, path: str) -> None:
    assert target.api.call("GET", path).problem == (404, "not_found")


NUMBERS = [MANY_DIGITS.decode(), "-1", "18446744073709551616", "1e3", "0x1", "%D9%A3", "%00", "+1", "", "1_0", "%201"]


def test_query_numbers_that_cannot_be_read_are_the_default(target: Target) -> None:
    api = target.api
    usual = {path: api.call("GET", TOPIC + path).json["records"] for path in ("/records", "/tags?match=red")}
    for number in NUMBERS:
        for name in ("from_seq", "to_seq", "from_ts", "to_ts", "limit", "epoch"):
            assert api.call("GET", f"{TOPIC}/records?{name}={number}").json["records"] == usual["/records"], (
                name,
                number,
            )
        for name in ("from_seq", "limit"):
            path = "/tags?match=red"
            assert api.call("GET", f"{TOPIC}{path}&{name}={number}").json["records"] == usual[path]
        assert api.call("GET", f"/v0/topics?page_size={number}").status == 200
        assert api.call("GET", f"{TOPIC}/segments?from_seq={number}&to_seq={number}").status == 200
        assert api.call("GET", f"{TOPIC}/at?ts={number}").problem == (400, "invalid_request")


LARGE = ["18446744073709551615", "9223372036854775808", "9223372036854775807", "4294967296"]


@pytest.mark.parametrize("number", LARGE)
def test_largest_numbers_are_taken_everywhere(target: Target, number: str) -> None:
    api = target.api
    for name in ("from_seq", "to_seq", "from_ts", "to_ts", "limit"):
        for kind in ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
            assert api.call("GET", f"{TOPIC}/records?{name}={number}", headers={"accept": kind}).status == 200
    assert api.call("GET", f"{TOPIC}/at?ts={number}").json["seq"] == (1 if int(number) < 1 << 40 else 4)
    for field in ("from_seq", "max_batch_bytes", "epoch"):
        assert api.call("POST", f"{TOPIC}/diff", b'{"%b":%b}' % (field.encode(), number.encode()), JSON).status == 200
    assert api.call("POST", "/v0/heads", {"topics": {KEPT: int(number)}}).status == 200
    plan = {"cap_records": int(number), "cap_bytes": int(number), "ttl_ms": int(number)}
    assert api.call("POST", f"{TOPIC}/retention/plan", plan).json["would_remove"]["records"] == 0
    fields = (
        "ttl_ms",
        "cap_records",
        "cap_bytes",
        "idempotency_window_ms",
        "lease_ms",
        "claim_jitter_ms",
        "max_deliveries",
    )
    assert api.call("PUT", "/v0/topics/large", {field: int(number) for field in fields}).status == 201
    for _ in range(2):
        assert api.append("large", 1, idempotency_key="once").json["first_seq"] == 1
    assert api.seqs("large") == [1]
    assert api.call("DELETE", "/v0/topics/large").status == 200


@pytest.mark.parametrize(
    "cursor", ["%FF", "!!!!", "e", "bm8", "eyJh", "W1tb" * 5000, "eyJhZnRlciI6Ilx1ZDgwMCJ9", "%00"]
)
def test_cursor_that_cannot_be_read_is_a_bad_request(target: Target, cursor: str) -> None:
    for path in ("/v0/topics", "/v0/routers"):
        assert target.api.call("GET", f"{path}?cursor={cursor}").problem == (400, "invalid_request")


def test_odd_queries_are_read_without_harm(target: Target) -> None:
    for query in (
        "&" * 5000,
        "%",
        "%%%=%",
        "=",
        "=&=",
        "a" * 50_000,
        "&".join(f"n{i}=1" for i in range(5000)),
        "limit",
        "%00=%00",
    ):
        assert target.api.call("GET", f"{TOPIC}/records?{query}").status == 200


def test_odd_headers_are_read_without_harm(target: Target) -> None:
    digits = "9" * 5000
    odd = {
        "accept-encoding": ["gzip;q=nan", "gzip;q=", f"gzip;q={digits}", "*;q=-1", ";;;,,,", "gzip," * 2000, "\x80"],
        "accept": ["", "*/*;q=x", "application/json;q=" + digits, "," * 5000, "\xff"],
        "range": [f"bytes=0-{digits}", "bytes=--", "bytes=5-1", "bytes=0-0,1-1", "items=0-1", "bytes=", "\xff"],
        "if-match": ["", ",,,", "*", '"' * 5000],
        "content-type": ["", "application/jsonx" * 500, "\xff"],
        "authorization": ["", "Bearer", "Bearer ", "Bearer " + digits, "Basic \xff", "bearer x"],
        "idempotency-key": ["", "\xff", "x" * 256],
        "expect": ["100-continue"],
        "upgrade": ["h2c", "websocket", "\xff"],
    }
    for name, values in odd.items():
        for value in values:
            for path in (f"{TOPIC}/records", f"{TOPIC}/segments/1/data", "/v0/metrics", "/v0/topics"):
                assert target.api.call("GET", path, headers={name: value}).status < 500, (name, value[:40], path)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "", "[", "user@127.0.0.1", "127.0.0.1,x"]
)
def test_foreign_host_is_refused(target: Target, host: str) -> None:
    reply = target.api.call("POST", TOPIC, {"records": [{"data": 1}]}, {"host": host})
    assert reply.problem == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "file://localhost", "http://localhost@evil.example", "http://["]
)
def test_foreign_origin_is_refused(target: Target, origin: str) -> None:
    reply = target.api.call("POST", TOPIC, {"records": [{"data": 1}]}, {"origin": origin})
    assert reply.problem == (403, "host_not_allowed")
