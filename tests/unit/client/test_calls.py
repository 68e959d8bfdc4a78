"""Requests as they are built, without sending them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from topics.client import calls, history, queues, staged
from topics.client.answers import decode
from topics.client.groupcalls import GroupCalls
from topics.client.transport import Answer
from topics.model.errors import BadAnswer, InvalidRequest


def appended(records: list[Any], **options: Any) -> Any:
    plain: dict[str, Any] = {
        "node": None, "idempotency_key": None, "create": None, "config": None, "return_seqs": False,
        "disable_backpressure": None,
    }  # fmt: skip
    call = calls.append("a", records, **{**plain, **options})
    assert call.request.body is not None
    return call, json.loads(call.request.body)


class Reading(msgspec.Struct, omit_defaults=True):
    data: dict[str, int]
    tag: str | None = None


def test_names_stay_as_they_are_where_a_path_allows_it() -> None:
    assert calls.path("topics", "a.B_c:d-9") == "/v0/topics/a.B_c:d-9"
    assert calls.path("routers", "a->b") == "/v0/routers/a-%3Eb"
    assert calls.path("topics", "a/b?c") == "/v0/topics/a%2Fb%3Fc"


def test_query_holds_only_what_was_given() -> None:
    assert calls.query(a=None) == ""
    assert calls.query(a=0, b=False, c=True, d="x y&z", e=None) == "?a=0&b=false&c=true&d=x%20y%26z"


def test_options_left_out_are_not_sent() -> None:
    call, body = appended([{"data": 1}])
    assert body == {"records": [{"data": 1}]}
    assert not call.safe


def test_append_with_a_key_is_safe_to_repeat() -> None:
    call, body = appended([{"data": 1}], idempotency_key="k", create=False, config={"ttl_ms": 5})
    assert call.safe
    assert body["config"] == {"ttl_ms": 5}
    assert body["create"] is False


def test_a_redrive_is_not_repeated_because_it_would_move_more_than_was_asked_for() -> None:
    assert not queues.redrive("dead", None, 10, 0, dry_run=False).safe
    assert queues.redrive("dead", None, 10, 0, dry_run=True).safe


def test_a_seek_is_not_repeated_because_the_group_went_on_since() -> None:
    group = GroupCalls("t", "g")
    assert not group.seek("latest", force=False, dry_run=False).safe
    assert group.seek("latest", force=False, dry_run=True).safe


def test_json_text_is_sent_as_it_is_spelled() -> None:
    call, _ = appended([{"data": b'{"n":1.10,"n":1E2}', "meta": b"[ ]"}])
    assert b'{"data":{"n":1.10,"n":1E2},"meta":[ ]}' in call.request.body


def test_typed_values_are_records_too() -> None:
    _, body = appended([Reading({"x": 1}, "t"), Reading({})])
    assert body["records"] == [{"data": {"x": 1}, "tag": "t"}, {"data": {}}]


@pytest.mark.parametrize("record", [{}, {"tag": "t"}, {"data": object()}, {"data": {1, object()}}])
def test_record_that_cannot_be_sent_is_refused_here(record: Any) -> None:
    with pytest.raises(InvalidRequest):
        appended([record])


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}])
def test_a_number_that_json_cannot_say_is_refused_here_and_not_sent_as_null(value: Any) -> None:
    for record in ({"data": value}, {"data": 1, "meta": value}):
        with pytest.raises(InvalidRequest, match="NaN or an infinity"):
            appended([record])
        with pytest.raises(InvalidRequest, match="NaN or an infinity"):
            staged.put("a", "t", "p", [record], None, None)
    assert appended([{"data": None}, {"data": b"null"}])[1]["records"] == [{"data": None}] * 2


@pytest.mark.parametrize("records", [{"data": 1}, "data", b"data"])
def test_one_record_that_is_in_no_list_is_named(records: Any) -> None:
    with pytest.raises(InvalidRequest, match="give a list"):
        appended(records)


def test_a_misspelt_field_is_named_and_not_sent_to_be_ignored() -> None:
    group = GroupCalls("a", "g")
    misspelt: list[tuple[str, Callable[[], object]]] = [
        ("tagg", lambda: appended([{"data": 1, "tagg": "x"}])),
        ("tagg", lambda: staged.put("a", "t", "p", [{"data": 1, "tagg": "x"}], None, None)),
        ("durabilty", lambda: calls.create("a", {"durabilty": "fsync"})),
        ("cap_record", lambda: calls.configure("a", {"cap_record": 5})),
        ("ttl", lambda: appended([{"data": 1}], config={"ttl": 5})),
        ("filters", lambda: calls.create_router("r", "a", "b", {"filters": "x"})),
        ("visibility", lambda: group.create({"visibility": 5})),
        ("limit", lambda: group.fetch("m", 0, {"limit": 5})),
        ("most", lambda: group.claim("m", 0, {"most": 5})),
        ("token", lambda: group.ack("m", [1], [], {"token": 5})),
        ("delay", lambda: group.nack("m", [1], {"delay": 5})),
        ("why", lambda: group.reject("m", [1], {"why": "x"})),
        ("lease_ms", lambda: group.extend("m", [1], 5, {"lease_ms": 5})),
        ("park", lambda: group.pending({"park": True})),
    ]
    for name, call in misspelt:
        with pytest.raises(InvalidRequest, match=f"'{name}'.*known: "):
            call()


def test_generated_keys_differ_and_given_ones_stay() -> None:
    assert calls.auto_key("k", True) == calls.auto_key("k", False) == "k"
    assert calls.auto_key(None, False) is None
    fresh = {calls.auto_key(None, True) for _ in range(100)}
    assert len(fresh) == 100


def test_heads_are_asked_by_names_or_by_pattern() -> None:
    for topics, pattern in (({}, "x"), (None, None)):
        with pytest.raises(InvalidRequest, match="either"):
            calls.heads(topics, pattern, 0)
    assert calls.heads(None, "orders.*", 99_000).extra_s == 30


def test_history_is_asked_for_with_everything_unless_told_otherwise() -> None:
    assert history.page("a").request.target == "/v0/topics/a/records?include=tags%2Cmeta%2Ckeys%2Cdata"
    assert history.page("a", include=[], to_ts=5).request.target == "/v0/topics/a/records?to_ts=5&include="


def test_unknown_history_option_is_named() -> None:
    with pytest.raises(InvalidRequest, match="form_seq"):
        history.page("a", form_seq=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (5, 5), (None, 0), (5, 2)])
def test_empty_byte_range_is_refused(start: int | None, end: int | None) -> None:
    with pytest.raises(InvalidRequest, match="range"):
        history.segment_part("a", 1, "data", start=start, end=end, if_match=None)


@pytest.mark.parametrize(
    ("start", "end", "header"), [(None, None, None), (0, 1, "bytes=0-0"), (7, None, "bytes=7-"), (None, 4, "bytes=0-3")]
)
def test_byte_range_is_half_open_here_and_inclusive_there(
    start: int | None, end: int | None, header: str | None
) -> None:
    call = history.segment_part("a", 1, "idx", start=start, end=end, if_match=None)
    assert call.request.headers.get("range") == header


@pytest.mark.parametrize("told", ["", "bytes */9", "bytes 1-3/9", "bytes 0-2/9"])
def test_partial_answer_must_be_the_part_that_was_asked_for(told: str) -> None:
    call = history.segment_part("a", 1, "idx", start=0, end=4, if_match=None)
    with pytest.raises(BadAnswer):
        call.read(Answer(206, {"content-range": told}, b"abc"))


def test_range_beyond_the_file_ends_with_it() -> None:
    call = history.segment_part("a", 1, "idx", start=7, end=99, if_match=None)
    assert call.read(Answer(206, {"content-range": "bytes 7-8/9"}, b"hi")).size == 9


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"status":1}', b"\xff"])
def test_answer_of_another_shape_is_a_bad_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer, match="Health"):
        calls.health().read(Answer(200, {}, body))


def test_fields_of_a_newer_server_are_ignored() -> None:
    body = b'{"topic":"a","deleted":true,"routers_removed":[],"news":{"x":[1]}}'
    assert calls.drop("a", None).read(Answer(200, {}, body)).deleted


def test_what_another_server_does_not_say_of_a_place_in_time_is_left_out() -> None:
    at = history.at("t", 5)
    assert at.read(Answer(200, {}, b'{"seq":7,"ts":6}')).seq == 7
    assert at.read(Answer(200, {}, b'{"seq":8}')).ts is None


def test_record_without_seq_is_a_bad_answer() -> None:
    with pytest.raises(BadAnswer, match=r"\$seq"):
        history.page("a").read(Answer(200, {}, b'{"records":[{"data":1}]}'))
    assert decode(Answer(200, {}, b"[1]"), list[int]) == [1]


def test_page_holds_gaps_among_its_records() -> None:
    body = (
        b'{"records":[{"$seq":1,"$ts":2,"$key":"k","data":1},{"tombstone":{"gap_from":2,"gap_to":3,"reason":"new"}}]}'
    )
    record, gap = history.page("a").read(Answer(200, {}, body)).items
    assert getattr(record, "key", None) == "k"
    assert getattr(gap, "reason", None) == "new"
